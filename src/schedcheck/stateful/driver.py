"""Driving one trace after another, whoever chooses the actions, and counting what was reached.

Both forms of the machine stand on the Driver. It is the campaign's loop turned inside out: here
somebody else, Hypothesis, says what happens next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from attrs import Factory, define, field, frozen

from schedcheck import __version__
from schedcheck.engine.coverage import Coverage
from schedcheck.engine.events import Ended, Failure, Known
from schedcheck.engine.executor import Executor
from schedcheck.engine.failures import failure_of
from schedcheck.engine.known import TRACES_EXPECTED, KnownTally, signatures_of
from schedcheck.engine.moves import Choice, choices, decode, drain_for
from schedcheck.engine.play import Playback, judged_again
from schedcheck.engine.profiles import Load, Profile
from schedcheck.engine.repeat import FAMILY
from schedcheck.engine.results import result_of
from schedcheck.invariants.registry import Invariant
from schedcheck.judge import Judge
from schedcheck.model.actions import Action
from schedcheck.model.config import Dialect
from schedcheck.model.known import KnownIssue
from schedcheck.model.trace import AnyEvent, Crashed, Header, StepRecord, Trace
from schedcheck.model.verdict import Finding
from schedcheck.stateful.violation import violation
from schedcheck.sut import Target

_REPEAT_EVENTS: Final = 8
"""A trace is played twice when the number of its events is a multiple of this."""


@frozen(kw_only=True)
class Plan:
    """What is verified, and how."""

    target: Target
    target_text: str
    """As typed on a command line, for the trace header."""
    profile: Profile
    invariants: Sequence[Invariant]
    dialect: Dialect | None = None
    """None: each trace draws one that the target speaks."""
    known: Sequence[KnownIssue] = ()
    """What this version of the target is known to show."""


@frozen(kw_only=True)
class Failing:
    """A trace that was found to fail, as it was found."""

    trace: Trace
    finding: Finding
    """The one with the smallest signature."""
    failure: Failure


@define
class Tally:
    """What the traces of one run reached."""

    seed: int = 0
    coverage: Coverage = Factory(Coverage)
    witnessed: Counter[str] = Factory(Counter)
    unknown: dict[str, str] = Factory(dict)
    known: KnownTally = Factory(KnownTally)
    crashes_ignored: int = 0
    failing: Failing | None = None
    """The first failure."""

    def ended(self, plan: Plan) -> Ended:
        """Return the same account of a run as the campaign gives."""
        violated = {self.failing.finding.invariant} if self.failing else set()
        return Ended(
            target=plan.target_text,
            version=plan.target.version,
            profile=plan.profile.name,
            seed=self.seed,
            traces=self.coverage.traces,
            actions=self.coverage.actions_total,
            results=tuple(
                result_of(
                    one,
                    plan.target.capabilities,
                    witnessed=self.witnessed[one.id],
                    violated=violated,
                    known=self.known.invariants(),
                    unknown=self.unknown,
                )
                for one in plan.invariants
            ),
            seen=self.coverage.seen(plan.target.capabilities),
            known=self._known(plan),
            crashes_ignored=self.crashes_ignored,
        )

    def _known(self, plan: Plan) -> Known:
        chosen = {one.id for one in plan.invariants}
        is_full = self.coverage.traces >= TRACES_EXPECTED and plan.dialect is None
        return self.known.told(
            [one for one in plan.known if one.signature.partition("/")[0] in chosen],
            tested=self.witnessed,
            is_full=is_full,
        )


@define
class Driver:
    """One scheduler, driven through one trace. Raises Violation at the first finding."""

    plan: Plan
    load: Load
    tally: Tally
    judge: Judge = field(init=False)
    records: list[StepRecord] = field(init=False, factory=list)
    is_over: bool = field(init=False, default=False)
    """Nothing more can happen: a finding, a known crash, or one that nobody looks at."""
    _executor: Executor = field(init=False)
    _offered: dict[str, Choice] | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        known = signatures_of(plan.known)
        self.judge = Judge(self.load.config, plan.target.capabilities, plan.invariants, known)
        sut = plan.target.open(self.load.config)
        self._executor = Executor(sut, self.judge, self._watch)

    def _watch(self, event: AnyEvent) -> None:
        self.is_over = self.is_over or isinstance(event, Crashed)
        self.tally.coverage.see_event(self.judge.ledger)

    def offered(self) -> dict[str, Choice]:
        """Return the kinds of action that are eligible now, by word."""
        if self._offered is None:
            self._offered = {one.word: one for one in choices(self.judge.ledger, self.load)}
        return self._offered

    def decode(self, number: int) -> Action:
        """Return the eligible action that an integer chooses."""
        return decode(number, self.judge.ledger, self.load)

    def do(self, action: Action) -> None:
        """Carry out an eligible action, unless the trace is over. Raises Violation."""
        if self.is_over:
            return
        self._offered = None
        record = self._executor.apply(action)
        self.records.append(record)
        self.tally.coverage.see_step(record)
        if record.findings:
            self.is_over = True
            self._fail(record.findings)
        self.tally.crashes_ignored += self.is_over and not self.judge.is_cut_short
        self.is_over = self.is_over or self.judge.is_cut_short

    def drain(self) -> None:
        """Carry out the quiet tail, and some traces once more. Raises Violation."""
        self.do(drain_for(self.judge.ledger))
        asks = any(one.family == FAMILY for one in self.plan.invariants)
        # Which traces are repeated must follow from the trace: hypothesis plays it again itself.
        events = sum(len(record.events) for record in self.records)
        if asks and not self.is_over and events % _REPEAT_EVENTS == 0:
            header = self._header()
            record = judged_again(self.plan.target, header, self.records, self.judge)
            self.records[-1] = record
            if record.findings:
                self.is_over = True
                self._fail(record.findings)

    def close(self) -> None:
        """Let go of the scheduler and count the trace."""
        self.tally.coverage.traces += 1
        self.tally.witnessed.update(self.judge.witnessed)
        self.tally.unknown |= self.judge.unknown
        self.tally.known.take(self.judge)
        self._executor.close()

    def _header(self) -> Header:
        plan, tally = self.plan, self.tally
        return Header(
            target=plan.target_text,
            version=plan.target.version,
            config=self.load.config,
            capabilities=plan.target.capabilities,
            seed=f"verify {tally.seed}/{tally.coverage.traces + 1}",
            schedcheck=__version__,
        )

    def _fail(self, findings: Sequence[Finding]) -> None:
        plan, tally = self.plan, self.tally
        number = tally.coverage.traces + 1
        playback = Playback(records=tuple(self.records), judge=self.judge)
        trace = Trace(header=self._header(), actions=playback.actions)
        finding = min(findings, key=lambda one: one.signature)
        failure = failure_of(
            trace,
            playback,
            finding,
            origin=f"profile {plan.profile.name} · seed {tally.seed} · trace {number}",
            actions_found=len(trace.actions),
        )
        if tally.failing is None:
            tally.failing = Failing(trace=trace, finding=finding, failure=failure)
            tally.coverage.signatures[str(finding.signature)] += 1
        raise violation(failure)
