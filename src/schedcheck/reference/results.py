"""Taking a step's result: tokens, drafts, ends, turns of a session."""

from __future__ import annotations

from schedcheck.model.output import EngineOutput, FinishReason, Row, WorkerResult
from schedcheck.model.snapshot import Status
from schedcheck.model.tokens import STOP_TOKEN
from schedcheck.reference.planning import Planning
from schedcheck.reference.request import Request


class Results(Planning):
    """Processes results (rules 17 to 19 and 21 to 24)."""

    def update_from_output(self, result: WorkerResult) -> EngineOutput:
        """Process the result of the oldest step in flight."""
        step = self.in_flight.popleft()
        delivered: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        for row, request in zip(step.output.rows, step.requests, strict=True):
            drafts = step.output.scheduled_spec_decode_tokens.get(row.name, ())
            self.drafts_verified(request, len(drafts), result.sampled.get(row.name, ()))
            self.row_returned(request, row, result, delivered, finished)
        self.pool.step_returned(step.output.step_id)
        for request_id in result.loads_finished:
            self.load_returned(request_id, result.loads_failed.get(request_id), finished)
        for request_id in result.sends_finished:
            self.forget(self.requests[request_id])
        sends, self.sends_begun = tuple(self.sends_begun), []
        return EngineOutput(
            delivered=delivered,
            finished=finished,
            sends=sends,
            cached_tokens=self.cache_reports(delivered),
        )

    def drafts_verified(self, request: Request, drafts: int, sampled: tuple[int, ...]) -> None:
        """Take the drafts that were refused off what counts as computed (rule 22)."""
        if request.status is Status.RUNNING:
            request.drafts_in_flight -= drafts
            request.num_computed_tokens -= max(0, drafts - max(0, len(sampled) - 1))

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
            self.sync_load_failed(request, result.loads_failed[row.name], finished)
            return
        if request.status is Status.RUNNING:
            limit = self.config.num_speculative_tokens
            request.draft_token_ids = result.drafts.get(row.name, ())[:limit]
        tokens = self.tokens_taken(request, result.sampled.get(row.name, ()))
        if tokens:
            delivered[row.name] = tokens
            reason = self.reason_to_finish(request)
            if reason is not None:
                self.turn_over(request, reason, finished)

    def tokens_taken(self, request: Request, sampled: tuple[int, ...]) -> tuple[int, ...]:
        """Add sampled tokens to a request's output, up to its end, and return them."""
        for number, token in enumerate(sampled, 1):
            request.output_token_ids.append(token)
            if self.reason_to_finish(request) is not None:
                return sampled[:number]
        return sampled

    def reason_to_finish(self, request: Request) -> FinishReason | None:
        """Return why a request ends after its last token, if it does."""
        if request.output_token_ids[-1] == STOP_TOKEN:
            return FinishReason.STOPPED
        if len(request.output_token_ids) >= request.max_tokens:
            return FinishReason.LENGTH
        return None

    def turn_over(
        self, request: Request, reason: FinishReason, finished: dict[str, FinishReason]
    ) -> None:
        """End a request, or let its session go on or wait for the next chunk (rule 23)."""
        if request.turn == len(request.spec.chunks):
            finished[request.request_id] = reason
            self.finish(request, reason)
            return
        self.leave_queues(request)
        self.release_media(request)
        if request.request_id in self.preempted_req_ids:
            self.preempted_req_ids.remove(request.request_id)
        request.draft_token_ids = ()
        request.status = Status.WAITING_FOR_STREAMING_REQ
        self.enqueue(request)
        if not self.can_finish_beside(request):
            self.free_blocks(request)
            request.num_computed_tokens = 0
        if request.chunks:
            self.begin_turn(request)

    def add_chunk(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Take the next chunk of a session, which begins at once if the session waits for it."""
        request.chunks.append(tokens)
        if request.is_parked:
            self.begin_turn(request)

    def begin_turn(self, request: Request) -> None:
        """Make what was said so far and the next chunk a prompt (rule 23)."""
        said = (*request.prompt_token_ids, *self.kept_of_answer(request))
        request.prompt_token_ids = (*said, *request.chunks.pop(0))
        request.output_token_ids = []
        request.num_computed_tokens = min(request.num_computed_tokens, len(said))
        request.turn += 1
        request.awaits_resumption = False
        request.status = Status.WAITING

    def kept_of_answer(self, request: Request) -> list[int]:
        """Return which tokens of an answer the session goes on from."""
        return request.output_token_ids[:-1]

    def cache_reports(self, delivered: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
        """Return what clients are told with a first token about hits and loads (rule 24)."""
        reports: dict[str, tuple[int, int]] = {}
        for request_id in delivered:
            request = self.requests.get(request_id)
            if request is not None and request.cached_tokens and not request.cache_reported:
                reports[request_id], request.cache_reported = request.cached_tokens, True
        return reports
