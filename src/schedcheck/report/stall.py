"""The stall report: who waits, holds and needs what, and who waits for whom, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from schedcheck.engine.events import Lack, Link, Stall, StalledRequest
from schedcheck.report.words import FAINT, Paint, clean, plain, shortened

_HEADS: Final = ("request", "status", "place", "computed", "holds", "to go on", "to end")
_WIDTHS_MAX: Final = (14, 22, 19, 9, 6, 8, 6)
_RIGHT: Final = (3, 4, 5, 6)
"""Columns of numbers."""
_ROOM_MIN: Final = 26
"""A last column narrower than this goes below its row."""
_NAME_MAX: Final = 24
_RIDDLE: Final = "nothing visible keeps it waiting"
_LINKS_MAX: Final = 6
"""Links of a chain that are told."""


# The table.


def stall_table(stall: Stall, *, width: int, paint: Paint = plain) -> Iterator[str]:
    """Yield the table: numbers are blocks, but for the tokens computed of those known."""
    rows = [_cells(request) for request in stall.requests]
    widths = [
        min(most, max([len(head), *(len(row[column]) for row in rows)]))
        for column, (head, most) in enumerate(zip(_HEADS, _WIDTHS_MAX, strict=True))
    ]
    room = width - len(_aligned(_HEADS, widths)) - 2
    is_beside = room >= _ROOM_MIN
    yield paint(_aligned(_HEADS, widths) + ("  waits for" if is_beside else ""), FAINT)
    for cells, request in zip(rows, stall.requests, strict=True):
        start = _aligned(cells, widths)
        plight, waits = _plight(request), "; ".join(_waits(request, stall))
        if is_beside:
            text = "; ".join(filter(None, (plight, waits))) or "nothing visible"
            for number, line in enumerate(wrap(text, room)):
                yield f"{start if number == 0 else ' ' * len(start)}  {line}"
            continue
        indent = " " * (widths[0] + 2)
        yield start.rstrip()
        waits = f"waits for {waits or 'nothing visible'}" if waits or not plight else ""
        text = "; ".join(filter(None, (plight, waits)))
        yield from (f"{indent}{line}" for line in wrap(text, width - len(indent)))
    if stall.more:
        yield f"and {stall.more:,} more"


def _cells(request: StalledRequest) -> tuple[str, ...]:
    place = (
        request.queue and f"{shortened(request.queue, 12)} {request.place}/{request.queue_length}"
    )
    at_most = "<=" if request.is_at_most else ""
    return (
        clean(request.name),
        clean(request.status) or ("–" if request.is_tracked else "(not tracked)"),
        place or ("(no queue)" if request.is_in_no_queue else "–"),
        _computed(request),
        _number(request.blocks_held),
        _number(request.blocks_to_go_on, at_most),
        _number(request.blocks_to_finish, at_most),
    )


def _computed(request: StalledRequest) -> str:
    if request.tokens_computed is None:
        return "–"
    known = "" if request.tokens_known is None else f"/{request.tokens_known}"
    return f"{request.tokens_computed}{known}"


def _number(count: int | None, before: str = "") -> str:
    return "–" if count is None else f"{before if count else ''}{count}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        shortened(cell, width).rjust(width)
        if column in _RIGHT
        else shortened(cell, width).ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _plight(request: StalledRequest) -> str:
    """Return why it is idle to ask what a request waits for; empty if it is not."""
    if not request.is_tracked:
        return "lost: it is not tracked"
    if request.is_in_no_queue:
        return "lost: it is in no queue"
    if request.is_moving:
        return "it moves: the step planned last has it"
    return "it has ended" if request.has_ended else ""


def _waits(request: StalledRequest, stall: Stall) -> Iterator[str]:
    """Yield what a request waits for."""
    yield from request.awaits
    if request.overdue:
        yield f"{request.overdue}, though that is over"
    if request.has_nothing_left:
        yield "a token, though no step is to bring one"
    if request.never_fits:
        yield f"more blocks than the pool has ({stall.blocks_total})"
    for lack in request.lacks:
        yield {
            Lack.BLOCKS: _blocks(request),
            Lack.SEAT: "a seat among the running",
            Lack.TURN: f"its turn behind {_name(request.behind)}",
        }[lack]


# The sentence.


def stall_state(stall: Stall) -> str:
    """Return what holds for all: ``0 of 6 blocks free · nothing runs · nothing is open``."""
    facts = []
    if stall.blocks_free is not None:
        total = "" if stall.blocks_total is None else f" of {stall.blocks_total}"
        facts.append(f"{stall.blocks_free}{total} blocks free")
    if stall.blocks_unaccounted:
        facts.append(f"{stall.blocks_unaccounted} held by no request that is shown")
    if stall.running is not None:
        facts.append("nothing runs" if not stall.running else f"{_names(stall.running)} running")
    facts.append("nothing is open" if stall.is_quiet else "something is open")
    if stall.is_paused:
        facts.append("scheduling is paused")
    if not stall.has_work:
        facts.append("the engine says that it has no work")
    return " · ".join(facts)


def stall_sentence(stall: Stall) -> str:
    """Return who waits for whom, in one sentence; empty if there is nobody to speak of."""
    rows = {request.name: request for request in stall.requests}
    if stall.is_cycle:
        return f"a cycle: {_chain(stall, rows)}; {_preemption(stall)}".removesuffix("; ")
    if stall.root not in rows:
        return f"{stall.more + len(rows)} requests are too many to say who waits for whom"
    end = _end(rows[stall.root], stall)
    return f"{_chain(stall, rows)}; {end}" if stall.chain else end


def _chain(stall: Stall, rows: dict[str, StalledRequest]) -> str:
    """Return the links of the chain; of a long one the first and the last."""
    links, left_out = stall.chain, len(stall.chain) - _LINKS_MAX
    words = [_name(links[0].waiter)]
    for number, link in enumerate(links):
        if number == _LINKS_MAX - 1 and left_out > 0:
            words.append(f", and so on over {left_out} more to {_name(links[-1].waiter)}")
        if number < _LINKS_MAX - 1 or number == len(links) - 1:
            start = ", which " if number else " "
            words.append(f"{start}{_link(link, rows.get(link.waiter), stall)}")
    return "".join(words)


def _link(link: Link, waiter: StalledRequest | None, stall: Stall) -> str:
    on = _name(link.on)
    others = f" and {link.others} more" if link.others else ""
    if link.lacks is Lack.TURN:
        return f"stands behind {on}"
    if link.lacks is Lack.SEAT:
        return f"needs a seat, taken by {on}{others}"
    needs = "blocks" if waiter is None else _blocks(waiter)
    free = f" ({stall.blocks_free} free)" if stall.blocks_free else ""
    return f"needs {needs}{free}, held by {on}{others}"


def _preemption(stall: Stall) -> str:
    """Return whether a preemption could break a cycle."""
    if stall.running is None:
        return ""
    if not stall.running:
        return "nothing runs, so nothing can be preempted"
    in_cycle = [link.waiter for link in stall.chain if link.waiter in stall.running]
    if in_cycle:
        return f"{_name(in_cycle[0])} runs, and preempting it would break the cycle"
    return f"of these none runs, so none can be preempted ({_names(stall.running)} running)"


def _end(request: StalledRequest, stall: Stall) -> str:
    """Return what is known about a request that waits for none of the others."""
    name = _name(request.name)
    if request.has_ended:
        held = _plural(request.blocks_held or 0, "block")
        why = f", until {' and '.join(request.awaits)}" if request.awaits else ""
        return f"{name} has ended and still holds {held}{why}"
    if not request.is_tracked:
        return f"{name} has not finished, but the scheduler does not track it"
    if request.is_in_no_queue:
        return f"{name} stands in no queue, so nothing can schedule it"
    if request.awaits:
        return f"{name} waits for {' and '.join(request.awaits)}"
    if request.is_moving:
        return f"{name} still moves: the step planned last has it"
    if request.has_nothing_left:
        counted = f"{request.tokens_computed} of {_plural(request.tokens_known or 0, 'token')}"
        return f"{name} has nothing to compute ({counted} computed), and no step of it is in flight"
    if request.never_fits:
        beside = f" beside the {request.blocks_held} it holds" if request.blocks_held else ""
        needs, total = _blocks(request), stall.blocks_total
        return f"{name} needs {needs}{beside}, and the pool has {total}: it never fits"
    if Lack.BLOCKS in request.lacks:
        return f"{name} needs {_blocks(request)}, {_free(stall)}{_nobody(stall)}"
    if stall.is_paused:
        return f"scheduling is paused, and {name} waits for its end"
    if any(one.is_moving for one in stall.requests):
        return f"{_nothing_visible(request, stall)}: it may go on with the next step"
    unseen = f" ({' and '.join(request.unseen)} cannot be seen)" if request.unseen else ""
    but = "" if stall.is_quiet else ", though something is open"
    return f"{_nothing_visible(request, stall)}: {_RIDDLE}{unseen}{but}"


def _nobody(stall: Stall) -> str:
    if stall.blocks_unaccounted is None:
        return "; who holds the others is not shown"
    are = "is" if stall.blocks_unaccounted == 1 else "are"
    return f" and {stall.blocks_unaccounted} {are} held by no request that is shown"


def _nothing_visible(request: StalledRequest, stall: Stall) -> str:
    """Return what is there for a request that does not go on."""
    name = _name(request.name)
    facts = ["nothing is open"] if stall.is_quiet else []
    if request.overdue:
        facts.append(f"{request.overdue} is over although {name} is {clean(request.status)}")
    if stall.blocks_free is not None:
        facts.append(_free(stall))
    if request.blocks_to_go_on is None:
        facts.append(f"what {name} needs is not shown")
    else:
        facts.append(f"{name} needs {_blocks(request) if request.blocks_to_go_on else 'none'}")
    return f"{', '.join(facts[:-1])} and {facts[-1]}" if len(facts) > 1 else facts[0]


def _blocks(request: StalledRequest) -> str:
    count = request.blocks_to_go_on or 0
    up_to = "up to " if request.is_at_most else ""
    purpose = f" {request.purpose}" if request.purpose else ""
    return f"{up_to}{_plural(count, 'block')}{purpose}"


def _free(stall: Stall) -> str:
    are = "is" if stall.blocks_free == 1 else "are"
    return f"{_plural(stall.blocks_free or 0, 'block')} {are} free"


def _plural(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _names(names: Sequence[str]) -> str:
    told = " ".join(map(_name, names[:4]))
    return f"{told} and {len(names) - 4} more" if len(names) > 4 else told


def _name(name: str) -> str:
    """Return a request's name, which is anything at all, so that it stays a word of a sentence."""
    name = shortened(name, _NAME_MAX)
    return name if name and not set(name) & set(" ;:,'\"") else f"'{name}'"
