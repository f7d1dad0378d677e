"""Where two playbacks part, in two columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Final

from schedcheck.engine.compare import Comparison, Difference, Parting, Side
from schedcheck.report.words import BAD, FAINT, GOOD, WARN, WIDTH, Paint, clean, plain

_ABOUT_MAX: Final = 30
"""Columns of what a line is about; what is longer is wrapped."""
_NOTHING: Final = "–"


def diff_lines(
    found: Comparison, first: Side, second: Side, *, paint: Paint = plain
) -> Iterator[str]:
    """Yield where two playbacks part and only what differs there, or that nothing does."""
    heads = clean(first.label), clean(second.label)
    alike = f"no difference in {found.actions} action(s)"
    if found.parting is not None:
        yield from _parting(found.parting, heads, paint)
    elif found.drifted:
        yield paint(f"{alike}, no further:", WARN)
        for side in found.drifted:
            what = f"{clean(side.label)} drifted: {clean(side.drift)}"
            yield from wrap(what, WIDTH, initial_indent="  ", subsequent_indent="    ")
    else:
        between = f"{alike}: {' and '.join(heads)}"
        for line in wrap(between, WIDTH, subsequent_indent="  ", break_on_hyphens=False):
            yield paint(line, GOOD)
    if found.aside is not None:
        row = found.aside.differences[0]
        what = " / ".join(value or _NOTHING for value in row.values)
        what = f"engines count for themselves: at action {found.aside.number} {row.about} is {what}"
        yield from wrap(clean(what), WIDTH, subsequent_indent="  ")
    if found.uncompared:
        what = f"not compared, since one of them does not show it: {', '.join(found.uncompared)}"
        yield from wrap(clean(what), WIDTH, subsequent_indent="  ")


def _parting(parting: Parting, heads: tuple[str, str], paint: Paint) -> Iterator[str]:
    action, event = clean(parting.action), clean(parting.event)
    where = f"they part at action {parting.number}: {action}"
    where += f" ({event})" if event != action else ""
    for line in wrap(where, WIDTH, subsequent_indent="  ", break_on_hyphens=False):
        yield paint(line, BAD)
    yield ""
    rows = parting.differences
    about = min(_ABOUT_MAX, max(len(clean(row.about)) for row in rows))
    left = max(len(heads[0]), *(len(clean(row.values[0]) or _NOTHING) for row in rows))
    right = max(len(heads[1]), *(len(clean(row.values[1]) or _NOTHING) for row in rows))
    widths = about, *_shares(left, right, WIDTH - 2 - about - 4)
    for line in _row(("", *heads), widths):
        yield paint(line, FAINT)
    for row in rows:
        yield from _row(_cells(row), widths)
    yield ""


def _shares(left: int, right: int, room: int) -> tuple[int, int]:
    """Return the widths of two columns: what they need, or else half, or what the other leaves."""
    half = room // 2
    if left <= half or left + right <= room:
        return left, min(right, room - left)
    return (room - right, right) if right <= half else (half, half)


def _cells(row: Difference) -> tuple[str, str, str]:
    first, second = (clean(value) or _NOTHING for value in row.values)
    return clean(row.about), first, second


def _row(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield a row, each cell wrapped in its column: nothing of a difference is cut off."""
    wrapped = [
        wrap(cell, width, break_on_hyphens=False) for cell, width in zip(cells, widths, strict=True)
    ]
    for line in zip_longest(*wrapped, fillvalue=""):
        yield "  " + "  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip()
