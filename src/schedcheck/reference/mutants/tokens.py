"""Faults around the token of a step in flight when its request is preempted."""

from __future__ import annotations

from schedcheck.model.output import FinishReason, Row, WorkerResult
from schedcheck.model.snapshot import Status
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler


class TokenLost(Scheduler):
    """A token that returns after a preemption is kept, but not delivered."""

    def row_returned(
        self,
        request: Request,
        row: Row,
        result: WorkerResult,
        delivered: dict[str, tuple[int, ...]],
        finished: dict[str, FinishReason],
    ) -> None:
        """Swallow it."""
        super().row_returned(request, row, result, delivered, finished)
        if request.status is Status.PREEMPTED:
            delivered.pop(row.name, None)


class TokenRepeated(Scheduler):
    """A preempted request is admitted again before its token has returned: it is sampled twice."""

    def is_blocked(self, request: Request) -> bool:
        """Do not wait for the step in flight."""
        return request.is_loading
