"""A KV connector for vLLM's scheduler that answers from the request's own description.

It keeps to the contract of vLLM's connectors: it offers no more than the prompt, leaves a token to
compute when it loads within the step, never asks for a delayed free while a load of the same
request is open or when there are no blocks. The transfers themselves are simulated elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from attrs import frozen
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

from schedcheck.adapters.vllm.compat import accepted, place_of
from schedcheck.model.request import RequestSpec

NAME = "SchedcheckConnector"


@frozen
class BegunLoad:
    """What the scheduler said when it had allocated blocks for a load."""

    request_id: str
    start: int
    count: int
    is_async: bool


class _Metadata(KVConnectorMetadata):  # type: ignore[misc]
    """Nothing: no worker reads it."""


_HMA: Any = place_of("SupportsHMA") or object


class SchedcheckConnector(KVConnectorBase_V1, _HMA):  # type: ignore[misc]
    """The scheduler's side of a connector whose store holds what each request's spec says."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        more = accepted(KVConnectorBase_V1, kv_cache_config=kv_cache_config)
        super().__init__(vllm_config, role, **more)
        self.specs: dict[str, RequestSpec] = {}
        """By engine id; a new owner of an id replaces the former one's."""
        self._loading: Counter[str] = Counter()
        """How many asynchronous loads under each id were not reported yet.

        More than one where a release frees a loading request at its abort, so that its id can be
        used again before the load has ended.
        """
        self.begun: list[BegunLoad] = []
        self.sends: list[str] = []
        """Requests for which a delayed free was asked for."""
        self._offered: dict[str, tuple[int, int]] = {}
        self._undecided: set[str] = set()

    def adopt(self, engine_id: str, spec: RequestSpec) -> None:
        """Take note of a new request under an id."""
        self.specs[engine_id] = spec
        self._undecided.discard(engine_id)
        if spec.lookup_undecided:
            self._undecided.add(engine_id)

    def decide(self, engine_id: str) -> None:
        """Know from now on how much the store holds of a request."""
        self._undecided.discard(engine_id)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        spec = self.specs[request.request_id]
        if request.request_id in self._undecided:
            return None, False
        held = min(spec.remote_tokens, request.num_prompt_tokens)
        if not spec.load_async or request.num_tokens == 1:
            # The scheduler takes the last token of a whole prompt back; of one token nothing is
            # left then, and it would ask again for ever.
            held = min(held, request.num_tokens - 1)
        count = max(0, held - num_computed_tokens)
        self._offered[request.request_id] = (num_computed_tokens, count)
        return count, spec.load_async and count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        del blocks
        if not num_external_tokens:
            return
        name, is_async = request.request_id, self.specs[request.request_id].load_async
        start, _ = self._offered[name]
        self.begun.append(BegunLoad(name, start, num_external_tokens, is_async))
        if is_async:
            self._loading[name] += 1

    def loads_reported(self, request_ids: Iterable[str]) -> None:
        """Take note that the ends of asynchronous loads have been reported to the scheduler."""
        self._loading.subtract(request_ids)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        del scheduler_output
        return _Metadata()

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        name = request.request_id
        delays = self.specs[name].send_kv and any(block_ids) and self._loading[name] < 1
        if delays:
            self.sends.append(name)
        return delays, None

    # The worker's side, which nothing calls here.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        raise NotImplementedError

    def wait_for_save(self) -> None:
        raise NotImplementedError


def register() -> None:
    """Make the connector known to vLLM, once for the process."""
    try:
        KVConnectorFactory.register_connector(NAME, __name__, "SchedcheckConnector")
    except ValueError:
        return  # it is known already
