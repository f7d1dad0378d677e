"""What the header of a recording says about vLLM's Scheduler."""

from __future__ import annotations

import sys
from typing import Any, Final

import schedcheck
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, Policy, SchedulerConfig
from schedcheck.model.trace import Header
from schedcheck.tracefile.form import RANGES

CAPABILITIES: Final = frozenset(
    {
        Capability.SPLIT_STEP,
        Capability.PIPELINE,
        Capability.ABORT,
        Capability.PREFIX_CACHING,
        Capability.PRIORITY,
        Capability.ASYNC_LOADS,
        Capability.ADAPTERS,
        Capability.RESET_PREFIX_CACHE,
        Capability.PAUSE,
        Capability.SPEC_DECODE,
        Capability.SHOWS_ROLES,
        Capability.SHOWS_STATUS,
        Capability.SHOWS_STARTS,
        Capability.ANNOUNCES_FINISH,
    }
)
"""What such a recording shows of every release."""


def header_of(scheduler: Any) -> Header:
    """Return the header of a recording of a Scheduler."""
    version = str(getattr(sys.modules.get("vllm"), "__version__", ""))
    return Header(
        target="vllm",
        version=version.partition("+")[0],
        config=_config(scheduler),
        capabilities=CAPABILITIES,
        schedcheck=schedcheck.__version__,
    )


def _config(scheduler: Any) -> SchedulerConfig:
    own, cache = scheduler.scheduler_config, scheduler.cache_config
    pool = scheduler.kv_cache_manager.block_pool
    lora = getattr(scheduler, "lora_config", None)
    is_async = bool(getattr(own, "async_scheduling", False))
    stages = getattr(scheduler.vllm_config.parallel_config, "pipeline_parallel_size", 1)
    return SchedulerConfig(
        blocks_total=_within("blocks_total", pool.num_gpu_blocks - 1),
        block_size=_within("block_size", scheduler.block_size),
        max_num_batched_tokens=_within(
            "max_num_batched_tokens", scheduler.max_num_scheduled_tokens
        ),
        max_num_seqs=_within("max_num_seqs", scheduler.max_num_running_reqs),
        max_model_len=_within("max_model_len", scheduler.max_model_len),
        max_steps_in_flight=_within("max_steps_in_flight", stages + is_async),
        policy=Policy.PRIORITY if str(own.policy).endswith("priority") else Policy.FCFS,
        chunked_prefill=bool(own.enable_chunked_prefill),
        prefix_caching=bool(cache.enable_prefix_caching),
        num_speculative_tokens=getattr(scheduler, "num_spec_tokens", 0) or 0,
        max_loras=0 if lora is None else lora.max_loras,
        async_scheduling=is_async,
        dialect=Dialect.V2 if getattr(scheduler, "use_v2_model_runner", False) else Dialect.V1,
    )


def _within(key: str, value: int) -> int:
    least, most = RANGES[key]
    return max(least, min(int(value), most))
