"""Making vLLM's Request from a RequestSpec, as the engine core would."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any, Final

from vllm import sampling_params as sampling
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.structured_output.request import StructuredOutputRequest

from schedcheck.adapters.vllm.compat import accepted, place_of
from schedcheck.model.request import RequestSpec
from schedcheck.model.tokens import STOP_TOKEN

_REGEX: Final = ".*"
"""Never compiled: Grammar stands for what it would become."""


class Grammar:
    """A compiled grammar that takes every token: which tokens come is the toy model's affair."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Say that the tokens are in the language."""
        del request_id, tokens
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the drafts that are in the language: all of them."""
        return tokens

    def rollback(self, num_tokens: int) -> None:
        """Nothing to take back."""

    def reset(self) -> None:
        """Nothing to forget."""

    def is_terminated(self) -> bool:
        """Say that more may come."""
        return False


def make_request(
    engine_id: str,
    spec: RequestSpec,
    tokens: Sequence[int],
    *,
    arrival: float,
    block_size: int,
    for_store: bool = False,
) -> Any:
    """Return a Request with these tokens as its prompt.

    For a session's later input these are the chunk's tokens; ``tokens`` empty means that no more
    will come. ``for_store``: a user's connector reads what the request says of its transfers.
    """
    params = SamplingParams(
        max_tokens=spec.max_tokens,
        ignore_eos=True,
        stop_token_ids=[STOP_TOKEN],
        temperature=0.0,
        detokenize=False,
        **({"extra_args": {"kv_transfer_params": _for_store(spec)}} if for_store else {}),
        **(_structured_params() if spec.grammar else {}),
    )
    return Request(
        **accepted(
            Request,
            request_id=engine_id,
            prompt_token_ids=list(tokens),
            multi_modal_inputs=None,  # until 0.10.1
            multi_modal_kwargs=None,
            multi_modal_hashes=None,
            multi_modal_placeholders=None,
            sampling_params=params,
            pooling_params=None,
            eos_token_id=None,
            priority=spec.priority,
            cache_salt=spec.salt,
            lora_request=_lora_request(spec.adapter),
            structured_output_request=_structured_request(params) if spec.grammar else None,
            arrival_time=arrival,
            block_hasher=_hasher(block_size),
            resumable=bool(spec.chunks) and bool(tokens),
        )
    )


def _for_store(spec: RequestSpec) -> dict[str, Any]:
    """Return what a user's connector is told of a request; it may heed it or not."""
    return {
        "do_remote_prefill": spec.remote_tokens > 0,
        "do_remote_decode": spec.send_kv,
        "remote_tokens": spec.remote_tokens,
        "load_async": spec.load_async,
    }


def _structured_params() -> dict[str, Any]:
    """Return the keyword that asks for structured output: renamed in 0.11."""
    newer = getattr(sampling, "StructuredOutputsParams", None)
    if newer is not None and accepted(SamplingParams, structured_outputs=None):
        return {"structured_outputs": newer(regex=_REGEX)}
    return {"guided_decoding": sampling.GuidedDecodingParams(regex=_REGEX)}


def _structured_request(params: Any) -> Any:
    """Return what a Request takes until 0.11; later it makes this from its parameters."""
    known = accepted(StructuredOutputRequest, sampling_params=params)
    return StructuredOutputRequest(**known) if known else None


_lora_numbers: Final = count(1)
"""Which number an adapter has says nothing: only that it is its own."""


@cache
def _lora_request(adapter: str | None) -> Any:
    if adapter is None:
        return None
    return LoRARequest(lora_name=adapter, lora_int_id=next(_lora_numbers), lora_path=adapter or "-")


@cache
def _hasher(block_size: int) -> Any:
    make = place_of("get_request_block_hasher")
    if make is None:
        return None  # the pool hashes by itself
    sha256 = place_of("sha256")
    place_of("init_none_hash")(sha256)  # repeatable: workers run with a fixed hash seed
    return make(block_size, sha256)
