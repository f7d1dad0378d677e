"""Writing recorded steps: events become forms, each told from the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from schedcheck.model.actions import Action, Add
from schedcheck.model.output import Blocks, Load, Rejected, Role, Row, SchedulerOutput, TableUpdate
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import EMPTY_SNAPSHOT, RequestView, Snapshot
from schedcheck.model.trace import (
    RECORDED_FORMAT,
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Crashed,
    Drained,
    Header,
    Hung,
    Malformed,
    Repeated,
    Scheduled,
    TransferEnded,
)
from schedcheck.tracefile.recorded import (
    AddedForm,
    AnyForm,
    CheckpointForm,
    CompletedForm,
    ControlledForm,
    CrashedForm,
    DrainedForm,
    HungForm,
    LastStep,
    LoadForm,
    MalformedForm,
    RecordingForm,
    RepeatedForm,
    RowForm,
    Sampled,
    ScheduledForm,
    Tokens,
    TransferForm,
    ViewForm,
)
from schedcheck.tracefile.writing import encode_action, encode_header

_to_json: Final = msgspec.json.Encoder().encode


def encode_recording_header(
    header: Header, recording: RecordingForm, checkpoint: CheckpointForm | None = None
) -> bytes:
    """Return the first line of a recording, newline included."""
    line = msgspec.json.decode(encode_header(header))
    line |= {"format": RECORDED_FORMAT, "recording": recording}
    if checkpoint is not None:
        line |= {"start": "checkpoint", "checkpoint": checkpoint}
    return _to_json(dict(sorted(line.items()))) + b"\n"


def encode_step(action: Action, forms: Sequence[AnyForm]) -> bytes:
    """Return an action's line with what is recorded beside it, newline included."""
    return with_recorded(encode_action(action), forms)


def with_recorded(line: bytes, forms: Sequence[AnyForm]) -> bytes:
    """Return an encoded action's line with what is recorded beside it."""
    return line[:-2] + b',"recorded":' + _to_json(forms) + b"}\n"


def body_of(action: Action) -> dict[str, Any]:
    """Return an action as it stands in a line."""
    body: dict[str, Any] = msgspec.json.decode(encode_action(action))
    return body


def body_of_spec(spec: RequestSpec) -> dict[str, Any]:
    """Return a request's description as it stands in a line."""
    body: dict[str, Any] = body_of(Add("r0", spec))["spec"]
    return body


class EventEncoder:
    """Turns the events of one file into forms, in the order in which they happened."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._before = EMPTY_SNAPSHOT
        self._last = LastStep()
        self._in_flight: deque[list[str]] = deque()
        """The names of the rows of each step in flight."""

    def go_on(self, steps: Iterable[SchedulerOutput], now: Snapshot) -> list[ScheduledForm]:
        """Begin in the middle, and return the forms of the steps in flight there."""
        self._before = now
        return [self._scheduled(step) for step in steps]

    def form_of(self, event: AnyEvent, action: Action) -> AnyForm:
        """Return the form of an event to which ``action`` led."""
        form = self._form_of(event, action)
        self._tell_snapshot(form, event.snapshot)
        form.idle = not event.has_work
        return form

    def _form_of(self, event: AnyEvent, action: Action) -> AnyForm:
        match event:
            case Added(answer=answer):
                return AddedForm(refused=_refusal(answer))
            case Scheduled(output=output):
                return self._scheduled(output)
            case Completed():
                return self._completed(event)
            case Controlled(answer=answer):
                sends = [] if isinstance(answer, Rejected) else list(answer.sends)
                own = None if event.action == action else body_of(event.action)
                return ControlledForm(action=own, refused=_refusal(answer), sends=sends)
            case TransferEnded(name=name, transfer=transfer, bad_block=bad):
                return TransferForm(name=name, of=transfer, bad=bad)
            case Drained(rounds=rounds, idle_rounds=idle, unfinished=names):
                return DrainedForm(rounds=rounds, idle_rounds=idle, unfinished=list(names))
            case Crashed(call=call, error=error, message=message, function=function):
                return CrashedForm(call=call, error=error, message=message, function=function)
            case Hung(call=call, how=how, detail=detail):
                return HungForm(call=call, how=how, detail=detail)
            case Malformed(call=call, problem=problem):
                return MalformedForm(call=call, problem=problem)
            case Repeated(difference=difference, impurity=impurity):
                return RepeatedForm(difference=difference, impurity=impurity)

    def _scheduled(self, output: SchedulerOutput) -> ScheduledForm:
        form = ScheduledForm(
            step=output.step_id,
            rows=[one for one in map(self._row, range(10**6), output.rows) if one is not None],
            preempted=None if output.preempted is None else list(output.preempted),
            finished=list(output.finished),
            loads=[load_form(load) for load in output.loads],
            drafts={
                name: self._values(drafts)
                for name, drafts in output.scheduled_spec_decode_tokens.items()
            },
            encodes={
                name: list(places) for name, places in output.scheduled_encoder_inputs.items()
            },
            freed=list(output.freed_encoder_keys),
        )
        names = [row.name for row in output.rows]
        starts = [row.start for row in output.rows]
        self._last.shorten(form, names, [row.count for row in output.rows], starts)
        self._in_flight.append(names)
        return form

    def _row(self, at: int, row: Row) -> RowForm | None:
        usual = TableUpdate.APPEND if row.role is Role.RUNNING else TableUpdate.REPLACE
        known = None if row.known_tokens is None else self._values(row.known_tokens)
        form = RowForm(
            at=at,
            role=row.role,
            inferred=row.role_source.value == "INFERRED",
            blocks=lists_of(row.block_ids),
            table=None if row.table_update is usual else row.table_update,
            known=known,
        )
        return None if form == RowForm(at=at) else form

    def _values(self, tokens: tuple[int, ...]) -> list[int] | int:
        return len(tokens) if self.tokens is Tokens.COUNTS else list(tokens)

    def _completed(self, event: Completed) -> CompletedForm:
        result, output = event.result, event.output
        rows = self._in_flight.popleft() if self._in_flight else []
        sampled = self._per_row(result.sampled, rows)
        delivered = self._per_row(output.delivered, rows)
        ones = self.tokens is Tokens.COUNTS and sampled == [1] * len(rows)
        return CompletedForm(
            step=event.step_id,
            sampled=UNSET if ones else sampled,
            delivered=UNSET if delivered == sampled else delivered,
            drafts={name: self._values(drafts) for name, drafts in result.drafts.items()},
            loads_finished=list(result.loads_finished),
            loads_failed=dict(result.loads_failed),
            sends_finished=list(result.sends_finished),
            finished=dict(output.finished),
            sends=list(output.sends),
            cached=dict(output.cached_tokens),
        )

    def _per_row(self, tokens: Mapping[str, tuple[int, ...]], rows: Sequence[str]) -> Sampled:
        if self.tokens is not Tokens.COUNTS:
            return {name: list(values) for name, values in tokens.items()}
        if not tokens.keys() <= set(rows) or len(set(rows)) < len(rows):
            return {name: [0] * len(values) for name, values in tokens.items()}
        return [len(tokens.get(name, ())) for name in rows]

    def _tell_snapshot(self, form: AnyForm, after: Snapshot) -> None:
        before, self._before = self._before, after
        if after is before:
            return
        if after.requests != before.requests:
            form.views = _changed_views(before.requests, after.requests)
        form.queues = {
            queue: list(names)
            for queue, names in after.queues.items()
            if names != before.queues.get(queue)
        }
        if after.blocks_free != before.blocks_free:
            form.free = after.blocks_free
        if after.blocks_total != before.blocks_total:
            form.total = after.blocks_total
        if after.free_block_ids is not None and after.free_block_ids != before.free_block_ids:
            form.free_ids = list(after.free_block_ids)
        form.refs = _changed_refs(before.block_refs or {}, after.block_refs or {})


def _changed_views(
    before: Mapping[str, RequestView], after: Mapping[str, RequestView]
) -> dict[str, ViewForm | None]:
    changed: dict[str, ViewForm | None] = {
        name: view_form(view) for name, view in after.items() if view != before.get(name)
    }
    return changed | dict.fromkeys(before.keys() - after.keys())


def _changed_refs(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
    changed = {block: refs for block, refs in after.items() if refs != before.get(block)}
    return changed | dict.fromkeys(before.keys() - after.keys(), 0)


def view_form(view: RequestView) -> ViewForm:
    """Return the form of one request in a snapshot."""
    return ViewForm(
        status=view.status,
        computed=view.num_computed_tokens,
        tokens=view.num_tokens,
        preemptions=view.num_preemptions,
        blocks=lists_of(view.block_ids),
    )


def load_form(load: Load) -> LoadForm:
    """Return the form of a load."""
    return LoadForm(
        name=load.name,
        start=load.start,
        count=load.count,
        sync=not load.is_async,
        blocks=lists_of(load.block_ids),
    )


def lists_of(blocks: Blocks | None) -> list[list[int]] | None:
    """Return block ids as a form has them."""
    return None if blocks is None else [list(group) for group in blocks]


def _refusal(answer: object) -> str | None:
    return answer.reason if isinstance(answer, Rejected) else None
