"""What passes between a scheduler, its workers and its clients in one step."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from attrs import field, frozen

Blocks = tuple[tuple[int, ...], ...]
"""Block ids for each KV cache group."""

NO_BLOCK: Final = -1
"""Stands in a table, and among the blocks of a load, for one that is not there: what it would hold
lies outside the sliding window. Engines call it the null block."""


class Role(StrEnum):
    """How a row presents its request to the workers."""

    NEW = "NEW"
    RESUMED = "RESUMED"
    RUNNING = "RUNNING"
    UNKNOWN = "UNKNOWN"


class RoleSource(StrEnum):
    """Whether the engine itself says the role, or the adapter concluded it."""

    SHOWN = "SHOWN"
    INFERRED = "INFERRED"


class TableUpdate(StrEnum):
    """What the workers do with a row's block ids."""

    REPLACE = "REPLACE"
    APPEND = "APPEND"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOPPED = "STOPPED"
    LENGTH = "LENGTH"
    ABORTED = "ABORTED"
    ERROR = "ERROR"


@frozen(kw_only=True)
class Row:
    """One request in one SchedulerOutput."""

    name: str
    role: Role
    count: int
    """Tokens to compute in this step (``num_scheduled_tokens``)."""
    start: int | None = None
    """Position of the first of them (``num_computed_tokens``); None: not shown."""
    role_source: RoleSource = RoleSource.SHOWN
    block_ids: Blocks | None = None
    """Blocks that replace or extend the worker's table; None: the table stays as it is."""
    table_update: TableUpdate = TableUpdate.APPEND
    known_tokens: tuple[int, ...] | None = None
    """Every token of the request, where the engine hands them over (new and resumed rows)."""


@frozen(kw_only=True)
class Load:
    """A KV load that starts with this step: tokens ``start`` to ``start + count`` of a request."""

    name: str
    start: int
    count: int
    is_async: bool
    block_ids: Blocks | None = None
    """The blocks the load fills, in token order; the first begins at token ``start`` rounded down
    to a block. None: not shown."""


@frozen(kw_only=True)
class SchedulerOutput:
    """What one ``schedule()`` hands to the workers."""

    step_id: int
    rows: tuple[Row, ...] = ()
    preempted: tuple[str, ...] | None = ()
    """Requests preempted in or before this step (``preempted_req_ids``); None: not announced."""
    finished: tuple[str, ...] = ()
    """Requests the workers may forget (``finished_req_ids``)."""
    loads: tuple[Load, ...] = ()
    scheduled_spec_decode_tokens: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Drafts to verify, by request: the last of the tokens that its row counts. Where only the
    workers know a draft, UNKNOWN_DRAFT stands for it."""
    scheduled_encoder_inputs: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Media to encode in this step: their places among the media of the request, from 0."""
    freed_encoder_keys: tuple[str, ...] = ()
    """Media whose encoder output the workers drop before this step
    (``free_encoder_mm_hashes``)."""

    @property
    def scheduled_new_reqs(self) -> tuple[Row, ...]:
        """The rows sent in full, as new requests."""
        return tuple(row for row in self.rows if row.role is Role.NEW)

    @property
    def scheduled_cached_reqs(self) -> tuple[Row, ...]:
        """The rows sent as a difference from what the workers know: running and resumed."""
        return tuple(row for row in self.rows if row.role is not Role.NEW)

    @property
    def resumed_req_ids(self) -> frozenset[str]:
        """The names in ``scheduled_cached_reqs`` that come back from a preemption."""
        return frozenset(row.name for row in self.rows if row.role is Role.RESUMED)

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens to compute, by request."""
        return {row.name: row.count for row in self.rows}


@frozen(kw_only=True)
class WorkerResult:
    """What the simulated worker gives back for one executed step."""

    sampled: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """New tokens by request, accepted drafts first; a request whose known tokens were not all
    computed has none."""
    drafts: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Drafts that the workers propose for the next step, by request."""
    loads_finished: tuple[str, ...] = ()
    """Asynchronous loads that ended since the last result, failed ones and aborted ones too."""
    sends_finished: tuple[str, ...] = ()
    loads_failed: Mapping[str, int] = field(factory=dict)
    """For each failed load the ordinal of its first bad block, from 0."""


@frozen(kw_only=True)
class EngineOutput:
    """What reaches the client when a step's result has been processed."""

    delivered: Mapping[str, tuple[int, ...]] = field(factory=dict)
    finished: Mapping[str, FinishReason] = field(factory=dict)
    sends: tuple[str, ...] = ()
    """Requests that ended here and whose KV is now being sent: their blocks must stay."""
    cached_tokens: Mapping[str, tuple[int, int]] = field(factory=dict)
    """Tokens of a prompt that were hit in the prefix cache and loaded from outside, told to the
    client with the first token."""


@frozen(kw_only=True)
class Accepted:
    """The engine took an action."""

    sends: tuple[str, ...] = ()
    """Requests ended by it whose KV is now being sent: their blocks must stay."""


@frozen
class Rejected:
    """The engine lawfully refused an action."""

    reason: str
