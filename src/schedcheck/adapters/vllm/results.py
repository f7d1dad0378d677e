"""What vLLM's workers would answer for one step, as each release wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen
from vllm.v1.outputs import ModelRunnerOutput

from schedcheck.adapters.vllm.compat import accepted, place_of


@frozen(kw_only=True)
class Transfers:
    """Transfers that ended, by engine id, and the blocks that a failed load left empty."""

    received: set[str]
    sent: set[str]
    bad_blocks: set[int]


def result_of(
    *,
    ids: Sequence[str],
    sampled: Mapping[str, list[int]],
    drafts: Mapping[str, list[int]] | None,
    transfers: Transfers,
    as_arrays: bool,
) -> Any:
    """Return what the model runner answers for a step that scheduled ``ids``.

    ``drafts`` is what it proposes, for the releases that want it in the same answer.
    """
    tokens: list[Any] = [sampled.get(one, []) for one in ids]
    if as_arrays:
        tokens = [np.array(one, dtype=np.int64) for one in tokens]
    ended = {
        "finished_sending": transfers.sent or None,
        "finished_recving": transfers.received or None,
    }
    output = place_of("KVConnectorOutput")
    if output is None:
        told: dict[str, Any] = dict(ended)
    elif transfers.received or transfers.sent or transfers.bad_blocks:
        more = accepted(output, invalid_block_ids=transfers.bad_blocks)
        told = {"kv_connector_output": output(**ended, **more)}
    else:
        told = {"kv_connector_output": None}
    return ModelRunnerOutput(
        **accepted(
            ModelRunnerOutput,
            req_ids=list(ids),
            req_id_to_index={engine_id: index for index, engine_id in enumerate(ids)},
            sampled_token_ids=tokens,
            spec_token_ids=None if drafts is None else [drafts.get(one, []) for one in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            **told,
        )
    )


def drafts_of(ids: Sequence[str], drafts: Mapping[str, list[int]]) -> Any:
    """Return what the model runner proposes after a step that scheduled ``ids``."""
    made = place_of("DraftTokenIds")
    return made(req_ids=list(ids), draft_token_ids=[list(drafts.get(one, [])) for one in ids])
