"""What people put behind vLLM, for test_vllm_pieces.py: imported by interpreters that have it."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


class Same(Scheduler):
    """Does what the engine's own does."""


class Ahead(AsyncScheduler):
    """Plans ahead of the samples."""


class Chokes(Scheduler):
    """Cannot plan a step of more than three tokens."""

    def schedule(self, *arguments: Any, **more: Any) -> Any:
        planned = super().schedule(*arguments, **more)
        if planned.total_num_scheduled_tokens > 3:
            raise ValueError("too much")
        return planned


class CannotBeMade(Scheduler):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        raise RuntimeError("no\n  way")


class Stranger:
    """Not a piece of any engine."""
