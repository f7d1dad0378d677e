"""One thing that was looked at, and what came of it."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen


class State(StrEnum):
    """What came of a check."""

    OK = "ok"
    CHANGED = "changed"
    """It is there, but not as it was expected."""
    MISSING = "missing"
    """It is not there, or was never seen."""


@frozen(kw_only=True)
class Check:
    """One line of an examination."""

    what: str
    state: State
    detail: str
    """What was seen."""
    fix: str = ""
    """What to do about it; empty if it is ok."""


def ok(what: str, detail: str) -> Check:
    """Return a check that found what it expected."""
    return Check(what=what, state=State.OK, detail=detail)
