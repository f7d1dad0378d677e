"""Faults in speculative decoding."""

from __future__ import annotations

from attrs import evolve

from schedcheck.model.output import EngineOutput, SchedulerOutput, WorkerResult
from schedcheck.model.tokens import UNKNOWN_DRAFT
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class DraftsBeyondModelLength(Scheduler):
    """Drafts are scheduled beyond the longest request that the model takes."""

    def drafts_for(self, request: Request) -> int:
        """Do not cut them."""
        return len(request.draft_token_ids)


class DraftsOfUnscheduled(Scheduler):
    """The drafts of a request stay in the step although it is not scheduled."""

    def schedule_running(self, plan: Plan) -> None:
        """Leave the drafts of a preempted request where they were put first."""
        drafts = {one.request_id: one.draft_token_ids for one in self.running}
        super().schedule_running(plan)
        for name in self.preempted_req_ids:
            if drafts.get(name):
                plan.drafts[name] = drafts[name]


class StaleDraftsAfterResume(Scheduler):
    """Drafts survive a preemption and are verified after the request has resumed."""

    def preempt(self, request: Request) -> None:
        """Keep the drafts."""
        drafts = request.draft_token_ids
        super().preempt(request)
        request.draft_token_ids = drafts


class RefusedDraftsCounted(Scheduler):
    """Drafts that were refused go on counting as computed."""

    def drafts_verified(self, request: Request, drafts: int, sampled: tuple[int, ...]) -> None:
        """Take nothing off."""
        del sampled
        request.drafts_in_flight -= drafts


class DraftsDeliveredUnverified(Scheduler):
    """Drafts reach the client when they are proposed."""

    def update_from_output(self, result: WorkerResult) -> EngineOutput:
        """Deliver the first draft with the token before it."""
        output = super().update_from_output(result)
        delivered = dict(output.delivered)
        for name, drafts in result.drafts.items():
            request = self.requests.get(name)
            room = request is not None and request.num_tokens + 1 < request.num_tokens_max
            if name in delivered and request is not None and request.draft_token_ids and room:
                delivered[name] = (*delivered[name], drafts[0])
        return EngineOutput(
            delivered=delivered,
            finished=output.finished,
            sends=output.sends,
            cached_tokens=output.cached_tokens,
        )


class TooManyDrafts(Scheduler):
    """A step verifies more drafts than num_speculative_tokens."""

    def schedule(self) -> SchedulerOutput:
        """Say the last draft of each request twice."""
        output = super().schedule()
        for name, drafts in output.scheduled_spec_decode_tokens.items():
            if len(drafts) == self.config.num_speculative_tokens:
                output.scheduled_spec_decode_tokens[name] = (*drafts, drafts[-1])  # type: ignore[index]
        return output


class WindowMovedByDrafts(Scheduler):
    """Blocks behind the window are given back as if every draft were accepted."""

    def blocks_behind_window(self, request: Request) -> int:
        """Do not wait for the drafts to be verified."""
        drafts, request.drafts_in_flight = request.drafts_in_flight, 0
        blocks = super().blocks_behind_window(request)
        request.drafts_in_flight = drafts
        return blocks


class DraftsByNumber(Scheduler):
    """Drafts are known to the workers alone: the scheduler says only how many are verified."""

    def schedule(self) -> SchedulerOutput:
        """Put a placeholder where a draft stands."""
        output = super().schedule()
        drafts = output.scheduled_spec_decode_tokens
        hidden = {name: (UNKNOWN_DRAFT,) * len(tokens) for name, tokens in drafts.items()}
        return evolve(output, scheduled_spec_decode_tokens=hidden)
