"""Faults in who owns the blocks."""

from __future__ import annotations

from schedcheck.model.output import FinishReason
from schedcheck.reference.block_pool import BlockPool
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class LeakOnAbortWhileLoading(Scheduler):
    """A request aborted while loading keeps its blocks for ever."""

    def load_finished(self, request: Request, bad_block: int | None) -> None:
        """Do not forget an aborted request when its load has ended."""
        if not request.is_finished:
            super().load_finished(request, bad_block)


class FreedWhileLoading(Scheduler):
    """An abort frees blocks at once, though a load still writes them."""

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Do not wait for the load."""
        super().finish(request, reason)
        if request.request_id in self.requests and not request.is_sending:
            self.forget(request)

    def load_returned(
        self, request_id: str, bad_block: int | None, finished: dict[str, FinishReason]
    ) -> None:
        """Pass over the late end of a load whose request is gone."""
        if request_id in self.requests:
            super().load_returned(request_id, bad_block, finished)


class FreedWhileSending(Scheduler):
    """The blocks of a finished request are freed at once, though its KV is still being sent."""

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Do not wait for the send."""
        super().finish(request, reason)
        if request.is_sending:
            self.free_blocks(request)


class FreedInFlight(Scheduler):
    """Blocks are free at once, though a step in flight still writes them."""

    def free_blocks(self, request: Request) -> None:
        """Do not wait for the step: a load may now be given the blocks."""
        self.pool.free(request.block_ids)
        request.block_ids = []


class DoubleFreeOnPreemption(Scheduler):
    """A preemption gives the same blocks back twice."""

    def preempt(self, request: Request) -> None:
        """Free the blocks once more."""
        blocks = list(request.block_ids)
        super().preempt(request)
        self.pool.free(blocks)


class _RepeatingPool(BlockPool):
    """Now and then hands out the block that it handed out last."""

    def __init__(self, blocks_total: int) -> None:
        super().__init__(blocks_total)
        self.calls = 0
        self.last = 0

    def allocate(self, count: int) -> list[int]:
        blocks = super().allocate(count)
        self.calls += count > 0
        if blocks and self.last and self.calls % 4 == 0:
            blocks[0] = self.last
        self.last = blocks[-1] if blocks else self.last
        return blocks


class BlockHandedOutTwice(Scheduler):
    """Two requests get the same block."""

    pool_class = _RepeatingPool


class TableTooShort(Scheduler):
    """The block for the first token beyond a block boundary is not allocated."""

    def blocks_missing(self, request: Request, tokens: int) -> int:
        """Round down where the last token opens a new block."""
        opens_a_block = tokens > 1 and tokens % self.config.block_size == 1
        return super().blocks_missing(request, tokens - opens_a_block)


class VictimInStep(Scheduler):
    """A request already scheduled in this step is preempted, and its row stays."""

    def may_be_victim(self, request: Request, plan: Plan) -> bool:
        """Do not look whether it is in the step."""
        del plan
        return not request.steps_in_flight
