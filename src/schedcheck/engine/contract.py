"""What an adapter may answer: checked after every call, so that nonsense is named at once.

A stranger's answer may be anything at all, whatever its annotations say.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType

from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    FinishReason,
    Rejected,
    Role,
    SchedulerOutput,
)
from schedcheck.model.snapshot import RequestView, Snapshot
from schedcheck.oracles.ledger import Ledger


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
        if not _is_a(row.role, Role):
            return f"the role of {row.name} is {_shown(row.role)}, not a Role"
        if type(row.count) is not int or type(row.start) not in (int, NoneType):
            return f"the row of {row.name} has start {_shown(row.start)}, count {_shown(row.count)}"
        if row.block_ids is not None and not _are_blocks(row.block_ids):
            return f"block_ids of {row.name} are not tuples of integers, one for each group"
    return (
        _unknown("preempted", output.preempted or (), ledger)
        or _unknown("finished", output.finished, ledger)
        or _unknown("loads", tuple(load.name for load in output.loads), ledger)
    )


def _are_blocks(groups: object) -> bool:
    return isinstance(groups, tuple) and all(
        isinstance(group, tuple) and all(type(block) is int for block in group) for group in groups
    )


def _completed(output: object, ledger: Ledger) -> str | None:
    if not isinstance(output, EngineOutput):
        return _not_a("EngineOutput", output)
    for name, tokens in output.delivered.items():
        if not isinstance(tokens, tuple) or not all(type(token) is int for token in tokens):
            return f"the tokens delivered to {_shown(name)} are not a tuple of integers"
    for name, reason in output.finished.items():
        if not _is_a(reason, FinishReason):
            return f"{_shown(name)} finished for {_shown(reason)}, not a FinishReason"
    return (
        _unknown("delivered", output.delivered, ledger)
        or _unknown("finished", output.finished, ledger)
        or _unknown("sends", output.sends, ledger)
    )


def _snapshot(snapshot: object, ledger: Ledger) -> str | None:
    if not isinstance(snapshot, Snapshot):
        return _not_a("Snapshot", snapshot)
    for view in snapshot.requests.values():
        if not _is_a(view, RequestView):
            return f"its requests hold {_shown(view)}, not a RequestView"
        if view.block_ids is not None and not _are_blocks(view.block_ids):
            return "block_ids of a request are not tuples of integers, one for each group"
    del ledger  # a snapshot may name a request whose Added event is not folded yet
    return None
