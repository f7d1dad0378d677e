"""What an event meant, in the light of what was before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import Factory, define, frozen

from schedcheck.model.output import Load, Role, Row, SchedulerOutput
from schedcheck.model.snapshot import Status
from schedcheck.oracles.life import Life

ROLE_WORDS: Final[Mapping[Role, str]] = {
    Role.NEW: "new",
    Role.RESUMED: "resumed",
    Role.RUNNING: "running",
    Role.UNKNOWN: "scheduled",
}


@frozen
class Problem:
    """Something that the simulated worker or the shadow memory found impossible or wrong."""

    kind: str
    name: str
    expected: str
    found: str


@frozen
class RowFact:
    """What one scheduled row meant when it was scheduled."""

    row: Row
    life: Life
    known: bool
    """The workers knew the request and had not been told to forget it."""
    times_sent: int
    """How often it had been sent as new or resumed before."""
    preempted: bool
    """It had been preempted since it was last scheduled, or before it ever was."""
    told_to_forget: bool
    path: tuple[Status, ...]
    """The statuses it was seen in since it was last scheduled, the last one first seen last."""
    continued: bool
    """Its session went on since it was last scheduled."""
    proposed: tuple[int, ...]
    """Drafts proposed for it that no step had verified."""
    blocked_by: str
    """What it had to wait for: ``grammar``, ``lookup``, ``chunk``; empty: nothing."""
    loading: bool
    """An asynchronous load of it was open: physically, or not yet reported."""
    finished: bool

    @property
    def journey(self) -> str:
        """The path in words: ``PREEMPTED -> WAITING_FOR_REMOTE_KVS -> resumed``."""
        return " -> ".join([*(status.value for status in self.path), ROLE_WORDS[self.row.role]])


@frozen
class LoadFact:
    """What a load meant when it began."""

    load: Load
    life: Life
    loading: bool
    """Another load of the same request was open."""
    has_loaded: bool
    """One had ended well since the request was last preempted or continued."""
    finished: bool
    blocked_by: str
    """As in a RowFact."""


@define
class InFlight:
    """A step that was planned and not executed yet."""

    output: SchedulerOutput
    ahead: int = 0
    """How many steps were in flight when it was planned."""
    hits: dict[str, tuple[int, int]] = Factory(dict)
    """For each row sent in full: tokens it hit, and how often the cache had been reset before."""
    preemptions: dict[str, int] = Factory(dict)
    """How often each request of the step had been preempted when it was planned."""
    turns: dict[str, int] = Factory(dict)
    """In which turn of its session each request of the step was when it was planned."""
    bad_blocks: dict[str, int] = Factory(dict)
    """Synchronous loads of this step that are going to fail, and from which block on."""
    tables: dict[str, frozenset[int]] = Factory(dict)
    """The blocks of each row, where the step loads some synchronously."""
    spoiled: set[int] = Factory(set)
    """Blocks that these loads are going to leave empty: whoever shares one fails with them."""
    after_failure: set[str] = Factory(set)
    """Requests whose load in an earlier step failed, which was not known when this one was
    planned: their rows compute nonsense."""

    def computes_nonsense(self, name: str) -> bool:
        """Return whether a row of it reads KV that a failed load left out."""
        if name in self.bad_blocks or name in self.after_failure:
            return True
        return not self.spoiled.isdisjoint(self.tables.get(name, ()))
