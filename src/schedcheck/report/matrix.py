"""The kill matrix: which invariants kill which mutants, one line a mutant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from schedcheck.engine.hunt import Kills
from schedcheck.report.words import BAD, FAINT, WIDTH, Paint, clean, filled, plain

MUST: Final = "x"
MAY: Final = "+"
MISSING: Final = "!"
UNDECLARED: Final = "?"
_LABEL: Final = 20
"""Columns of the labels below the matrix."""
_LEGEND: Final = (
    f"{MUST} must kill it, and did",
    f"{MAY} may, and did",
    f"{MISSING} must, and did not",
    f"{UNDECLARED} did, undeclared",
)


def matrix_lines(
    rows: Sequence[Kills],
    columns: Iterable[str],
    *,
    excused: Mapping[str, str],
    paint: Paint = plain,
) -> Iterator[str]:
    """Yield the matrix, then how many mutants each invariant kills, then what is empty.

    ``columns`` are the ids of all invariants; ``excused`` those that kill nothing, and why.
    """
    yield from filled(list(_LEGEND), WIDTH, between=" · ")
    yield ""
    wide = max((len(row.mutant.name) for row in rows), default=0)
    yield paint(f"{'mutant':<{wide}}  traces  killed by", FAINT)
    for row in rows:
        start = f"{row.mutant.name:<{wide}}  {row.traces:>6}  "
        cells = [f"{mark} {clean(id_)}" for id_, mark in marks(row)]
        if row.mutant.is_variant and not cells:
            cells = ["nothing: a variant"]
        is_bad = bool(row.missing or row.undeclared)
        for number, line in enumerate(filled(cells, WIDTH - len(start)) or ["nothing"]):
            text = f"{start if number == 0 else ' ' * len(start)}{line}"
            yield paint(text, BAD) if is_bad else text
    yield ""
    yield from _sums(rows, list(columns), excused)


def marks(row: Kills) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of a mutant: the id of an invariant, and its mark."""
    for id_ in row.mutant.must_kill:
        yield id_, MUST if id_ in row.found else MISSING
    for id_ in row.mutant.may_kill:
        if id_ in row.found:
            yield id_, MAY
    for id_ in row.undeclared:
        yield id_, UNDECLARED


def _sums(
    rows: Sequence[Kills], columns: Sequence[str], excused: Mapping[str, str]
) -> Iterator[str]:
    killed = [id_ for row in rows for id_, mark in marks(row) if mark == MUST]
    yield from _labelled("mutants killed by", (f"{id_} {killed.count(id_)}" for id_ in columns))
    empty = [row.mutant.name for row in rows if not row.mutant.is_variant and not row.found]
    yield from _labelled("empty rows", empty)
    empty = [id_ for id_ in columns if id_ not in killed]
    whys = (f"{id_} ({excused[id_]})" if id_ in excused else id_ for id_ in empty)
    yield from _labelled("empty columns", whys)


def _labelled(label: str, cells: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(filled(list(cells) or ["none"], WIDTH - _LABEL)):
        yield f"{label if number == 0 else '':<{_LABEL}}{line}"


def problem_line(where: str, what: str, fix: str) -> str:
    """Return one problem with its fix."""
    return f"!  {clean(where)}: {clean(what)}.  fix: {clean(fix)}"
