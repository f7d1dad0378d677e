"""What differs between vLLM's releases, and what must be so before the import, in one place.

Rules
-----
- Nothing here, nor elsewhere in this package, alters a class or a function of vLLM. Environment
  variables are set before the import (ENVIRONMENT); named fields of its configuration are set
  before the first call (``engine.CONFIG_FIELDS_SET``).
- What a release can do follows from ``_SINCE``. Names that came, went or were renamed stand in the
  tables below it, for all releases at once; keywords that came and went are passed where they are
  known (``accepted``). So a further release is an entry, not a branch.
- Third-party attributes that a release misses in the torch beside it are supplied before the
  import (TORCH_SUPPLIED); nothing that is there is replaced.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, Final

from attrs import frozen

from schedcheck.model.output import FinishReason
from schedcheck.model.snapshot import Status
from schedcheck.sut import TargetError

ENVIRONMENT: Final[Mapping[str, str]] = {
    "VLLM_CONFIGURE_LOGGING": "0",  # its handlers write to standard output
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "",  # third-party plugins would change what is audited
    "HF_HUB_OFFLINE": "1",  # no model is ever fetched
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Set before the import, for silence and determinism."""

DIALECT_VARIABLE: Final = "VLLM_USE_V2_MODEL_RUNNER"
"""Read by vLLM while a Scheduler is made: the dialect is chosen explicitly, never guessed."""


RELEASES: Final = (
    "0.9.2", "0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0",
    "0.14.0", "0.15.1", "0.16.0", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.21.0", "0.22.1",
    "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0",
    "0.32.0", "0.33.0",
)  # fmt: skip
"""The releases this adapter was verified on, oldest first."""

_SINCE: Final[Mapping[str, str]] = {
    "schedules_ahead": "0.10.0",
    "drafts_ahead": "0.11.1",
    "takes_drafts_apart": "0.10.2",
    "waits_for_lookups": "0.10.2",
    "reports_failed_loads": "0.11.1",
    "resets_running": "0.12.0",
    "announces_preemption": "0.12.0",
    "tells_cached_tokens": "0.12.0",
    "has_sessions": "0.15.1",
    "pauses": "0.17.1",
    "has_prefill_stats": "0.20.2",
    "speaks_v2": "0.24.0",
}
"""Since which of them each trait is there."""

PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "AsyncScheduler": ("vllm.v1.core.sched.async_scheduler",),  # since 0.10
    "sha256": ("vllm.utils.hashing", "vllm.utils"),  # moved in 0.11.1
    "SupportsHMA": ("vllm.distributed.kv_transfer.kv_connector.v1.base",),  # since 0.11.1
    "get_request_block_hasher": ("vllm.v1.core.kv_cache_utils",),  # since 0.10.1
    "init_none_hash": ("vllm.v1.core.kv_cache_utils",),  # since 0.10.1
    "KVConnectorOutput": ("vllm.v1.outputs",),  # since 0.10.1
    "DraftTokenIds": ("vllm.v1.outputs",),  # since 0.10.2
    "PauseState": ("vllm.v1.core.sched.interface",),  # since 0.17
}
"""Names that moved, or that not every release has: where to look, newest place first."""

TORCH_SUPPLIED: Final = (
    "_is_avx2_supported", "_is_avx512_supported", "_is_avx512_bf16_supported",
    "_is_avx512_vnni_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported",
)  # fmt: skip
"""Attributes of ``torch._C._cpu`` that 0.17 asks for at its import and torch 2.13 lacks: where
missing they are supplied, and answer that the processor cannot do it."""


_ARRAYS: Final = ("0.11.1", "0.11.2")
"""Where sampled tokens are arrays, not lists."""


@frozen(kw_only=True)
class Traits:
    """What one release is like."""

    version: str
    like: str
    """The release verified that it is taken for: itself, or the last of all."""
    reports_failed_loads: bool
    """``invalid_block_ids`` in what workers answer (0.11.1 and later)."""
    resets_running: bool
    """``reset_prefix_cache(reset_running_requests=True)`` (0.12 and later)."""
    announces_preemption: bool
    """``preempted_req_ids`` in its output (0.12 and later)."""
    speaks_v2: bool
    """The V2 dialect, complete: also resets stand in ``preempted_req_ids`` (0.24 and later)."""
    schedules_ahead: bool
    """It has an AsyncScheduler (0.10 and later)."""
    drafts_ahead: bool
    """Its AsyncScheduler knows of drafts (0.11.1 and later)."""
    takes_drafts_apart: bool
    """Drafts go to ``update_draft_token_ids``, not with the model's output (0.10.2 and later)."""
    waits_for_lookups: bool
    """A connector may answer that it does not know yet (0.10.2 and later)."""
    tells_cached_tokens: bool
    """What was hit and what was loaded can be told apart (0.12 and later)."""
    has_sessions: bool
    """Streaming input (0.15 and later)."""
    pauses: bool
    """``set_pause_state`` (0.17 and later)."""
    has_prefill_stats: bool
    """The counts stand in ``prefill_stats`` (0.20 and later)."""
    samples_are_arrays: bool
    """Sampled tokens are arrays of numpy (0.11.1 and 0.11.2)."""

    @property
    def is_verified(self) -> bool:
        """Whether the adapter was verified on this very release."""
        return self.version == self.like


QUEUES: Final = ("waiting", "skipped_waiting", "kv_holding_waiting", "running")
"""Attributes of the Scheduler that are queues: the second in 0.18 to 0.30, the third since 0.31."""

FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": FinishReason.STOPPED,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORTED,
    "error": FinishReason.ERROR,
    "repetition": FinishReason.STOPPED,  # since 0.19, and only where a request asks for it
}
"""What ``str()`` of an output's finish reason stands for."""

STATUSES: Final[Mapping[str, Status]] = {
    **Status.__members__,
    "WAITING_FOR_FSM": Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,  # its name until 0.18
    "FINISHED_IGNORED": Status.FINISHED_ABORTED,
    "FINISHED_REPETITION": Status.FINISHED_STOPPED,
}
"""What the names of its statuses stand for, those of all releases."""


def status_of(name: str) -> Status:
    """Return what a status is in our words. Raises TargetError for a name that is not known."""
    if name not in STATUSES:
        raise TargetError(f"vllm has a request status {name} that this adapter does not know")
    return STATUSES[name]


def is_row_resumed(cached: Any, index: int) -> bool:
    """Return whether a cached row is a resumed one: a set of ids since 0.11.1, before it flags."""
    resumed = getattr(cached, "resumed_req_ids", None)
    if resumed is not None:
        return cached.req_ids[index] in resumed
    return bool(cached.resumed_from_preemption[index])


def accepted(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the keywords that a release's function or constructor knows, with their values."""
    known = _parameters(function)
    return {name: value for name, value in options.items() if name in known}


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


@cache
def place_of(name: str) -> Any:
    """Return what has a name of PLACES in this release; None where it has nothing of the kind."""
    for place in PLACES[name]:
        with suppress(ImportError):
            found = getattr(import_module(place), name, None)
            if found is not None:
                return found
    return None


def traits_of(version: str) -> Traits:
    """Return what a release is like; a newer one, or a checkout, as the last one verified.

    Raises TargetError for an older one that was not verified.
    """
    plain = re.match(r"\d+(\.\d+)*", version)
    # A checkout without tags calls itself dev.
    numbers = tuple(map(int, plain[0].split("."))) if plain else ()
    # 0.33.0+cpu is a build of 0.33.0, but 0.33.0rc1 and 0.33.0.dev3 are others.
    exact = version.partition("+")[0]
    is_verified = exact in RELEASES
    if not is_verified and numbers and numbers < tuple(map(int, RELEASES[-1].split("."))):
        raise TargetError(
            f"vllm {version} is not among the releases this adapter was verified on: "
            f"{', '.join(RELEASES)}, and what is newer, if nothing it relies on has changed"
        )
    release = exact if is_verified else RELEASES[-1]
    age = RELEASES.index(release)
    reached = {trait: age >= RELEASES.index(since) for trait, since in _SINCE.items()}
    return Traits(
        version=release if is_verified else version,
        like=release,
        samples_are_arrays=release in _ARRAYS,
        **reached,
    )


def prepare_import() -> None:
    """Make the import silent and repeatable."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    with suppress(ImportError):  # without torch, vllm's own import says so
        processor: Any = import_module("torch")._C._cpu  # noqa: SLF001  vllm reads it there
        for name in TORCH_SUPPLIED:
            if not hasattr(processor, name):
                setattr(processor, name, _cannot)


def _cannot() -> bool:
    return False
