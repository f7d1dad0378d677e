"""What differs between vLLM's releases, and what must be so before the import, in one place.

Rules
-----
- Nothing here, nor elsewhere in this package, alters a class or a function of vLLM. Environment
  variables are set before the import (ENVIRONMENT); named fields of its configuration are set
  before the first call (``engine.CONFIG_FIELDS_SET``).
- A release is a row of ``_TABLE``. Names that came, went or were renamed stand in the tables below
  it, for all releases at once; keywords that came and went are passed where they are known
  (``accepted``). So a further release is a row, not a branch.
- The three releases of the table need no third-party attribute to be supplied before the import.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
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


@frozen(kw_only=True)
class Traits:
    """What one release is like."""

    version: str
    resets_running: bool
    """``reset_prefix_cache(reset_running_requests=True)`` (0.12 and later)."""
    announces_preemption: bool
    """``preempted_req_ids`` in its output (0.12 and later)."""
    speaks_v2: bool
    """The V2 dialect, complete: also resets stand in ``preempted_req_ids`` (0.24 and later)."""


_TABLE: Final = (
    Traits(version="0.13.0", resets_running=True, announces_preemption=True, speaks_v2=False),
    Traits(version="0.14.0", resets_running=True, announces_preemption=True, speaks_v2=False),
    Traits(version="0.33.0", resets_running=True, announces_preemption=True, speaks_v2=True),
)
"""The releases this adapter was verified on."""

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

_STATUSES: Final[Mapping[str, Status]] = {
    **Status.__members__,
    "WAITING_FOR_FSM": Status.WAITING,  # until 0.18, then WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": Status.WAITING,
    "WAITING_FOR_STREAMING_REQ": Status.WAITING,  # since 0.15
    "FINISHED_IGNORED": Status.FINISHED_ABORTED,
    "FINISHED_REPETITION": Status.FINISHED_STOPPED,
}


def status_of(name: str) -> Status:
    """Return what a status is in our words. Raises TargetError for a name that is not known."""
    if name not in _STATUSES:
        raise TargetError(f"vllm has a request status {name} that this adapter does not know")
    return _STATUSES[name]


def accepted(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the keywords that a release's function or constructor knows, with their values."""
    known = _parameters(function)
    return {name: value for name, value in options.items() if name in known}


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def traits_of(version: str) -> Traits:
    """Return what a release is like. Raises TargetError for one that was not verified."""
    plain = re.fullmatch(r"(\d+\.\d+\.\d+)(\+.*)?", version)  # 0.33.0+cpu, but not 0.33.0rc1
    for traits in _TABLE:
        if plain is not None and traits.version == plain[1]:
            return traits
    verified = ", ".join(traits.version for traits in _TABLE)
    raise TargetError(
        f"vllm {version} is not among the releases this adapter was verified on: {verified}"
    )


def prepare_import() -> None:
    """Make the import silent and repeatable."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
