"""The Judge: folds each event into the Ledger, runs the oracles and asks the invariants.

It drives nothing, so whoever has events can have them judged: the executor, a replay, a recorder
beside a live engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field

from schedcheck.invariants.registry import Invariant, every_invariant
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.trace import (
    AnyEvent,
    Completed,
    Crashed,
    Hung,
    Malformed,
    Repeated,
    Transfer,
    TransferEnded,
)
from schedcheck.model.verdict import Finding
from schedcheck.oracles.answers import believe
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import OpenLoad
from schedcheck.oracles.shadow import ShadowMemory
from schedcheck.oracles.worker import SimulatedWorker


@define
class Judge:
    """Judges one trace, event by event."""

    config: SchedulerConfig
    capabilities: frozenset[Capability]
    invariants: Sequence[Invariant] = field(factory=every_invariant)
    """Those to check; the ones whose capabilities are missing are left out."""
    ledger: Ledger = field(init=False)
    worker: SimulatedWorker = field(init=False)
    memory: ShadowMemory = field(init=False)
    witnessed: set[str] = field(init=False, factory=set)
    """Invariants that this trace really put to the test."""
    unknown: dict[str, str] = field(init=False, factory=dict)
    """Invariants whose checker failed, and how: nothing can be said about them."""
    _by_event: dict[type, list[Invariant]] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.ledger = Ledger(self.config)
        self.worker = SimulatedWorker(self.ledger)
        self.memory = ShadowMemory(self.ledger, self.worker)
        for invariant in self.applicable():
            for kind in invariant.on:
                self._by_event.setdefault(kind, []).append(invariant)

    def applicable(self) -> Iterable[Invariant]:
        """Return the chosen invariants that this target can be asked about."""
        return [one for one in self.invariants if one.requires <= self.capabilities]

    def observe(self, event: AnyEvent, *, step: int) -> tuple[Finding, ...]:
        """Take in one event of action number ``step`` and return what is wrong with it."""
        if not isinstance(event, Crashed | Hung | Malformed | Repeated):
            self._fold(event)
        before, ledger = self.ledger.before, self.ledger
        findings: list[Finding] = []
        for one in self._by_event.get(type(event), ()):
            try:
                for mismatch in one.check(event, before, ledger):
                    findings.append(  # noqa: PERF401  called for every event: no detours
                        Finding(invariant=one.id, mismatch=mismatch, step=step)
                    )
                if one.id not in self.witnessed and one.witness(event, before, ledger):
                    self.witnessed.add(one.id)
            except Exception as failure:  # noqa: BLE001  a checker that fails is no pass
                self._give_up(one, failure)
        return tuple(findings)

    def _give_up(self, invariant: Invariant, failure: Exception) -> None:
        """Ask an invariant whose checker failed no more: it is UNKNOWN."""
        self.unknown[invariant.id] = f"{type(failure).__name__}: {failure}"
        for asked in self._by_event.values():
            if invariant in asked:
                asked.remove(invariant)

    def _fold(self, event: AnyEvent) -> None:
        ledger = self.ledger
        ended = self._load_that_ends(event)
        if Capability.OWN_STORE in self.capabilities:
            believe(event, ledger)
        ledger.fold(event)
        if isinstance(event, Completed) and ledger.executed is not None:
            self.worker.execute(ledger.executed, event.result)
            self.memory.execute(ledger.executed)
            ledger.worker_problems = tuple(self.worker.problems)
            ledger.take_samples(self.worker.sampled)
            ledger.memory_problems = tuple(self.memory.problems)
            return
        ledger.worker_problems = ledger.memory_problems = ()
        ledger.sampled = {}
        if ended is not None:
            self.memory.end_load(ended.load, ended.bad_block)
            ledger.memory_problems = tuple(self.memory.problems)

    def _load_that_ends(self, event: AnyEvent) -> OpenLoad | None:
        if isinstance(event, TransferEnded) and event.transfer is Transfer.LOAD:
            return self.ledger.lives[event.name].load
        return None
