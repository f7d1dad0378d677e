"""A trace as a timeline: Chrome's trace event format, which Perfetto opens.

There is no time in a trace: action ``n`` lasts from ``n`` to ``n + 1`` milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from schedcheck.report.page.view import View
from schedcheck.report.words import clean

_ACTIONS: Final = 1
_REQUESTS: Final = 2
_STEPS: Final = 3
_BLOCKS: Final = 4
_MICROSECONDS: Final = 1000

Event = dict[str, object]


def timeline_json(view: View) -> bytes:
    """Return the file."""
    events = [*_names(view), *_actions(view), *_requests(view), *_steps(view), *_blocks(view)]
    log = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": view.title, "facts": " · ".join(view.facts)},
    }
    return json.dumps(log, separators=(",", ":")).encode() + b"\n"


def _names(view: View) -> Iterator[Event]:
    for number, name in (
        (_ACTIONS, "actions"),
        (_REQUESTS, "requests"),
        (_STEPS, "steps in flight"),
        (_BLOCKS, "blocks"),
    ):
        yield _meta("process_name", number, 0, name)
    for place, name in enumerate(view.requests):
        yield _meta("thread_name", _REQUESTS, place + 1, name)
    for number, block in enumerate(view.blocks, 1):
        yield _meta("thread_name", _BLOCKS, number, f"block {block}")


def _meta(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(name: str, process: int, thread: int, first: int, last: int, **args: object) -> Event:
    """Return something that lasts from one action to another, both included."""
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": first * _MICROSECONDS,
        "dur": (last - first + 1) * _MICROSECONDS,
        "args": args,
    }


def _actions(view: View) -> Iterator[Event]:
    for line in view.story:
        note = clean(line.note)
        yield _slice(clean(line.action), _ACTIONS, 1, line.number, line.number, note=note)
        if line.blocks_free is not None:
            yield {
                "ph": "C",
                "name": "free blocks",
                "pid": _ACTIONS,
                "tid": 0,
                "ts": line.number * _MICROSECONDS,
                "args": {"free": line.blocks_free},
            }
        if line.is_violation and view.complaint is not None:
            complaint = view.complaint
            yield {
                "ph": "i",
                "s": "g",
                "name": f"VIOLATED {clean(complaint.signature)}",
                "pid": _ACTIONS,
                "tid": 1,
                "ts": line.number * _MICROSECONDS,
                "args": {
                    "about": clean(complaint.subject),
                    "expected": clean(complaint.expected),
                    "found": clean(complaint.found),
                },
            }


def _requests(view: View) -> Iterator[Event]:
    for place in range(len(view.requests)):
        told = [state[place].status or "?" if place in state else "" for state in view.states]
        for status, first, last in _runs(told):
            yield _slice(status, _REQUESTS, place + 1, first, last)


def _blocks(view: View) -> Iterator[Event]:
    held = [view.owners(index) for index in range(len(view.states))]
    for number, block in enumerate(view.blocks, 1):
        told = [" ".join(view.requests[place] for place in one.get(block, ())) for one in held]
        for owners, first, last in _runs(told):
            yield _slice(owners, _BLOCKS, number, first, last)


def _steps(view: View) -> Iterator[Event]:
    """Yield the steps in flight, each on a line on which it overlaps with no other."""
    ends: list[int] = []
    for span in view.spans:
        line = next((number for number, end in enumerate(ends) if end < span.first), len(ends))
        ends[line : line + 1] = [span.last]
        tokens = {view.requests[place]: count for place, count in span.tokens.items()}
        name = f"step {span.step_id}"
        yield _slice(name, _STEPS, line + 1, span.first, span.last, tokens=tokens)


def _runs(told: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield each word that is not empty with the first and last action at which it stands."""
    first = 0
    for index in range(1, len(told) + 1):
        if index == len(told) or told[index] != told[first]:
            if told[first]:
                yield told[first], first + 1, index
            first = index
