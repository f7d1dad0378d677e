"""Making vLLM's real Scheduler, with a tiny pool and without a model."""

from __future__ import annotations

import atexit
import copy
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import vllm
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.config import SchedulerConfig as VllmSchedulerConfig
from vllm.model_executor.models import ModelRegistry
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

from schedcheck.adapters.vllm import connector, watch
from schedcheck.adapters.vllm.compat import DIALECT_VARIABLE, accepted, place_of, traits_of
from schedcheck.adapters.vllm.pieces import AS_IT_IS, Pieces, Values, said
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.options import written
from schedcheck.sut import TargetError

CONFIG_FIELDS_SET: Final = (
    "model_config.max_model_len",
    "scheduler_config.max_num_seqs",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.max_num_scheduled_tokens",
    "scheduler_config.enable_chunked_prefill",
    "scheduler_config.policy",
    "scheduler_config.async_scheduling",
    "scheduler_config.disable_hybrid_kv_cache_manager",
    "cache_config.block_size",
    "cache_config.enable_prefix_caching",
    "cache_config.num_gpu_blocks",
    "parallel_config.pipeline_parallel_size",
    "kv_transfer_config",
    "speculative_config",
    "lora_config",
)
"""Fields of a copied VllmConfig that are set after its checks: it refuses such small sizes."""


class _TinyModel(torch.nn.Module):  # type: ignore[misc]
    """Never run: known to vLLM's public registry, so that no subprocess inspects a model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()

    def embed_input_ids(self, input_ids: Any) -> Any:
        raise NotImplementedError

    def get_input_embeddings(self, input_ids: Any) -> Any:
        raise NotImplementedError

    def forward(self, input_ids: Any, positions: Any) -> Any:
        raise NotImplementedError

    def compute_logits(self, hidden_states: Any) -> Any:
        raise NotImplementedError


class _Grammars(StructuredOutputManager):  # type: ignore[misc]
    """Makes no masks for the sampler, which until 0.10.2 are asked for within ``schedule()``."""

    def grammar_bitmask(self, *_: Any, **__: Any) -> None:
        return None


def check_options(pieces: Pieces) -> None:
    """Have vLLM itself check what the user gave. Raises TargetError."""
    try:
        _base_config(pieces.scheduler_config, pieces.cache_config)
    except Exception as error:
        given = [*pieces.scheduler_config, *pieces.cache_config]
        if not given:
            raise
        typed = " ".join(f"--config {key}={written(value)}" for key, value in given)
        raise TargetError(f"vllm refuses {typed}: {said(error)}") from error


def make_scheduler(config: SchedulerConfig, pieces: Pieces) -> Any:
    """Return a fresh Scheduler. Takes well under a millisecond after the first one.

    Raises TargetError if a user's own cannot be made.
    """
    os.environ[DIALECT_VARIABLE] = "1" if config.dialect is Dialect.V2 else "0"
    if pieces.connector is None:
        connector.register()
    vllm_config = _vllm_config(config, pieces)
    kind = place_of("AsyncScheduler") if config.async_scheduling else Scheduler
    if pieces == AS_IT_IS:
        return _made(kind, config, vllm_config)
    try:
        return _made(pieces.scheduler or kind, config, vllm_config)
    except TargetError:
        raise
    except Exception as error:  # a stranger's constructor may raise anything
        typed = " ".join(pieces.typed.words)
        raise TargetError(f"vllm cannot be made with {typed}: {said(error)}") from error


def _made(kind: Any, config: SchedulerConfig, vllm_config: Any) -> Any:
    blocks = config.blocks_total + 1  # the first is the null block
    return kind(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], _attention(config))],
        ),
        structured_output_manager=_Grammars(vllm_config),
        log_stats=False,
        **accepted(Scheduler, block_size=config.block_size, hash_block_size=config.block_size),
    )


def _attention(config: SchedulerConfig) -> Any:
    """Return what the one KV cache group is like."""
    kind = SlidingWindowSpec if config.sliding_window else FullAttentionSpec
    more = {"sliding_window": config.sliding_window} if config.sliding_window else {}
    return kind(
        block_size=config.block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        **accepted(kind, use_mla=False),  # until 0.10.2
        **more,
    )


def _vllm_config(config: SchedulerConfig, pieces: Pieces) -> Any:
    """Return a shallow copy of the one base configuration, with CONFIG_FIELDS_SET set.

    What the user gave is in the base; of these fields it stays as it was given.
    """
    made = copy.copy(_base_config(pieces.scheduler_config, pieces.cache_config))
    for part in ("model_config", "scheduler_config", "cache_config", "parallel_config"):
        object.__setattr__(made, part, copy.copy(getattr(made, part)))
    _set(made.model_config, max_model_len=config.max_model_len)
    _set(
        made.scheduler_config,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_scheduled_tokens=dict(pieces.scheduler_config).get("max_num_scheduled_tokens"),
        enable_chunked_prefill=config.chunked_prefill,
        policy=config.policy.value,
        async_scheduling=config.async_scheduling,
    )
    if pieces.connector is not None and not watch.supports_all_groups(pieces.connector):
        # As vLLM itself decides for such a connector; else it refuses to make it.
        _set(made.scheduler_config, disable_hybrid_kv_cache_manager=True)
    _set(
        made.cache_config,
        block_size=config.block_size,
        enable_prefix_caching=config.prefix_caching,
        num_gpu_blocks=config.blocks_total + 1,
    )
    # Without this a pipelined run with a connector is one that vLLM itself never makes.
    stages = config.max_steps_in_flight - config.async_scheduling
    _set(made.parallel_config, pipeline_parallel_size=stages)
    _set(
        made,
        kv_transfer_config=_transfer_config(config.load_failure_policy.value, pieces),
        speculative_config=_speculative_config(config.num_speculative_tokens),
        lora_config=LoRAConfig(max_loras=config.max_loras) if config.max_loras else None,
    )
    return made


@cache
def _speculative_config(drafts: int) -> Any:
    """Return a configuration with this many drafts, from n-grams: it needs no draft model."""
    if not drafts:
        return None
    base = _base_config((), ())
    return SpeculativeConfig(
        **accepted(
            SpeculativeConfig,
            method="ngram",
            num_speculative_tokens=drafts,
            prompt_lookup_max=2,
            prompt_lookup_min=1,
            target_model_config=base.model_config,
            target_parallel_config=base.parallel_config,
        )
    )


@cache
def _transfer_config(failure_policy: str, pieces: Pieces) -> Any:
    where: dict[str, Any] = {"kv_connector": connector.NAME}
    if pieces.connector is not None:
        can_wait = traits_of(vllm.__version__).waits_for_lookups
        name = watch.watched(pieces.connector, typed=pieces.typed.connector, can_wait=can_wait)
        where = {"kv_connector": name, "kv_connector_module_path": watch.MODULE}
        where["kv_connector_extra_config"] = dict(pieces.connector_config)
    return KVTransferConfig(
        **where,
        kv_role="kv_both",
        engine_id="schedcheck",
        **accepted(KVTransferConfig, kv_load_failure_policy=failure_policy),
    )


@cache
def _base_config(scheduler_options: Values, cache_options: Values) -> Any:
    """Return the one VllmConfig that goes through vLLM's own checks, with ordinary sizes."""
    folder = _model_folder()
    return VllmConfig(
        model_config=ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="float16",
            seed=0,
            max_model_len=4096,
            **accepted(ModelConfig, use_async_output_proc=False),  # until 0.10.1
        ),
        scheduler_config=VllmSchedulerConfig(
            **accepted(
                VllmSchedulerConfig,
                max_num_seqs=16,
                max_num_batched_tokens=4096,
                max_model_len=4096,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            **dict(scheduler_options),
        ),
        cache_config=CacheConfig(block_size=16, enable_prefix_caching=True, **dict(cache_options)),
        device_config=DeviceConfig(device="cpu"),
    )


def _model_folder() -> str:
    """Make a folder that looks like a model to vLLM's configuration; it goes with the process."""
    if "SchedcheckTinyModel" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("SchedcheckTinyModel", _TinyModel)
    folder = tempfile.mkdtemp(prefix="schedcheck-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    description = {
        "architectures": ["SchedcheckTinyModel"],
        "model_type": "opt",
        "hidden_size": 16,
        "ffn_dim": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 16,
        "vocab_size": 1024,
        "max_position_embeddings": 8192,
        "torch_dtype": "float16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    (Path(folder) / "config.json").write_text(json.dumps(description))
    return folder


def _set(thing: Any, **values: Any) -> None:
    for name, value in values.items():
        if hasattr(thing, name):
            object.__setattr__(thing, name, value)
