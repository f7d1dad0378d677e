"""Events as plain text: at most 100 columns, readable without colour, the same everywhere.

Nothing here depends on a terminal, on time or on the order of a set, so that one seed and profile
give the same bytes. ``paint`` is where colour comes in, for those who show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Final

from schedcheck.engine.events import Ended, Failure, Outcome, Replayed, StoryLine
from schedcheck.model.verdict import Verdict

WIDTH: Final = 100

Paint = Callable[[str, str], str]
"""Colours a text: (text, one of the styles below)."""
BAD: Final = "bold red"
GOOD: Final = "green"
WARN: Final = "yellow"
FAINT: Final = "dim"


def plain(text: str, _style: str) -> str:
    """Paint nothing."""
    return text


def clean(text: str) -> str:
    """Return a stranger's text without anything that could move a cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def shortened(text: str, width: int) -> str:
    """Return a text that fits, with an ellipsis where it was cut."""
    text = clean(text)
    return text if len(text) <= width else f"{text[: max(1, width - 1)]}…"


# A failure.


def failure_lines(failure: Failure, *, path: str = "", paint: Paint = plain) -> Iterator[str]:
    """Yield a failure as it looks in a terminal, in pytest and in an issue."""
    complaint = failure.complaint
    head = f"VIOLATED  {complaint.invariant}  "
    title = wrap(clean(failure.title), WIDTH - len(head) - 10)
    first = f"{head}{title[0] if title else ''}"
    yield paint(f"{first:<{WIDTH - 9}}{failure.severity.value:>9}", BAD)
    for line in title[1:]:
        yield paint(f"{'':<{len(head)}}{line}", BAD)
    size = f"{failure.actions_found} -> {failure.actions} actions"
    if failure.actions_found == failure.actions:
        size = f"{failure.actions} actions"
    where = " · ".join(
        part for part in (_target(failure.target, failure.version), failure.origin, size) if part
    )
    yield f"  {shortened(where, WIDTH - 2)}"
    yield f"  {shortened(failure.config, WIDTH - 2)}"
    yield ""
    yield from _indented(story_lines(failure.story, paint=paint))
    yield ""
    if failure.holdings and complaint.invariant.startswith("PRG"):
        yield from _labelled("left", failure.holdings)
        yield ""
    yield from _labelled("about", [f"{complaint.subject} · {complaint.kind}"])
    yield from _labelled("expected", [complaint.expected])
    yield from _labelled("found", [complaint.found])
    yield from _labelled("also", [one.signature for one in failure.others])
    yield ""
    yield from _labelled("like upstream", [", ".join(map(_short_link, failure.evidence))])
    if failure.origin and not failure.is_minimal:
        yield from _labelled("not minimal", ["shrinking was cut short: schedcheck shrink goes on"])
    if path:
        yield from _labelled("replay", [f"schedcheck replay {path}"], cut=False)
    yield from _labelled("page", [f"schedcheck explain {complaint.invariant}"])


def _target(target: str, version: str) -> str:
    return clean(f"{target} {version}".strip())


def _short_link(link: str) -> str:
    """Return ``vllm#31583`` for a link into an issue tracker."""
    parts = link.removeprefix("https://github.com/").split("/")
    return f"{parts[1]}#{parts[3]}" if len(parts) == 4 else link


def _labelled(label: str, texts: Sequence[str], *, cut: bool = True) -> Iterator[str]:
    texts = [text for text in texts if text]
    for number, text in enumerate(texts):
        head = label if number == 0 else ""
        lines = wrap(clean(text), WIDTH - 18, break_on_hyphens=False) if cut else [clean(text)]
        for index, line in enumerate(lines):
            yield f"  {head if index == 0 else '':<15} {line}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}"


def story_lines(story: Sequence[StoryLine], *, paint: Paint = plain) -> Iterator[str]:
    """Yield the table of a trace: actions, queues, blocks and notes."""
    rows = [
        (
            str(line.number),
            clean(line.action),
            _names(line.waiting),
            _names(line.loading),
            _names(line.running),
            _blocks(line),
            clean(line.note),
        )
        for line in story
    ]
    heads = ("step", "action", "waiting", "loading", "running", "free/total")
    limits = (5, 34, 12, 9, 12, 10)
    widths = [
        min(limit, max([len(head), *(len(row[column]) for row in rows)]))
        for column, (head, limit) in enumerate(zip(heads, limits, strict=True))
    ]
    note_width = WIDTH - 2 - sum(widths) - 2 * len(widths)
    cells = [
        head.rjust(w) if i == 0 else head.ljust(w)
        for i, (head, w) in enumerate(zip(heads, widths, strict=True))
    ]
    yield paint("  ".join([*cells, "note"]).rstrip(), FAINT)
    for row, line in zip(rows, story, strict=True):
        cells = [
            shortened(cell, width).rjust(width)
            if column in (0, 5)
            else shortened(cell, width).ljust(width)
            for column, (cell, width) in enumerate(zip(row[:6], widths, strict=True))
        ]
        mark = "<- here" if line.is_violation else ""
        notes = wrap(row[6], max(12, note_width - 8), break_on_hyphens=False) or [""]
        for number, note in enumerate(notes):
            start = "  ".join(cells) if number == 0 else " " * (sum(widths) + 2 * len(widths) - 2)
            end = f"  {mark}" if mark and number == len(notes) - 1 else ""
            text = f"{start}  {note}{end}".rstrip()
            yield paint(text, BAD) if line.is_violation else text


def _names(names: Sequence[str]) -> str:
    return " ".join(map(clean, names)) or "–"


def _blocks(line: StoryLine) -> str:
    if line.blocks_total is None:
        return "–" if line.blocks_free is None else str(line.blocks_free)
    return f"{line.blocks_free}/{line.blocks_total}"


# A replay.


def replay_line(told: Replayed, name: str, *, paint: Paint = plain) -> str:
    """Return one line about a replayed trace."""
    style = {Outcome.FAILED: BAD, Outcome.OTHER: BAD, Outcome.FIXED: GOOD, Outcome.HOLDS: GOOD}
    word = paint(f"{told.outcome.value:<8}", style.get(told.outcome, WARN))
    where = _target(told.target, told.version)
    return f"{word} {clean(name)}  on {where}: {clean(told.reason)}"


# The end of a run.


def summary_lines(ended: Ended, *, paint: Paint = plain) -> Iterator[str]:
    """Yield the end of a run, green or not: verdicts, coverage, and warnings with their fixes."""
    by_verdict: dict[Verdict, list[str]] = {}
    for result in ended.results:
        by_verdict.setdefault(result.verdict, []).append(result.id)
    counts = [
        f"{len(by_verdict[verdict])} {word}"
        for verdict, word in (
            (Verdict.VIOLATED, "violated"),
            (Verdict.HOLDS, "hold" if len(by_verdict.get(Verdict.HOLDS, ())) != 1 else "holds"),
            (Verdict.VACUOUS, "vacuous"),
            (Verdict.NOT_APPLICABLE, "not applicable"),
            (Verdict.UNKNOWN, "unknown"),
        )
        if verdict in by_verdict
    ]
    head = [
        *counts,
        f"{ended.traces:,} traces",
        f"{ended.actions:,} actions",
        f"profile {ended.profile}",
        f"seed {ended.seed}",
    ]
    style = BAD if Verdict.VIOLATED in by_verdict else GOOD
    yield paint(" · ".join(head), style)
    yield from _table("signatures", _times(ended.seen.signatures))
    yield from _table("actions", _times(ended.seen.actions))
    yield from _transitions(ended.seen.transitions)
    yield from _table("came back by", list(_journeys(ended.seen.journeys)), each=True)
    for warning in _warnings(ended):
        yield from _warning(warning, paint)


def _journeys(journeys: Mapping[str, int]) -> Iterator[str]:
    """Yield how requests came back that had been preempted or had loaded KV."""
    told = {way: times for way, times in journeys.items() if way.count(" -> ") > 1 or "PREE" in way}
    width = max(map(len, told), default=0)
    for way, times in told.items():
        yield f"{way:<{width}}  {times:>7,}"


def _times(counts: Mapping[str, int]) -> list[str]:
    return [f"{clean(word)} {times:,}" + ("" if times else " !") for word, times in counts.items()]


def _table(label: str, cells: Sequence[str], *, each: bool = False) -> Iterator[str]:
    """Yield a label and its cells, wrapped, or one to a line."""
    if not cells:
        return
    lines = list(map(clean, cells)) if each else _filled(cells)
    for number, line in enumerate(lines):
        yield f"{label if number == 0 else '':<13}{line}".rstrip()


def _filled(cells: Sequence[str]) -> list[str]:
    lines = [""]
    for cell in cells:
        joined = f"{lines[-1]}  {cell}".strip()
        if len(joined) > WIDTH - 13:
            lines.append(cell)
        else:
            lines[-1] = joined
    return lines


def _transitions(transitions: Mapping[str, int]) -> Iterator[str]:
    reached = [edge for edge, times in transitions.items() if times]
    never = [edge for edge, times in transitions.items() if not times]
    tail = f"   never: {', '.join(never)}" if never else ""
    for number, line in enumerate(
        wrap(f"{len(reached)} of {len(transitions)}{tail}", WIDTH - 13, break_on_hyphens=False)
    ):
        yield f"{'transitions' if number == 0 else '':<13}{line}"
    width = max((len(edge) for edge in reached), default=0)
    for edge in reached:
        yield f"{'':<13}{edge:<{width}}  {transitions[edge]:>7,}"


def _warnings(ended: Ended) -> Iterator[tuple[str, str]]:
    """Yield what was not tested, each with the way out."""
    for word, lacking in ended.seen.actions_missing.items():
        yield f"{word} never ran: the target lacks {lacking}", "give its adapter the capability"
    for word, times in ended.seen.actions.items():
        if not times and not ended.stopped_early:
            yield f"{word} never ran in {ended.traces:,} traces", "another --seed or --profile ci"
    for result in ended.results:
        if result.verdict is Verdict.VACUOUS:
            yield f"{result.id} is vacuous: {result.reason}", "--profile ci, or transfers, pressure"
        elif result.verdict is Verdict.UNKNOWN:
            yield f"{result.id} is unknown: its checker failed, {result.reason}", "report it to us"
        elif result.verdict is Verdict.NOT_APPLICABLE:
            yield f"{result.id} is not applicable: the target {result.reason}", "implement it"
    if ended.crashes_ignored:
        what = f"{ended.crashes_ignored:,} traces ended in a crash that no chosen invariant covers"
        yield what, "add ENG-001 to --invariants"
    if ended.stopped_early:
        yield f"not all traces were run: {ended.stopped_early}", "a longer --max-time"


def _warning(warning: tuple[str, str], paint: Paint) -> Iterator[str]:
    what, fix = warning
    lines = wrap(f"!  {clean(what)}.  fix: {clean(fix)}", WIDTH, subsequent_indent="   ")
    for line in lines:
        yield paint(line, WARN)
