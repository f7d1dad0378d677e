"""Faults in whose turn it is: to be admitted, to give way, to be counted."""

from __future__ import annotations

from schedcheck.model.config import LoadFailurePolicy
from schedcheck.model.output import FinishReason
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class OvertakenWhenItDoesNotFit(Scheduler):
    """A request that does not fit is passed over, and a smaller one behind it is admitted."""

    def admit(self, plan: Plan, request: Request) -> bool:
        """Never stop the scan."""
        super().admit(plan, request)
        return True


class FirstGivesWay(Scheduler):
    """The request that has run for longest is preempted."""

    def victim(self, plan: Plan) -> Request | None:
        """Take the first that can give way."""
        return next((one for one in self.running if self.may_be_victim(one, plan)), None)


class PreemptionsMiscounted(Scheduler):
    """A preemption by force is not counted."""

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Take the count back."""
        running = list(self.running)
        done = super().reset_prefix_cache(reset_running_requests=reset_running_requests)
        for request in running:
            request.num_preemptions -= reset_running_requests
        return done


class ResetLeavesRunning(Scheduler):
    """A forced reset preempts only the last of the running requests."""

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Stop after the first victim."""
        if reset_running_requests and self.running:
            self.preempt(self.running[-1])
        return self.reset_cache()


class ResetAlwaysRefused(Scheduler):
    """A reset is refused whether or not blocks are in use."""

    def reset_cache(self) -> bool:
        """Empty the cache, and say that it could not be done."""
        super().reset_cache()
        return False


class SendsUnasked(Scheduler):
    """The KV of every request that ends is sent."""

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Do not look whether it was asked for."""
        is_held = not (request.is_loading and request.tokens_loaded is None)
        sends = is_held and request.block_ids and request.num_computed_tokens
        if sends and not request.spec.send_kv:
            self.sends_begun.append(request.request_id)
        super().finish(request, reason)
        if sends and request.request_id not in self.requests:
            self.requests[request.request_id] = request


class FailsInsteadOfRecomputing(Scheduler):
    """A failed load ends its request although the policy is to compute what is missing."""

    def load_returned(
        self, request_id: str, bad_block: int | None, finished: dict[str, FinishReason]
    ) -> None:
        """Take one policy for the other."""
        request = self.requests[request_id]
        recomputes = self.config.load_failure_policy is LoadFailurePolicy.RECOMPUTE
        if bad_block is not None and recomputes and not request.is_finished:
            finished[request_id] = FinishReason.ERROR
            self.finish(request, FinishReason.ERROR)
        super().load_returned(request_id, bad_block, finished)


class WindowNeverMoves(Scheduler):
    """Blocks behind the sliding window are kept."""

    def release_behind_window(self, request: Request) -> None:
        """Give nothing back."""
