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
    block_ids: list[int] = Factory(list)
    steps_in_flight: int = 0
    """Planned steps with tokens of this request that have not returned."""
    is_sending: bool = False
    """It has ended, and its blocks stay until its KV has been sent."""
    loads_in_step: bool = False
    """A step in flight loads its KV synchronously."""
    tokens_loading: int = 0
    """How many tokens its last load was to bring."""
    tokens_loaded: int | None = None
    """What an asynchronous load brought, from its report until the next step is planned."""
    may_load: bool = True
    """Whether the outside is still asked for KV: after a failed load it is not."""

    @property
    def all_token_ids(self) -> tuple[int, ...]:
        """Every token known: prompt and output."""
        return (*self.prompt_token_ids, *self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """How many tokens are known."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.status.is_finished

    @property
    def is_loading(self) -> bool:
        """Whether its KV is being loaded from outside."""
        return self.status is Status.WAITING_FOR_REMOTE_KVS

    @property
    def holds_loaded_kv(self) -> bool:
        """Whether, waiting, it holds blocks: only a load gives a waiting request any."""
        return bool(self.block_ids)
