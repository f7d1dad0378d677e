"""Faults around media and their encoder outputs, and around adapters."""

from __future__ import annotations

from schedcheck.model.request import MediaItem
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class EncoderInputForgotten(Scheduler):
    """A medium that a resumed request needs again is not encoded."""

    def encode(self, plan: Plan, request: Request, media: list[MediaItem], count: int) -> None:
        """Encode only for requests that were never preempted."""
        super().encode(plan, request, [] if request.num_preemptions else media, count)


class EncoderBudgetIgnored(Scheduler):
    """A step encodes as many media as it finds, whatever the encoder's budget."""

    def with_media(
        self, request: Request, start: int, count: int, plan: Plan
    ) -> tuple[int, list[MediaItem]]:
        """Plan with a budget that does not end."""
        budget, plan.encoder_budget = plan.encoder_budget, self.config.encoder_cache_size
        found = super().with_media(request, start, count, plan)
        plan.encoder_budget = budget
        return found


class EncoderCacheOverfilled(Scheduler):
    """A medium is put into the encoder cache although what is there is still needed."""

    def encoder_room(self, keep: list[str]) -> int:
        """Do not count what is still needed."""
        del keep
        return self.config.encoder_cache_size


class EncoderOutputDroppedEarly(Scheduler):
    """The encoder output of a medium may go when the first of its tokens is computed."""

    def let_go_of_the_past(self) -> None:
        """Release media that are begun."""
        super().let_go_of_the_past()
        for request in self.running:
            for item in request.spec.media:
                if item.offset < request.num_computed_tokens:
                    self.encoder.release(item.key, request.request_id)
                    self.encoder.entries.pop(item.key, None)
                    self.encoder.dropped.append(item.key)

    def with_media(
        self, request: Request, start: int, count: int, plan: Plan
    ) -> tuple[int, list[MediaItem]]:
        """Believe that a medium once encoded is there for good."""
        count, media = super().with_media(request, start, count, plan)
        return count, [item for item in media if item.offset >= start]


class TooManyAdapters(Scheduler):
    """One adapter more than max_loras is admitted."""

    def may_use_adapter(self, request: Request) -> bool:
        """Compare with the wrong sign."""
        in_use = {one.spec.adapter for one in self.running} - {None}
        return len(in_use) <= self.config.max_loras or super().may_use_adapter(request)
