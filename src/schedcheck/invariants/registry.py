"""What an invariant is, and the list of all of them.

A checker is a function ``check(event, before, ledger)`` that yields a Mismatch for each way in
which the event breaks its invariant: ``before`` is the snapshot that the event replaced, the
ledger is after the fold. It looks only at the kinds of event named in ``on``: asking every
invariant about every event costs four times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from attrs import frozen

from schedcheck.model.capability import Capability
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import Event
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger

# The event's type is the union of the classes in ``on``; each checker narrows it in its signature.
Check = Callable[[Any, Snapshot, Ledger], Iterator[Mismatch]]
Witness = Callable[[Any, Snapshot, Ledger], bool]


class UnknownInvariant(ValueError):
    """A pattern matches no invariant."""


@frozen(kw_only=True)
class Invariant:
    """A named safety property, checked on every event of the kinds it looks at."""

    id: str
    title: str
    """The statement in one sentence."""
    severity: Severity
    on: tuple[type[Event], ...]
    check: Check
    witness: Witness
    """Whether an event really put the invariant to the test; without one it is VACUOUS."""
    witnessed_by: str
    """What the witness looks for, in words: ``a preempted request is scheduled again``."""
    requires: frozenset[Capability]
    evidence: tuple[str, ...]
    """Where real engines broke it."""

    @property
    def family(self) -> str:
        """The letters before the number: REQ, SCH, KV, TOK, XFER, CACHE, PRG, DET or ENG."""
        return self.id.partition("-")[0]


_REGISTRY: Final[dict[str, Invariant]] = {}


def invariant(
    id: str,  # noqa: A002  it is called an id everywhere a user meets it
    title: str,
    *,
    severity: Severity,
    on: tuple[type[Event], ...],
    witness: Witness,
    witnessed_by: str,
    requires: Iterable[Capability] = (),
    evidence: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Register the decorated checker. Raises ValueError for an id that is taken."""

    def register(check: Check) -> Check:
        if id in _REGISTRY:
            raise ValueError(f"{id} is taken by {_REGISTRY[id].title!r}; ids are never reused")
        _REGISTRY[id] = Invariant(
            id=id,
            title=title,
            severity=severity,
            on=on,
            check=check,
            witness=witness,
            witnessed_by=witnessed_by,
            requires=frozenset(requires),
            evidence=evidence,
        )
        return check

    return register


def every_invariant() -> tuple[Invariant, ...]:
    """Return all invariants, sorted by family and number."""
    from schedcheck.invariants import load_families  # noqa: PLC0415  the families import this module

    load_families()
    return tuple(_REGISTRY[id_] for id_ in sorted(_REGISTRY))


def get(id_: str) -> Invariant:
    """Return one invariant. Raises UnknownInvariant for an id that does not exist."""
    for candidate in every_invariant():
        if candidate.id == id_:
            return candidate
    raise UnknownInvariant(f"no invariant {id_!r}; schedcheck list invariants shows them all")


def select(patterns: str) -> tuple[Invariant, ...]:
    """Return the invariants that comma-separated patterns choose: ``KV-*,!KV-003``.

    A pattern with ``!`` takes away; if the first one does, it takes away from all. Raises
    UnknownInvariant when a pattern matches none.
    """
    everything = every_invariant()
    parts = [part.strip() for part in patterns.split(",") if part.strip()]
    chosen = {one.id for one in everything} if not parts or parts[0].startswith("!") else set()
    for part in parts:
        matching = {one.id for one in everything if fnmatchcase(one.id, part.lstrip("!"))}
        if not matching:
            raise UnknownInvariant(
                f"no invariant matches {part!r}; schedcheck list invariants shows them all"
            )
        chosen = chosen - matching if part.startswith("!") else chosen | matching
    return tuple(one for one in everything if one.id in chosen)
