"""The reference: a minimal scheduler, the executable definition that people argue from."""
