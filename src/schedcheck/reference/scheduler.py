"""The reference scheduler: the executable definition of a request's life.

Rules
-----
Planning a step (``schedule``)
  1. Running requests come first, in the order in which they began to run; then waiting ones. A
     step spends at most ``max_num_batched_tokens`` tokens and at most ``max_num_seqs`` run.
  2. A running request gets as many tokens as are known and not computed. One whose tokens are all
     in flight, or that loads KV in a step in flight, is skipped until that step returns.
  3. A running request that needs a block when none is free preempts: the last of the running
     requests (under the priority policy the least urgent, then the latest), itself perhaps, that
     has no step in flight and is not in this step. If there is none, it waits for a step to return.
  4. A step that preempted admits nobody.
  5. Waiting requests that hold loaded KV come before those that hold none. Among equals: first
     come first served, or the more urgent first. A request that does not fit stops the scan: nobody
     overtakes it. Requests that load are passed over.
  6. A request is admitted as NEW the first time, and as RESUMED, with every token known, after
     a preemption. (Dialect V2: as NEW with every token known, after ``preempted`` named it.)

Preemption (``preempt``)
  7. Blocks go back, nothing counts as computed, and the request waits in front of those that have
     never run. A token of it that is in flight is kept when it returns, and it is not admitted
     before that.

Loading KV from outside
  8. A request with nothing computed whose prompt is partly held outside is offered those tokens.
     At least one token is always left to compute.
  9. Loading asynchronously, it waits in WAITING_FOR_REMOTE_KVS with its blocks. So that loads can
     never block each other for ever, a load begins only if all requests that hold KV while not
     running could grow to their full length side by side.
 10. The first step planned after the end of the load is reported makes it WAITING, or PREEMPTED if
     it was preempted before: that is what makes it come back as RESUMED.
 11. A failed load counts up to the bad block (policy ``recompute``; it is not tried again), or
     ends the request (policy ``fail``). What a step sampled from a failed load is discarded.

The end
 12. A request ends by its stop token, by ``max_tokens``, by an abort in any state, or by a failed
     load. Its end is announced in the next step planned, once. Its output in flight is ignored.
 13. Its blocks are freed when nothing can write or read them any more: no step in flight, no
     load, no send. Once no load and no send is open it is forgotten, and its id may be used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import Factory, define, frozen

from schedcheck.model.config import Dialect, LoadFailurePolicy, Policy, SchedulerConfig
from schedcheck.model.output import (
    EngineOutput,
    FinishReason,
    Load,
    Role,
    Row,
    SchedulerOutput,
    TableUpdate,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.model.tokens import STOP_TOKEN
from schedcheck.reference.block_pool import BlockPool
from schedcheck.reference.request import Request

_STATUS_OF = {
    FinishReason.STOPPED: Status.FINISHED_STOPPED,
    FinishReason.LENGTH: Status.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORTED: Status.FINISHED_ABORTED,
    FinishReason.ERROR: Status.FINISHED_ERROR,
}


@frozen
class InFlight:
    """A planned step, with the requests its rows are about: an id may mean another one later."""

    output: SchedulerOutput
    requests: tuple[Request, ...]


@define
class Plan:
    """A step while it is being planned."""

    budget: int
    rows: list[Row] = Factory(list)
    requests: list[Request] = Factory(list)
    """Whom the rows are about."""
    loads: list[Load] = Factory(list)
    preempted: bool = False

    def has(self, request: Request) -> bool:
        """Return whether the request is in this step."""
        return request in self.requests


class Scheduler:
    """Plans steps for requests known by their ids. See the rules at the top of this file."""

    pool_class = BlockPool

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = self.pool_class(config.blocks_total)
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.in_flight: deque[InFlight] = deque()
        self.finished_req_ids: list[str] = []
        """Ends that the workers have not been told yet."""
        self.preempted_req_ids: list[str] = []
        self.sends_begun: list[str] = []
        """Sends that began since they were last asked for."""
        self.arrivals = 0
        self.next_step_id = 0

    # Requests come and go.

    def add_request(self, request_id: str, spec: RequestSpec, tokens: tuple[int, ...]) -> None:
        """Queue a request. The caller has made sure that its id is free and that it can fit."""
        request = Request(request_id, spec, tokens, self.arrivals)
        self.arrivals += 1
        self.requests[request_id] = request
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Put a request where the order of admission wants it (rules 5 and 7)."""
        self.waiting.append(request)
        self.waiting.sort(key=self.admission_key)

    def admission_key(self, request: Request) -> tuple[int, ...]:
        """Return what the waiting queue is sorted by; a tie does not exist."""
        never_ran = int(request.num_preemptions == 0)
        if self.config.policy is Policy.PRIORITY:
            return (request.spec.priority, request.arrival)
        return (never_ran, request.arrival)

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests, in whatever state they are; ids that are not known are passed over."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None and not request.is_finished:
                self.finish(request, FinishReason.ABORTED)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request (rules 12 and 13)."""
        must_wait = request.is_loading and request.tokens_loaded is None
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.status = _STATUS_OF[reason]
        self.finished_req_ids.append(request.request_id)
        if request.request_id in self.preempted_req_ids:
            self.preempted_req_ids.remove(request.request_id)
        if must_wait:
            return  # its blocks stay until the end of the load is reported
        if request.spec.send_kv and request.block_ids and request.num_computed_tokens:
            request.is_sending = True
            self.sends_begun.append(request.request_id)
            return
        self.forget(request)

    def forget(self, request: Request) -> None:
        """Free what a request holds; its id may be used again from here on."""
        self.free_blocks(request)
        self.requests.pop(request.request_id, None)

    def free_blocks(self, request: Request) -> None:
        """Give a request's blocks back, once no step in flight writes them."""
        last = self.in_flight[-1].output.step_id if request.steps_in_flight else None
        self.pool.free(request.block_ids, after_step=last)
        request.block_ids = []

    # Planning a step.

    def schedule(self) -> SchedulerOutput:
        """Plan one step, which is then in flight."""
        plan = Plan(self.config.max_num_batched_tokens)
        self.promote_loaded()
        self.schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
        output = SchedulerOutput(
            step_id=self.next_step_id,
            rows=tuple(plan.rows),
            preempted=tuple(self.preempted_req_ids),
            finished=tuple(self.finished_req_ids),
            loads=tuple(plan.loads),
        )
        self.next_step_id += 1
        self.preempted_req_ids, self.finished_req_ids = [], []
        for request in plan.requests:
            request.steps_in_flight += 1
        self.in_flight.append(InFlight(output, tuple(plan.requests)))
        return output

    def schedule_running(self, plan: Plan) -> None:
        """Give running requests their tokens (rules 1 to 3)."""
        for request in list(self.running):
            count = self.chunk(request, request.num_computed_tokens, plan)
            if count < 1 or request.loads_in_step or request not in self.running:
                continue
            needed = self.blocks_missing(request, request.num_computed_tokens + count)
            while needed > self.pool.blocks_free:
                victim = self._victim(plan)
                if victim is None:
                    break
                self.preempt(victim)
                plan.preempted = True
                if victim is request:
                    break
            if request in self.running and needed <= self.pool.blocks_free:
                blocks = self.pool.allocate(needed)
                request.block_ids += blocks
                self.add_row(plan, request, Role.RUNNING, count, blocks)

    def chunk(self, request: Request, start: int, plan: Plan) -> int:
        """Return how many tokens of a request this step computes from ``start`` on."""
        return min(request.num_tokens - start, plan.budget)

    def _victim(self, plan: Plan) -> Request | None:
        """Return whom to preempt (rule 3)."""
        candidates = [one for one in self.running if self.may_be_victim(one, plan)]
        if not candidates:
            return None
        if self.config.policy is Policy.PRIORITY:
            return max(candidates, key=lambda one: (one.spec.priority, one.arrival))
        return candidates[-1]

    def may_be_victim(self, request: Request, plan: Plan) -> bool:
        """Return whether a running request may be preempted by this step."""
        return not request.steps_in_flight and not plan.has(request)

    def _schedule_waiting(self, plan: Plan) -> None:
        for request in sorted(self.waiting, key=lambda one: not one.holds_loaded_kv):
            if self.is_blocked(request):
                continue
            if plan.budget < 1 or not self.admit(plan, request):
                return

    def is_blocked(self, request: Request) -> bool:
        """Return whether a waiting request waits for something other than room."""
        return request.is_loading or request.steps_in_flight > 0

    def admit(self, plan: Plan, request: Request) -> bool:
        """Let a waiting request load or run; False if it has to wait and nobody overtakes it."""
        offered = self.tokens_offered(request)
        if offered and request.spec.load_async:
            return self.begin_load(plan, request, offered)
        if not self.has_seat():
            return False
        start = request.num_computed_tokens or offered
        count = self.chunk(request, start, plan)
        if not self.config.chunked_prefill and start + count < request.num_tokens:
            return False
        needed = self.blocks_missing(request, start + count)
        if needed > self.pool.blocks_free:
            return False
        request.block_ids += self.pool.allocate(needed)
        if offered:
            plan.loads.append(self._load(request, offered, is_async=False))
            request.loads_in_step = True
        request.num_computed_tokens = start
        role = self.role_of(request)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        self.add_row(plan, request, role, count, request.block_ids)
        return True

    def has_seat(self) -> bool:
        """Return whether one more request may run."""
        return len(self.running) < self.config.max_num_seqs

    def role_of(self, request: Request) -> Role:
        """Return how a waiting request is presented to the workers (rule 6)."""
        return Role.RESUMED if request.status is Status.PREEMPTED else Role.NEW

    def add_row(
        self, plan: Plan, request: Request, role: Role, count: int, blocks: list[int]
    ) -> None:
        """Put a request into the step."""
        is_whole = role is not Role.RUNNING
        if role is Role.RESUMED and self.config.dialect is Dialect.V2:
            role = Role.NEW
        plan.requests.append(request)
        plan.rows.append(
            Row(
                name=request.request_id,
                role=role,
                start=request.num_computed_tokens,
                count=count,
                block_ids=(tuple(blocks),) if blocks or is_whole else None,
                table_update=TableUpdate.REPLACE if is_whole else TableUpdate.APPEND,
                known_tokens=request.all_token_ids if is_whole else None,
            )
        )
        request.num_computed_tokens += count
        plan.budget -= count

    def blocks_missing(self, request: Request, tokens: int) -> int:
        """Return how many more blocks a request needs to hold so many tokens."""
        return max(0, self.config.blocks_for(tokens) - len(request.block_ids))

    # Preemption.

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks away (rule 7)."""
        self.running.remove(request)
        self.free_blocks(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = Status.PREEMPTED
        self.preempted_req_ids.append(request.request_id)
        self.enqueue(request)

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Empty the prefix cache, of which there is none; by force preempt whatever runs."""
        if reset_running_requests:
            for request in reversed(list(self.running)):
                self.preempt(request)
        return reset_running_requests or not self.running

    # Loading KV from outside.

    def tokens_offered(self, request: Request) -> int:
        """Return how many tokens can be loaded for a request now (rule 8)."""
        if request.num_computed_tokens or not request.may_load:
            return 0
        held = min(request.spec.remote_tokens, len(request.prompt_token_ids))
        return min(held, request.num_tokens - 1)

    def begin_load(self, plan: Plan, request: Request, offered: int) -> bool:
        """Let a request load what it was offered; False if it has to wait (rule 9)."""
        needed = self.blocks_missing(request, offered)
        if needed > self.pool.blocks_free or not self.can_finish_beside(request):
            return False
        request.block_ids += self.pool.allocate(needed)
        request.status = Status.WAITING_FOR_REMOTE_KVS
        plan.loads.append(self._load(request, offered, is_async=True))
        return True

    def can_finish_beside(self, request: Request) -> bool:
        """Return whether every request that holds KV without running could still grow (rule 9)."""
        parked = [one for one in self.waiting if one.block_ids or one is request]
        needed = sum(self.config.blocks_for(one.spec.total_tokens_max) for one in parked)
        return needed <= self.pool.blocks_total

    def _load(self, request: Request, count: int, *, is_async: bool) -> Load:
        request.tokens_loading = count
        blocks = request.block_ids[: self.config.blocks_for(count)]
        return Load(
            name=request.request_id,
            start=0,
            count=count,
            is_async=is_async,
            block_ids=(tuple(blocks),),
        )

    def load_finished(self, request: Request, bad_block: int | None) -> None:
        """Take note that an asynchronous load has ended, wholly or up to a bad block."""
        if request.is_finished:
            self.forget(request)
        else:
            request.tokens_loaded = self.loaded_tokens(request, bad_block)

    def promote_loaded(self) -> None:
        """Let the requests whose loads were reported wait for admission (rule 10)."""
        for request in self.waiting:
            if request.tokens_loaded is not None:
                request.num_computed_tokens = request.tokens_loaded
                request.tokens_loaded = None
                if not request.num_computed_tokens:
                    self.free_blocks(request)
                request.status = self.status_after_load(request)

    def loaded_tokens(self, request: Request, bad_block: int | None) -> int:
        """Return how many tokens of a load can be used (rule 11)."""
        if bad_block is None:
            return request.tokens_loading
        request.may_load = False
        return min(request.tokens_loading, bad_block * self.config.block_size)

    def status_after_load(self, request: Request) -> Status:
        """Return where a loaded request goes (rule 10)."""
        return Status.PREEMPTED if request.num_preemptions else Status.WAITING

    # Taking a step's result.

    def update_from_output(self, result: WorkerResult) -> EngineOutput:
        """Process the result of the oldest step in flight."""
        step = self.in_flight.popleft()
        delivered: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        for row, request in zip(step.output.rows, step.requests, strict=True):
            self.row_returned(request, row, result, delivered, finished)
        self.pool.step_returned(step.output.step_id)
        for request_id in result.loads_finished:
            self.load_returned(request_id, result.loads_failed.get(request_id), finished)
        for request_id in result.sends_finished:
            self.forget(self.requests[request_id])
        sends, self.sends_begun = tuple(self.sends_begun), []
        return EngineOutput(delivered=delivered, finished=finished, sends=sends)

    def row_returned(
        self,
        request: Request,
        row: Row,
        result: WorkerResult,
        delivered: dict[str, tuple[int, ...]],
        finished: dict[str, FinishReason],
    ) -> None:
        """Take what a step brought one of its requests."""
        request.steps_in_flight -= 1
        request.loads_in_step = False
        if request.is_finished:
            return
        if row.name in result.loads_failed and row.name not in result.loads_finished:
            self._sync_load_failed(request, result.loads_failed[row.name], finished)
            return
        tokens = result.sampled.get(row.name, ())
        if tokens:
            request.output_token_ids += tokens
            delivered[row.name] = tokens
            reason = self.reason_to_finish(request)
            if reason is not None:
                finished[row.name] = reason
                self.finish(request, reason)

    def reason_to_finish(self, request: Request) -> FinishReason | None:
        """Return why a request ends after its last token, if it does."""
        if request.output_token_ids[-1] == STOP_TOKEN:
            return FinishReason.STOPPED
        if len(request.output_token_ids) >= request.spec.max_tokens:
            return FinishReason.LENGTH
        return None

    def load_returned(
        self, request_id: str, bad_block: int | None, finished: dict[str, FinishReason]
    ) -> None:
        """Take the report that an asynchronous load has ended."""
        request = self.requests[request_id]
        fails = bad_block is not None and self.config.load_failure_policy is LoadFailurePolicy.FAIL
        if fails and not request.is_finished:
            finished[request_id] = FinishReason.ERROR
            self.finish(request, FinishReason.ERROR)
        self.load_finished(request, bad_block)

    def _sync_load_failed(
        self, request: Request, bad_block: int, finished: dict[str, FinishReason]
    ) -> None:
        """Discard what a step computed from a load that failed (rule 11)."""
        if request.status is not Status.RUNNING:
            request.may_load = False  # preempted since: it computes everything again anyway
        elif self.config.load_failure_policy is LoadFailurePolicy.FAIL:
            finished[request.request_id] = FinishReason.ERROR
            self.finish(request, FinishReason.ERROR)
        else:
            request.num_computed_tokens = self.loaded_tokens(request, bad_block)

    def has_work(self) -> bool:
        """Return whether stepping on could change anything."""
        return bool(self.requests or self.finished_req_ids or self.pool.fenced)
