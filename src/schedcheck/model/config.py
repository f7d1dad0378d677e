"""The scheduler's configuration, drawn with the trace and tiny on purpose."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen
from attrs.validators import ge


class Policy(StrEnum):
    """In which order waiting requests are admitted."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class LoadFailurePolicy(StrEnum):
    """What becomes of a request whose KV load failed."""

    RECOMPUTE = "recompute"
    FAIL = "fail"


class Dialect(StrEnum):
    """How an engine speaks to its workers, where both ways are lawful.

    V1: a resumed request is in ``scheduled_cached_reqs``. V2 (vLLM's second model runner): the
    workers are told to forget a preempted request, and it comes back among ``scheduled_new_reqs``
    with every token known.
    """

    V1 = "v1"
    V2 = "v2"


@frozen(kw_only=True)
class SchedulerConfig:
    """The limits of one scheduler. Every quantity is small, so that limits are met often."""

    blocks_total: int = field(default=8, validator=ge(1))
    """Usable KV blocks: an engine's reserved null block is not counted."""
    block_size: int = field(default=2, validator=ge(1))
    """Tokens a block holds."""
    max_num_batched_tokens: int = field(default=8, validator=ge(1))
    """The token budget of one step."""
    max_num_seqs: int = field(default=4, validator=ge(1))
    """The most requests that run at once."""
    max_model_len: int = field(default=64, validator=ge(2))
    """The most tokens one request may have, prompt and output together."""
    max_steps_in_flight: int = field(default=1, validator=ge(1))
    policy: Policy = Policy.FCFS
    chunked_prefill: bool = True
    """Whether a prompt may be computed over several steps."""
    prefix_caching: bool = False
    load_failure_policy: LoadFailurePolicy = LoadFailurePolicy.RECOMPUTE
    dialect: Dialect = Dialect.V1

    @property
    def slots_total(self) -> int:
        """Tokens that fit into the pool."""
        return self.blocks_total * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks ``tokens`` tokens need."""
        return -(-tokens // self.block_size)

    def fits(self, tokens: int) -> bool:
        """Return whether a request that grows to ``tokens`` tokens fits when it is alone."""
        return tokens <= self.max_model_len and self.blocks_for(tokens) <= self.blocks_total
