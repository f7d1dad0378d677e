"""Faults in tokens: lost, repeated, dropped, not noticed; and in whom a preemption serves."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import EngineOutput, FinishReason, Row, WorkerResult
from schedcheck.model.snapshot import Status
from schedcheck.model.tokens import STOP_TOKEN
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


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
        steps, request.steps_in_flight = request.steps_in_flight, 0
        blocked = super().is_blocked(request)
        request.steps_in_flight = steps
        return blocked


class SampledTokenDropped(Scheduler):
    """The tokens of a step in flight are dropped when another request is aborted meanwhile."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.dropped_to = -1
        """Id of the last step whose tokens are dropped."""

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Remember which steps are in flight."""
        super().finish_requests(request_ids)
        if self.in_flight:
            self.dropped_to = self.in_flight[-1].output.step_id

    def update_from_output(self, result: WorkerResult) -> EngineOutput:
        """Drop what such a step sampled: it is computed once more."""
        step = self.in_flight[0]
        if step.output.step_id > self.dropped_to or result.loads_failed:
            return super().update_from_output(result)
        for row, request in zip(step.output.rows, step.requests, strict=True):
            if row.name in result.sampled and request.status is Status.RUNNING:
                request.num_computed_tokens -= 1
        return super().update_from_output(evolve(result, sampled={}, drafts={}))


class StopNoticedLate(Scheduler):
    """A stop token is noticed when the next step of the request returns."""

    def reason_to_finish(self, request: Request) -> FinishReason | None:
        """Look at the token before the last as well, and at the last only then."""
        reason = super().reason_to_finish(request)
        if STOP_TOKEN in request.output_token_ids[:-1]:
            return FinishReason.STOPPED
        return None if reason is FinishReason.STOPPED else reason


class PreemptionPingPong(Scheduler):
    """A preempted request that waits takes the place of one that runs, in every step."""

    def schedule_waiting(self, plan: Plan) -> None:
        """Let a preempted request take the place of the last one that runs."""
        waits = [one for one in self.waiting if one.status is Status.PREEMPTED]
        ready = [one for one in waits if not self.is_blocked(one) and self.may_use_adapter(one)]
        victims = [one for one in self.running if not one.steps_in_flight and one not in ready]
        if ready and victims and plan.has(victims[-1]):
            self._take_out(plan, victims[-1])
            self.preempt(victims[-1])
            self.admit(plan, ready[0])
        else:
            super().schedule_waiting(plan)

    def _take_out(self, plan: Plan, request: Request) -> None:
        """Take a request out of the step again."""
        place = plan.requests.index(request)
        plan.budget += plan.rows[place].count
        del plan.requests[place], plan.rows[place]
        plan.drafts.pop(request.request_id, None)
        plan.encoder_inputs.pop(request.request_id, None)
