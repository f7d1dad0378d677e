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
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    VllmConfig,
)
from vllm.config import SchedulerConfig as VllmSchedulerConfig
from vllm.model_executor.models import ModelRegistry
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from schedcheck.adapters.vllm import connector
from schedcheck.adapters.vllm.compat import DIALECT_VARIABLE, accepted, place_of
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.request import RequestSpec
from schedcheck.model.tokens import STOP_TOKEN

CONFIG_FIELDS_SET: Final = (
    "model_config.max_model_len",
    "scheduler_config.max_num_seqs",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.max_num_scheduled_tokens",
    "scheduler_config.enable_chunked_prefill",
    "scheduler_config.policy",
    "cache_config.block_size",
    "cache_config.enable_prefix_caching",
    "cache_config.num_gpu_blocks",
    "parallel_config.pipeline_parallel_size",
    "kv_transfer_config",
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


def make_scheduler(config: SchedulerConfig) -> Any:
    """Return a fresh Scheduler. Takes well under a millisecond after the first one."""
    os.environ[DIALECT_VARIABLE] = "1" if config.dialect is Dialect.V2 else "0"
    connector.register()
    vllm_config = _vllm_config(config)
    group = FullAttentionSpec(
        block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    blocks = config.blocks_total + 1  # the first is the null block
    return Scheduler(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], group)],
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        log_stats=False,
        **accepted(Scheduler, block_size=config.block_size, hash_block_size=config.block_size),
    )


def make_request(
    engine_id: str, spec: RequestSpec, tokens: tuple[int, ...], *, arrival: int, block_size: int
) -> Any:
    """Return a Request as the engine core would make it."""
    return Request(
        **accepted(
            Request,
            request_id=engine_id,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(
                max_tokens=spec.max_tokens,
                ignore_eos=True,
                stop_token_ids=[STOP_TOKEN],
                temperature=0.0,
                detokenize=False,
            ),
            pooling_params=None,
            eos_token_id=None,
            priority=spec.priority,
            cache_salt=spec.salt,
            arrival_time=float(arrival),
            block_hasher=_hasher(block_size),
        )
    )


@cache
def _hasher(block_size: int) -> Any:
    make = place_of("get_request_block_hasher")
    if make is None:
        return None  # the pool hashes by itself
    sha256 = place_of("sha256")
    place_of("init_none_hash")(sha256)  # repeatable: workers run with a fixed hash seed
    return make(block_size, sha256)


def _vllm_config(config: SchedulerConfig) -> Any:
    """Return a shallow copy of the one base configuration, with CONFIG_FIELDS_SET set."""
    made = copy.copy(_base_config())
    for part in ("model_config", "scheduler_config", "cache_config", "parallel_config"):
        object.__setattr__(made, part, copy.copy(getattr(made, part)))
    _set(made.model_config, max_model_len=config.max_model_len)
    _set(
        made.scheduler_config,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_scheduled_tokens=None,
        enable_chunked_prefill=config.chunked_prefill,
        policy=config.policy.value,
    )
    _set(
        made.cache_config,
        block_size=config.block_size,
        enable_prefix_caching=config.prefix_caching,
        num_gpu_blocks=config.blocks_total + 1,
    )
    # Without this a pipelined run with a connector is one that vLLM itself never makes.
    _set(made.parallel_config, pipeline_parallel_size=config.max_steps_in_flight)
    _set(made, kv_transfer_config=_transfer_config(config.load_failure_policy.value))
    return made


@cache
def _transfer_config(failure_policy: str) -> Any:
    return KVTransferConfig(
        kv_connector=connector.NAME,
        kv_role="kv_both",
        engine_id="schedcheck",
        **accepted(KVTransferConfig, kv_load_failure_policy=failure_policy),
    )


@cache
def _base_config() -> Any:
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
            )
        ),
        cache_config=CacheConfig(block_size=16, enable_prefix_caching=True),
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
