"""vLLM as a target."""

from __future__ import annotations

from typing import Final

from attrs import evolve, frozen

from schedcheck.adapters.vllm.compat import Traits
from schedcheck.adapters.vllm.engine import check_options, make_scheduler
from schedcheck.adapters.vllm.pieces import AS_IT_IS, Pieces, pieces_of
from schedcheck.adapters.vllm.system import VllmSystem
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.options import Options
from schedcheck.sut import Refused, SystemUnderTest

_EVERYWHERE: Final = frozenset(
    {
        Capability.SPLIT_STEP,
        Capability.PIPELINE,
        Capability.ABORT,
        Capability.ID_REUSE,
        Capability.PRIORITY,
        Capability.CHUNKED_PREFILL,
        Capability.PREFIX_CACHING,
        Capability.CACHE_SALTS,
        Capability.ASYNC_LOADS,
        Capability.SYNC_LOADS,
        Capability.DELAYED_FREE,
        Capability.RESET_PREFIX_CACHE,
        Capability.SHOWS_ROLES,
        Capability.SHOWS_STATUS,
        Capability.SHOWS_QUEUES,
        Capability.SHOWS_STARTS,
        Capability.SHOWS_BLOCK_TABLES,
        Capability.SHOWS_FREE_BLOCKS,
        Capability.SHOWS_REF_COUNTS,
        Capability.SPEC_DECODE,
        Capability.SLIDING_WINDOW,
        Capability.STRUCTURED_OUTPUT,
        Capability.ADAPTERS,
        Capability.ANNOUNCES_FINISH,
    }
)

_BY_TRAIT: Final = {
    "schedules_ahead": Capability.ASYNC_SCHEDULING,
    "reports_failed_loads": Capability.TRANSFER_FAULTS,
    "resets_running": Capability.RESET_RUNNING,
    "announces_preemption": Capability.ANNOUNCES_PREEMPTION,
    "waits_for_lookups": Capability.UNDECIDED_LOOKUPS,
    "tells_cached_tokens": Capability.SHOWS_CACHED_TOKENS,
    "has_sessions": Capability.STREAMING_INPUT,
    "pauses": Capability.PAUSE,
}
"""What a release can do or show beyond that, by its trait."""


@frozen
class VllmTarget:
    """The V1 Scheduler of the vLLM that this interpreter has."""

    traits: Traits
    pieces: Pieces = AS_IT_IS

    @property
    def name(self) -> str:
        """What is typed to choose it."""
        return "vllm"

    @property
    def version(self) -> str:
        """Its release."""
        return self.traits.version

    @property
    def note(self) -> str:
        """What a person should know of this release; empty: nothing."""
        if self.traits.is_verified:
            return ""
        return (
            f"vllm {self.version} was not verified and is taken for {self.traits.like}: "
            f"schedcheck doctor vllm says what differs"
        )

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do and show; one request alone cannot be preempted by force."""
        able = _EVERYWHERE | {
            capability for trait, capability in _BY_TRAIT.items() if getattr(self.traits, trait)
        }
        if self.pieces.is_ahead is False:
            able -= {Capability.ASYNC_SCHEDULING}
        if self.pieces.connector is not None:
            # It decides by itself what it holds, and when it knows.
            able = (able | {Capability.OWN_STORE}) - {Capability.UNDECIDED_LOOKUPS}
        return able

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """V1 in every release, V2 where it is complete."""
        return (Dialect.V1, Dialect.V2) if self.traits.speaks_v2 else (Dialect.V1,)

    def honours(self, config: SchedulerConfig) -> SchedulerConfig | Refused:
        """Return what vLLM itself could be given.

        A step has room for a token of each request, with its drafts, and without chunks for a
        whole request. A window of one token is refused. Drafts of a step in flight are known only
        where it schedules ahead, which the first model runner does by one step and no pipeline.
        What the user said holds in every trace.
        """
        config = self.pieces.pin(config)
        dialect = config.dialect if config.dialect in self.dialects else Dialect.V1
        ahead, drafts = config.async_scheduling, config.num_speculative_tokens
        drafts = drafts if not ahead or self.traits.drafts_ahead else 0
        least = config.max_num_seqs * (1 + drafts)
        if not config.chunked_prefill:
            least = max(least, config.max_model_len)
        steps = config.max_steps_in_flight
        if ahead:
            steps = 2 if dialect is Dialect.V1 else max(2, steps)
        elif drafts:
            steps = 1
        return evolve(
            config,
            max_num_batched_tokens=max(config.max_num_batched_tokens, least),
            max_steps_in_flight=steps,
            num_speculative_tokens=drafts,
            sliding_window=max(2, config.sliding_window) if config.sliding_window else 0,
            dialect=dialect,
        )

    def open(self, config: SchedulerConfig) -> SystemUnderTest:
        """Return a fresh scheduler."""
        return VllmSystem(make_scheduler(config, self.pieces), config, self.traits)


def make_target(options: Options, traits: Traits) -> VllmTarget:
    """Return the target made with a user's options. Raises TargetError."""
    pieces = pieces_of(options, traits)
    check_options(pieces)
    return VllmTarget(traits, pieces)
