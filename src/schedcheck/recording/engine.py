"""Writing down what vLLM's Scheduler does: the part that counts microseconds.

A step like the one before is told in few bytes, and found to be so by comparing lists: no loop in
Python goes over requests that did nothing new. Requests are called ``r0``, ``r1``, ... in the order
of being added. Block tables are not recorded, nor are loads within a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from schedcheck.adapters.vllm.compat import FINISH_REASONS, QUEUES, is_row_resumed
from schedcheck.model.actions import (
    Abort,
    Action,
    Add,
    Complete,
    Pause,
    ResetPrefixCache,
    Resume,
    Schedule,
)
from schedcheck.model.output import FinishReason, Role
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.recording.headers import header_of
from schedcheck.recording.online import OnlineCheck
from schedcheck.recording.prompts import PromptHasher
from schedcheck.recording.reading import (
    NEW_TOKENS,
    NO_STEP,
    Known,
    Shape,
    has_roles,
    load_of,
    reason_of,
    starts_of,
    view_of,
)
from schedcheck.recording.systems import crash
from schedcheck.recording.writing import Options, RecordingFiles
from schedcheck.tracefile import Tokens, encode_action
from schedcheck.tracefile.recorded import (
    AddedForm,
    AnyForm,
    CheckpointForm,
    CompletedForm,
    ControlledForm,
    CrashedForm,
    DrainedForm,
    LastStep,
    LifeForm,
    RowForm,
    ScheduledForm,
    ViewForm,
)
from schedcheck.tracefile.recording import with_recorded

_WAITING_LOOKED_AT: Final = 1_024
"""So many requests of each waiting queue are looked at in a step: their status tells of loads."""
_ENDED_MAX: Final = 10_000
_MANY: Final = 10**6
_SCHEDULE: Final = encode_action(Schedule())
_COMPLETE: Final = encode_action(Complete())
_SCHEDULES: Final = Schedule()
_COMPLETES: Final = Complete()


class EngineRecorder:
    """Writes down what happens to one Scheduler. Whatever goes wrong in here is raised."""

    def __init__(self, scheduler: Any, options: Options) -> None:
        self.scheduler = scheduler
        header = header_of(scheduler)
        self.tokens = Tokens.IDS if options.tokens else Tokens.COUNTS
        self.files = RecordingFiles(options, header, self.tokens)
        self._online = OnlineCheck(header) if options.check else None
        self._hasher = PromptHasher(header.config.block_size)
        self._lives: dict[str, Known] = {}
        self._ended: dict[str, list[str]] = {}
        """By id, the requests that ended and whose end was not announced yet: one announcement
        is about all of them."""
        self._sending: dict[str, str] = {}
        """By id, the request that ended and whose KV is being sent."""
        self._added = self._steps = 0
        self._last = LastStep()
        self._ids: list[str] = []
        self._names: list[str] = []
        self._in_flight: deque[tuple[int, Shape, list[RowForm]]] = deque()
        """Steps that were planned and not completed: number, shape, and rows that say more."""
        self._announces = True
        """Whether its steps say who was preempted."""
        self._has_connector = getattr(scheduler, "connector", None) is not None
        self._queues = [one for one in QUEUES if one != "running" and hasattr(scheduler, one)]
        self._begin(list(scheduler.requests.values()))

    def _begin(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self._meet(request, None)
        self.files.begin(self._checkpoint() if self._lives else None)

    def begin_anew(self) -> None:
        """Begin the next file, in which nothing is known of requests that are there already."""
        self._lives.clear()
        self._ended.clear()
        self._sending.clear()
        self._in_flight.clear()
        self._ids, self._names = [], []
        self._online = None
        self._begin(list(self.scheduler.requests.values()))

    def close(self) -> None:
        """End the recording."""
        self.files.close()

    # What happens.

    def added(self, request: Any) -> None:
        """Write down that a request was added."""
        if getattr(request, "resumable", False) or request.request_id in self._lives:
            return  # a session: it is met when it runs, and its history stays unknown
        prompt = request.prompt_token_ids or [0] * request.num_prompt_tokens
        spec = self._spec(request, prompt)
        life = self._meet(request, spec)
        form = AddedForm(
            views={life.name: view_of(request)},
            tokens=list(prompt) if self.tokens is Tokens.IDS else None,
        )
        self._write(encode_action(Add(life.name, spec)), Add(life.name, spec), form)

    def _spec(self, request: Any, prompt: list[int]) -> RequestSpec:
        lora = getattr(request, "lora_request", None)
        return RequestSpec(
            prompt=tuple(self._hasher.segments(prompt)),
            max_tokens=max(1, min(request.max_tokens or _MANY, _MANY)),
            priority=getattr(request, "priority", 0),
            adapter=None if lora is None else f"lora{lora.lora_int_id}",
        )

    def _meet(self, request: Any, spec: RequestSpec | None) -> Known:
        name = f"r{self._added}"
        self._added += 1
        form = LifeForm(name=name, unknown=spec is None)
        life = Known(name, request, spec, request.status, form)
        self._lives[request.request_id] = life
        return life

    def scheduled(self, raw: Any) -> None:
        """Write down that a step was planned."""
        counts, cached = raw.num_scheduled_tokens, raw.scheduled_cached_reqs
        form = ScheduledForm(step=self._steps)
        self._steps += 1
        if (
            cached.req_ids == self._ids
            and len(counts) == len(self._ids)
            and not raw.finished_req_ids
            and not getattr(raw, "preempted_req_ids", None)
            and not has_roles(raw)
        ):
            starts = cached.num_computed_tokens
            form.preempted = [] if self._announces else None
        else:
            starts = self._tell_changes(form, raw)
        if raw.scheduled_spec_decode_tokens:
            form.drafts = {
                self._name_of(one): len(drafts)
                for one, drafts in raw.scheduled_spec_decode_tokens.items()
            }
        if self._has_connector:
            self._look_at_queues(form)
        last = self._last
        last.shorten(form, self._names, list(counts.values()), starts)
        self._in_flight.append((form.step, (last.names, last.counts, last.starts), form.rows))
        self._write(_SCHEDULE, _SCHEDULES, form)

    def _tell_changes(self, form: ScheduledForm, raw: Any) -> list[int | None]:
        """Write into a form how a step differs from the one before, and return where rows start."""
        ids, before = list(raw.num_scheduled_tokens), self._ids
        doubtful = set(getattr(raw, "preempted_req_ids", ()) or ())
        if ids != before:
            doubtful |= set(before).difference(ids)
            self._ids, self._names = ids, [self._name_of(one) for one in ids]
        form.preempted = self._preempted(raw)
        form.finished = [
            name for one in sorted(raw.finished_req_ids) for name in self._announced(one)
        ]
        if has_roles(raw):
            form.rows = list(self._rows(raw, ids))
        doubtful.update(ids[row.at] for row in form.rows)
        for one in doubtful:
            if one in self._lives:
                self._note_status(form, self._lives[one])
        return starts_of(raw, ids)

    def _rows(self, raw: Any, ids: list[str]) -> Iterator[RowForm]:
        cached = raw.scheduled_cached_reqs
        roles = {one.req_id: Role.NEW for one in raw.scheduled_new_reqs}
        for index, one in enumerate(cached.req_ids):
            if is_row_resumed(cached, index):
                roles[one] = Role.RESUMED
        for at, one in enumerate(ids):
            if one in roles:
                if one in self._lives:
                    self._lives[one].take_role(roles[one])
                yield RowForm(at=at, role=roles[one])

    def _preempted(self, raw: Any) -> list[str] | None:
        self._announces = hasattr(raw, "preempted_req_ids")
        if not self._announces:
            return None
        names: list[str] = []
        for one in sorted(raw.preempted_req_ids or ()):
            names.append(self._name_of(one))
            if one in self._lives:
                self._lives[one].form.forgot = True
        return names

    def _announced(self, engine_id: str) -> list[str]:
        return self._ended.pop(engine_id, None) or [self._name_of(engine_id)]

    def _name_of(self, engine_id: str) -> str:
        life = self._lives.get(engine_id)
        if life is None:
            request, ended = self.scheduler.requests.get(engine_id), self._ended.get(engine_id)
            if request is None or request.is_finished():
                return self._sending.get(engine_id) or (ended or ["gone"])[-1]
            life = self._meet(request, None)
        return life.name

    def _look_at_queues(self, form: ScheduledForm) -> None:
        """Find out whose load began or was promoted: nothing else tells."""
        for queue in self._queues:
            waiting = getattr(self.scheduler, queue)
            if waiting:
                self._look_at_waiting(form, waiting)

    def _look_at_waiting(self, form: ScheduledForm, waiting: Iterable[Any]) -> None:
        for request in islice(waiting, _WAITING_LOOKED_AT):
            life = self._lives.get(request.request_id)
            if life is not None and life.status is not request.status:
                self._note_status(form, life)

    def _note_status(self, form: AnyForm, life: Known) -> None:
        status = life.take_status()
        if status is None:
            return
        form.views[life.name] = ViewForm(status=status)
        if status is Status.WAITING_FOR_REMOTE_KVS and isinstance(form, ScheduledForm):
            life.form.load = load_of(life.name, life.request)
            form.loads = [*form.loads, life.form.load]

    def completed(self, result: Any, answer: Any) -> None:
        """Write down that the result of a step was processed."""
        number, shape, _ = self._in_flight.popleft() if self._in_flight else NO_STEP
        form, names = CompletedForm(step=number), shape[0]
        clients = list(answer.values()) if answer else []
        outputs = (
            clients[0].outputs
            if len(clients) == 1
            else [one for client in clients for one in client.outputs]
        )
        lengths = list(map(len, map(NEW_TOKENS, outputs)))
        if self.tokens is Tokens.IDS:
            form.sampled = {
                self._name_of(one.request_id): list(map(int, one.new_token_ids)) for one in outputs
            }
        elif len(lengths) != len(names) or lengths != self._last.ones(len(names)):
            form.sampled = self._sampled(outputs, lengths, names)
        if self.scheduler.finished_req_ids:  # whoever ended since the step planned last
            for one in outputs:
                if one.finish_reason is not None:
                    reason = FINISH_REASONS.get(str(one.finish_reason))
                    self._finish(form, one.request_id, reason)
        self._note_transfers(form, result)
        if self.scheduler.finished_req_ids:
            self._sweep(form)
        self._write(_COMPLETE, _COMPLETES, form)

    def _sampled(self, outputs: list[Any], lengths: list[int], names: list[str]) -> Any:
        told: dict[str, int] = {}
        for one, length in zip(outputs, lengths, strict=True):
            name = self._name_of(one.request_id)
            told[name] = told.get(name, 0) + length
        if told.keys() <= set(names):
            return [told.get(name, 0) for name in names]
        return {name: [0] * length for name, length in told.items()}

    def _finish(self, form: CompletedForm, engine_id: str, reason: FinishReason | None) -> None:
        life = self._lives.get(engine_id)
        if life is None:
            return
        tracked = self.scheduler.requests.get(engine_id)
        if tracked is not None and not tracked.is_finished():
            return  # one answer of a session, not its end
        form.finished[life.name] = reason or FinishReason.STOPPED
        if tracked is not None:
            form.sends = [*form.sends, life.name]
        self._end(form, engine_id, life, form.finished[life.name])

    def _end(self, form: AnyForm, engine_id: str, life: Known, reason: FinishReason) -> None:
        life.form.finished = reason
        self._ended.setdefault(engine_id, []).append(life.name)
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        if engine_id in self.scheduler.requests:
            self._sending[engine_id] = life.name
            self._note_status(form, life)
        else:
            form.views[life.name] = None
        if self._lives.get(engine_id) is life:
            del self._lives[engine_id]

    def _sweep(self, form: CompletedForm) -> None:
        """Find requests that ended without any word to a client."""
        for one in self.scheduler.finished_req_ids:
            life = self._lives.get(one)
            if life is not None and life.request.is_finished():
                form.finished[life.name] = reason_of(life.request)
                self._end(form, one, life, form.finished[life.name])

    def _note_transfers(self, form: CompletedForm, result: Any) -> None:
        told = getattr(result, "kv_connector_output", None) or result
        if getattr(told, "invalid_block_ids", None):
            # Whose blocks they are is not kept: nothing is held against whoever was loading.
            loading = [life.name for life in self._lives.values() if life.form.load is not None]
            form.loads_failed = dict.fromkeys(loading, 0)
        for one in sorted(getattr(told, "finished_recving", None) or ()):
            life = self._lives.get(one)
            if life is not None:
                life.form.load = None
                form.loads_finished = [*form.loads_finished, life.name]
        for one in sorted(getattr(told, "finished_sending", None) or ()):
            name = self._sending.pop(one, None)
            if name is not None:
                form.sends_finished = [*form.sends_finished, name]
                form.views[name] = None

    def aborted(self) -> None:
        """Write down who was ended from outside, one action each."""
        gone = [(one, life) for one, life in self._lives.items() if life.request.is_finished()]
        for one, life in gone:
            form = ControlledForm()
            if one in self.scheduler.requests:
                form.sends = [life.name]
            self._end(form, one, life, FinishReason.ABORTED)
            action = Abort(life.name)
            self._write(encode_action(action), action, form)

    def reset(self, running: bool, done: bool) -> None:  # noqa: FBT001  as it was called
        """Write down that the prefix cache was emptied, or not."""
        form = ControlledForm(refused=None if done else "blocks are in use")
        for life in self._lives.values():
            self._note_status(form, life)
        action = ResetPrefixCache(running=running)
        self._write(encode_action(action), action, form)

    def paused(self, state: Any) -> None:
        """Write down a pause, or its end."""
        word = getattr(state, "name", "")
        action: Action = Resume() if word == "UNPAUSED" else Pause(word == "PAUSED_NEW")
        self._write(encode_action(action), action, ControlledForm())

    def crashed(self, action: Action, call: str, error: Exception) -> None:
        """Write down what the engine raised."""
        told = crash(call, error)
        form = CrashedForm(
            call=told.call, error=told.error, message=told.message, function=told.function
        )
        self._write(encode_action(action), action, form)
        self.files.flush()

    # Where it goes.

    def _write(self, line: bytes, action: Action, form: AnyForm) -> None:
        self.files.write(with_recorded(line, [form]))
        if self._online is not None:
            self._online.take(action, form)
        if self.files.is_full:
            self._last = LastStep()
            self.files.begin(self._checkpoint())

    def _checkpoint(self) -> CheckpointForm:
        """Return where the recording is."""
        last, steps = LastStep(), []
        for number, shape, rows in self._in_flight:
            told = ScheduledForm(step=number, rows=rows)
            last.shorten(told, *shape)
            steps.append(told)
        self._last = last
        views: dict[str, ViewForm | None] = {
            life.name: view_of(life.request) for life in self._lives.values()
        }
        return CheckpointForm(
            lives=[life.told() for life in self._lives.values()],
            in_flight=steps,
            now=DrainedForm(rounds=0, views=views),
        )
