"""The invariants, one module a family; ``registry`` says what an invariant is."""

from __future__ import annotations

from importlib import import_module
from typing import Final

FAMILIES: Final = ("req", "sch", "kv", "tok", "xfer", "cache", "prg", "det", "eng")
"""The modules that hold them."""


def load_families() -> None:
    """Import every family, so that each of its invariants is registered."""
    for family in FAMILIES:
        import_module(f"schedcheck.invariants.{family}")
