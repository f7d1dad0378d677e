"""Faults in what a step may hold."""

from __future__ import annotations

from schedcheck.model.config import Policy
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class BudgetOverrun(Scheduler):
    """A resumed request is computed in one go, whatever the budget."""

    def chunk(self, request: Request, start: int, plan: Plan) -> int:
        """Do not cut the tokens of a request that was preempted."""
        if request.num_preemptions and start == 0:
            return request.num_tokens
        return super().chunk(request, start, plan)


class RunningLimitOverrun(Scheduler):
    """One request more than max_num_seqs runs."""

    def has_seat(self) -> bool:
        """Compare with the wrong sign."""
        return len(self.running) <= self.config.max_num_seqs


class SchedulesOneTooMany(Scheduler):
    """A request that was preempted is asked for a token that nobody has sampled yet."""

    def chunk(self, request: Request, start: int, plan: Plan) -> int:
        """Count one token that is not known."""
        count = super().chunk(request, start, plan)
        reaches_end = start + count == request.num_tokens
        spare = plan.budget > count and self.config.fits(request.num_tokens + 1)
        return count + (request.num_preemptions > 0 and reaches_end and spare and start == 0)


class CrashesOnEqualPriority(Scheduler):
    """Two requests of equal priority are compared with each other, which raises."""

    def enqueue(self, request: Request) -> None:
        """Sort by priority, and then by the requests themselves."""
        super().enqueue(request)
        if self.config.policy is Policy.PRIORITY:
            self.waiting.sort(key=lambda one: (one.spec.priority, one))


class AnswersNonsense(Scheduler):
    """The number of tokens of a resumed request is a word."""

    def add_row(self, plan: Plan, request: Request, role, count, blocks) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        """Put a text where a number belongs."""
        super().add_row(plan, request, role, count, blocks)
        if request.num_preemptions:
            object.__setattr__(plan.rows[-1], "count", str(count))
