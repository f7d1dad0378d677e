"""What shows that a target has a capability: for each one, what was seen of it in a search."""

from __future__ import annotations

from typing import Final

from attrs import Factory, define

from schedcheck.model.actions import (
    Abort,
    AddChunk,
    AnswerLookup,
    GrammarReady,
    Pause,
    Preempt,
    ResetPrefixCache,
)
from schedcheck.model.capability import Capability
from schedcheck.model.config import Policy, SchedulerConfig
from schedcheck.model.output import Accepted, Role, RoleSource, Row
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Event,
    Scheduled,
    TransferEnded,
)

BEHAVIOUR: Final = frozenset(
    {
        Capability.EXCLUSIVE_BLOCKS,
        Capability.ORDERED_ADMISSION,
        Capability.ORDERED_PREEMPTION,
        Capability.OWN_STORE,
    }
)
"""Claims about every step, which no single one shows: the invariants that need them judge these."""

_CONTROLS: Final[dict[type, Capability]] = {
    Abort: Capability.ABORT,
    Preempt: Capability.FORCE_PREEMPT_ONE,
    AnswerLookup: Capability.UNDECIDED_LOOKUPS,
    GrammarReady: Capability.STRUCTURED_OUTPUT,
    AddChunk: Capability.STREAMING_INPUT,
    Pause: Capability.PAUSE,
}


@define
class Evidence:
    """Collects, for each capability, the first thing that showed it."""

    seen: dict[Capability, str] = Factory(dict)
    _config: SchedulerConfig = Factory(SchedulerConfig)
    _specs: dict[str, tuple[RequestSpec, int]] = Factory(dict)
    """What each request asked for, and how many tokens its prompt has."""
    _waiting: dict[str, int] = Factory(dict)
    """The priorities of requests that were never scheduled, in order of coming."""
    _in_flight: int = 0

    def begin(self, config: SchedulerConfig) -> None:
        """Begin with another trace."""
        self._config, self._specs, self._waiting, self._in_flight = config, {}, {}, 0

    def see(self, event: AnyEvent) -> None:
        """Take in one event."""
        match event:
            case Added():
                self._added(event)
            case Controlled(action=action, answer=Accepted()):
                if type(action) in _CONTROLS:
                    self._note(_CONTROLS[type(action)], f"{action.do} was accepted")
                if isinstance(action, Abort):
                    self._waiting.pop(action.request, None)
                if isinstance(action, ResetPrefixCache):
                    kind = (
                        Capability.RESET_RUNNING
                        if action.running
                        else Capability.RESET_PREFIX_CACHE
                    )
                    self._note(kind, "a reset was accepted")
            case Scheduled():
                self._scheduled(event)
            case Completed():
                self._completed(event)
            case TransferEnded(bad_block=int()):
                self._note(Capability.TRANSFER_FAULTS, "a load failed")
            case _:
                pass
        if isinstance(event, Event):
            self._shown(event)

    def _note(self, capability: Capability, how: str) -> None:
        self.seen.setdefault(capability, how)

    def _added(self, event: Added) -> None:
        self._specs[event.name] = event.spec, len(event.tokens)
        if isinstance(event.answer, Accepted) and not (event.spec.grammar or event.spec.chunks):
            self._waiting[event.name] = event.spec.priority
        if event.spec.engine_id_of is not None and isinstance(event.answer, Accepted):
            self._note(Capability.ID_REUSE, "an id was given to a second request")

    def _scheduled(self, event: Scheduled) -> None:
        output, config = event.output, self._config
        self._in_flight += 1
        if self._in_flight > 1:
            self._note(Capability.PIPELINE, "two steps were in flight")
            if config.async_scheduling and output.rows:
                self._note(Capability.ASYNC_SCHEDULING, "a step was planned ahead of samples")
        for row in output.rows:
            self._admitted(row.name)
            self._row(row, loaded={load.name for load in output.loads})
        for load in output.loads:
            self._note(
                Capability.ASYNC_LOADS if load.is_async else Capability.SYNC_LOADS, "a load began"
            )
        if output.scheduled_spec_decode_tokens:
            self._note(Capability.SPEC_DECODE, "drafts were verified")
        if output.scheduled_encoder_inputs:
            self._note(Capability.ENCODER_INPUTS, "a medium was encoded")
        if output.finished:
            self._note(Capability.ANNOUNCES_FINISH, "an end was announced")
        if output.preempted:
            self._note(Capability.ANNOUNCES_PREEMPTION, "a preemption was announced")

    def _admitted(self, name: str) -> None:
        """Look at whether it was let in ahead of one that came earlier and is less urgent."""
        if name not in self._waiting:
            return
        earlier = list(self._waiting)[: list(self._waiting).index(name)]
        priority = self._waiting.pop(name)
        if self._config.policy is Policy.PRIORITY and any(
            self._waiting[one] > priority for one in earlier
        ):
            self._note(Capability.PRIORITY, "a later, more urgent request went first")

    def _row(self, row: Row, *, loaded: set[str]) -> None:
        spec, prompt = self._specs.get(row.name, (None, 0))
        if row.role is not Role.UNKNOWN and row.role_source is RoleSource.SHOWN:
            self._note(Capability.SHOWS_ROLES, "a row with its role")
        if row.block_ids is not None:
            self._note(Capability.SHOWS_BLOCK_TABLES, "a row with its blocks")
        if row.start is not None:
            self._note(Capability.SHOWS_STARTS, "a row with its start")
            if row.start + row.count < prompt:
                self._note(Capability.CHUNKED_PREFILL, "part of a prompt was computed")
            is_hit = row.role is Role.NEW and row.start > 0 and row.name not in loaded
            if is_hit and self._config.prefix_caching and spec and not spec.remote_tokens:
                self._note(Capability.PREFIX_CACHING, "a new request began behind a hit")
        if spec is not None and spec.adapter is not None:
            self._note(Capability.ADAPTERS, "a request with an adapter ran")
        if spec is not None and spec.salt is not None:
            self._note(Capability.CACHE_SALTS, "a request with a salt ran")

    def _completed(self, event: Completed) -> None:
        self._in_flight -= 1
        self._note(Capability.SPLIT_STEP, "a step was planned, then completed")
        if event.output.sends:
            self._note(Capability.DELAYED_FREE, "KV was sent at an end")
        if event.output.cached_tokens:
            self._note(Capability.SHOWS_CACHED_TOKENS, "counts were told to a client")
        if event.result.loads_failed:
            self._note(Capability.TRANSFER_FAULTS, "a load failed")

    def _shown(self, event: Event) -> None:
        snapshot, config = event.snapshot, self._config
        for view in snapshot.requests.values() if config.sliding_window else ():
            held = {block for group in view.block_ids or () for block in group}
            if held and len(held) < config.blocks_for(view.num_computed_tokens or 0):
                self._note(Capability.SLIDING_WINDOW, "a request gave back blocks as it ran")
        shows: tuple[tuple[Capability, bool, str], ...] = (
            (
                Capability.SHOWS_STATUS,
                any(one.status for one in snapshot.requests.values()),
                "a status",
            ),
            (Capability.SHOWS_QUEUES, bool(snapshot.queues), "queues"),
            (
                Capability.SHOWS_FREE_BLOCKS,
                snapshot.free_block_ids is not None,
                "which blocks are free",
            ),
            (Capability.SHOWS_REF_COUNTS, bool(snapshot.block_refs), "reference counts"),
        )
        for capability, is_shown, what in shows:
            if is_shown:
                self._note(capability, f"the snapshot had {what}")
