"""An engine-neutral view of a scheduler between two calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from schedcheck.model.output import Blocks


class Status(StrEnum):
    """Where a request is in its life (vLLM's names)."""

    WAITING = "WAITING"
    WAITING_FOR_REMOTE_KVS = "WAITING_FOR_REMOTE_KVS"
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"
    WAITING_FOR_STREAMING_REQ = "WAITING_FOR_STREAMING_REQ"
    """A session between two chunks of its input."""
    RUNNING = "RUNNING"
    PREEMPTED = "PREEMPTED"
    FINISHED_STOPPED = "FINISHED_STOPPED"
    FINISHED_LENGTH_CAPPED = "FINISHED_LENGTH_CAPPED"
    FINISHED_ABORTED = "FINISHED_ABORTED"
    FINISHED_ERROR = "FINISHED_ERROR"

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be computed for the request."""
        return self in _FINISHED


_FINISHED: Final = frozenset(
    {
        Status.FINISHED_STOPPED,
        Status.FINISHED_LENGTH_CAPPED,
        Status.FINISHED_ABORTED,
        Status.FINISHED_ERROR,
    }
)


@frozen(kw_only=True)
class RequestView:
    """One request that the scheduler still tracks, finished ones with a delayed free included."""

    status: Status | None
    """None: the engine has no such notion."""
    num_computed_tokens: int | None = None
    """As the engine counts: optimistic, it may run ahead of what is executed."""
    num_tokens: int | None = None
    """Prompt and output tokens known to the scheduler."""
    num_preemptions: int | None = None
    """The engine's own counter; invariants use the Ledger's instead."""
    block_ids: Blocks | None = None
    """The blocks it holds, for each KV cache group, null blocks left out; None: not shown."""


@frozen(kw_only=True)
class Snapshot:
    """The scheduler between two calls. Queues are in the engine's order, all else is sorted."""

    requests: Mapping[str, RequestView] = field(factory=dict)
    queues: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Names in each queue, under the engine's name for it; ``running`` among them."""
    blocks_free: int | None = None
    blocks_total: int | None = None
    free_block_ids: tuple[int, ...] | None = None
    """The free list, sorted, an id as often as it stands there; None: not shown."""

    block_refs: Mapping[int, int] | None = None
    """References to each block that has any; None: not shown."""

    def blocks_of(self, name: str) -> frozenset[int]:
        """Return the distinct blocks a request holds, over all groups; empty when not shown."""
        view = self.requests.get(name)
        if view is None or view.block_ids is None:
            return frozenset()
        return frozenset(block for group in view.block_ids for block in group)


EMPTY_SNAPSHOT: Final = Snapshot()
"""Before anything was seen."""
