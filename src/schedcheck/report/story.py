"""The table of a trace: what was done, and the scheduler after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Final

from schedcheck.engine.events import StoryLine
from schedcheck.report.words import BAD, FAINT, WIDTH, Paint, clean, plain, shortened

_HEADS: Final = ("step", "action", "waiting", "loading", "running", "free/total")
_WIDTHS_MAX: Final = (5, 34, 12, 9, 12, 10)
_RIGHT: Final = (0, 5)
"""Columns of numbers."""
_MARK: Final = "<- here"


def story_lines(
    story: Sequence[StoryLine], *, changes_only: bool = False, paint: Paint = plain
) -> Iterator[str]:
    """Yield the table of a trace: actions, queues, blocks and notes.

    With ``changes_only`` a queue or count that is what it was a line before is left blank.
    """
    rows = [_cells(line) for line in story]
    widths = [
        min(most, max([len(head), *(len(row[column]) for row in rows)]))
        for column, (head, most) in enumerate(zip(_HEADS, _WIDTHS_MAX, strict=True))
    ]
    yield paint(f"{_aligned(_HEADS, widths)}  note", FAINT)
    before: Sequence[str] = ()
    for row, line in zip(rows, story, strict=True):
        start = _changes(row, before) if changes_only else row
        before = row
        for text in _row(start, line, widths):
            yield paint(text, BAD) if line.is_violation else text


def _cells(line: StoryLine) -> tuple[str, ...]:
    return (
        str(line.number),
        clean(line.action),
        _names(line.waiting),
        _names(line.loading),
        _names(line.running),
        _blocks(line),
    )


def _changes(row: Sequence[str], before: Sequence[str]) -> Sequence[str]:
    """Blank the cells, but for number and action, that are as they were."""
    if not before:
        return row
    changed = ["" if now == was else now for now, was in zip(row[2:], before[2:], strict=True)]
    return [*row[:2], *changed]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        shortened(cell, width).rjust(width)
        if column in _RIGHT
        else shortened(cell, width).ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _row(cells: Sequence[str], line: StoryLine, widths: Sequence[int]) -> Iterator[str]:
    """Yield a row. An action is never cut, and a note too long to stand beside it goes below."""
    actions = wrap(cells[1], widths[1], subsequent_indent="  ", break_on_hyphens=False) or [""]
    start = _aligned([cells[0], actions[0], *cells[2:]], widths)
    indent, blank = " " * (widths[0] + 2), " " * len(start)
    room = WIDTH - 2 - len(start) - 2
    notes = _note_lines(line, room)
    if len(notes) > 2 or any(len(note) > room for note in notes):
        notes, below = [], _note_lines(line, WIDTH - 2 - len(indent))
    else:
        below = []
    for number, (action, note) in enumerate(zip_longest(actions, notes, fillvalue="")):
        left = start if number == 0 else f"{indent}{action}{blank}"[: len(start)]
        yield f"{left}  {note}".rstrip()
    for note in below:
        yield f"{indent}{note}"


def _names(names: Sequence[str]) -> str:
    return " ".join(map(clean, names)) or "–"


def _blocks(line: StoryLine) -> str:
    if line.blocks_total is None:
        return "–" if line.blocks_free is None else str(line.blocks_free)
    return f"{line.blocks_free}/{line.blocks_total}"


def _note_lines(line: StoryLine, width: int) -> list[str]:
    """Return a note's lines, broken between notes where that is possible, at least one."""
    lines = [""]
    parts = clean(line.note).split(", ")
    ends = [*[","] * (len(parts) - 1), ""]
    for part, end in zip(parts, ends, strict=True):
        joined = f"{lines[-1]} {part}{end}".strip()
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines[-1:] = [*filter(None, lines[-1:]), *wrap(f"{part}{end}", max(12, width))]
    if line.is_violation:
        joined = f"{lines[-1]}  {_MARK}".strip()
        lines[-1:] = [joined] if len(joined) <= width else [lines[-1], _MARK]
    return lines


def moment_lines(
    now: StoryLine,
    holdings: Sequence[str],
    *,
    before: StoryLine | None = None,
    holdings_before: Sequence[str] = (),
) -> Iterator[str]:
    """Yield one action and all there is to know after it, with what it changed.

    ``before`` is the line of the action before; None: there was none.
    """
    yield from wrap(
        f"{now.number:>4}  {clean(now.action)}", WIDTH, subsequent_indent=" " * 8, tabsize=1
    )
    notes = _note_lines(now, WIDTH - 18)
    facts = _queues(now)
    old = _queues(before) if before is not None else {}
    for label, fact in facts.items():
        was = f"  (before: {old[label]})" if old.get(label, fact) != fact else ""
        yield from _fact(label, f"{fact}{was}")
    for number, note in enumerate(notes if any(notes) else []):
        yield from _fact("note" if number == 0 else "", note)
    was_held = _by_name(holdings_before)
    for name, held in _by_name(holdings).items():
        former = was_held.pop(name, "" if before is not None else held)
        yield from _fact(name, held)
        if former != held:
            yield from _fact("", f"(before: {former or 'not there'})")
    for name, former in was_held.items():
        yield from _fact(name, f"gone  (before: {former})")


def _queues(line: StoryLine) -> dict[str, str]:
    return {
        "waiting": _names(line.waiting),
        "loading": _names(line.loading),
        "running": _names(line.running),
        "free/total": _blocks(line),
    }


def _by_name(holdings: Sequence[str]) -> dict[str, str]:
    """Split what requests hold into name and the rest."""
    return {
        clean(name): clean(rest).strip()
        for name, _, rest in (line.partition(" ") for line in holdings)
    }


def _fact(label: str, text: str) -> Iterator[str]:
    lines = wrap(text, WIDTH - 18, break_on_hyphens=False, tabsize=1, drop_whitespace=True) or [""]
    for number, line in enumerate(lines):
        yield f"      {label if number == 0 else '':<10}  {line}".rstrip()
