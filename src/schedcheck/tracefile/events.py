"""Reading recorded steps: forms become events again, in constant memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from attrs import evolve
from msgspec import UNSET, UnsetType

from schedcheck.model.actions import Action, Add
from schedcheck.model.output import (
    Accepted,
    Blocks,
    EngineOutput,
    Load,
    Rejected,
    Role,
    RoleSource,
    Row,
    SchedulerOutput,
    TableUpdate,
    WorkerResult,
)
from schedcheck.model.snapshot import RequestView, Snapshot
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Crashed,
    Drained,
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
    RepeatedForm,
    RowForm,
    Sampled,
    ScheduledForm,
    TransferForm,
    ViewForm,
)


class EventDecoder:
    """Turns the forms of one file into events. ``prompt_of`` makes the prompt of an added request.

    What does not fit together raises ValueError, in one line.
    """

    def __init__(
        self,
        prompt_of: Callable[[Add], tuple[int, ...]],
        action_of: Callable[[dict[str, object]], Action],
        *,
        shows_refs: bool,
    ) -> None:
        self.prompt_of, self.action_of = prompt_of, action_of
        self.snapshot = Snapshot(block_refs={} if shows_refs else None)
        self._last = LastStep()
        self._in_flight: deque[list[str]] = deque()

    def begin(self, checkpoint: CheckpointForm) -> tuple[Scheduled, ...]:
        """Take in where a file goes on, and return the steps that are in flight there."""
        steps = tuple(self._scheduled(form) for form in checkpoint.in_flight)
        if checkpoint.now is not None:
            self._look(checkpoint.now)
        return steps

    def event_of(self, form: AnyForm, action: Action) -> AnyEvent:
        """Return the event that a form tells."""
        self._look(form)
        snapshot, has_work = self.snapshot, not form.idle
        match form:
            case ScheduledForm():
                return self._scheduled(form)
            case CompletedForm():
                return self._completed(form)
            case AddedForm(refused=refused):
                if not isinstance(action, Add):
                    raise ValueError(  # noqa: TRY004  the file is wrong, not a caller
                        f"a request is added beside a {action.do} action"
                    )
                return Added(
                    name=action.request,
                    spec=action.spec,
                    tokens=self.prompt_of(action),
                    answer=_answer(refused, []),
                    snapshot=snapshot,
                    has_work=has_work,
                )
            case ControlledForm(action=own, refused=refused, sends=sends):
                return Controlled(
                    action=action if own is None else self.action_of(own),
                    answer=_answer(refused, sends),
                    snapshot=snapshot,
                    has_work=has_work,
                )
            case TransferForm(name=name, of=transfer, bad=bad):
                return TransferEnded(
                    name=name,
                    transfer=transfer,
                    bad_block=bad,
                    snapshot=snapshot,
                    has_work=has_work,
                )
            case _:
                return self._other(form)

    def _other(self, form: AnyForm) -> AnyEvent:
        event: AnyEvent
        match form:
            case DrainedForm(rounds=rounds, idle_rounds=idle, unfinished=names):
                event = Drained(rounds=rounds, idle_rounds=idle, unfinished=tuple(names))
            case CrashedForm(call=call, error=error, message=message, function=function):
                event = Crashed(call=call, error=error, message=message, function=function)
            case HungForm(call=call, how=how, detail=detail):
                event = Hung(call=call, how=how, detail=detail)
            case MalformedForm(call=call, problem=problem):
                event = Malformed(call=call, problem=problem)
            case RepeatedForm(difference=difference, impurity=impurity):
                event = Repeated(difference=difference, impurity=impurity)
            case _:
                raise AssertionError(f"no event is made of a {type(form).__name__}")
        return evolve(event, snapshot=self.snapshot, has_work=not form.idle)

    def _scheduled(self, form: ScheduledForm) -> Scheduled:
        last = self._last
        last.lengthen(form)
        names = last.names
        self._in_flight.append(names)
        said = {row.at: row for row in form.rows}
        if said and not 0 <= min(said) <= max(said) < len(names):
            raise ValueError(f"rows says more about row {max(said)}, but there are {len(names)}")
        rows = [
            Row(name=name, role=Role.RUNNING, count=count, start=start)
            if at not in said
            else _row(name, count, start, said[at])
            for at, (name, count, start) in enumerate(
                zip(names, last.counts, last.starts, strict=True)
            )
        ]
        return Scheduled(
            output=SchedulerOutput(
                step_id=form.step,
                rows=tuple(rows),
                preempted=None if form.preempted is None else tuple(form.preempted),
                finished=tuple(form.finished),
                loads=tuple(map(load_of, form.loads)),
                scheduled_spec_decode_tokens=_values(form.drafts),
                scheduled_encoder_inputs={
                    name: tuple(places) for name, places in form.encodes.items()
                },
                freed_encoder_keys=tuple(form.freed),
            ),
            snapshot=self.snapshot,
            has_work=not form.idle,
        )

    def _completed(self, form: CompletedForm) -> Completed:
        rows = self._in_flight.popleft() if self._in_flight else []
        sampled = _per_row(form.sampled, rows)
        delivered = sampled if form.delivered is UNSET else _per_row(form.delivered, rows)
        return Completed(
            step_id=form.step,
            result=WorkerResult(
                sampled=sampled,
                drafts=_values(form.drafts),
                loads_finished=tuple(form.loads_finished),
                sends_finished=tuple(form.sends_finished),
                loads_failed=form.loads_failed,
            ),
            output=EngineOutput(
                delivered=delivered,
                finished=form.finished,
                sends=tuple(form.sends),
                cached_tokens=form.cached,
            ),
            snapshot=self.snapshot,
            has_work=not form.idle,
        )

    def _look(self, form: AnyForm) -> None:
        """Take in how the snapshot changed."""
        if not (
            form.views
            or form.queues
            or form.refs
            or form.free is not None
            or form.free_ids is not None
            or form.total is not None
        ):
            return
        before = self.snapshot
        self.snapshot = Snapshot(
            requests=_with_views(before.requests, form.views),
            queues={**before.queues, **{one: tuple(form.queues[one]) for one in form.queues}},
            blocks_free=before.blocks_free if form.free is None else form.free,
            blocks_total=before.blocks_total if form.total is None else form.total,
            free_block_ids=before.free_block_ids if form.free_ids is None else tuple(form.free_ids),
            block_refs=_with_refs(before.block_refs, form.refs),
        )


def _with_views(
    before: Mapping[str, RequestView], changed: Mapping[str, ViewForm | None]
) -> Mapping[str, RequestView]:
    if not changed:
        return before
    after = dict(before)
    for name, view in changed.items():
        if view is None:
            after.pop(name, None)
        else:
            after[name] = _view(view)
    return after


def _with_refs(
    before: Mapping[int, int] | None, changed: dict[int, int]
) -> Mapping[int, int] | None:
    if not changed:
        return before
    after = {**(before or {}), **changed}
    for block, refs in changed.items():
        if not refs:
            del after[block]
    return after


def _view(form: ViewForm) -> RequestView:
    return RequestView(
        status=form.status,
        num_computed_tokens=form.computed,
        num_tokens=form.tokens,
        num_preemptions=form.preemptions,
        block_ids=blocks_of(form.blocks),
    )


def _row(name: str, count: int, start: int | None, form: RowForm) -> Row:
    usual = TableUpdate.APPEND if form.role is Role.RUNNING else TableUpdate.REPLACE
    known = form.known
    return Row(
        name=name,
        role=form.role,
        count=count,
        start=start,
        role_source=RoleSource.INFERRED if form.inferred else RoleSource.SHOWN,
        block_ids=blocks_of(form.blocks),
        table_update=form.table or usual,
        known_tokens=None if known is None else _tokens(known),
    )


def load_of(form: LoadForm) -> Load:
    """Return a load from its form."""
    return Load(
        name=form.name,
        start=form.start,
        count=form.count,
        is_async=not form.sync,
        block_ids=blocks_of(form.blocks),
    )


def blocks_of(lists: Sequence[Sequence[int]] | None) -> Blocks | None:
    """Return block ids as a row has them."""
    return None if lists is None else tuple(map(tuple, lists))


def _per_row(found: Sampled | UnsetType, rows: Sequence[str]) -> dict[str, tuple[int, ...]]:
    if found is UNSET:
        return dict.fromkeys(rows, nameless(1))
    if isinstance(found, dict):
        return {name: tuple(tokens) for name, tokens in found.items()}
    if len(found) != len(rows):
        raise ValueError(f"{len(found)} counts of tokens do not fit the {len(rows)} rows")
    return {name: nameless(count) for name, count in zip(rows, found, strict=True) if count}


def _values(found: Mapping[str, list[int] | int]) -> dict[str, tuple[int, ...]]:
    return {name: _tokens(one) for name, one in found.items()}


def _tokens(found: Sequence[int] | int) -> tuple[int, ...]:
    return nameless(found) if isinstance(found, int) else tuple(found)


@lru_cache(maxsize=256)
def nameless(count: int) -> tuple[int, ...]:
    """Return so many tokens of which nothing is known but that they are there."""
    return (0,) * count


def _answer(refused: str | None, sends: Sequence[str]) -> Accepted | Rejected:
    return Rejected(refused) if refused is not None else Accepted(sends=tuple(sends))
