"""Faults around KV that is loaded from outside."""

from __future__ import annotations

from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import FinishReason
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler


class LateCompletionPromotesReusedId(Scheduler):
    """The end of an aborted request's load promotes the next request with the same id."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.orphans: dict[str, list[list[int]]] = {}
        """Blocks of aborted loads, by id, until the load ends."""

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Forget an aborted request although its load goes on."""
        super().finish(request, reason)
        still_loads = request.request_id in self.requests and not request.is_sending
        if still_loads and reason is FinishReason.ABORTED:
            self.orphans.setdefault(request.request_id, []).append(request.block_ids)
            self.requests.pop(request.request_id)

    def load_returned(
        self, request_id: str, bad_block: int | None, finished: dict[str, FinishReason]
    ) -> None:
        """Take the end of any load with this id for the end of the one in progress."""
        orphans = self.orphans.get(request_id)
        if orphans:
            self.pool.free(orphans.pop(0))
        request = self.requests.get(request_id)
        if request is not None and request.is_loading:
            super().load_returned(request_id, bad_block, finished)


class LoadsDeadlock(Scheduler):
    """Loads begin as long as their own blocks are free, whatever they need to go on."""

    def can_finish_beside(self, request: Request) -> bool:
        """Reserve nothing."""
        del request
        return True


class FailedLoadKept(Scheduler):
    """The tokens of a failed load count as computed."""

    def loaded_tokens(self, request: Request, bad_block: int | None) -> int:
        """Do not look at the bad block."""
        del bad_block
        return super().loaded_tokens(request, None)


class LoadRoundedUp(Scheduler):
    """A load that ends inside a block counts as if it had filled the block."""

    def loaded_tokens(self, request: Request, bad_block: int | None) -> int:
        """Round up to whole blocks."""
        loaded = super().loaded_tokens(request, bad_block)
        whole = self.config.blocks_for(loaded) * self.config.block_size
        return min(whole, request.num_tokens - 1)


class ScheduledWhileLoading(Scheduler):
    """A request is admitted while its KV is still being loaded."""

    def is_blocked(self, request: Request) -> bool:
        """Do not look whether it loads."""
        return request.steps_in_flight > 0

    def tokens_offered(self, request: Request) -> int:
        """Do not load twice."""
        return 0 if request.is_loading else super().tokens_offered(request)
