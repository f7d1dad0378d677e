"""vLLM as a target."""

from __future__ import annotations

from typing import Final

from attrs import evolve, frozen

from schedcheck.adapters.vllm.compat import Traits
from schedcheck.adapters.vllm.engine import make_scheduler
from schedcheck.adapters.vllm.system import VllmSystem
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
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
        Capability.ANNOUNCES_FINISH,
    }
)


@frozen
class VllmTarget:
    """The V1 Scheduler of the vLLM that this interpreter has."""

    traits: Traits

    @property
    def name(self) -> str:
        """What is typed to choose it."""
        return "vllm"

    @property
    def version(self) -> str:
        """Its release."""
        return self.traits.version

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do and show; one request alone cannot be preempted by force."""
        more = set()
        if self.traits.reports_failed_loads:
            more.add(Capability.TRANSFER_FAULTS)
        if self.traits.resets_running:
            more.add(Capability.RESET_RUNNING)
        if self.traits.announces_preemption:
            more.add(Capability.ANNOUNCES_PREEMPTION)
        return _EVERYWHERE | more

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """V1 in every release, V2 where it is complete."""
        return (Dialect.V1, Dialect.V2) if self.traits.speaks_v2 else (Dialect.V1,)

    def honours(self, config: SchedulerConfig) -> SchedulerConfig | Refused:
        """Give a step room for a token of each request and, without chunks, for a whole one."""
        least = config.max_num_seqs if config.chunked_prefill else config.max_model_len
        return evolve(
            config,
            max_num_batched_tokens=max(config.max_num_batched_tokens, least, config.max_num_seqs),
            dialect=config.dialect if config.dialect in self.dialects else Dialect.V1,
        )

    def open(self, config: SchedulerConfig) -> SystemUnderTest:
        """Return a fresh scheduler."""
        return VllmSystem(make_scheduler(config), config, self.traits)
