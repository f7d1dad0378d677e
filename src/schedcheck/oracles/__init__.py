"""The oracles: what really happened, what the workers could do, what the KV memory holds."""
