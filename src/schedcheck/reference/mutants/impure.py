"""Faults that show only when a trace is played twice, or looked at twice."""

from __future__ import annotations

from typing import ClassVar

from schedcheck.model.config import SchedulerConfig
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler


class OrderDependsOnHistory(Scheduler):
    """Who is preempted depends on how many schedulers there were before in this process."""

    made: ClassVar[int] = 0

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        OrderDependsOnHistory.made += 1
        self.number = OrderDependsOnHistory.made

    def enqueue(self, request: Request) -> None:
        """Every second scheduler prefers the latest."""
        super().enqueue(request)
        if self.number % 2:
            self.waiting.sort(key=lambda one: -one.arrival)


class ChangedByLooking(Scheduler):
    """Asking whether there is work changes who is preempted next."""

    def has_work(self) -> bool:
        """Turn the running requests round."""
        self.running = [*self.running[1:], *self.running[:1]]
        return super().has_work()
