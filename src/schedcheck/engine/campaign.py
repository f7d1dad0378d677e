"""The campaign: random traces of a profile, each followed by its quiet tail, failures shrunk.

Rules
-----
- Trace number n of a run depends on the seed and on n alone, so a run is repeated by its seed, and
  one trace of it by the seed and its number.
- The first finding ends a trace, unless it is known (``engine.known``) or follows from what is.
- A signature is shrunk once it was seen in STARTS_MAX traces, or at the end of the run: one random
  failure shrinks to a local minimum, so the smallest of a few is told. Shrinking has a budget
  counted in executions. Further traces with it are counted.
- Time never decides what is found: a run is as long as its profile says, unless it is told to end
  earlier, and then says so.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import Final

from attrs import Factory, define, evolve, field, frozen

from schedcheck import __version__
from schedcheck.engine.coverage import Coverage
from schedcheck.engine.events import (
    Ended,
    Failure,
    Found,
    Progress,
    Shrunk,
    Smaller,
    Started,
)
from schedcheck.engine.executor import BlackBox, Executor
from schedcheck.engine.failures import failure_of
from schedcheck.engine.jobs import Emit
from schedcheck.engine.known import TRACES_EXPECTED, KnownTally, signatures_of
from schedcheck.engine.moves import INTEGER_BITS, decode, drain_for
from schedcheck.engine.play import (
    Playback,
    judged_again,
    looking_past,
    play_actions,
    spelled_out,
)
from schedcheck.engine.profiles import Load, Profile, draw_load
from schedcheck.engine.repeat import FAMILY
from schedcheck.engine.results import result_of
from schedcheck.engine.shrink import Budget, Reduction, reduce, size_of
from schedcheck.invariants.registry import Invariant
from schedcheck.judge import Judge
from schedcheck.model.actions import Action
from schedcheck.model.config import Dialect
from schedcheck.model.known import KnownIssue
from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.model.trace import AnyEvent, Crashed, Header, StepRecord, Trace
from schedcheck.model.verdict import Finding, Signature
from schedcheck.sut import Refused, Target
from schedcheck.tracefile import encode

SIGNATURES_MAX: Final = 12
"""How many different signatures one run shrinks; the others are counted."""
EXECUTIONS_MAX: Final = 2_500
"""Candidate traces that shrinking one failure may try."""
REPEAT_EVERY: Final = 10
"""One trace of so many is played twice, if an invariant asks for it."""
STARTS_MAX: Final = 3
"""Failing traces of one signature that are shrunk: the smallest is told."""
_PROGRESS_EVERY_SECONDS: Final = 0.25


@frozen
class Start:
    """A failing trace to begin shrinking from."""

    trace: Trace
    origin: str = ""
    """Where it came from, in words: profile, seed and number."""


@define(kw_only=True)
class Campaign:
    """One run of a profile on one target."""

    target: Target
    target_text: str
    """As typed, for the trace header."""
    options: Options = NO_OPTIONS
    """What the target was made with, for the same."""
    profile: Profile
    invariants: Sequence[Invariant]
    seed: int
    emit: Emit
    seconds_max: float | None = None
    dialect: Dialect | None = None
    known: Sequence[KnownIssue] = ()
    """What this version of the target is known to show."""
    blackbox: BlackBox | None = None
    executions_max: int = EXECUTIONS_MAX
    """Candidates that shrinking one failure may try; 0: failures are told as they are found."""
    coverage: Coverage = field(init=False, factory=Coverage)
    _witnessed: Counter[str] = field(init=False, factory=Counter)
    _unknown: dict[str, str] = field(init=False, factory=dict)
    _violated: set[str] = field(init=False, factory=set)
    _starts: dict[Signature, list[Start]] = field(init=False, factory=dict)
    """Traces that show each signature, until it was told."""
    _told_of: set[Signature] = field(init=False, factory=set)
    _crashes_ignored: int = field(init=False, default=0)
    _known: KnownTally = field(init=False, factory=KnownTally)
    _began: float = field(init=False, factory=time.monotonic)
    _told: float = field(init=False, default=0.0)

    def run(self) -> None:
        """Run the whole profile. Emits Started first and Ended last, also when interrupted."""
        self.emit(
            Started(
                target=self.target_text,
                version=self.target.version,
                profile=self.profile.name,
                seed=self.seed,
                traces_max=self.profile.traces,
                invariants=len(self.invariants),
                note=str(getattr(self.target, "note", "")),
            )
        )
        stopped = ""
        try:
            for number in range(1, self.profile.traces + 1):
                if self._time_is_up():
                    stopped = f"--max-time {self.seconds_max:g}s"
                    break
                trace, findings = self.play_one(number)
                if findings:
                    self._take(trace, findings, f"trace {number}")
            self._tell_rest(self.executions_max)
        except KeyboardInterrupt:
            self._tell_rest(executions_max=0)
            self._end("interrupted")
            raise
        self._end(stopped)

    @property
    def _asks_for_repetition(self) -> bool:
        return any(one.family == FAMILY for one in self.invariants)

    def _time_is_up(self) -> bool:
        return self.seconds_max is not None and time.monotonic() - self._began > self.seconds_max

    def play_one(self, number: int) -> tuple[Trace, tuple[Finding, ...]]:
        """Play one trace of the run, by its number; return it with what ended it, if anything."""
        rng = Random(f"{self.seed}/{number}")
        load = draw_load(self.target, self.profile, rng, dialect=self.dialect)
        header = Header(
            target=self.target_text,
            version=self.target.version,
            options=self.options,
            config=load.config,
            capabilities=self.target.capabilities,
            seed=f"{self.seed}/{number}",
            schedcheck=__version__,
        )
        repeats = number % REPEAT_EVERY == 1 and self._asks_for_repetition
        actions, findings, judge = self._search(header, load, rng, repeats=repeats)
        self.coverage.traces += 1
        self._witnessed.update(judge.witnessed)
        self._unknown |= judge.unknown
        self._known.take(judge)
        self._tell_progress("searching")
        return Trace(header=header, actions=tuple(actions)), findings

    def _search(
        self, header: Header, load: Load, rng: Random, *, repeats: bool
    ) -> tuple[list[Action], tuple[Finding, ...], Judge]:
        """Play one random trace up to its first finding or through its quiet tail."""
        known = signatures_of(self.known)
        judge = Judge(load.config, self.target.capabilities, self.invariants, known)
        actions: list[Action] = []
        records: list[StepRecord] = []
        crashed = False

        def watch(event: AnyEvent) -> None:
            nonlocal crashed
            crashed = crashed or isinstance(event, Crashed)
            self.coverage.see_event(judge.ledger)

        if self.blackbox is not None:
            self.blackbox.begin(header)
        executor = Executor(self.target.open(load.config), judge, watch)
        try:
            for turn in range(self.profile.actions + 1):
                last = turn == self.profile.actions
                number = rng.getrandbits(INTEGER_BITS)
                action = drain_for(judge.ledger) if last else decode(number, judge.ledger, load)
                actions.append(action)
                if self.blackbox is not None:
                    self.blackbox.note(action)
                record = executor.apply(action)
                if repeats:
                    records.append(record)
                self.coverage.see_step(record)
                if record.findings or crashed or judge.is_cut_short:
                    self._crashes_ignored += crashed and not (record.findings or judge.is_cut_short)
                    return actions, record.findings, judge
        finally:
            executor.close()
            if self.blackbox is not None:
                self.blackbox.end()
        if repeats:
            return actions, judged_again(self.target, header, records, judge).findings, judge
        return actions, (), judge

    def _take(self, trace: Trace, findings: Sequence[Finding], origin: str) -> None:
        """Take note of what a trace showed; report its first signature if it was seen enough."""
        for signature in sorted({finding.signature for finding in findings}):
            self.coverage.signatures[str(signature)] += 1
            self._violated.add(signature.invariant)
        signature = min(finding.signature for finding in findings)
        if signature not in self._starts and len(self._starts) == SIGNATURES_MAX:
            return
        where = f"profile {self.profile.name} · seed {self.seed} · {origin}"
        starts = self._starts.setdefault(signature, [])
        starts.append(Start(trace, where))
        if len(starts) == (STARTS_MAX if self.executions_max else 1):
            self._tell_of(signature, self.executions_max)

    def _tell_rest(self, executions_max: int) -> None:
        """Report the signatures that were seen in few traces, in the order of being found."""
        for signature in self._starts:
            self._tell_of(signature, executions_max)

    def _tell_of(self, signature: Signature, executions_max: int) -> None:
        if signature in self._told_of:
            return
        self._told_of.add(signature)
        shrink_and_report(
            self.target,
            self._starts[signature][:STARTS_MAX],
            signature,
            self.invariants,
            emit=self.emit,
            budget_for=lambda: Budget(executions_max=executions_max),
            blackbox=self.blackbox,
            on_progress=lambda: self._tell_progress(f"shrinking {signature}"),
            known=signatures_of(self.known),
        )

    def _tell_progress(self, doing: str) -> None:
        now = time.monotonic()
        if now - self._told > _PROGRESS_EVERY_SECONDS:
            self._told = now
            self.emit(
                Progress(
                    doing=doing, traces=self.coverage.traces, actions=self.coverage.actions_total
                )
            )

    def _end(self, stopped: str) -> None:
        chosen = {one.id for one in self.invariants}
        issues = [one for one in self.known if one.signature.partition("/")[0] in chosen]
        is_full = self.coverage.traces >= TRACES_EXPECTED and not stopped and self.dialect is None
        self.emit(
            Ended(
                target=self.target_text,
                version=self.target.version,
                profile=self.profile.name,
                seed=self.seed,
                traces=self.coverage.traces,
                actions=self.coverage.actions_total,
                results=tuple(
                    result_of(
                        one,
                        self.target.capabilities,
                        witnessed=self._witnessed[one.id],
                        violated=self._violated,
                        known=self._known.invariants(),
                        unknown=self._unknown,
                    )
                    for one in self.invariants
                ),
                seen=self.coverage.seen(self.target.capabilities),
                known=self._known.told(issues, tested=self._witnessed, is_full=is_full),
                crashes_ignored=self._crashes_ignored,
                stopped_early=stopped,
                seconds=time.monotonic() - self._began,
            )
        )


@define
class _Reproduction:
    """Replays candidates of the reducer and keeps what shows the signature."""

    target: Target
    signature: Signature
    invariants: Sequence[Invariant]
    blackbox: BlackBox | None
    on_progress: Callable[[], None]
    known: AbstractSet[Signature] = frozenset()
    last: dict[Trace, Playback] = Factory(dict)
    """The playback of the trace accepted last."""

    def __call__(self, candidate: Trace) -> Trace | None:
        self.on_progress()
        honoured = self.target.honours(candidate.header.config)
        if isinstance(honoured, Refused) or honoured != candidate.header.config:
            return None
        playback = looking_past(
            self.known,
            self.signature,
            lambda known: play_actions(
                self.target,
                candidate.header,
                candidate.actions,
                self.invariants,
                lenient=True,
                blackbox=self.blackbox,
                repeat=self.signature.invariant.startswith(FAMILY),
                known=known,
            ),
        )
        shown = [finding for finding in playback.findings if finding.signature == self.signature]
        if not shown:
            return None
        trace = evolve(candidate, actions=playback.actions).with_expectation(shown[0])
        self.last = {trace: playback}
        return trace


def shrink_and_report(
    target: Target,
    starts: Sequence[Start],
    signature: Signature,
    invariants: Sequence[Invariant],
    *,
    emit: Emit,
    budget_for: Callable[[], Budget],
    blackbox: BlackBox | None = None,
    on_progress: Callable[[], None] = lambda: None,
    known: AbstractSet[Signature] = frozenset(),
) -> bool:
    """Emit Found for the first of some failing traces, then Shrunk for the smallest made of them.

    Each start has a budget of its own. What is ``known`` is looked past where it must be. Returns
    False, having emitted nothing, if none of them shows the signature again.
    """
    reproduce = _Reproduction(target, signature, invariants, blackbox, on_progress, known)
    told: tuple[Reduction, Failure] | None = None
    executions = 0
    for start in starts:
        first = reproduce(start.trace)
        if first is None:
            continue
        first = reproduce(evolve(first, actions=spelled_out(reproduce.last[first]))) or first
        if told is None:
            emit(Found(failure=_failure(start, first, reproduce, is_minimal=False)))
        size = size_of(told[0].trace) if told is not None else None

        def on_smaller(smaller: Trace, than: tuple[int, int] | None = size) -> None:
            if than is None or size_of(smaller) < than:
                text, actions = encode(smaller).decode(), len(smaller.actions)
                emit(Smaller(signature=str(signature), trace=text, actions=actions))

        reduction = reduce(first, reproduce, budget=budget_for(), on_smaller=on_smaller)
        executions += reduction.executions
        best = reproduce(reduction.trace)
        assert best is not None, "the reducer returned a trace that does not show its signature"
        if size is None or size_of(reduction.trace) < size:
            is_minimal = reduction.is_minimal
            told = reduction, _failure(start, best, reproduce, is_minimal=is_minimal)
    if told is None:
        return False
    emit(Shrunk(failure=told[1], executions=executions, budget_spent=not told[0].is_minimal))
    return True


def _failure(start: Start, trace: Trace, reproduce: _Reproduction, *, is_minimal: bool) -> Failure:
    playback = reproduce.last[trace]
    finding = next(one for one in playback.findings if one.signature == reproduce.signature)
    return failure_of(
        trace,
        playback,
        finding,
        origin=start.origin,
        actions_found=len(start.trace.actions),
        is_minimal=is_minimal,
    )
