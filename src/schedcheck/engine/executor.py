"""The executor: carries out one action on a scheduler, has every event judged, and records it.

Rules
-----
- Each call into the scheduler becomes one event, judged before the next call is made: the first
  event with a finding ends the action, and with it the trace. Known findings are none, unless they
  cut the trace short.
- What a call raises, and an answer outside the protocol, are events too: findings about the
  engine, never errors of ours.
- The result of a step comes from the simulated worker, which the adapter never sees.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from attrs import define, evolve, field

from schedcheck.engine.contract import problem_with
from schedcheck.judge import Judge
from schedcheck.model.actions import (
    IDLE_ROUNDS_MAX,
    Abort,
    Action,
    Add,
    AddChunk,
    AnswerLookup,
    Complete,
    Drain,
    FailTransfer,
    FinishSend,
    FinishTransfer,
    GrammarReady,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Schedule,
    Step,
)
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.tokens import prompt_tokens
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Crashed,
    Drained,
    Header,
    Malformed,
    Scheduled,
    StepRecord,
    Transfer,
    TransferEnded,
)
from schedcheck.model.verdict import Finding
from schedcheck.sut import PieceFault, SystemUnderTest

T = TypeVar("T")

Watch = Callable[[AnyEvent], None]
"""Is shown each event after it was judged."""


_LIBRARIES: Final = sys.stdlib_module_names | {"attr", "attrs", "msgspec"}


class BlackBox(Protocol):
    """Keeps the trace so far where it survives the process."""

    def begin(self, header: Header) -> None:
        """Start a trace."""
        ...

    def note(self, action: Action) -> None:
        """Keep an action that is going to be carried out now."""
        ...

    def end(self) -> None:
        """Forget the trace: it is over."""
        ...


class _EngineFault(Exception):
    """A call into the engine went wrong in a way that is a finding."""

    def __init__(self, event: Crashed | Malformed) -> None:
        super().__init__(event)
        self.event = event


@define
class Executor:
    """Drives one scheduler through one trace."""

    sut: SystemUnderTest
    judge: Judge
    watch: Watch | None = None
    number: int = field(init=False, default=0)
    """Number of the action carried out last, from 1."""
    _has_failed: bool = field(init=False, default=False)

    def apply(self, action: Action) -> StepRecord:
        """Carry out an eligible action and return what happened and what is wrong with it."""
        self.number += 1
        events: list[AnyEvent] = []
        findings: tuple[Finding, ...] = ()
        for event in self._events(action):
            findings = self.judge.observe(event, step=self.number)
            events.append(event)
            if self.watch is not None:
                self.watch(event)
            self._has_failed = bool(findings or self.judge.taint) or isinstance(
                event, Crashed | Malformed
            )
            if findings or self.judge.is_cut_short:
                break
        return StepRecord(
            number=self.number, action=action, events=tuple(events), findings=findings
        )

    def close(self) -> None:
        """Let go of the scheduler. What that raises passes, unless something was wrong before."""
        try:
            self.sut.close()
        except Exception:
            if not self._has_failed:
                raise

    def _events(self, action: Action) -> Iterator[AnyEvent]:
        try:
            yield from self._carry_out(action)
        except _EngineFault as fault:
            yield fault.event

    def _carry_out(self, action: Action) -> Iterator[AnyEvent]:
        match action:
            case Add():
                yield self._add(action)
            case Schedule():
                yield self._schedule()
            case Complete(finish_loads=loads):
                yield from (self._end_load(name, None) for name in loads)
                yield self._complete()
            case Step(finish_loads=loads):
                yield self._schedule()
                yield from (self._end_load(name, None) for name in loads)
                yield self._complete()
            case FinishTransfer(request=name):
                yield self._end_load(name, None)
            case FailTransfer(request=name, bad_block=bad_block):
                yield self._end_load(name, bad_block)
            case FinishSend(request=name):
                yield self._end(name, Transfer.SEND, None)
            case Drain():
                yield from self._drain(action)
            case (
                Abort()
                | Preempt()
                | ResetPrefixCache()
                | AnswerLookup()
                | GrammarReady()
                | AddChunk()
                | Pause()
                | Resume()
            ):
                yield self._control(action)

    def _control(self, action: Action) -> Controlled:
        answer = self._call("control", lambda: self.sut.control(action))
        snapshot, has_work = self._look()
        return Controlled(action=action, answer=answer, snapshot=snapshot, has_work=has_work)

    def _add(self, action: Add) -> Added:
        specs = {**self.judge.ledger.specs(), action.request: action.spec}
        tokens = prompt_tokens(action.request, specs)
        answer = self._call("add", lambda: self.sut.add(action.request, action.spec, tokens))
        snapshot, has_work = self._look()
        return Added(
            name=action.request,
            spec=action.spec,
            tokens=tokens,
            answer=answer,
            snapshot=snapshot,
            has_work=has_work,
        )

    def _schedule(self) -> Scheduled:
        output = self._call("schedule", self.sut.schedule)
        snapshot, has_work = self._look()
        return Scheduled(output=output, snapshot=snapshot, has_work=has_work)

    def _complete(self) -> Completed:
        step_id = self.judge.ledger.in_flight[0].output.step_id
        result = self.judge.worker.answer()
        output = self._call("complete", lambda: self.sut.complete(step_id, result))
        snapshot, has_work = self._look()
        return Completed(
            step_id=step_id, result=result, output=output, snapshot=snapshot, has_work=has_work
        )

    def _end_load(self, name: str, bad_block: int | None) -> TransferEnded:
        return self._end(name, Transfer.LOAD, bad_block)

    def _end(self, name: str, transfer: Transfer, bad_block: int | None) -> TransferEnded:
        ledger = self.judge.ledger
        return TransferEnded(
            name=name,
            transfer=transfer,
            bad_block=bad_block,
            snapshot=ledger.snapshot,
            has_work=ledger.has_work,
        )

    def _drain(self, action: Drain) -> Iterator[AnyEvent]:
        ledger = self.judge.ledger
        rounds = idle = 0
        while rounds < action.steps_max and idle < IDLE_ROUNDS_MAX and not self._is_over():
            rounds += 1
            quiet = ledger.is_quiet()
            while ledger.in_flight:
                yield self._complete()
            for life in ledger.open_loads():
                yield self._end_load(life.name, None)
            for life in ledger.open_sends():
                yield self._end(life.name, Transfer.SEND, None)
            for awaited in self._awaited():
                yield self._control(awaited)
            scheduled = self._schedule()
            yield scheduled
            yield self._complete()
            busy = bool(scheduled.output.rows or scheduled.output.loads)
            idle = idle + 1 if quiet and not busy else 0
        yield Drained(
            rounds=rounds,
            idle_rounds=idle,
            unfinished=tuple(life.name for life in ledger.live()),
            snapshot=ledger.snapshot,
            has_work=ledger.has_work,
        )

    def _awaited(self) -> Iterator[Action]:
        """Yield what the outside has to say before anything can go on."""
        ledger = self.judge.ledger
        if ledger.paused is not None:
            yield Resume()
        for life in ledger.live():
            if life.awaits_lookup:
                yield AnswerLookup(life.name)
            if life.awaits_grammar:
                yield GrammarReady(life.name)
            if life.awaits_chunk:
                yield AddChunk(life.name)

    def _is_over(self) -> bool:
        """Whether nothing is left that a further round could change."""
        ledger = self.judge.ledger
        return (
            not ledger.live()
            and ledger.is_quiet()
            and not ledger.has_work
            and not ledger.snapshot.requests
        )

    def _look(self) -> tuple[Snapshot, bool]:
        snapshot = self._call("snapshot", self.sut.snapshot)
        return snapshot, self._call("has_work", self.sut.has_work)

    def _call(self, call: str, function: Callable[[], T]) -> T:
        """Call into the engine. Raises _EngineFault for what it raises or answers wrongly."""
        try:
            answer = function()
        # No further: an interrupt, or a test runner that gives up, must reach whoever waits for it.
        except PieceFault as fault:
            raise _EngineFault(self._fault_of_piece(call, fault)) from None
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001  it is a finding
            raise _EngineFault(self._crashed(call, error)) from None
        try:
            problem = problem_with(call, answer, self.judge.ledger)
        except Exception as error:  # noqa: BLE001  a stranger's value may raise when it is read
            problem = f"its answer cannot be read: {said_by(error)}"
        if problem:
            raise _EngineFault(
                Malformed(call=call, problem=problem, snapshot=self.judge.ledger.snapshot)
            )
        return answer

    def _fault_of_piece(self, call: str, fault: PieceFault) -> Crashed | Malformed:
        """Return what a user's own piece did wrong within a call."""
        if fault.error is not None:
            crashed = self._crashed(call, fault.error)
            return evolve(crashed, piece=fault.piece, function=_word(fault.method))
        return Malformed(
            call=call,
            problem=f"the {fault.piece}'s {fault.method} {fault.problem}",
            piece=fault.piece,
            clause=_word(fault.clause),
            snapshot=self.judge.ledger.snapshot,
        )

    def _crashed(self, call: str, error: BaseException) -> Crashed:
        return Crashed(
            call=call,
            error=_word(type(error).__name__),
            message=said_by(error),
            function=_word(_innermost_function(error)),
            traceback=traceback_of(error),
            snapshot=self.judge.ledger.snapshot,
        )


def _innermost_function(error: BaseException) -> str:
    """Return the last function in the traceback that is not the standard library's."""
    names = [
        (str(frame.f_globals.get("__name__", "?")), frame.f_code.co_name)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    for module, function in reversed(names):
        if module.partition(".")[0] not in sys.stdlib_module_names:
            return function
    return names[-1][1] if names else "?"


def function_of_target(error: BaseException) -> str:
    """Return the function of a target that raised this; empty if it was one of ours."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root and root not in _LIBRARIES:
            return "" if root == "schedcheck" else _word(frame.f_code.co_name)
    return ""


def said_by(error: BaseException) -> str:
    """Return a stranger's message, fit for one line of a report."""
    try:
        return _one_line(str(error))
    except Exception:  # noqa: BLE001  a stranger's exception may raise when it is read
        return "(its message cannot be read)"


def traceback_of(error: BaseException) -> str:
    """Return a traceback that can be written: a message may hold half a surrogate pair."""
    return "".join(traceback.format_exception(error)).encode(errors="replace").decode()


def _one_line(text: str) -> str:
    """Return a stranger's text fit for one line of a report."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:200]


def _word(text: str) -> str:
    """Return a stranger's identifier fit for a signature."""
    return "".join(c if c.isalnum() or c in "_.<>-" else "?" for c in text)[:80] or "?"
