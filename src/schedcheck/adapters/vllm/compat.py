"""What differs between vLLM's releases, and what must be so before the import, in one place.

Nothing here, nor elsewhere in this package, alters a class or a function of vLLM. Named fields of
its configuration are set before the first call (``engine.CONFIG_FIELDS_SET``); environment
variables are set before the import (ENVIRONMENT).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Final

from attrs import frozen

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


def traits_of(version: str) -> Traits:
    """Return what a release is like. Raises TargetError for one that was not verified."""
    plain = re.match(r"\d+\.\d+\.\d+", version)
    for traits in _TABLE:
        if plain is not None and traits.version == plain[0]:
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
