"""Planning a step: who gets how many tokens, who is preempted, who is admitted."""

from __future__ import annotations

from schedcheck.model.config import Dialect, Policy
from schedcheck.model.output import NO_BLOCK, Role, Row, SchedulerOutput, TableUpdate
from schedcheck.model.request import MediaItem
from schedcheck.model.snapshot import Status
from schedcheck.reference.loading import Loading
from schedcheck.reference.request import Request
from schedcheck.reference.state import InFlight, Plan


class Planning(Loading):
    """Plans steps (rules 1 to 9)."""

    def schedule(self) -> SchedulerOutput:
        """Plan one step, which is then in flight."""
        plan = Plan(self.config.max_num_batched_tokens, self.config.max_num_encoder_input_tokens)
        self.promote_loaded()
        self.promote_ready()
        self.let_go_of_the_past()
        if not self.is_paused:
            self.schedule_running(plan)
        if self.admits and not plan.preempted:
            self.schedule_waiting(plan)
        output = SchedulerOutput(
            step_id=self.next_step_id,
            rows=tuple(plan.rows),
            preempted=tuple(self.preempted_req_ids),
            finished=tuple(self.finished_req_ids),
            loads=tuple(plan.loads),
            scheduled_spec_decode_tokens=plan.drafts,
            scheduled_encoder_inputs=plan.encoder_inputs,
            freed_encoder_keys=tuple(self.encoder.dropped),
        )
        self.next_step_id += 1
        self.preempted_req_ids, self.finished_req_ids, self.encoder.dropped = [], [], []
        for request in plan.requests:
            request.steps_in_flight += 1
        self.in_flight.append(InFlight(output, tuple(plan.requests)))
        return output

    def promote_ready(self) -> None:
        """Let the requests whose grammar is compiled wait for admission."""
        for request in self.waiting:
            waits = request.status is Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            if waits and request.grammar_ready:
                request.status = Status.WAITING

    def let_go_of_the_past(self) -> None:
        """Release media whose tokens are computed, and blocks behind the window (rule 9)."""
        for request in self.running:
            for item in request.spec.media:
                if item.end <= request.num_computed_tokens:
                    self.encoder.release(item.key, request.request_id)
            if self.config.sliding_window and not request.loads_in_step:
                self.release_behind_window(request)

    def release_behind_window(self, request: Request) -> None:
        """Give back the blocks that the next token of a request does not look at (rule 9)."""
        blocks = self.blocks_behind_window(request)
        behind = [block for block in request.block_ids[:blocks] if block != NO_BLOCK]
        if behind:
            self.pool.free(behind, after_step=self.last_step_of(request))
            request.block_ids[:blocks] = [NO_BLOCK] * blocks

    def blocks_behind_window(self, request: Request) -> int:
        """Return how many of a request's first blocks hold nothing that is looked at any more."""
        certain = request.num_computed_tokens - request.drafts_in_flight
        first = self.config.first_attended(certain)
        return min(first // self.config.block_size, len(request.block_ids))

    # Running requests.

    def schedule_running(self, plan: Plan) -> None:
        """Give running requests their tokens (rules 1 to 3)."""
        for request in list(self.running):
            start = request.num_computed_tokens
            count, media = self.with_media(request, start, self.chunk(request, start, plan), plan)
            if count < 1 or request.loads_in_step or request not in self.running:
                continue
            needed = self.blocks_missing(request, start + count)
            while needed > self.pool.blocks_free:
                victim = self.victim(plan)
                if victim is None:
                    break
                self.preempt(victim)
                plan.preempted = True
                if victim is request:
                    break
            if request in self.running and needed <= self.pool.blocks_free:
                blocks = self.pool.allocate(needed)
                request.block_ids += blocks
                self.encode(plan, request, media, count)
                self.add_row(plan, request, Role.RUNNING, count, blocks)

    def chunk(self, request: Request, start: int, plan: Plan) -> int:
        """Return how many tokens of a request this step computes from ``start`` on (rule 2)."""
        return min(request.num_tokens + self.drafts_for(request) - start, plan.budget)

    def drafts_for(self, request: Request) -> int:
        """Return how many of a request's drafts are worth verifying: none beyond its end."""
        return max(
            0, min(len(request.draft_token_ids), request.num_tokens_max - request.num_tokens)
        )

    def victim(self, plan: Plan) -> Request | None:
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

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks away (rule 8)."""
        self.running.remove(request)
        self.free_blocks(request)
        self.release_media(request)
        request.num_computed_tokens = request.drafts_in_flight = 0
        request.draft_token_ids = ()
        request.num_preemptions += 1
        request.awaits_resumption = True
        request.status = Status.PREEMPTED
        self.preempted_req_ids.append(request.request_id)
        self.enqueue(request)

    # Media.

    def with_media(
        self, request: Request, start: int, count: int, plan: Plan
    ) -> tuple[int, list[MediaItem]]:
        """Return how many tokens can be computed, and what must be encoded for them (rule 4)."""
        media: list[MediaItem] = []
        keep: list[str] = []
        for item in request.spec.media:
            if not item.is_within(start, start + count):
                continue
            keep.append(item.key)
            is_new = not self.encoder.has(item.key) and item.key not in {one.key for one in media}
            wanted = sum(one.tokens for one in media) + (item.tokens if is_new else 0)
            if wanted > self.encoder_room(keep) or (is_new and wanted > plan.encoder_budget):
                return max(0, item.offset - start), media
            if is_new:
                media.append(item)
        return count, media

    def encoder_room(self, keep: list[str]) -> int:
        """Return how many encoder tokens can be put into the cache if some media are to stay."""
        return self.encoder.room(keep)

    def encode(self, plan: Plan, request: Request, media: list[MediaItem], count: int) -> None:
        """Put media into the step, and keep what its next ``count`` tokens need of the cache."""
        start = request.num_computed_tokens
        self.use_media(request, start, start + count)
        for item in media:
            self.encoder.put(item.key, item.tokens)
            plan.encoder_budget -= item.tokens
        if media:
            places = request.spec.media
            plan.encoder_inputs[request.request_id] = tuple(places.index(one) for one in media)

    def use_media(self, request: Request, start: int, end: int) -> None:
        """Keep the encoder outputs that a step from ``start`` to ``end`` needs."""
        for item in request.spec.media:
            if item.is_within(start, end):
                self.encoder.use(item.key, request.request_id)

    # Waiting requests.

    def schedule_waiting(self, plan: Plan) -> None:
        """Admit waiting requests as long as there is room (rules 5 and 6)."""
        for request in sorted(self.waiting, key=lambda one: not one.holds_kv):
            if self.is_blocked(request) or not self.may_use_adapter(request):
                continue
            if plan.budget < 1 or not self.admit(plan, request):
                return

    def is_blocked(self, request: Request) -> bool:
        """Return whether a waiting request waits for something other than room."""
        return (
            request.is_loading
            or request.is_parked
            or request.waits_for_answer
            or request.status is Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            or request.steps_in_flight > 0
        )

    def may_use_adapter(self, request: Request) -> bool:
        """Return whether the adapter of a request can be in the next step."""
        in_use = {one.spec.adapter for one in self.running} - {None}
        adapter = request.spec.adapter
        full = 0 < self.config.max_loras <= len(in_use)
        return adapter is None or adapter in in_use or not full

    def admit(self, plan: Plan, request: Request) -> bool:
        """Let a waiting request load or run; False if it has to wait and nobody overtakes it."""
        hit = self.blocks_hit(request)
        local = len(hit) * self.config.block_size
        offered = self.tokens_offered(request, local)
        if offered and request.spec.load_async:
            return self.begin_load(plan, request, hit, offered)
        if not self.has_seat():
            return False
        start = request.num_computed_tokens or local + offered
        count, media = self.with_media(request, start, self.chunk(request, start, plan), plan)
        if not self.is_chunk_allowed(request, start + count) or count < 1:
            return False
        if not self.has_room(request, hit, start + count):
            return False
        self.take_blocks(request, hit, start + count)
        if offered:
            plan.loads.append(self.load_of(request, local, offered, is_async=False))
            request.loads_in_step = True
        elif request.cached_tokens is None:
            request.cached_tokens = (local, 0)
        request.num_computed_tokens = start
        role = self.role_of(request)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        request.awaits_resumption = False
        self.encode(plan, request, media, count)
        self.add_row(plan, request, role, count, request.block_ids)
        return True

    def is_chunk_allowed(self, request: Request, end: int) -> bool:
        """Return whether a request may be admitted with tokens up to ``end`` (rule 6)."""
        return self.config.chunked_prefill or end >= request.num_tokens

    def has_seat(self) -> bool:
        """Return whether one more request may run."""
        return len(self.running) < self.config.max_num_seqs

    def role_of(self, request: Request) -> Role:
        """Return how a waiting request is presented to the workers (rule 7)."""
        return Role.RESUMED if request.status is Status.PREEMPTED else Role.NEW

    def add_row(
        self, plan: Plan, request: Request, role: Role, count: int, blocks: list[int]
    ) -> None:
        """Put a request into the step."""
        is_whole = role is not Role.RUNNING
        if role is Role.RESUMED and self.config.dialect is Dialect.V2:
            role = Role.NEW
        start, end = request.num_computed_tokens, request.num_computed_tokens + count
        plan.requests.append(request)
        plan.rows.append(
            Row(
                name=request.request_id,
                role=role,
                start=start,
                count=count,
                block_ids=(tuple(blocks),) if blocks or is_whole else None,
                table_update=TableUpdate.REPLACE if is_whole else TableUpdate.APPEND,
                known_tokens=request.all_token_ids if is_whole else None,
            )
        )
        if end > request.num_tokens and request.draft_token_ids:
            drafts = request.draft_token_ids[: end - request.num_tokens]
            plan.drafts[request.request_id] = drafts
            request.drafts_in_flight += len(drafts)
        if end >= request.num_tokens:
            request.draft_token_ids = ()
        request.num_computed_tokens = end
        plan.budget -= count
        self.register_blocks(request)
