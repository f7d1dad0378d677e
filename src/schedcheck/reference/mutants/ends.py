"""Faults in how a request ends."""

from __future__ import annotations

from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import FinishReason, Role, Row, WorkerResult
from schedcheck.model.snapshot import Status
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class FinishNeverAnnounced(Scheduler):
    """The workers are not told of an abort, and keep the request's state for ever."""

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Leave aborted requests out of the announcement."""
        super().finish(request, reason)
        if reason is FinishReason.ABORTED:
            self.finished_req_ids.remove(request.request_id)


class FinishAnnouncedTwice(Scheduler):
    """The end of a request is announced again when its delayed free comes."""

    def forget(self, request: Request) -> None:
        """Announce the end at the free too."""
        super().forget(request)
        if request.is_sending:
            self.finished_req_ids.append(request.request_id)


class DeliversAfterAbort(Scheduler):
    """The output of a step in flight reaches a client that has given up."""

    def row_returned(
        self,
        request: Request,
        row: Row,
        result: WorkerResult,
        delivered: dict[str, tuple[int, ...]],
        finished: dict[str, FinishReason],
    ) -> None:
        """Deliver what was sampled, ended or not."""
        super().row_returned(request, row, result, delivered, finished)
        if request.status is Status.FINISHED_ABORTED and row.name in result.sampled:
            delivered[row.name] = result.sampled[row.name]


class ExceedsMaxTokens(Scheduler):
    """The limit on output tokens is checked one token too late."""

    def reason_to_finish(self, request: Request) -> FinishReason | None:
        """Let one more token through."""
        reason = super().reason_to_finish(request)
        at_limit = len(request.output_token_ids) == request.max_tokens
        return None if reason is FinishReason.LENGTH and at_limit else reason


class EndedButScheduled(Scheduler):
    """A request aborted with a step in flight is scheduled once more."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.leaving: list[Request] = []

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Remember whom the running step still computes for."""
        if request.steps_in_flight and reason is FinishReason.ABORTED:
            self.leaving.append(request)
        super().finish(request, reason)

    def schedule_running(self, plan: Plan) -> None:
        """Schedule those that are leaving as well."""
        super().schedule_running(plan)
        for request in self.leaving[: plan.budget]:
            self.add_row(plan, request, Role.RUNNING, 1, [])
        self.leaving.clear()


class LateCompletionRevives(Scheduler):
    """The late end of a load puts an aborted request back into the queue."""

    def load_finished(self, request: Request, bad_block: int | None) -> None:
        """Treat an aborted request like any other."""
        if request.status is Status.FINISHED_ABORTED:
            request.status = Status.WAITING
            self.enqueue(request)
        else:
            super().load_finished(request, bad_block)


class SleepsWithDelayedFree(Scheduler):
    """The engine falls asleep while blocks wait for the end of a send."""

    def has_work(self) -> bool:
        """Look only at what is unfinished or unannounced."""
        unfinished = any(not request.is_finished for request in self.requests.values())
        return unfinished or bool(self.finished_req_ids)


class SleepsWithNews(Scheduler):
    """The engine falls asleep before the workers were told of the last end."""

    def has_work(self) -> bool:
        """Leave the announcements out."""
        return bool(self.requests or self.pool.fenced)


class LostFromQueues(Scheduler):
    """A preempted request is not queued again, and so never runs again."""

    def preempt(self, request: Request) -> None:
        """Drop it."""
        super().preempt(request)
        self.waiting.remove(request)
