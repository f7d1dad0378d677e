"""The Judge: folds each event into the Ledger, runs the oracles and asks the invariants.

It drives nothing, so whoever has events can have them judged: the executor, a replay, a recorder
beside a live engine.

Findings with a known signature are noted and not returned, nor are their consequences
(``oracles.taint``), so that a trace goes on and shows what is not known. A known crash ends it all
the same, and so does a state that our own oracles cannot follow after a known fault: it is cut
short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from attrs import define, field

from schedcheck.invariants.registry import Invariant, every_invariant
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import (
    AnyEvent,
    Completed,
    Crashed,
    Hung,
    Malformed,
    Repeated,
    Scheduled,
    Transfer,
    TransferEnded,
)
from schedcheck.model.verdict import Finding, Signature
from schedcheck.oracles.answers import believe
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life, OpenLoad
from schedcheck.oracles.shadow import ShadowMemory
from schedcheck.oracles.taint import Taint
from schedcheck.oracles.worker import SimulatedWorker


@define
class Judge:
    """Judges one trace, event by event."""

    config: SchedulerConfig
    capabilities: frozenset[Capability]
    invariants: Sequence[Invariant] = field(factory=every_invariant)
    """Those to check; the ones whose capabilities are missing are left out."""
    known: AbstractSet[Signature] = frozenset()
    """What is known to be wrong with the target, and does not end a trace."""
    simulates: bool = True
    """Whether workers and KV memory are simulated, which a trace without token values gives no
    ground for: the invariants that look at them must then be left out."""
    ledger: Ledger = field(init=False)
    worker: SimulatedWorker = field(init=False)
    memory: ShadowMemory = field(init=False)
    witnessed: set[str] = field(init=False, factory=set)
    """Invariants that this trace really put to the test."""
    unknown: dict[str, str] = field(init=False, factory=dict)
    """Invariants whose checker failed, and how: nothing can be said about them."""
    known_seen: set[Signature] = field(init=False, factory=set)
    """The known signatures that this trace showed."""
    dropped: set[Signature] = field(init=False, factory=set)
    """What it showed as a consequence of these."""
    is_cut_short: bool = field(init=False, default=False)
    """It cannot go on: a known crash, or a state after a known fault that cannot be followed."""
    taint: Taint = field(init=False)
    _by_event: dict[type, list[Invariant]] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.ledger = Ledger(self.config)
        self.worker = SimulatedWorker(self.ledger)
        self.memory = ShadowMemory(self.ledger, self.worker)
        self.taint = Taint(self.ledger, self.worker)
        for invariant in self.applicable():
            for kind in invariant.on:
                self._by_event.setdefault(kind, []).append(invariant)

    def applicable(self) -> Iterable[Invariant]:
        """Return the chosen invariants that this target can be asked about."""
        return [one for one in self.invariants if one.requires <= self.capabilities]

    def observe(self, event: AnyEvent, *, step: int) -> tuple[Finding, ...]:
        """Take in one event of action number ``step`` and return what is wrong with it.

        What is known to be wrong, and what follows from that, is noted instead.
        """
        if not isinstance(event, Crashed | Hung | Malformed | Repeated):
            try:
                self._fold(event)
            except Exception:
                if not self.taint:
                    raise
                self.is_cut_short = True
                return ()
        findings = self._ask(event, step)
        return self._without_known(event, findings) if self.known else tuple(findings)

    def _ask(self, event: AnyEvent, step: int) -> list[Finding]:
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
                if self.taint:
                    self.is_cut_short = True
                    break
                self._give_up(one, failure)
        return findings

    def _without_known(self, event: AnyEvent, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Note the known findings, then which of the others follow from known ones."""
        if self.taint:
            self.taint.follow()
        known = [finding for finding in findings if finding.signature in self.known]
        # One that follows from another is not seen in its own right: a long run would miss nothing.
        seen = [finding for finding in known if not (self.taint and self.taint.reaches(finding))]
        for finding in seen:
            self.known_seen.add(finding.signature)
            self.taint.spread(finding)
        if known and isinstance(event, Crashed | Hung | Malformed):
            self.is_cut_short = True
        news: list[Finding] = []
        for finding in findings:
            if finding in seen:
                continue
            if finding in known or (self.taint and self.taint.reaches(finding)):
                self.dropped.add(finding.signature)
                self.taint.spread(finding)
            else:
                news.append(finding)
        return tuple(news)

    def go_on(self, lives: Iterable[Life], steps: Iterable[Scheduled], snapshot: Snapshot) -> None:
        """Begin in the middle: with requests as they are there, and steps in flight."""
        self.ledger.go_on(lives, steps, snapshot)

    def forget(self, name: str) -> None:
        """Forget a request that ended, so that a trace may go on for ever."""
        self.ledger.forget(name)
        self.worker.forget(name)

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
        if not self.simulates:
            return
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
