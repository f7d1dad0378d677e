"""The Ledger: the history of a trace, folded from its events.

Rules
-----
- Only the Judge writes it, by ``fold``; invariants, moves and the executor read it.
- It never believes an engine's counters. A preemption is a change of status from RUNNING to
  PREEMPTED, or an announcement; what was sent, delivered and announced is counted here.
- ``facts`` says what each scheduled row meant *before* this step was folded: whether its request
  was known to the workers, preempted since it last ran, and which statuses it passed in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import Factory, define, frozen

from schedcheck.model.actions import Abort
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    FinishReason,
    Load,
    Role,
    Row,
    SchedulerOutput,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import EMPTY_SNAPSHOT, Snapshot, Status
from schedcheck.model.tokens import extend, next_token, state_of
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Scheduled,
    Transfer,
    TransferEnded,
)

ROLE_WORDS: Final[Mapping[Role, str]] = {
    Role.NEW: "new",
    Role.RESUMED: "resumed",
    Role.RUNNING: "running",
    Role.UNKNOWN: "scheduled",
}


@define
class OpenLoad:
    """An asynchronous load between its start and the result that reports it."""

    load: Load
    ended: bool = False
    """Physically over: nothing writes its blocks any more."""
    bad_block: int | None = None


@define
class OpenSend:
    """A send between the end of its request and the result that reports it."""

    blocks: frozenset[int]
    after_step: int = -1
    """The step planned last when it began: the workers learn of the send only after that one."""
    ended: bool = False


@define
class Life:
    """Everything that is known about one request."""

    name: str
    spec: RequestSpec
    engine_id: str
    prompt: tuple[int, ...]
    rejected: bool = False
    status: Status | None = None
    delivered: list[int] = Factory(list)
    in_flight: int = 0
    """Steps in flight that compute something for it."""
    times_new: int = 0
    times_resumed: int = 0
    times_preempted: int = 0
    preempted_since_scheduled: bool = False
    told_to_forget: bool = False
    """Since it was last scheduled, the workers were told that it was preempted."""
    path: list[Status] = Factory(list)
    """Statuses seen since it was last scheduled."""
    finished: FinishReason | None = None
    finishes_reported: int = 0
    announced: int = 0
    """How often the workers were told to forget it for good."""
    load: OpenLoad | None = None
    send: OpenSend | None = None
    _states: list[int] = Factory(list)

    @property
    def is_live(self) -> bool:
        """Whether it was accepted and has not ended."""
        return not self.rejected and self.finished is None

    @property
    def was_sent(self) -> bool:
        """Whether the workers ever got it."""
        return self.times_new + self.times_resumed > 0

    def state_at(self, length: int) -> int:
        """Return the toy model's state after the first ``length`` tokens it ought to have."""
        states = self._states
        if not states:
            states.append(state_of(()))
            for token in self.prompt:
                states.append(extend(states[-1], token))
        while len(states) <= length:
            states.append(extend(states[-1], self._token_after(len(states) - 1)))
        return states[length]

    def token_at(self, position: int) -> int:
        """Return the token it ought to have at a position, prompt or output."""
        if position < len(self.prompt):
            return self.prompt[position]
        return self._token_after(position)

    def _token_after(self, length: int) -> int:
        state = self.state_at(length)
        return next_token(self.spec, state=state, output_index=length - len(self.prompt))


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
    loading: bool
    """An asynchronous load of it was open: physically, or not yet reported."""
    finished: bool

    @property
    def journey(self) -> str:
        """The path in words: ``PREEMPTED -> WAITING_FOR_REMOTE_KVS -> resumed``."""
        return " -> ".join([*(status.value for status in self.path), ROLE_WORDS[self.row.role]])


@define
class InFlight:
    """A step that was planned and not executed yet."""

    output: SchedulerOutput
    bad_blocks: dict[str, int] = Factory(dict)
    """Synchronous loads of this step that are going to fail, and from which block on."""


@define
class Ledger:
    """The history so far. See the rules at the top of this file."""

    config: SchedulerConfig
    lives: dict[str, Life] = Factory(dict)
    in_flight: deque[InFlight] = Factory(deque)
    last_planned: int = -1
    """Id of the step planned last."""
    snapshot: Snapshot = EMPTY_SNAPSHOT
    """The latest one."""
    before: Snapshot = EMPTY_SNAPSHOT
    """The one that it replaced."""
    has_work: bool = False
    facts: tuple[RowFact, ...] = ()
    """What the rows of the event folded last meant; empty if it scheduled nothing."""
    changes: tuple[tuple[str, Status | None, Status | None], ...] = ()
    """Changes of status that the event folded last brought: name, before, after."""
    finished_now: tuple[str, ...] = ()
    """Requests that ended with the event folded last."""
    unannounced: frozenset[str] = frozenset()
    """Requests that had ended before the step planned last, whose end it had to announce."""
    executed: InFlight | None = None
    """The step that the event folded last executed."""
    worker_problems: tuple[Problem, ...] = ()
    """What the simulated worker could not do with that step."""
    memory_problems: tuple[Problem, ...] = ()
    """What the shadow memory found wrong with it, or with the transfer that ended."""

    def specs(self) -> dict[str, RequestSpec]:
        """Return every request added so far, by name, refused ones too."""
        return {name: life.spec for name, life in self.lives.items()}

    def live(self) -> list[Life]:
        """Return the requests that have not ended, in order of adding."""
        return [life for life in self.lives.values() if life.is_live]

    def open_loads(self) -> list[Life]:
        """Return the requests with a load that still writes, ended requests too."""
        return [
            life for life in self.lives.values() if life.load is not None and not life.load.ended
        ]

    def open_sends(self) -> list[Life]:
        """Return the requests whose KV is still being sent."""
        return [
            life for life in self.lives.values() if life.send is not None and not life.send.ended
        ]

    def is_quiet(self) -> bool:
        """Return whether nothing outside is open: no step in flight, no transfer unreported."""
        return not self.in_flight and all(
            life.load is None and life.send is None for life in self.lives.values()
        )

    def fold(self, event: AnyEvent) -> None:
        """Take in one event. Called by the Judge alone."""
        self.before = self.snapshot
        self.facts, self.finished_now, self.executed = (), (), None
        match event:
            case Added():
                self._add(event)
            case Scheduled(output=output):
                self._schedule(output, event.snapshot)
            case Completed():
                self._complete(event.result, event.output)
            case Controlled(action=Abort(request=name), answer=Accepted(sends=sends)):
                self._finish(name, FinishReason.ABORTED)
                self._open_sends(sends)
            case TransferEnded():
                self._end_transfer(event)
            case _:
                pass
        self._observe(event)

    def _add(self, event: Added) -> None:
        spec = event.spec
        engine_id = event.name
        if spec.engine_id_of is not None and spec.engine_id_of in self.lives:
            engine_id = self.lives[spec.engine_id_of].engine_id
        self.lives[event.name] = Life(
            event.name,
            spec,
            engine_id,
            event.tokens,
            rejected=not isinstance(event.answer, Accepted),
        )

    def _schedule(self, output: SchedulerOutput, after: Snapshot) -> None:
        self.unannounced = frozenset(
            life.name
            for life in self.lives.values()
            if life.finished is not None and life.was_sent and not life.announced
        )
        scheduled = {row.name for row in output.rows}
        for name in output.preempted or ():
            self._announce_preemption(name, comes_back=name in scheduled, after=after)
        for name in output.finished:
            if name in self.lives:
                self.lives[name].announced += 1
        rows = {row.name: row for row in output.rows if row.name in self.lives}
        self.facts = tuple(self._take_row(row) for row in rows.values())
        for load in output.loads:
            if load.is_async and load.name in self.lives:
                self.lives[load.name].load = OpenLoad(load)
        self.in_flight.append(InFlight(output))
        self.last_planned = output.step_id

    def _announce_preemption(self, name: str, *, comes_back: bool, after: Snapshot) -> None:
        life = self.lives.get(name)
        if life is None:
            return
        view = after.requests.get(name)
        preempted_again = comes_back and view is not None and view.status is Status.PREEMPTED
        if not life.preempted_since_scheduled and not preempted_again:
            self._preempt(life)
            _extend_path(life.path, Status.PREEMPTED)
        life.told_to_forget = True

    def _preempt(self, life: Life) -> None:
        life.times_preempted += 1
        life.preempted_since_scheduled = True

    def _take_row(self, row: Row) -> RowFact:
        life = self.lives[row.name]
        fact = RowFact(
            row=row,
            life=life,
            known=life.was_sent
            and not life.announced
            and not (self.config.dialect is Dialect.V2 and life.told_to_forget),
            times_sent=life.times_new + life.times_resumed,
            preempted=life.preempted_since_scheduled,
            told_to_forget=life.told_to_forget,
            path=tuple(life.path),
            loading=life.load is not None,
            finished=life.finished is not None,
        )
        life.times_new += row.role is Role.NEW
        life.times_resumed += row.role is Role.RESUMED
        life.in_flight += 1
        life.preempted_since_scheduled = False
        life.told_to_forget = False
        life.path.clear()
        return fact

    def _complete(self, result: WorkerResult, output: EngineOutput) -> None:
        if self.in_flight:
            self.executed = self.in_flight.popleft()
            for name in {row.name for row in self.executed.output.rows}:
                if name in self.lives:
                    self.lives[name].in_flight -= 1
        for name in result.loads_finished:
            self.lives[name].load = None
        for name in result.sends_finished:
            self.lives[name].send = None
        for name, tokens in output.delivered.items():
            if name in self.lives:
                self.lives[name].delivered.extend(tokens)
        for name, reason in output.finished.items():
            self._finish(name, reason)
        self._open_sends(output.sends)

    def _finish(self, name: str, reason: FinishReason) -> None:
        life = self.lives.get(name)
        if life is None:
            return
        life.finishes_reported += 1
        if life.is_live:
            life.finished = reason
            self.finished_now = (*self.finished_now, name)

    def _open_sends(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.lives:
                self.lives[name].send = OpenSend(self.before.blocks_of(name), self.last_planned)

    def _end_transfer(self, event: TransferEnded) -> None:
        life = self.lives[event.name]
        if event.transfer is Transfer.SEND:
            assert life.send is not None
            life.send.ended = True
        elif life.load is not None:
            life.load.ended, life.load.bad_block = True, event.bad_block
        else:
            step = self.sync_load_in_flight(event.name)
            assert step is not None
            assert event.bad_block is not None
            step.bad_blocks[event.name] = event.bad_block

    def sync_load_in_flight(self, name: str) -> InFlight | None:
        """Return the step in flight that loads KV for a request synchronously, if any."""
        for step in self.in_flight:
            for load in step.output.loads:
                if load.name == name and not load.is_async:
                    return step
        return None

    def _observe(self, event: AnyEvent) -> None:
        """Compare the new snapshot with the last one."""
        self.snapshot, self.has_work = event.snapshot, event.has_work
        changes: list[tuple[str, Status | None, Status | None]] = []
        for name, life in self.lives.items():
            status = self._status_of(life)
            if status is life.status:
                continue
            changes.append((name, life.status, status))
            preempted_now = status is Status.PREEMPTED and life.status is Status.RUNNING
            if preempted_now and not life.preempted_since_scheduled:
                self._preempt(life)
            life.status = status
            _extend_path(life.path, status)
        self.changes = tuple(changes)

    def _status_of(self, life: Life) -> Status | None:
        """Return what the snapshot shows; for a forgotten request, how it ended."""
        view = self.snapshot.requests.get(life.name)
        if view is not None:
            return view.status
        return None if life.finished is None else _STATUS_OF[life.finished]


_STATUS_OF: Final[Mapping[FinishReason, Status]] = {
    FinishReason.STOPPED: Status.FINISHED_STOPPED,
    FinishReason.LENGTH: Status.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORTED: Status.FINISHED_ABORTED,
    FinishReason.ERROR: Status.FINISHED_ERROR,
}


def _extend_path(path: list[Status], status: Status | None) -> None:
    """Note a status on the way to being scheduled again.

    What follows a load, WAITING or PREEMPTED, is left out: engines promote a loaded request when
    the end of the load is reported or when they next schedule, and both are one journey.
    """
    if status in (None, Status.RUNNING) or (path and path[-1] is Status.WAITING_FOR_REMOTE_KVS):
        return
    if status is not None and (not path or path[-1] is not status):
        path.append(status)
