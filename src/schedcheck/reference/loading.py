"""Loading KV from outside: offers, the state of loading, reports, failures."""

from __future__ import annotations

from schedcheck.model.config import LoadFailurePolicy
from schedcheck.model.output import FinishReason, Load
from schedcheck.model.snapshot import Status
from schedcheck.reference.prefix import PrefixCache
from schedcheck.reference.request import Request
from schedcheck.reference.state import Plan


class Loading(PrefixCache):
    """Begins loads and takes their reports (rules 14 to 17)."""

    def tokens_offered(self, request: Request, hit: int) -> int:
        """Return how many tokens behind ``hit`` can be loaded for a request (rule 14)."""
        if request.num_computed_tokens or not request.may_load:
            return 0
        held = min(request.spec.remote_tokens, len(request.prompt_token_ids))
        return max(0, min(held, request.num_tokens - 1) - hit)

    def begin_load(self, plan: Plan, request: Request, hit: list[int], offered: int) -> bool:
        """Let a request load what it was offered; False if it has to wait (rule 15)."""
        start = len(hit) * self.config.block_size
        if not self.has_room(request, hit, start + offered) or not self.can_finish_beside(request):
            return False
        self.take_blocks(request, hit, start + offered)
        request.status = Status.WAITING_FOR_REMOTE_KVS
        plan.loads.append(self.load_of(request, start, offered, is_async=True))
        return True

    def has_room(self, request: Request, hit: list[int], tokens: int) -> bool:
        """Return whether the pool has the blocks for so many tokens, ``hit`` among them."""
        needed = self.blocks_missing(request, tokens) - len(hit)
        return needed <= self.pool.blocks_free - self.pool.free_among(hit)

    def take_blocks(self, request: Request, hit: list[int], tokens: int) -> list[int]:
        """Give a request blocks for so many tokens, shared ones first; return all new ones."""
        self.pool.refer(hit)
        blocks = [*hit, *self.pool.allocate(self.blocks_missing(request, tokens) - len(hit))]
        request.block_ids += blocks
        return blocks

    def blocks_missing(self, request: Request, tokens: int) -> int:
        """Return how many more blocks a request needs to hold so many tokens."""
        return max(0, self.config.blocks_for(tokens) - len(request.block_ids))

    def can_finish_beside(self, request: Request) -> bool:
        """Return whether every request that holds KV without running could still grow (rule 15)."""
        holding = [one for one in self.waiting if one.block_ids or one is request]
        needed = sum(self.config.blocks_for(one.spec.total_tokens_max) for one in holding)
        return needed <= self.pool.blocks_total

    def load_of(self, request: Request, start: int, count: int, *, is_async: bool) -> Load:
        """Return the load of so many tokens, and note that it is under way."""
        request.load_start, request.tokens_loading = start, start + count
        first = start // self.config.block_size
        blocks = request.block_ids[first : self.config.blocks_for(start + count)]
        if request.cached_tokens is None:
            request.cached_tokens = (start, count)
        return Load(
            name=request.request_id,
            start=start,
            count=count,
            is_async=is_async,
            block_ids=(tuple(blocks),),
        )

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

    def load_finished(self, request: Request, bad_block: int | None) -> None:
        """Take note that an asynchronous load has ended, wholly or up to a bad block."""
        if request.is_finished:
            self.forget(request)
        else:
            request.tokens_loaded = self.loaded_tokens(request, bad_block)

    def promote_loaded(self) -> None:
        """Let the requests whose loads were reported wait for admission (rule 16)."""
        for request in self.waiting:
            if request.tokens_loaded is not None:
                self.keep_loaded(request, request.tokens_loaded)
                request.tokens_loaded = None
                self.register_blocks(request)
                if not request.num_computed_tokens:
                    self.free_blocks(request)
                    if self.is_first_admission(request):
                        request.cached_tokens = None
                request.status = self.status_after_load(request)

    def loaded_tokens(self, request: Request, bad_block: int | None) -> int:
        """Return how many tokens can be used after a load (rule 17)."""
        if bad_block is None:
            return request.tokens_loading
        request.may_load = False
        good = request.load_start + bad_block * self.config.block_size
        return min(request.tokens_loading, good)

    def keep_loaded(self, request: Request, tokens: int) -> None:
        """Count so many tokens, hit and loaded ones, as computed."""
        request.num_computed_tokens = tokens
        if self.is_first_admission(request) and request.cached_tokens is not None:
            hit = request.cached_tokens[0]
            request.cached_tokens = (hit, max(0, tokens - hit))

    def is_first_admission(self, request: Request) -> bool:
        """Return whether what a request hits and loads now is what its client is told (rule 24)."""
        return request.num_preemptions == 0 and request.turn == 0

    def status_after_load(self, request: Request) -> Status:
        """Return where a loaded request goes (rule 16)."""
        return Status.PREEMPTED if request.awaits_resumption else Status.WAITING

    def sync_load_failed(
        self, request: Request, bad_block: int, finished: dict[str, FinishReason]
    ) -> None:
        """Discard what a step computed from a load that failed (rule 17)."""
        if request.status is not Status.RUNNING:
            request.may_load = False  # preempted since: it computes everything again anyway
        elif self.config.load_failure_policy is LoadFailurePolicy.FAIL:
            finished[request.request_id] = FinishReason.ERROR
            self.finish(request, FinishReason.ERROR)
        else:
            self.keep_loaded(request, self.loaded_tokens(request, bad_block))
            self.release_media(request)  # it may need earlier ones again, and room for them
