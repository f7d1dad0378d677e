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

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import Factory, define

from schedcheck.model.actions import (
    Abort,
    AddChunk,
    AnswerLookup,
    GrammarReady,
    Pause,
    ResetPrefixCache,
    Resume,
)
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
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Scheduled,
    Transfer,
    TransferEnded,
)
from schedcheck.oracles.facts import InFlight, LoadFact, Problem, RowFact
from schedcheck.oracles.life import Life, OpenLoad, OpenSend


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
    load_facts: tuple[LoadFact, ...] = ()
    """What the loads that began with the event folded last meant."""
    sends_now: tuple[str, ...] = ()
    """Requests whose KV began to be sent with the event folded last."""
    paused: Pause | None = None
    """The pause that is on."""
    cache_resets: int = 0
    """How often the prefix cache was emptied."""
    gainless: Counter[str] = Factory(Counter)
    """Preemptions in steps, by request, since any request got further than it ever was, and
    since anything was awaited from outside."""
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
    sampled: Mapping[str, tuple[int, int]] = Factory(dict)
    """What the workers sampled in that step: how many tokens were known, and how many are new."""
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
        """Return whether no step is in flight and nothing is awaited from outside."""
        return not self.in_flight and not self.awaits_outside()

    def awaits_outside(self) -> bool:
        """Return whether a transfer, grammar, answer, chunk or the end of a pause is awaited."""
        return self.paused is not None or any(
            life.load is not None or life.send is not None or (life.is_live and life.blocked_by)
            for life in self.lives.values()
        )

    def fold(self, event: AnyEvent) -> None:
        """Take in one event. Called by the Judge alone."""
        self.before = self.snapshot
        self.facts, self.finished_now, self.executed = (), (), None
        self.load_facts, self.sends_now = (), ()
        for life in self.lives.values():
            if life.spec.chunks:
                life.begin_due_turn()
        match event:
            case Added():
                self._add(event)
            case Scheduled(output=output):
                self._schedule(output, event.snapshot)
            case Completed():
                self._complete(event.result, event.output, event.snapshot)
            case Controlled(action=Abort(request=name), answer=Accepted(sends=sends)):
                self._finish(name, FinishReason.ABORTED)
                self._open_sends(sends, event.snapshot)
            case Controlled(answer=Accepted()):
                self._control(event)
            case TransferEnded():
                self._end_transfer(event)
            case _:
                pass
        self._observe(event)

    def go_on(self, lives: Iterable[Life], steps: Iterable[Scheduled], snapshot: Snapshot) -> None:
        """Begin in the middle, or take in requests first seen there. Called by the Judge alone."""
        self.lives |= {life.name: life for life in lives}
        for step in steps:
            rows = [row.name for row in step.output.rows if row.name in self.lives]
            preemptions = {name: self.lives[name].times_preempted for name in rows}
            ahead = len(self.in_flight)
            self.in_flight.append(InFlight(step.output, ahead=ahead, preemptions=preemptions))
            self.last_planned = step.output.step_id
            for name in rows:
                self.lives[name].in_flight += 1
        self.before = self.snapshot = snapshot

    def forget(self, name: str) -> None:
        """Forget a request that ended. Called by the Judge alone."""
        self.lives.pop(name, None)
        self.gainless.pop(name, None)

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
            sampled_to=len(event.tokens),
        )

    def _control(self, event: Controlled) -> None:
        match event.action:
            case GrammarReady(request=name):
                self.lives[name].grammar_ready = True
            case AnswerLookup(request=name):
                self.lives[name].lookup_answered = True
            case AddChunk(request=name):
                self.lives[name].chunks_given += 1
            case ResetPrefixCache():
                self.cache_resets += 1
            case Pause():
                self.paused = event.action
            case Resume():
                self.paused = None
            case _:
                pass

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
        loads = {load.name: load for load in output.loads if load.name in self.lives}
        for row in rows.values():
            self._note_hit(row.name, row.role, row.start or 0, loads)
        known = [load for load in output.loads if load.name in self.lives]
        self.load_facts = tuple(self._take_load(load) for load in known)
        self.facts = tuple(self._take_row(row) for row in rows.values())
        self.in_flight.append(
            InFlight(
                output,
                ahead=len(self.in_flight),
                hits={
                    row.name: (self.lives[row.name].hit, self.lives[row.name].hit_epoch)
                    for row in rows.values()
                    if row.role is not Role.RUNNING
                },
                preemptions={name: self.lives[name].times_preempted for name in rows},
                turns={name: self.lives[name].turn for name in rows},
                tables={name: after.blocks_of(name) for name in rows}
                if any(not load.is_async for load in output.loads)
                else {},
            )
        )
        self.last_planned = output.step_id

    def _note_hit(self, name: str, role: Role, start: int, loads: Mapping[str, Load]) -> None:
        """Note how many tokens a request that held no blocks shares with others."""
        if not self.config.prefix_caching:
            return
        life = self.lives[name]
        beyond = life.loaded_to is not None and start > life.loaded_to
        if role is Role.RUNNING or (self.before.blocks_of(name) and not beyond):
            return  # what it holds, it got when it was admitted or began to load
        life.hit = loads[name].start if name in loads else start
        life.hit_epoch = self.cache_resets

    def _take_load(self, load: Load) -> LoadFact:
        life = self.lives[load.name]
        fact = LoadFact(
            load=load,
            life=life,
            loading=life.load is not None,
            has_loaded=life.has_loaded,
            finished=life.finished is not None,
            blocked_by=life.blocked_by,
        )
        life.load_end_max = max(life.load_end_max, load.start + load.count)
        if load.is_async:
            if self.config.prefix_caching and not self.before.blocks_of(load.name):
                life.hit, life.hit_epoch = load.start, self.cache_resets
            life.load, life.loaded_to = OpenLoad(load), None
            if not life.was_sent:
                life.load_ends.add(load.start + load.count)
        else:
            life.has_loaded = True
        return fact

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
        life.has_loaded = False
        life.proposed = ()

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
            continued=life.continued_since_scheduled,
            proposed=life.proposed,
            blocked_by=life.blocked_by,
            loading=life.load is not None,
            finished=life.finished is not None,
        )
        if not life.was_sent and not life.load_has_failed:
            life.first_start = row.start
        life.times_new += row.role is Role.NEW
        life.times_resumed += row.role is Role.RESUMED
        life.in_flight += 1
        life.preempted_since_scheduled = False
        life.told_to_forget = life.continued_since_scheduled = False
        life.proposed = ()
        life.loaded_to = None
        life.path.clear()
        return fact

    def _complete(self, result: WorkerResult, output: EngineOutput, after: Snapshot) -> None:
        if self.in_flight:
            self.executed = self.in_flight.popleft()
            self._note_progress(self.executed.output)
            for name in {row.name for row in self.executed.output.rows}:
                if name in self.lives:
                    self.lives[name].in_flight -= 1
        for name, bad_block in result.loads_failed.items():
            life = self.lives[name]
            life.has_loaded = False
            if life.load is not None:
                good = life.load.load.start + bad_block * self.config.block_size
                life.loaded_to = good
        self._note_nonsense()
        for name in result.loads_finished:
            self.lives[name].load = None
            self.lives[name].has_loaded = name not in result.loads_failed
        for name, drafts in result.drafts.items():
            if not self.lives[name].preempted_since_scheduled:
                self.lives[name].proposed = drafts
        for name in result.sends_finished:
            self.lives[name].send = None
        for name, tokens in output.delivered.items():
            if name in self.lives:
                self.lives[name].delivered.extend(tokens)
        for name, reason in output.finished.items():
            self._finish(name, reason)
        self._open_sends(output.sends, after)

    def _note_nonsense(self) -> None:
        """Note which steps in flight go on from the loads that failed in the step executed now."""
        if self.executed is None or not self.executed.bad_blocks:
            return
        for name, preemptions in self.executed.preemptions.items():
            if not self.executed.computes_nonsense(name):
                continue
            self.lives[name].load_has_failed, self.lives[name].first_start = True, None
            for step in self.in_flight:
                if step.preemptions.get(name) == preemptions:
                    step.after_failure.add(name)

    def _note_progress(self, output: SchedulerOutput) -> None:
        for row in output.rows:
            life = self.lives.get(row.name)
            if life is not None and row.start is not None:
                drafts = output.scheduled_spec_decode_tokens.get(row.name, ())
                end = row.start + row.count - len(drafts)
                if end > life.computed_max:
                    life.computed_max = end
                    self.gainless.clear()

    def _finish(self, name: str, reason: FinishReason) -> None:
        life = self.lives.get(name)
        if life is None:
            return
        life.finishes_reported += 1
        if life.is_live:
            life.finished = reason
            self.finished_now = (*self.finished_now, name)

    def _open_sends(self, names: Iterable[str], after: Snapshot) -> None:
        for name in names:
            if name in self.lives:
                blocks, kept = self.before.blocks_of(name), after.blocks_of(name)
                if self.config.sliding_window and kept:
                    blocks &= kept  # what has left the window is given back before the send begins
                self.sends_now = (*self.sends_now, name)
                self.lives[name].times_sent += 1
                self.lives[name].send = OpenSend(blocks, self.last_planned)

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
            for load in step.output.loads:
                if load.name == event.name:
                    for group in load.block_ids or ():
                        step.spoiled.update(group[event.bad_block :])

    def take_samples(self, sampled: Mapping[str, tuple[int, int]]) -> None:
        """Take in what the workers sampled in the step executed last. Called by the Judge alone."""
        self.sampled = dict(sampled)
        for name, (known, new) in sampled.items():
            life = self.lives[name]
            if self.executed and self.executed.turns.get(name) != life.turn:
                continue  # a step planned before its last answer was over: nobody wants the token
            life.sampled_to = max(life.sampled_to, known + new)

    def sync_load_in_flight(self, name: str) -> InFlight | None:
        """Return the step in flight that loads KV for a request synchronously, if any."""
        for step in self.in_flight:
            for load in step.output.loads:
                if load.name == name and not load.is_async:
                    return step
        return None

    def _observe(self, event: AnyEvent) -> None:
        """Compare the new snapshot with the last one."""
        is_same = event.snapshot is self.snapshot and not self.finished_now
        self.snapshot, self.has_work = event.snapshot, event.has_work
        if is_same:  # so it is with most events that are read back: no status can differ
            self.changes = ()
            return
        changes: list[tuple[str, Status | None, Status | None]] = []
        for name, life in self.lives.items():
            status = self._status_of(life)
            if status is life.status:
                continue
            changes.append((name, life.status, status))
            preempted_now = status is Status.PREEMPTED and life.status is Status.RUNNING
            if preempted_now and not life.preempted_since_scheduled:
                self._preempt(life)
            if preempted_now and isinstance(event, Scheduled):
                self.gainless[name] += 1
            life.status = status
            _extend_path(life.path, status)
        self.changes = tuple(changes)
        if self.gainless and self.awaits_outside():
            self.gainless.clear()  # whoever holds blocks may be waiting for that

    def _status_of(self, life: Life) -> Status | None:
        """Return what the snapshot shows; for a forgotten request, how it ended."""
        view = self.snapshot.requests.get(life.name)
        if view is not None:
            return view.status
        return None if life.finished is None else STATUS_OF[life.finished]


STATUS_OF: Final[Mapping[FinishReason, Status]] = {
    FinishReason.STOPPED: Status.FINISHED_STOPPED,
    FinishReason.LENGTH: Status.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORTED: Status.FINISHED_ABORTED,
    FinishReason.ERROR: Status.FINISHED_ERROR,
}
"""The status of a request that ended, once the scheduler has forgotten it."""


_ENDED_BY_WAITING: Final = (
    Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    Status.WAITING_FOR_STREAMING_REQ,
)


def _extend_path(path: list[Status], status: Status | None) -> None:
    """Note a status on the way to being scheduled again.

    What follows a load, WAITING or PREEMPTED, is left out: engines promote a loaded request when
    the end of the load is reported or when they next schedule, and both are one journey. So is the
    WAITING that follows a grammar or a chunk.
    """
    last = path[-1] if path else None
    if status in (None, Status.RUNNING) or last is Status.WAITING_FOR_REMOTE_KVS:
        return
    if status is Status.WAITING and last in _ENDED_BY_WAITING:
        return
    if status is not None and (not path or path[-1] is not status):
        path.append(status)
