"""Playing a trace once more: does the same come out, and does looking change anything?"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, fields, has

from schedcheck.engine.executor import Executor
from schedcheck.judge import Judge
from schedcheck.model.actions import Action
from schedcheck.model.output import Accepted, EngineOutput, Rejected, SchedulerOutput, WorkerResult
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import AnyEvent, Header, Repeated, StepRecord
from schedcheck.sut import SystemUnderTest, Target

FAMILY = "DET"
"""The invariants that are about playing a trace twice."""


def is_about_repetition(header: Header) -> bool:
    """Return whether what a trace is to show can only be seen by playing it twice."""
    shown = header.expect.signature.invariant if header.expect is not None else header.witness
    return shown.startswith(f"{FAMILY}-")


def play_again(target: Target, header: Header, records: Sequence[StepRecord]) -> Repeated:
    """Play what was carried out on a fresh scheduler, looking twice each time, and compare."""
    looker = _LooksTwice(target.open(header.config))
    judge = Judge(header.config, target.capabilities, ())
    executor = Executor(looker, judge)
    difference = ""
    try:
        for record in records:
            again = executor.apply(record.action)
            difference = _difference(record.events, again.events)
            if difference:
                difference = f"action {record.number} ({record.action.do}): {difference}"
                break
    finally:
        executor.close()
    return Repeated(
        difference=difference,
        impurity=looker.impurity,
        snapshot=judge.ledger.snapshot,
        has_work=judge.ledger.has_work,
    )


def _difference(first: Sequence[AnyEvent], second: Sequence[AnyEvent]) -> str:
    for one, other in zip(first, second, strict=False):
        if type(one) is not type(other):
            return f"{_name(one)} the first time, {_name(other)} the second"
        if one != other:
            return f"{_name(one)}: {_field(one, other)}"
    if len(first) != len(second):
        return f"{len(first)} events the first time, {len(second)} the second"
    return ""


def _name(event: AnyEvent) -> str:
    return type(event).__name__.lower()


def _field(one: object, other: object) -> str:
    """Return the path of the first field in which two values of a class differ."""
    kind: type = type(one)
    if kind is not type(other) or not has(kind):
        return "came out otherwise"
    for field in fields(kind):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if mine == theirs:
            continue
        nested = Snapshot | SchedulerOutput | EngineOutput | WorkerResult | Accepted | Rejected
        if isinstance(mine, nested | RequestSpec):
            return f"{field.name}.{_field(mine, theirs)}"
        return f"{field.name} came out otherwise"
    return "came out otherwise"


@define
class _LooksTwice:
    """A scheduler that is asked twice what it looks like."""

    sut: SystemUnderTest
    impurity: str = ""

    def snapshot(self) -> Snapshot:
        """Look twice, note a difference, and show what the first look showed."""
        first, second = self.sut.snapshot(), self.sut.snapshot()
        if first != second and not self.impurity:
            self.impurity = f"snapshot: {_field(first, second)}"
        return first

    def has_work(self) -> bool:
        """Ask, and note whether that changed what is to be seen."""
        before, answer, after = self.sut.snapshot(), self.sut.has_work(), self.sut.snapshot()
        if before != after and not self.impurity:
            self.impurity = f"has_work changed snapshot: {_field(before, after)}"
        return answer

    def add(self, name: str, spec: RequestSpec, tokens: tuple[int, ...]) -> Accepted | Rejected:
        """Pass on a request."""
        return self.sut.add(name, spec, tokens)

    def schedule(self) -> SchedulerOutput:
        """Pass on."""
        return self.sut.schedule()

    def complete(self, step_id: int, result: WorkerResult) -> EngineOutput:
        """Pass on a result."""
        return self.sut.complete(step_id, result)

    def control(self, action: Action) -> Accepted | Rejected:
        """Pass on an action."""
        return self.sut.control(action)

    def close(self) -> None:
        """Pass on."""
        self.sut.close()
