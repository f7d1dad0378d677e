"""Taint: what a known fault has spoilt in a trace, so that its consequences are not taken for news.

Rules
-----
- A known finding taints what it is about: the requests or the block that it names, every block that
  these requests hold then or later (as the scheduler sees it, and as the workers do, who may have
  missed a change of it), and what their open transfers own. All that a finding shows
  at the same moment is judged after that: one fault often shows itself in several ways at once.
- A later finding is a consequence when it names something tainted. One about memory (KV, XFER,
  CACHE) is one also when its request holds a tainted block. One about progress or about the pool is
  one when something tainted keeps capacity: a request that has not ended, or a block that is
  neither free nor held by a request in order.
- A consequence taints what it is about as well. Nothing else spreads: a block that was used again
  does not spoil its new request in every respect, or little of a trace would be left to judge.
- A crash names no request, so it is never taken for a consequence: it has to be known itself.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from attrs import Factory, define

from schedcheck.model.verdict import Finding
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.worker import SimulatedWorker

_MEMORY: Final = frozenset({"KV", "XFER", "CACHE"})
_PROGRESS: Final = "PRG"
_POOL: Final = frozenset({"the block pool", "the prefix cache"})
"""What a finding is about that counts the blocks of everybody."""


@define
class Taint:
    """What is spoilt in one trace. Only the Judge makes it grow."""

    ledger: Ledger
    worker: SimulatedWorker
    subjects: set[str] = Factory(set)
    """What known findings and their consequences were about: requests, blocks, steps, the pool."""
    blocks: set[int] = Factory(set)

    def __bool__(self) -> bool:
        return bool(self.subjects)

    def spread(self, finding: Finding) -> None:
        """Taint what a finding is about."""
        self.subjects |= self._named(finding)
        self.blocks |= _blocks_in(self.subjects)
        self.follow()

    def follow(self) -> None:
        """Taint the blocks that tainted requests hold now, or held until now."""
        for name in self.subjects & self.ledger.lives.keys():
            self.blocks |= self._blocks_of(name)

    def reaches(self, finding: Finding) -> bool:
        """Return whether a finding may be nothing but a consequence."""
        named, family = self._named(finding), finding.invariant.partition("-")[0]
        if named & self.subjects or _blocks_in(named) & self.blocks:
            return True
        if family == _PROGRESS or named & _POOL:
            return self._keeps_capacity()
        return family in _MEMORY and any(self._blocks_of(name) & self.blocks for name in named)

    def _named(self, finding: Finding) -> set[str]:
        """Return what a finding is about: requests one by one, anything else as it is called."""
        subject = finding.mismatch.subject
        words = set(subject.split())
        return words if words and words <= self.ledger.lives.keys() else {subject}

    def _blocks_of(self, name: str) -> set[int]:
        """Return the blocks a request holds or has just let go of, and those of its transfers."""
        ledger = self.ledger
        held = set(ledger.snapshot.blocks_of(name) | ledger.before.blocks_of(name))
        life = ledger.lives.get(name)
        if life is not None and life.send is not None:
            held |= life.send.blocks
        if life is not None and life.load is not None:
            held.update(*(life.load.load.block_ids or ()))
        if name in self.worker.requests:
            held.update(*self.worker.requests[name].tables)
        return held

    def _keeps_capacity(self) -> bool:
        snapshot, lives = self.ledger.snapshot, self.ledger.lives
        names = self.subjects & lives.keys()
        if self.subjects & _POOL or any(
            lives[name].is_live or name in snapshot.requests for name in names
        ):
            return True
        in_order: set[int] = set(snapshot.free_block_ids or ())
        for name in snapshot.requests.keys() - names:
            in_order |= snapshot.blocks_of(name)
        return bool(snapshot.free_block_ids is not None and self.blocks - in_order)


def _blocks_in(subjects: AbstractSet[str]) -> set[int]:
    """Return the ids of the blocks among what findings are about."""
    ids = (one.removeprefix("block ") for one in subjects if one.startswith("block "))
    return {int(one) for one in ids if one.isdecimal()}
