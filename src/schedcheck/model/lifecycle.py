"""The life of a request: every transition that is lawful between two calls, as one table.

A transition is seen by comparing two snapshots, so a state passed through within one call is
invisible: a request that is promoted from loading and admitted by the same ``schedule()`` goes
from WAITING_FOR_REMOTE_KVS to RUNNING. ``None`` stands for a request that was not added yet. A
request that ended keeps its last status, whether the scheduler still tracks it or has forgotten it.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from schedcheck.model.capability import Capability
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status

_LOADS: Final = frozenset({Capability.ASYNC_LOADS})
_ABORT: Final = frozenset({Capability.ABORT})
_FAULTS: Final = frozenset({Capability.TRANSFER_FAULTS})
_GRAMMAR: Final = frozenset({Capability.STRUCTURED_OUTPUT})
_SESSIONS: Final = frozenset({Capability.STREAMING_INPUT})
_PIPELINE: Final = frozenset({Capability.PIPELINE})


@frozen
class Transition:
    """One lawful change of status; ``needs`` are the capabilities without which it cannot be."""

    before: Status | None
    after: Status | None
    needs: frozenset[Capability] = frozenset()
    why: str = ""

    def __str__(self) -> str:
        return f"{name_of(self.before)} -> {name_of(self.after)}"


def name_of(status: Status | None) -> str:
    """Return the word that reports use for a status."""
    return "(absent)" if status is None else status.value


_S = Status

TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(None, _S.WAITING, why="added"),
    Transition(_S.WAITING, _S.RUNNING, why="admitted"),
    Transition(_S.WAITING, _S.WAITING_FOR_REMOTE_KVS, _LOADS, "its KV is held outside"),
    Transition(_S.WAITING_FOR_REMOTE_KVS, _S.WAITING, _LOADS, "loaded, waits to be admitted"),
    Transition(_S.WAITING_FOR_REMOTE_KVS, _S.PREEMPTED, _LOADS, "loaded, was preempted before"),
    Transition(_S.WAITING_FOR_REMOTE_KVS, _S.RUNNING, _LOADS, "promoted and admitted in one call"),
    Transition(_S.RUNNING, _S.PREEMPTED, why="pressure or force"),
    Transition(_S.PREEMPTED, _S.RUNNING, why="resumed"),
    Transition(_S.PREEMPTED, _S.WAITING_FOR_REMOTE_KVS, _LOADS, "its KV is held outside"),
    Transition(None, _S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, _GRAMMAR, "added, has a grammar"),
    Transition(_S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, _S.WAITING, _GRAMMAR, "compiled"),
    Transition(
        _S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, _S.RUNNING, _GRAMMAR, "compiled and admitted"
    ),
    Transition(
        _S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        _S.WAITING_FOR_REMOTE_KVS,
        _GRAMMAR | _LOADS,
        "compiled, and its KV is held outside",
    ),
    Transition(_S.RUNNING, _S.WAITING_FOR_STREAMING_REQ, _SESSIONS, "answered, awaits a chunk"),
    Transition(_S.RUNNING, _S.WAITING, _SESSIONS, "answered, and the next chunk was there"),
    Transition(_S.WAITING_FOR_STREAMING_REQ, _S.WAITING, _SESSIONS, "got its next chunk"),
    Transition(
        _S.PREEMPTED,
        _S.WAITING_FOR_STREAMING_REQ,
        _SESSIONS | _PIPELINE,
        "answered by a step issued before",
    ),
    Transition(
        _S.PREEMPTED, _S.WAITING, _SESSIONS | _PIPELINE, "the same, and the next chunk was there"
    ),
    Transition(_S.WAITING_FOR_STREAMING_REQ, _S.FINISHED_ABORTED, _SESSIONS | _ABORT),
    Transition(_S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, _S.FINISHED_ABORTED, _GRAMMAR | _ABORT),
    Transition(_S.WAITING, _S.FINISHED_ABORTED, _ABORT),
    Transition(_S.WAITING_FOR_REMOTE_KVS, _S.FINISHED_ABORTED, _ABORT),
    Transition(_S.RUNNING, _S.FINISHED_ABORTED, _ABORT),
    Transition(_S.PREEMPTED, _S.FINISHED_ABORTED, _ABORT),
    Transition(_S.RUNNING, _S.FINISHED_STOPPED, why="sampled its stop token"),
    Transition(_S.RUNNING, _S.FINISHED_LENGTH_CAPPED, why="sampled max_tokens tokens"),
    Transition(_S.PREEMPTED, _S.FINISHED_STOPPED, _PIPELINE, "by a step issued before"),
    Transition(_S.PREEMPTED, _S.FINISHED_LENGTH_CAPPED, _PIPELINE, "by a step issued before"),
    Transition(_S.WAITING_FOR_REMOTE_KVS, _S.FINISHED_ERROR, _LOADS | _FAULTS, "load failed"),
    Transition(_S.RUNNING, _S.FINISHED_ERROR, _FAULTS | {Capability.SYNC_LOADS}, "load failed"),
)
"""Every lawful transition. What is not here is a finding (REQ-006)."""


def is_lawful(before: Status | None, after: Status | None, spec: RequestSpec) -> bool:
    """Return whether a request like this may change its status so in one call.

    Only a request with a grammar waits for one, and only a session goes from one turn to the next.
    """
    possible = {
        *(_GRAMMAR if spec.grammar else ()),
        *(_SESSIONS if spec.chunks else ()),
    }
    special = _GRAMMAR | _SESSIONS
    return any(needs & special <= possible for needs in _NEEDS.get((before, after), ()))


_NEEDS: Final[dict[tuple[Status | None, Status | None], list[frozenset[Capability]]]] = {}
for _transition in TRANSITIONS:
    _NEEDS.setdefault((_transition.before, _transition.after), []).append(_transition.needs)

LAWFUL: Final[frozenset[tuple[Status | None, Status | None]]] = frozenset(
    (transition.before, transition.after) for transition in TRANSITIONS
)
