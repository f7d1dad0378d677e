"""The releases a trace was tried on, and between which of them it fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from schedcheck.engine.bisect import Bisection, Tried
from schedcheck.engine.events import Outcome
from schedcheck.report.words import (
    BAD,
    FAINT,
    GOOD,
    WARN,
    WIDTH,
    Paint,
    clean,
    filled,
    plain,
)

_LABEL: Final = 15
"""Columns of the labels of the last lines."""
_OUTCOME: Final = 7
"""Columns of an outcome."""
_UNTRIED: Final = "taken to be like their neighbours; --every tries them"
_STYLES: Final = {Outcome.FAILED: BAD, Outcome.FIXED: GOOD}


def bisect_lines(found: Bisection, *, paint: Paint = plain) -> Iterator[str]:
    """Yield a line for each release tried, then the first and last that fail and what fixed it."""
    tried = found.tried
    wide = max([len("release"), *(len(clean(one.release)) for one in tried)])
    yield paint(f"{'release':<{wide}}  outcome", FAINT)
    for one in tried:
        yield from _row(one, wide, paint)
    yield ""
    for label, version, why in _sums(tried):
        yield f"{label:<{_LABEL}}{clean(version):<{wide}}  {why}".rstrip()
    yield from _labelled("also fixed", _between(tried), "it comes and goes")
    untried = [one for one in found.releases if one not in {each.release for each in tried}]
    yield from _labelled("not tried", untried, _UNTRIED)


def _row(one: Tried, wide: int, paint: Paint) -> Iterator[str]:
    """Yield a release, with the reason if it is passed over."""
    start = f"{clean(one.release):<{wide}}  "
    indent = len(start) + _OUTCOME + 2
    why = clean(one.reason) if one.fails is None else ""
    word = paint(f"{one.outcome.value:<{_OUTCOME}}", _STYLES.get(one.outcome, WARN))
    for number, line in enumerate(wrap(why, WIDTH - indent, break_on_hyphens=False) or [""]):
        yield f"{start}{word}  {line}".rstrip() if number == 0 else f"{'':<{indent}}{line}"


def _sums(tried: Sequence[Tried]) -> Iterator[tuple[str, str, str]]:
    """Yield the last lines: a label, a release, and what is known of its neighbours."""
    failing = [place for place, one in enumerate(tried) if one.fails]
    if not failing:
        for label in ("first failing", "last failing", "first fixed"):
            yield label, "none", ""
        return
    older, newer = tried[: failing[0]][::-1], tried[failing[-1] + 1 :]
    yield "first failing", tried[failing[0]].release, _neighbour(older, "older")
    yield "last failing", tried[failing[-1]].release, ""
    fixed = [one.release for one in newer if one.fails is False]
    yield "first fixed", fixed[0] if fixed else "none", _neighbour(newer, "newer")


def _neighbour(beyond: Sequence[Tried], which: str) -> str:
    """Say what the releases beyond a failing one tell, nearest first."""
    if not beyond:
        return f"nothing {which} was asked about"
    silent = next((k for k, one in enumerate(beyond) if one.fails is not None), len(beyond))
    passed = f"{silent} passed over" if silent else ""
    if silent == len(beyond):
        return f"nothing {which} tells: {passed}"
    fixed = f"{clean(beyond[silent].release)} does not fail" if which == "older" else ""
    return ", ".join(filter(None, (fixed, f"{passed} in between" if passed else "")))


def _between(tried: Sequence[Tried]) -> list[str]:
    """Return the fixed releases between failing ones."""
    failing = [place for place, one in enumerate(tried) if one.fails]
    within = tried[failing[0] : failing[-1]] if failing else ()
    return [one.release for one in within if one.fails is False]


def _labelled(label: str, releases: Sequence[str], what: str) -> Iterator[str]:
    cells = [*map(clean, releases), f"({what})"] if releases else []
    for number, line in enumerate(filled(cells, WIDTH - _LABEL)):
        yield f"{label if number == 0 else '':<{_LABEL}}{line}"
