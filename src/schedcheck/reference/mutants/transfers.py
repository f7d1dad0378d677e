"""Faults around KV that is loaded from outside."""

from __future__ import annotations

from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import FinishReason, Load
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


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
        return not request.is_loading and super().is_blocked(request)

    def tokens_offered(self, request: Request, hit: int) -> int:
        """Do not load twice."""
        return 0 if request.is_loading else super().tokens_offered(request, hit)


class LoadBeginsTwice(Scheduler):
    """A request that loads is offered its KV again by the next step."""

    def schedule_waiting(self, plan: Plan) -> None:
        """Let the first request that loads begin once more."""
        super().schedule_waiting(plan)
        for request in self.waiting:
            if request.is_loading and request.tokens_loaded is None and not plan.loads:
                start, end = request.load_start, request.tokens_loading
                plan.loads.append(self.load_of(request, start, end - start, is_async=True))
                return


class LoadsMoreThanHeld(Scheduler):
    """A load is rounded up to whole blocks, though less is held outside."""

    def load_of(self, request: Request, start: int, count: int, *, is_async: bool) -> Load:
        """Ask for the rest of the last block as well."""
        size = self.config.block_size
        whole = self.config.blocks_for(start + count) * size
        end = min(whole, request.num_tokens - 1)
        return super().load_of(request, start, max(count, end - start), is_async=is_async)


class LoadsAgain(Scheduler):
    """What was loaded does not count as computed until it runs: it is loaded again meanwhile."""

    def admit(self, plan: Plan, request: Request) -> bool:
        """Forget a load when there is no seat for its request."""
        if request.holds_kv and not self.has_seat() and request.turn == 0:
            self.free_blocks(request)
            request.num_computed_tokens = 0
        return super().admit(plan, request)


class SendsTwice(Scheduler):
    """The KV of a request is sent once more when its first send has ended."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.sent: set[int] = set()

    def forget(self, request: Request) -> None:
        """Begin the send again."""
        if request.is_sending and request.arrival not in self.sent:
            self.sent.add(request.arrival)
            self.sends_begun.append(request.request_id)
        else:
            super().forget(request)
