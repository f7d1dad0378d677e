"""A request as the reference scheduler keeps it."""

from __future__ import annotations

from attrs import Factory, define

from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status


@define(eq=False)
class Request:
    """One request between ``add_request`` and the moment it is forgotten."""

    request_id: str
    spec: RequestSpec
    prompt_token_ids: tuple[int, ...]
    arrival: int
    """Its place in the order of arrival, from 0."""
    status: Status = Status.WAITING
    output_token_ids: list[int] = Factory(list)
    num_computed_tokens: int = 0
    """Tokens whose KV exists or will, once every step in flight is executed."""
    num_preemptions: int = 0
    awaits_resumption: bool = False
    """It was preempted and has not run since, nor begun another turn."""
    block_ids: list[int] = Factory(list)
    steps_in_flight: int = 0
    """Planned steps with tokens of this request that have not returned."""
    is_sending: bool = False
    """It has ended, and its blocks stay until its KV has been sent."""
    # Loading.
    loads_in_step: bool = False
    """A step in flight loads its KV synchronously."""
    load_start: int = 0
    """Where its last load begins: the tokens before were hit."""
    tokens_loading: int = 0
    """How many tokens it will have computed when its last load has ended well."""
    tokens_loaded: int | None = None
    """What an asynchronous load brought, from its report until the next step is planned."""
    may_load: bool = True
    """Whether the outside is still asked for KV: after a failed load it is not."""
    lookup_answered: bool = False
    """The outside has said how much it holds."""
    # Prefix cache.
    block_keys: list[int] = Factory(list)
    """Keys of its full blocks, as far as they were worked out."""
    cached_tokens: tuple[int, int] | None = None
    """Tokens hit and loaded when it was first admitted."""
    cache_reported: bool = False
    """The client was told."""
    # Drafts, grammar, sessions.
    draft_token_ids: tuple[int, ...] = ()
    """What the workers proposed and no step verifies yet."""
    drafts_in_flight: int = 0
    """Drafts that count as computed in steps that have not returned."""
    grammar_ready: bool = False
    turn: int = 0
    """How many chunks of its session were begun."""
    chunks: list[tuple[int, ...]] = Factory(list)
    """Chunks that arrived and were not begun, in tokens."""

    @property
    def all_token_ids(self) -> tuple[int, ...]:
        """Every token known: prompt and output."""
        return (*self.prompt_token_ids, *self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """How many tokens are known."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def max_tokens(self) -> int:
        """At most so many output tokens in this turn."""
        return self.spec.max_tokens_in(self.turn)

    @property
    def num_tokens_max(self) -> int:
        """How many tokens it has when this turn ends at the latest."""
        return len(self.prompt_token_ids) + self.max_tokens

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.status.is_finished

    @property
    def is_loading(self) -> bool:
        """Whether its KV is being loaded from outside."""
        return self.status is Status.WAITING_FOR_REMOTE_KVS

    @property
    def is_parked(self) -> bool:
        """Whether its session waits for the next chunk."""
        return self.status is Status.WAITING_FOR_STREAMING_REQ

    @property
    def waits_for_answer(self) -> bool:
        """Whether the outside has not said yet how much of its prompt it holds."""
        return self.spec.lookup_undecided and not self.lookup_answered

    @property
    def holds_kv(self) -> bool:
        """Whether, waiting, it holds blocks: of a load, or of an earlier turn."""
        return bool(self.block_ids)
