"""What an adapter may answer: checked after every call, so that nonsense is named at once.

A stranger's answer may be anything at all, whatever its annotations say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    FinishReason,
    Rejected,
    Role,
    Row,
    SchedulerOutput,
    TableUpdate,
)
from schedcheck.model.snapshot import RequestView, Snapshot, Status
from schedcheck.oracles.ledger import Ledger

COUNT_MAX: Final = 10**6
"""No step of the tiny configurations tested comes near it; beyond, oracles would count for ever."""


def problem_with(call: str, answer: object, ledger: Ledger) -> str | None:
    """Return what is wrong with an answer, in one line; None if it is within the protocol."""
    match call:
        case "add":
            return _answer(answer)
        case "control":
            return _answer(answer) or (
                _unknown("sends", answer.sends, ledger) if isinstance(answer, Accepted) else None
            )
        case "schedule":
            return _scheduled(answer, ledger)
        case "complete":
            return _completed(answer, ledger)
        case "snapshot":
            return _snapshot(answer, ledger)
        case _:
            return None if isinstance(answer, bool) else _not_a("bool", answer)


def _not_a(expected: str, answer: object) -> str:
    return f"it returned {_shown(answer)}, not {expected}"


def _is_a(value: object, kind: type) -> bool:
    return isinstance(value, kind)


def _shown(value: object) -> str:
    """Describe a stranger's value without trusting its repr."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)[:60]
    return f"a {type(value).__name__}"


def _answer(answer: object) -> str | None:
    if isinstance(answer, Accepted | Rejected):
        return None
    return _not_a("Accepted or Rejected", answer)


def _unknown(field: str, names: object, ledger: Ledger) -> str | None:
    if not isinstance(names, tuple | list | frozenset | Mapping):
        return f"{field} is {_shown(names)}, not a collection of names"
    for name in names:
        if name not in ledger.lives:
            return f"{field} names {_shown(name)}, a request that was never added"
    return None


def _scheduled(output: object, ledger: Ledger) -> str | None:
    if not isinstance(output, SchedulerOutput):
        return _not_a("SchedulerOutput", output)
    if ledger.in_flight and output.step_id <= ledger.in_flight[-1].output.step_id:
        return f"step_id {_shown(output.step_id)} does not rise"
    for row in output.rows:
        if row.name not in ledger.lives:
            return f"a row names {_shown(row.name)}, a request that was never added"
        if problem := _row(row):
            return problem
    for load in output.loads:
        if not _is_count(load.start) or not _is_count(load.count):
            shown = f"start {_shown(load.start)}, count {_shown(load.count)}"
            return f"the load of {_shown(load.name)} has {shown}"
        if not _is_a(load.is_async, bool) or not _are_blocks(load.block_ids):
            return f"is_async or block_ids of the load of {_shown(load.name)} have a wrong type"
    for field, mapping in (
        ("scheduled_spec_decode_tokens", output.scheduled_spec_decode_tokens),
        ("scheduled_encoder_inputs", output.scheduled_encoder_inputs),
    ):
        if problem := _unknown(field, mapping, ledger):
            return problem
        if not isinstance(mapping, Mapping) or not all(map(_are_integers, mapping.values())):
            return f"{field} does not map names to tuples of integers"
    keys = output.freed_encoder_keys
    if not _is_a(keys, tuple) or not all(_is_a(key, str) for key in keys):
        return "freed_encoder_keys is not a tuple of texts"
    return (
        _unknown("preempted", output.preempted or (), ledger)
        or _unknown("finished", output.finished, ledger)
        or _unknown("loads", tuple(load.name for load in output.loads), ledger)
    )


def _row(row: Row) -> str | None:
    if not _is_a(row.role, Role):
        return f"the role of {row.name} is {_shown(row.role)}, not a Role"
    if not _is_count(row.count) or not (row.start is None or _is_count(row.start)):
        return f"the row of {row.name} has start {_shown(row.start)}, count {_shown(row.count)}"
    if not _are_blocks(row.block_ids):
        return f"block_ids of {row.name} are not tuples of integers, one for each group"
    if not _is_a(row.table_update, TableUpdate):
        return f"table_update of {row.name} is {_shown(row.table_update)}, not a TableUpdate"
    if row.known_tokens is not None and not _are_integers(row.known_tokens):
        return f"known_tokens of {row.name} are not a tuple of integers"
    return None


def _is_count(value: object) -> bool:
    """Whether it is an integer with which the oracles can count; a wrong one is a finding."""
    return type(value) is int and -COUNT_MAX <= value <= COUNT_MAX


def _are_integers(values: object) -> bool:
    return isinstance(values, tuple) and all(type(value) is int for value in values)


def _are_blocks(groups: object) -> bool:
    return groups is None or (isinstance(groups, tuple) and all(map(_are_integers, groups)))


def _completed(output: object, ledger: Ledger) -> str | None:
    if not isinstance(output, EngineOutput):
        return _not_a("EngineOutput", output)
    for name, tokens in output.delivered.items():
        if not _are_integers(tokens):
            return f"the tokens delivered to {_shown(name)} are not a tuple of integers"
    for name, reason in output.finished.items():
        if not _is_a(reason, FinishReason):
            return f"{_shown(name)} finished for {_shown(reason)}, not a FinishReason"
    for name, counts in output.cached_tokens.items():
        if not _are_integers(counts) or len(counts) != 2:
            return f"the cached tokens of {_shown(name)} are not two integers"
    return (
        _unknown("delivered", output.delivered, ledger)
        or _unknown("cached_tokens", output.cached_tokens, ledger)
        or _unknown("finished", output.finished, ledger)
        or _unknown("sends", output.sends, ledger)
    )


def _snapshot(snapshot: object, ledger: Ledger) -> str | None:
    if not isinstance(snapshot, Snapshot):
        return _not_a("Snapshot", snapshot)
    for view in snapshot.requests.values():
        if not _is_a(view, RequestView):
            return f"its requests hold {_shown(view)}, not a RequestView"
        if not _are_blocks(view.block_ids):
            return "block_ids of a request are not tuples of integers, one for each group"
        if view.status is not None and not _is_a(view.status, Status):
            return f"the status of a request is {_shown(view.status)}, not a Status"
        for count in (view.num_computed_tokens, view.num_tokens, view.num_preemptions):
            if count is not None and type(count) is not int:
                return f"a count of a request is {_shown(count)}, not an integer"
    for queue in snapshot.queues.values():
        if not _is_a(queue, tuple) or not all(_is_a(name, str) for name in queue):
            return "a queue is not a tuple of names"
    for count in (snapshot.blocks_free, snapshot.blocks_total):
        if count is not None and type(count) is not int:
            return f"a count of blocks is {_shown(count)}, not an integer"
    if snapshot.free_block_ids is not None and not _are_integers(snapshot.free_block_ids):
        return "free_block_ids are not a tuple of integers"
    refs = snapshot.block_refs
    if refs is not None and not all(type(n) is int for pair in refs.items() for n in pair):
        return "block_refs does not map integers to integers"
    del ledger  # a snapshot may name a request whose Added event is not folded yet
    return None
