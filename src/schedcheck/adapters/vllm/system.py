"""Translating between the protocol and one vLLM Scheduler."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen
from vllm.v1.request import RequestStatus

from schedcheck.adapters.vllm.compat import (
    FINISH_REASONS,
    QUEUES,
    Traits,
    accepted,
    is_row_resumed,
    place_of,
    status_of,
)
from schedcheck.adapters.vllm.connector import BegunLoad
from schedcheck.adapters.vllm.requests import Grammar, make_request
from schedcheck.adapters.vllm.results import Transfers, drafts_of, result_of
from schedcheck.adapters.vllm.watch import notes_of
from schedcheck.model.actions import (
    Abort,
    Action,
    AddChunk,
    AnswerLookup,
    GrammarReady,
    Pause,
    ResetPrefixCache,
    Resume,
)
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import (
    NO_BLOCK,
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
from schedcheck.model.tokens import chunk_tokens
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
        self.connector = notes_of(scheduler.connector)
        self.names = Names()
        self.in_flight: deque[_Step] = deque()
        self.next_step_id = 0
        self.chunks_given: Counter[str] = Counter()
        self.cache_reported: set[str] = set()
        """Requests whose cached tokens were told."""
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
        self.connector.adopt(engine_id, spec)
        self._send_in(engine_id, spec, tokens)
        return Accepted()

    def _send_in(self, engine_id: str, spec: RequestSpec, tokens: tuple[int, ...]) -> None:
        """Hand over a request, or more of it. Those of one moment have one arrival time.

        So it is for the several samples of one prompt, which a client asks for at once.
        """
        self.scheduler.add_request(
            make_request(
                engine_id,
                spec,
                tokens,
                arrival=float(self.next_step_id),
                block_size=self.config.block_size,
                for_store=self.connector is not self.scheduler.connector,
            )
        )

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
            scheduled_spec_decode_tokens={
                self.names.name_of(one): tuple(drafts)
                for one, drafts in raw.scheduled_spec_decode_tokens.items()
            },
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
        """Return the rows in the order in which the step serves them.

        A request with tokens and no row of its own is one that the step has lost sight of: the
        workers compute for it with what they have.
        """
        rows = {row.name: row for row in (*self._new_rows(raw), *self._cached_rows(raw))}
        counts = {self.names.name_of(one): n for one, n in raw.num_scheduled_tokens.items()}
        lost = {name: Row(name=name, role=Role.UNKNOWN, count=n) for name, n in counts.items()}
        served = {**lost, **{name: rows[name] for name in counts if name in rows}}
        return [*served.values(), *(row for name, row in rows.items() if name not in counts)]

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
            block_ids=None if blocks is None else self._table(blocks),
            table_update=TableUpdate.APPEND if role is Role.RUNNING else TableUpdate.REPLACE,
            known_tokens=known,
        )

    def _table(self, groups: Iterable[Sequence[int]]) -> Blocks:
        """Return block ids for each group, the null block told apart."""
        null = self.scheduler.kv_cache_manager.block_pool.null_block.block_id
        return tuple(
            tuple(NO_BLOCK if block == null else block for block in group) for group in groups
        )

    def _load(self, begun: BegunLoad) -> Load:
        size = self.config.block_size
        first, last = begun.start // size, -(-(begun.start + begun.count) // size)
        table = self.scheduler.kv_cache_manager.get_block_ids(begun.request_id)
        name = self.names.name_of(begun.request_id)
        blocks = self._table(group[first:last] for group in table)
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
        scheduler, ids = self.scheduler, list(step.raw.num_scheduled_tokens)
        sampled = {self.names.id_of(name): list(one) for name, one in result.sampled.items()}
        drafts = {self.names.id_of(name): list(one) for name, one in result.drafts.items()}
        speculates, apart = self.config.num_speculative_tokens > 0, self.traits.takes_drafts_apart
        requests = {one: scheduler.requests.get(one) for one in ids}
        answer = scheduler.update_from_output(
            step.raw,
            result_of(
                ids=ids,
                sampled=sampled,
                drafts=drafts if speculates and not apart else None,
                transfers=self._transfers(step, result),
                as_arrays=self.traits.samples_are_arrays,
            ),
        )
        # Where it schedules ahead, the workers keep the drafts to themselves.
        if ids and speculates and apart and not self.config.async_scheduling:
            scheduler.update_draft_token_ids(drafts_of(ids, drafts))
        # Only now: a request that fails with its load is asked about while the load is open.
        self.connector.loads_reported(map(self.names.id_of, result.loads_finished))
        return self._engine_output(answer, requests)

    def _transfers(self, step: _Step, result: WorkerResult) -> Transfers:
        received = {self.names.id_of(name) for name in result.loads_finished}
        sent = {self.names.id_of(name) for name in result.sends_finished}
        bad = {
            block
            for name, ordinal in result.loads_failed.items()
            for group in step.sync_loads.get(name, self.async_loads.get(name, ()))
            for block in group[ordinal:]
            if block != NO_BLOCK
        }
        return Transfers(received=received, sent=sent, bad_blocks=bad)

    def _engine_output(self, answer: Any, requests: Mapping[str, Any]) -> EngineOutput:
        delivered: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        cached: dict[str, tuple[int, int]] = {}
        for client in answer.values():
            for one in client.outputs:
                name = self.names.name_of(one.request_id)
                if one.new_token_ids:
                    delivered[name] = tuple(one.new_token_ids)
                    if self.traits.tells_cached_tokens and name not in self.cache_reported:
                        self.cache_reported.add(name)
                        cached[name] = self._cached_tokens(one, requests[one.request_id])
                if one.finish_reason is not None and not self._goes_on(one.request_id):
                    finished[name] = FINISH_REASONS[str(one.finish_reason)]
                    self._ends(name)
        return EngineOutput(
            delivered=delivered, finished=finished, sends=self._sends(), cached_tokens=cached
        )

    def _cached_tokens(self, output: Any, request: Any) -> tuple[int, int]:
        """Return how many tokens the client is told to have been hit, and loaded."""
        if self.traits.has_prefill_stats:
            stats = output.prefill_stats
            return stats.num_local_cached_tokens, stats.num_external_cached_tokens
        loaded = request.num_external_computed_tokens  # what the statistics subtract
        return output.num_cached_tokens - loaded, loaded

    def _goes_on(self, engine_id: str) -> bool:
        """Return whether what ended was one answer of a session, not the session."""
        request = self.scheduler.requests.get(engine_id)
        return request is not None and not RequestStatus.is_finished(request.status)

    def _ends(self, name: str) -> None:
        owners = self.ended.setdefault(self.names.id_of(name), [])
        if name not in owners:
            owners.append(name)

    def _sends(self) -> tuple[str, ...]:
        begun, self.connector.sends = self.connector.sends, []
        return tuple(self.names.name_of(one) for one in begun)

    def control(self, action: Action) -> Accepted | Rejected:
        """Do what is no request and no step; one request alone cannot be preempted by force."""
        match action:
            case Abort(request=name):
                self._abort(name)
                return Accepted(sends=self._sends())
            case ResetPrefixCache(running=running):
                return self._reset(running=running)
            case AnswerLookup(request=name):
                self.connector.decide(self.names.id_of(name))
            case GrammarReady(request=name):
                request = self.scheduler.requests.get(self.names.id_of(name))
                if request is None:
                    return Rejected(f"vllm has forgotten {name}")
                request.structured_output_request.grammar = Grammar()
            case AddChunk(request=name):
                self._add_chunk(name)
            case Pause(admission_only=admission_only):
                states = place_of("PauseState")
                self.scheduler.set_pause_state(
                    states.PAUSED_NEW if admission_only else states.PAUSED_ALL
                )
            case Resume():
                self.scheduler.set_pause_state(place_of("PauseState").UNPAUSED)
            case _:
                return Rejected(f"vllm knows no {action.do}")
        return Accepted()

    def _add_chunk(self, name: str) -> None:
        """Send in a session's next input and, with the last one, that no more will come."""
        engine_id = self.names.id_of(name)
        spec = self.connector.specs[engine_id]
        number = self.chunks_given[name]
        self.chunks_given[name] += 1
        answered = evolve(spec, max_tokens=spec.max_tokens_in(number + 1))
        self._send_in(engine_id, answered, chunk_tokens(name, spec, number))
        if self.chunks_given[name] == len(spec.chunks):
            self._send_in(engine_id, spec, ())

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
            block_refs={
                block.block_id: block.ref_cnt
                for block in pool.blocks
                if block.ref_cnt and not block.is_null
            },
        )

    def _view(self, request: Any) -> RequestView:
        manager = self.scheduler.kv_cache_manager
        return RequestView(
            status=_STATUSES[request.status],
            num_computed_tokens=request.num_computed_tokens,
            num_tokens=request.num_tokens,
            num_preemptions=getattr(request, "num_preemptions", None),
            block_ids=tuple(
                tuple(block for block in group if block != NO_BLOCK)
                for group in self._table(manager.get_block_ids(request.request_id))
            ),
        )

    def has_work(self) -> bool:
        """Return whether the engine core's loop would go on."""
        return bool(self.scheduler.has_requests())

    def close(self) -> None:
        """Let the scheduler go."""
        self.in_flight.clear()
