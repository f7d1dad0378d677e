"""Frozen values without behaviour of their own: what everything else speaks in."""
