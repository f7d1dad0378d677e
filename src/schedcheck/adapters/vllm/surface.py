"""What of vLLM this adapter relies on, in one table, and what of it is otherwise in a release.

The table says what holds in the release verified last, and SINCE since when it does. Reading it
imports vLLM and changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from typing import Any, Final

from schedcheck.adapters.vllm.compat import FINISH_REASONS, RELEASES, STATUSES, Traits
from schedcheck.model.check import Check, State, ok

_SCHEDULER: Final = "vllm.v1.core.sched.scheduler:Scheduler"
_CONNECTOR: Final = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"
_OUTPUT: Final = "vllm.v1.core.sched.output"

CALLED: Final[Mapping[str, str]] = {
    f"{_SCHEDULER}.__init__": "vllm_config kv_cache_config structured_output_manager block_size "
    "hash_block_size log_stats",
    f"{_SCHEDULER}.schedule": "",
    f"{_SCHEDULER}.update_from_output": "scheduler_output model_runner_output",
    f"{_SCHEDULER}.add_request": "request",
    f"{_SCHEDULER}.finish_requests": "request_ids finished_status",
    f"{_SCHEDULER}.reset_prefix_cache": "reset_running_requests",
    f"{_SCHEDULER}.has_requests": "",
    f"{_SCHEDULER}.update_draft_token_ids": "draft_token_ids",
    f"{_SCHEDULER}.set_pause_state": "pause_state",
    "vllm.v1.request:Request.__init__": "request_id prompt_token_ids sampling_params "
    "pooling_params priority cache_salt lora_request arrival_time block_hasher resumable",
    "vllm.v1.outputs:ModelRunnerOutput.__init__": "req_ids req_id_to_index sampled_token_ids "
    "logprobs prompt_logprobs_dict pooler_output kv_connector_output",
    "vllm.v1.outputs:KVConnectorOutput.__init__": "finished_sending finished_recving "
    "invalid_block_ids",
    "vllm.v1.outputs:DraftTokenIds.__init__": "req_ids draft_token_ids",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.get_block_ids": "request_id",
    "vllm.v1.core.kv_cache_utils:get_request_block_hasher": "hash_block_size caching_hash_fn",
    "vllm.v1.core.kv_cache_utils:init_none_hash": "hash_fn",
    "vllm.v1.kv_cache_interface:KVCacheConfig.__init__": "num_blocks kv_cache_tensors "
    "kv_cache_groups",
    "vllm.v1.kv_cache_interface:KVCacheGroupSpec.__init__": "layer_names kv_cache_spec",
    f"{_CONNECTOR}.__init__": "vllm_config role kv_cache_config",
    f"{_CONNECTOR}.get_num_new_matched_tokens": "request num_computed_tokens",
    f"{_CONNECTOR}.update_state_after_alloc": "request blocks num_external_tokens",
    f"{_CONNECTOR}.build_connector_meta": "scheduler_output",
    f"{_CONNECTOR}.request_finished": "request block_ids",
    f"{_CONNECTOR}.update_connector_output": "connector_output",
}
"""Functions that are called, or are answered for, with the parameters that are given."""

READ: Final[Mapping[str, str]] = {
    f"{_OUTPUT}:SchedulerOutput": "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens "
    "scheduled_spec_decode_tokens finished_req_ids preempted_req_ids",
    f"{_OUTPUT}:CachedRequestData": "req_ids resumed_req_ids all_token_ids new_block_ids "
    "num_computed_tokens",
    f"{_OUTPUT}:NewRequestData": "req_id prompt_token_ids block_ids num_computed_tokens "
    "prefill_token_ids",
    "vllm.v1.engine:EngineCoreOutput": "request_id new_token_ids finish_reason prefill_stats",
    "vllm.v1.engine:EngineCoreOutputs": "outputs",
}
"""Fields that are read."""

HELD: Final = (
    "requests", "connector", "waiting", "running", "kv_cache_manager.get_block_ids",
    "kv_cache_manager.block_pool.get_num_free_blocks", "kv_cache_manager.block_pool.blocks",
    "kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks",
    "kv_cache_manager.block_pool.null_block.block_id",
    "kv_cache_manager.block_pool.null_block.ref_cnt",
    "kv_cache_manager.block_pool.null_block.is_null",
)  # fmt: skip
"""What a scheduler that has been made must show."""

MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    "vllm.v1.request:RequestStatus": frozenset(STATUSES),
    "vllm.v1.engine:FinishReason": frozenset(one.upper() for one in FINISH_REASONS),
    "vllm.v1.core.sched.interface:PauseState": frozenset({"UNPAUSED", "PAUSED_NEW", "PAUSED_ALL"}),
}
"""Enumerations, with the members that are understood."""


SINCE: Final[Mapping[str, str]] = {
    "Scheduler": "0.20.2",
    "Scheduler.reset_prefix_cache": "0.12.0",
    "Scheduler.update_draft_token_ids": "0.10.2",
    "Scheduler.set_pause_state": "0.17.1",
    "Request": "0.17.1",
    "ModelRunnerOutput": "0.10.2",
    "KVConnectorOutput": "0.11.1",
    "DraftTokenIds": "0.10.2",
    "get_request_block_hasher": "0.24.0",
    "init_none_hash": "0.10.0",
    "KVConnectorBase_V1": "0.11.1",
    "KVConnectorBase_V1.update_connector_output": "0.10.1",
    "SchedulerOutput": "0.12.0",
    "CachedRequestData": "0.11.1",
    "NewRequestData": "0.12.0",
    "EngineCoreOutput": "0.20.2",
}
"""Since which release each has this form; an older one has a form that ``compat`` knows."""


def examine(traits: Traits) -> Iterator[Check]:
    """Yield a check for each part of the table, and for what cannot be looked at the reason."""
    last = RELEASES[-1]
    parts: tuple[tuple[str, str, Sequence[Check]], ...] = (
        ("functions", _counted(CALLED, traits), [*_called(traits)]),
        ("fields", _counted(READ, traits), [*_read(traits)]),
        ("enumerations", f"{len(MEMBERS)}", [*_members()]),
    )
    for part, count, differing in parts:
        yield from differing
        if not differing:
            yield ok(f"surface: {part}", f"{count} as in {last}, verified last")
    if not any(one.state is State.MISSING for _, _, checks in parts for one in checks):
        yield from _held()


def why_not(traits: Traits) -> str:
    """Return what of an unverified release the adapter cannot do without; empty: nothing."""
    if traits.is_verified:
        return ""
    differing = [*_called(traits), *_read(traits), *_members()]
    return "; ".join(one.detail for one in differing if one.state is State.MISSING)


def _find(path: str) -> Any:
    """Return what stands at ``module:Class.name``; None if it is not there."""
    module, _, names = path.partition(":")
    try:
        return reduce(getattr, names.split("."), import_module(module))
    except (ImportError, AttributeError):
        return None


def _short(path: str) -> str:
    return path.partition(":")[2].removesuffix(".__init__")


def _of(table: Mapping[str, str], traits: Traits) -> dict[str, str]:
    """Return the part of a table that has, in this release, the form of the last one."""
    age = RELEASES.index(traits.like)
    since = {path: RELEASES.index(SINCE.get(_short(path), RELEASES[0])) for path in table}
    return {path: text for path, text in table.items() if since[path] <= age}


def _counted(table: Mapping[str, str], traits: Traits) -> str:
    count = len(_of(table, traits))
    older = len(table) - count
    return f"{count}" if not older else f"{older} of an older form that is known, {count}"


def _called(traits: Traits) -> Iterator[Check]:
    for path, given in _of(CALLED, traits).items():
        found, what = _find(path), f"surface: {_short(path)}"
        if found is None:
            yield _missing(what, f"{path.removesuffix('.__init__')} is gone")
            continue
        has = {one.name: one for one in inspect.signature(found).parameters.values()}
        takes_all = any(one.kind is one.VAR_KEYWORD for one in has.values())
        lost = [one for one in given.split() if one not in has and not takes_all]
        wants = [
            name
            for name, one in has.items()
            if one.default is one.empty
            and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
            and name not in ("self", *given.split())
        ]
        if wants:
            yield _missing(what, f"{_short(path)} demands {', '.join(wants)}, which is not given")
        elif lost:
            yield _changed(what, f"{_short(path)} takes no {', '.join(lost)} any more")


def _read(traits: Traits) -> Iterator[Check]:
    for path, names in _of(READ, traits).items():
        found, what = _find(path), f"surface: {_short(path)}"
        fields: Any = getattr(found, "__struct_fields__", None) or getattr(
            found, "__dataclass_fields__", ()
        )
        lost = [one for one in names.split() if one not in fields]
        if lost:
            yield _missing(what, f"{_short(path)} has no {', '.join(lost)}")


def _members() -> Iterator[Check]:
    for path, known in MEMBERS.items():
        found, what = _find(path), f"surface: {_short(path)}"
        new = sorted({one.name for one in found or ()} - known)
        if new:
            yield _missing(what, f"{_short(path)} has {', '.join(new)}, which is not understood")


def _held() -> Iterator[Check]:
    # Imports the rest of the adapter, which a release that lacks something may not survive.
    what = "surface: a scheduler"
    try:
        from schedcheck.adapters.vllm.engine import make_scheduler  # noqa: PLC0415
        from schedcheck.adapters.vllm.pieces import AS_IT_IS  # noqa: PLC0415
        from schedcheck.model.config import SchedulerConfig  # noqa: PLC0415

        made = make_scheduler(SchedulerConfig(), AS_IT_IS)
    except Exception as error:  # noqa: BLE001  whatever a changed release raises
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        yield _missing(what, f"it cannot be made: {said}")
        return
    lost = []
    for path in HELD:
        try:
            reduce(getattr, path.split("."), made)
        except AttributeError:
            lost.append(path)
    if lost:
        yield _missing(what, f"it has no {', '.join(lost)}")
    else:
        yield ok(what, f"it is made, and shows all {len(HELD)} things that are looked at")


def _missing(what: str, detail: str) -> Check:
    return Check(what=what, state=State.MISSING, detail=detail, fix=_FIX)


def _changed(what: str, detail: str) -> Check:
    return Check(what=what, state=State.CHANGED, detail=detail, fix=_FIX)


_FIX: Final = "teach adapters/vllm/compat.py the new form, and verify the release"
