"""What people put behind vLLM, for test_vllm_pieces.py: imported by interpreters that have it."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


class Same(Scheduler):
    """Does what the engine's own does."""


class Ahead(AsyncScheduler):
    """Plans ahead of the samples."""


class Chokes(Scheduler):
    """Cannot plan a step of more than three tokens."""

    def schedule(self, *arguments: Any, **more: Any) -> Any:
        planned = super().schedule(*arguments, **more)
        if planned.total_num_scheduled_tokens > 3:
            raise ValueError("too much")
        return planned


class CannotBeMade(Scheduler):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        raise RuntimeError("no\n  way")


class Stranger:
    """Not a piece of any engine."""


class Metadata(KVConnectorMetadata):
    """Nothing."""


class Store(KVConnectorBase_V1):
    """Keeps what finished requests leave, and sends it if that is asked for."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.least = extra.get("least", 1)
        self.kept: list[list[int]] = []
        self.told: list[set[str]] = []

    def held(self, request: Any) -> int:
        """How many of the first tokens it has of a request, but never all."""
        tokens, most = list(request.all_token_ids), 0
        for kept in self.kept:
            same = 0
            while same < min(len(kept), len(tokens) - 1) and kept[same] == tokens[same]:
                same += 1
            most = max(most, same)
        return most if most >= self.least else 0

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        count = max(0, self.held(request) - num_computed_tokens)
        return count, bool(count and request.kv_transfer_params["load_async"])

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return Metadata()

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        self.kept.append(list(request.all_token_ids))
        return bool(block_ids and request.kv_transfer_params["do_remote_decode"]), None

    def update_connector_output(self, connector_output: Any) -> None:
        self.told += [connector_output.finished_recving, connector_output.finished_sending]

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **more: Any
    ) -> None:
        raise NotImplementedError

    def wait_for_save(self) -> None:
        raise NotImplementedError


class Answers(Store):
    """Says what its configuration says, whatever it is asked."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.count = extra.get("count", 0)
        self.is_async = extra.get("is_async", False)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return self.count, self.is_async


class Undecided(Store):
    """Knows nothing the first two times it is asked."""

    asked = 0

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        self.asked += 1
        return (None, False) if self.asked < 3 else (0, False)


class Raises(Store):
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        raise KeyError(request.request_id)


class OneNumber(Store):
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return 0


class NoMetadata(Store):
    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return None


class EndsWithout(Store):
    def request_finished(self, request: Any, block_ids: Any) -> Any:
        return None


class FinishesStrangers(Store):
    def update_connector_output(self, connector_output: Any) -> None:
        connector_output.finished_recving = {"nobody"}


class Unmakeable(Store):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        raise ConnectionError("no store\nat port 1")


class Incomplete(KVConnectorBase_V1):
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return 0, False
