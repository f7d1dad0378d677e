"""Faults around what a request waits for: a grammar, an answer, a chunk, the end of a pause."""

from __future__ import annotations

from schedcheck.model.output import FinishReason, Row, SchedulerOutput, WorkerResult
from schedcheck.model.snapshot import Status
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class ScheduledBeforeGrammar(Scheduler):
    """A request is admitted although its grammar is still being compiled."""

    def is_blocked(self, request: Request) -> bool:
        """Do not look at the grammar."""
        compiling = request.status is Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        return not compiling and super().is_blocked(request)


class AdmittedBeforeLookup(Scheduler):
    """An undecided answer from outside is taken for: nothing is held there."""

    def is_blocked(self, request: Request) -> bool:
        """Do not wait for the answer."""
        answered, request.lookup_answered = request.lookup_answered, True
        blocked = super().is_blocked(request)
        request.lookup_answered = answered
        return blocked


class ScheduledBetweenTurns(Scheduler):
    """A session that has answered is scheduled again before its next chunk has come."""

    def is_blocked(self, request: Request) -> bool:
        """Do not wait for the chunk."""
        return not request.is_parked and super().is_blocked(request)


class SessionEndsEarly(Scheduler):
    """A session ends with its answer if no further chunk has arrived by then."""

    def turn_over(
        self, request: Request, reason: FinishReason, finished: dict[str, FinishReason]
    ) -> None:
        """Do not wait for the next chunk."""
        if request.chunks:
            super().turn_over(request, reason, finished)
        else:
            finished[request.request_id] = reason
            self.finish(request, reason)


class ContinuationLosesAnswer(Scheduler):
    """A session goes on without what it has answered so far."""

    def kept_of_answer(self, request: Request) -> list[int]:
        """Keep nothing."""
        del request
        return []


class SchedulesWhilePaused(Scheduler):
    """A pause stops admission, but what runs goes on."""

    def pause(self, *, admission_only: bool) -> None:
        """Take every pause for one of admission."""
        del admission_only
        super().pause(admission_only=True)


class LoadsWhilePaused(Scheduler):
    """Loads from outside begin during a pause."""

    def schedule_running(self, plan: Plan) -> None:
        """Begin what can be begun although nothing is admitted."""
        super().schedule_running(plan)
        self.begin_loads(plan)

    def schedule(self) -> SchedulerOutput:
        """Do the same when nothing runs either."""
        paused, self.is_paused = self.is_paused, False
        running = self.running
        if paused:
            self.running = []
        output = super().schedule()
        self.is_paused, self.running = paused, running if paused else self.running
        return output

    def begin_loads(self, plan: Plan) -> None:
        """Let waiting requests load, admission paused or not."""
        if self.admits:
            return
        for request in list(self.waiting):
            hit = self.blocks_hit(request)
            offered = self.tokens_offered(request, len(hit) * self.config.block_size)
            if offered and request.spec.load_async and not self.is_blocked(request):
                self.begin_load(plan, request, hit, offered)


class FinishReportedTwice(Scheduler):
    """The client is told of an end once more by a step that was in flight."""

    def row_returned(
        self,
        request: Request,
        row: Row,
        result: WorkerResult,
        delivered: dict[str, tuple[int, ...]],
        finished: dict[str, FinishReason],
    ) -> None:
        """Report the end of a request that had ended before."""
        super().row_returned(request, row, result, delivered, finished)
        if request.status is Status.FINISHED_ABORTED:
            finished[row.name] = FinishReason.ABORTED


class PrefillCutWithoutChunks(Scheduler):
    """A prompt is cut to the budget although chunked prefill is off."""

    def is_chunk_allowed(self, request: Request, end: int) -> bool:
        """Do not look at the setting."""
        del request, end
        return True


class SkippedReversed(Scheduler):
    """Waiting requests that a step passes over are put back in reversed order."""

    def schedule_waiting(self, plan: Plan) -> None:
        """Turn the skipped ones round."""
        super().schedule_waiting(plan)
        skipped = [one for one in self.waiting if self.is_blocked(one)]
        places = [self.waiting.index(one) for one in skipped]
        for place, request in zip(places, reversed(skipped), strict=True):
            self.waiting[place] = request
