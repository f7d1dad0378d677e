"""The scheduler's configuration, drawn with the trace and tiny on purpose."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen
from attrs.validators import ge

from schedcheck.model.request import RequestSpec


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
    num_speculative_tokens: int = field(default=0, validator=ge(0))
    """The most drafts of one request in one step; 0: no speculative decoding."""
    max_loras: int = field(default=0, validator=ge(0))
    """The most different adapters in one step; 0: any number."""
    encoder_cache_size: int = field(default=0, validator=ge(0))
    """Encoder tokens that fit into the encoder cache; 0: no media."""
    max_num_encoder_input_tokens: int = field(default=0, validator=ge(0))
    """Encoder tokens that one step may compute."""
    sliding_window: int = field(default=0, validator=ge(0))
    """Tokens that attention looks back, the token itself included; 0: all of them."""
    async_scheduling: bool = False
    """Whether steps are planned before the samples of those in flight are known: a request goes on
    with a token, and drafts, that only the workers know yet."""
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

    def why_never(self, spec: RequestSpec) -> str | None:
        """Return why a request can never finish, not even alone; None if it can."""
        if not self.fits(spec.total_tokens_max):
            return f"it grows to {spec.total_tokens_max} tokens, which never fit"
        largest = max((item.tokens for item in spec.media), default=0)
        if largest > min(self.encoder_cache_size, self.max_num_encoder_input_tokens):
            return f"it has a medium of {largest} tokens, which never fits the encoder"
        if spec.media and not self.chunked_prefill:
            encoded = sum(item.tokens for item in spec.media)
            if encoded > min(self.encoder_cache_size, self.max_num_encoder_input_tokens):
                return f"its media of {encoded} tokens never fit the encoder in one step"
        return None

    def first_attended(self, position: int) -> int:
        """Return the first position that the token at ``position`` looks at."""
        return max(0, position - self.sliding_window + 1) if self.sliding_window else 0
