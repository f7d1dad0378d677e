"""Recording what speaks our protocol: a Target whose schedulers write down what happens to them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from attrs import evolve, field, frozen

from schedcheck.model.actions import Action, Add, Complete, Schedule
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    Rejected,
    SchedulerOutput,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Crashed,
    Header,
    Scheduled,
    Transfer,
    TransferEnded,
)
from schedcheck.model.verdict import Signature
from schedcheck.recording.checking import Checker
from schedcheck.recording.telling import tell_of
from schedcheck.recording.writing import Options, RecordingFiles, checkpoint_of
from schedcheck.sut import Refused, SystemUnderTest, Target
from schedcheck.tracefile import Beginning, EventEncoder, RecordedStep, Tokens, encode_step

T = TypeVar("T")


@frozen
class RecordedTarget:
    """Another Target, each of whose schedulers is recorded in files of its own."""

    target: Target
    options: Options = field(factory=Options)

    @property
    def name(self) -> str:
        """That of the target."""
        return self.target.name

    @property
    def version(self) -> str:
        """That of the target."""
        return self.target.version

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the target."""
        return self.target.capabilities

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """Those of the target."""
        return self.target.dialects

    def honours(self, config: SchedulerConfig) -> SchedulerConfig | Refused:
        """Return what the target says."""
        return self.target.honours(config)

    def open(self, config: SchedulerConfig) -> SystemUnderTest:
        """Return a fresh scheduler that is recorded."""
        header = Header(
            target=self.name, version=self.version, config=config, capabilities=self.capabilities
        )
        return RecordedSystem(self.target.open(config), header, self.options)


class RecordedSystem:
    """A scheduler that writes down what happens to it.

    Each call looks at the scheduler once more. What it raises is written down and raised again.
    That a transfer ended is noticed when the result of a step reports it.
    """

    def __init__(self, sut: SystemUnderTest, header: Header, options: Options) -> None:
        self.sut = sut
        self.files = RecordingFiles(options, header, Tokens.TOY)
        self._encoder = EventEncoder(Tokens.TOY)
        beginning = Beginning(header=header, tokens=Tokens.TOY)
        # It keeps the history that the next file opens with, also where nothing is judged.
        self._history = Checker(beginning) if options.check else Checker(beginning, ())
        self._told: set[Signature] = set()
        self._number = 0
        self.files.begin()

    def add(self, name: str, spec: RequestSpec, tokens: tuple[int, ...]) -> Accepted | Rejected:
        """Hand a request over."""
        action = Add(name, spec)
        answer = self._calling(action, "add", lambda: self.sut.add(name, spec, tokens))
        self._record(action, Added(name=name, spec=spec, tokens=tokens, answer=answer))
        return answer

    def schedule(self) -> SchedulerOutput:
        """Plan one step."""
        output = self._calling(Schedule(), "schedule", self.sut.schedule)
        self._record(Schedule(), Scheduled(output=output))
        return output

    def complete(self, step_id: int, result: WorkerResult) -> EngineOutput:
        """Process the result of a step."""
        bad = result.loads_failed
        ended: list[AnyEvent] = [
            TransferEnded(name=name, transfer=Transfer.LOAD, bad_block=bad.get(name))
            for name in dict.fromkeys((*result.loads_finished, *bad))
        ]
        ended += [
            TransferEnded(name=name, transfer=Transfer.SEND) for name in result.sends_finished
        ]
        output = self._calling(Complete(), "complete", lambda: self.sut.complete(step_id, result))
        done = Completed(step_id=step_id, result=result, output=output)
        self._record(Complete(), *ended, done)
        return output

    def control(self, action: Action) -> Accepted | Rejected:
        """Say something else."""
        answer = self._calling(action, "control", lambda: self.sut.control(action))
        self._record(action, Controlled(action=action, answer=answer))
        return answer

    def snapshot(self) -> Snapshot:
        """Return what it looks like."""
        return self.sut.snapshot()

    def has_work(self) -> bool:
        """Return whether it would go on."""
        return self.sut.has_work()

    def close(self) -> None:
        """Let go of the scheduler, and end the recording."""
        self.files.close()
        self.sut.close()

    def _calling(self, action: Action, call: str, function: Callable[[], T]) -> T:
        """Call the scheduler; what it raises is written down before it is raised again."""
        try:
            return function()
        except Exception as error:
            self._write(action, [crash(call, error)])
            self.files.flush()
            raise

    def _record(self, action: Action, *events: AnyEvent) -> None:
        """Write down what an action led to; the last event shows the scheduler after it."""
        ledger = self._history.judge.ledger
        before = [
            evolve(event, snapshot=ledger.snapshot, has_work=ledger.has_work)
            for event in events[:-1]
        ]
        snapshot, has_work = self.sut.snapshot(), self.sut.has_work()
        self._write(action, [*before, evolve(events[-1], snapshot=snapshot, has_work=has_work)])

    def _write(self, action: Action, events: list[AnyEvent]) -> None:
        self._number += 1
        forms = [self._encoder.form_of(event, action) for event in events]
        self.files.write(encode_step(action, forms))
        findings = self._history.take(
            RecordedStep(line=0, number=self._number, action=action, events=tuple(events))
        )
        if findings:
            tell_of(self._history, findings, self._told)
        if self.files.is_full:
            self._encoder = EventEncoder(Tokens.COUNTS)
            self.files.begin(checkpoint_of(self._history.judge.ledger, self._encoder))


def crash(call: str, error: BaseException) -> Crashed:
    """Return the event of a call that raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    function = frames[-1][0].f_code.co_name if frames else "?"
    message = " ".join(str(error).split())[:200]
    return Crashed(call=call, error=type(error).__name__, message=message, function=function)
