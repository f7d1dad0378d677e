"""Translating between the protocol and one vLLM Scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import frozen
from vllm.v1.request import RequestStatus

from schedcheck.adapters.vllm.compat import (
    FINISH_REASONS,
    QUEUES,
    Traits,
    accepted,
    is_row_resumed,
    status_of,
)
from schedcheck.adapters.vllm.connector import BegunLoad
from schedcheck.adapters.vllm.engine import make_request
from schedcheck.adapters.vllm.results import Transfers, result_of
from schedcheck.model.actions import Abort, Action, ResetPrefixCache
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import (
    Accepted,
    Blocks,
    EngineOutput,
    FinishReason,
    Load,
    Rejected,
    Role,
    Row,
    SchedulerOutput,
    TableUpdate,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import RequestView, Snapshot, Status
from schedcheck.sut import Names

_STATUSES: Final[Mapping[Any, Status]] = {one: status_of(one.name) for one in RequestStatus}


@frozen
class _Step:
    """A step in flight."""

    raw: Any
    sync_loads: Mapping[str, Blocks]
    """The blocks that each load within this very step fills."""


class VllmSystem:
    """One Scheduler, used for one trace."""

    def __init__(self, scheduler: Any, config: SchedulerConfig, traits: Traits) -> None:
        self.scheduler, self.config, self.traits = scheduler, config, traits
        self.connector = scheduler.connector
        self.names = Names()
        self.in_flight: deque[_Step] = deque()
        self.arrivals = 0
        self.next_step_id = 0
        self.async_loads: dict[str, Blocks] = {}
        """The blocks that each request's last asynchronous load fills."""
        self.last_sent: dict[str, str] = {}
        """For each engine id the request that was scheduled under it last."""
        self.ended: dict[str, list[str]] = {}
        """For each engine id its owners that ended and were not announced yet, oldest first."""

    def add(self, name: str, spec: RequestSpec, tokens: tuple[int, ...]) -> Accepted | Rejected:
        """Queue a request, unless its id is still tracked: that would be the caller's error."""
        engine_id = name if spec.engine_id_of is None else self.names.id_of(spec.engine_id_of)
        if engine_id in self.scheduler.requests:
            return Rejected(f"the id {engine_id} is in use")
        self.names.add(name, spec)
        self.connector.specs[engine_id] = spec
        request = make_request(
            engine_id,
            spec,
            tokens,
            arrival=self.arrivals,
            block_size=self.config.block_size,
        )
        self.arrivals += 1
        self.scheduler.add_request(request)
        return Accepted()

    def schedule(self) -> SchedulerOutput:
        """Plan one step."""
        raw = self.scheduler.schedule()
        # Whom an announcement is about depends on who was sent before this step.
        preempted = self._preempted(raw)
        finished = tuple(
            name for one in sorted(raw.finished_req_ids) for name in self._announced(one)
        )
        begun, self.connector.begun = self.connector.begun, []
        loads = tuple(self._load(one) for one in begun)
        blocks = {load.name: load.block_ids or () for load in loads if not load.is_async}
        self.in_flight.append(_Step(raw, blocks))
        output = SchedulerOutput(
            step_id=self.next_step_id,
            rows=tuple(self._rows(raw)),
            preempted=preempted,
            finished=finished,
            loads=loads,
        )
        self.next_step_id += 1
        return output

    def _preempted(self, raw: Any) -> tuple[str, ...] | None:
        if not self.traits.announces_preemption:
            return None
        return tuple(
            self.last_sent.get(one, self.names.name_of(one))
            for one in sorted(raw.preempted_req_ids or ())
        )

    def _announced(self, engine_id: str) -> tuple[str, ...]:
        """Return whom an announcement is about: every owner of the id that ended since the last.

        vLLM announces a set of ids, so two owners that ended one after the other share one.
        """
        owners = self.ended.pop(engine_id, None)
        return tuple(owners) if owners else (self.names.name_of(engine_id),)

    def _rows(self, raw: Any) -> Iterable[Row]:
        """Yield the rows in the order in which the step serves them."""
        counts = raw.num_scheduled_tokens
        rows = {row.name: row for row in (*self._new_rows(raw), *self._cached_rows(raw))}
        named = [self.names.name_of(one) for one in counts]
        return [rows[name] for name in named if name in rows] + [
            row for name, row in rows.items() if name not in named
        ]

    def _new_rows(self, raw: Any) -> Iterable[Row]:
        for one in raw.scheduled_new_reqs:
            known = getattr(one, "prefill_token_ids", None)
            if known is None:
                known = one.prompt_token_ids
            yield self._row(
                raw, one.req_id, Role.NEW, one.num_computed_tokens, one.block_ids, tuple(known)
            )

    def _cached_rows(self, raw: Any) -> Iterable[Row]:
        cached = raw.scheduled_cached_reqs
        for index, engine_id in enumerate(cached.req_ids):
            is_resumed = is_row_resumed(cached, index)
            tokens = getattr(cached, "all_token_ids", {})
            known = tokens.get(engine_id) if is_resumed else None
            yield self._row(
                raw,
                engine_id,
                Role.RESUMED if is_resumed else Role.RUNNING,
                cached.num_computed_tokens[index],
                cached.new_block_ids[index],
                None if known is None else tuple(known),
            )

    def _row(
        self,
        raw: Any,
        engine_id: str,
        role: Role,
        start: int,
        blocks: Any,
        known: tuple[int, ...] | None,
    ) -> Row:
        name = self.last_sent[engine_id] = self.names.name_of(engine_id)
        return Row(
            name=name,
            role=role,
            start=start,
            count=raw.num_scheduled_tokens.get(engine_id, 0),
            block_ids=None if blocks is None else tuple(tuple(group) for group in blocks),
            table_update=TableUpdate.APPEND if role is Role.RUNNING else TableUpdate.REPLACE,
            known_tokens=known,
        )

    def _load(self, begun: BegunLoad) -> Load:
        size = self.config.block_size
        first, last = begun.start // size, -(-(begun.start + begun.count) // size)
        table = self.scheduler.kv_cache_manager.get_block_ids(begun.request_id)
        name = self.names.name_of(begun.request_id)
        blocks = tuple(tuple(group[first:last]) for group in table)
        if begun.is_async:
            self.async_loads[name] = blocks
        return Load(
            name=name,
            start=begun.start,
            count=begun.count,
            is_async=begun.is_async,
            block_ids=blocks,
        )

    def complete(self, step_id: int, result: WorkerResult) -> EngineOutput:
        """Process the result of the oldest step."""
        del step_id  # steps return in order, so it is the oldest one
        step = self.in_flight.popleft()
        sampled = {self.names.id_of(name): list(one) for name, one in result.sampled.items()}
        answer = self.scheduler.update_from_output(
            step.raw,
            result_of(
                ids=list(step.raw.num_scheduled_tokens),
                sampled=sampled,
                transfers=self._transfers(step, result),
                as_arrays=self.traits.samples_are_arrays,
            ),
        )
        # Only now: a request that fails with its load is asked about while the load is open.
        self.connector.loads_reported(map(self.names.id_of, result.loads_finished))
        return self._engine_output(answer)

    def _transfers(self, step: _Step, result: WorkerResult) -> Transfers:
        received = {self.names.id_of(name) for name in result.loads_finished}
        sent = {self.names.id_of(name) for name in result.sends_finished}
        bad = {
            block
            for name, ordinal in result.loads_failed.items()
            for group in step.sync_loads.get(name, self.async_loads.get(name, ()))
            for block in group[ordinal:]
        }
        return Transfers(received=received, sent=sent, bad_blocks=bad)

    def _engine_output(self, answer: Any) -> EngineOutput:
        delivered: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        for client in answer.values():
            for one in client.outputs:
                name = self.names.name_of(one.request_id)
                if one.new_token_ids:
                    delivered[name] = tuple(one.new_token_ids)
                if one.finish_reason is not None:
                    finished[name] = FINISH_REASONS[str(one.finish_reason)]
                    self._ends(name)
        return EngineOutput(delivered=delivered, finished=finished, sends=self._sends())

    def _ends(self, name: str) -> None:
        owners = self.ended.setdefault(self.names.id_of(name), [])
        if name not in owners:
            owners.append(name)

    def _sends(self) -> tuple[str, ...]:
        begun, self.connector.sends = self.connector.sends, []
        return tuple(self.names.name_of(one) for one in begun)

    def control(self, action: Action) -> Accepted | Rejected:
        """Abort or reset; one request alone cannot be preempted by force."""
        match action:
            case Abort(request=name):
                self._abort(name)
                return Accepted(sends=self._sends())
            case ResetPrefixCache(running=running):
                return self._reset(running=running)
            case _:
                return Rejected(f"vllm knows no {action.do}")

    def _reset(self, *, running: bool) -> Accepted | Rejected:
        """Reset the prefix cache; False and one documented exception are lawful refusals.

        The exception says that blocks are held for a transfer or a step in flight; what ran has
        been preempted by then all the same.
        """
        scheduler = self.scheduler
        try:
            options = accepted(type(scheduler).reset_prefix_cache, reset_running_requests=running)
            done = scheduler.reset_prefix_cache(**options)
        except RuntimeError as error:
            if not str(error).startswith("Failed to reset KV cache even when"):
                raise
            return Rejected("blocks are held for a transfer or a step in flight")
        return Accepted() if done else Rejected("blocks are in use")

    def _abort(self, name: str) -> None:
        engine_id = self.names.id_of(name)
        request = self.scheduler.requests.get(engine_id)
        if not self.names.owns(name) or request is None:
            return
        if not RequestStatus.is_finished(request.status):
            self._ends(name)
        self.scheduler.finish_requests(engine_id, RequestStatus.FINISHED_ABORTED)

    def snapshot(self) -> Snapshot:
        """Show every request that is tracked, the queues and the pool."""
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        pool = manager.block_pool
        free = sorted(block.block_id for block in pool.free_block_queue.get_all_free_blocks())
        name_of = self.names.name_of
        return Snapshot(
            requests={
                name_of(key): self._view(scheduler.requests[key])
                for key in sorted(scheduler.requests)
            },
            queues={
                queue: tuple(name_of(one.request_id) for one in getattr(scheduler, queue))
                for queue in QUEUES
                if hasattr(scheduler, queue)
            },
            blocks_free=pool.get_num_free_blocks(),
            blocks_total=self.config.blocks_total,
            free_block_ids=tuple(free),
        )

    def _view(self, request: Any) -> RequestView:
        manager = self.scheduler.kv_cache_manager
        null = manager.block_pool.null_block.block_id
        return RequestView(
            status=_STATUSES[request.status],
            num_computed_tokens=request.num_computed_tokens,
            num_tokens=request.num_tokens,
            num_preemptions=getattr(request, "num_preemptions", None),
            block_ids=tuple(
                tuple(block for block in group if block != null)
                for group in manager.get_block_ids(request.request_id)
            ),
        )

    def has_work(self) -> bool:
        """Return whether the engine core's loop would go on."""
        return bool(self.scheduler.has_requests())

    def close(self) -> None:
        """Let the scheduler go."""
        self.in_flight.clear()
