"""What judging a trace can say."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen


class Verdict(StrEnum):
    """What one run says about one invariant."""

    HOLDS = "HOLDS"
    VIOLATED = "VIOLATED"
    KNOWN = "KNOWN"
    """It was violated, but only as the known-issue ledger says, or as a consequence of that."""
    VACUOUS = "VACUOUS"
    """It held, but its witness never fired: nothing put it to the test."""
    NOT_APPLICABLE = "NOT_APPLICABLE"
    """The target lacks a capability that it requires."""
    UNKNOWN = "UNKNOWN"
    """Its checker failed, so nothing can be said."""


class Severity(StrEnum):
    """What a violation means for the people who run the engine."""

    CRITICAL = "critical"
    """Wrong output, corrupted KV, a crash or a stall."""
    MAJOR = "major"
    """A leak, or a broken promise that other components rely on."""
    MINOR = "minor"
    """Wasted work, wrong counters or order."""


@frozen(kw_only=True)
class Mismatch:
    """One way in which one step broke an invariant."""

    kind: str
    """Which way, in a word or two with dashes: part of the signature."""
    subject: str
    """What it is about: a request name, ``block 3``, ``step 4``."""
    expected: str
    found: str


@frozen(order=True)
class Signature:
    """What makes two violations the same: the invariant, the kind, and for crashes where."""

    invariant: str
    kind: str

    def __str__(self) -> str:
        return f"{self.invariant}/{self.kind}"

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Read ``REQ-001/new-after-preemption``. Raises ValueError without a slash."""
        invariant, slash, kind = text.partition("/")
        if not (invariant and slash and kind):
            raise ValueError(f"{text!r} is no signature; one looks like REQ-001/kind-of-mismatch")
        return cls(invariant, kind)


@frozen(kw_only=True)
class Finding:
    """One mismatch, where it was found."""

    invariant: str
    mismatch: Mismatch
    step: int
    """Number of the action in the trace, from 1."""

    @property
    def signature(self) -> Signature:
        """What it has in common with other findings of the same fault."""
        return Signature(self.invariant, self.mismatch.kind)
