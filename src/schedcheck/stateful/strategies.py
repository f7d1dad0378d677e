"""The two things that Hypothesis draws: a seed for a trace's load, and one integer an action.

Bytes, not ``integers()``: Hypothesis prefers small integers, and an action made from a small one
is a plain one (requests of one token), while fixed-size bytes are uniform. They still shrink,
towards small integers and plain actions.
"""

from __future__ import annotations

from hypothesis import strategies as st

from schedcheck.engine.moves import INTEGER_BITS


def numbers(bits: int = INTEGER_BITS) -> st.SearchStrategy[int]:
    """Draw the integer that ``engine.moves`` makes an action from. ``bits`` is a multiple of 8."""
    return st.binary(min_size=bits // 8, max_size=bits // 8).map(_as_number)


def seeds() -> st.SearchStrategy[int]:
    """Draw what decides a trace's configuration and load."""
    return numbers(32)


def _as_number(drawn: bytes) -> int:
    return int.from_bytes(drawn, "big")
