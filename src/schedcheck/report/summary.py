"""The end of a run, green or not: verdicts, what was reached, and warnings that end in a fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Final

from schedcheck.engine.events import Ended, InvariantResult, KnownResult
from schedcheck.model.verdict import Verdict
from schedcheck.report.known import known_lines
from schedcheck.report.words import BAD, GOOD, WARN, WIDTH, Paint, clean, filled, plain

_LABEL: Final = 13
"""Columns of the labels on the left."""
_WIDER: Final = ("ci", "transfers", "pressure")
"""Profiles that reach more than a quick one."""


def summary_lines(ended: Ended, *, name: str = "", paint: Paint = plain) -> Iterator[str]:
    """Yield the end of a run. ``name`` stands first, if it is given: what was verified."""
    verdicts = {result.verdict for result in ended.results}
    style = BAD if Verdict.VIOLATED in verdicts else GOOD
    head = [part for part in (clean(name), *_counts(ended)) if part]
    for number, line in enumerate(filled(head, WIDTH - 2, between=" · ")):
        yield paint(line if number == 0 else f"  {line}", style)
    yield from _table("signatures", _times(ended.seen.signatures))
    yield from known_lines(ended, paint=paint)
    yield from _table("actions", _times(ended.seen.actions))
    yield from _transitions(ended.seen.transitions)
    for number, line in enumerate(_journeys(ended.seen.journeys)):
        yield f"{'came back by' if number == 0 else '':<{_LABEL}}{line}"
    for what, fix in _warnings(ended):
        text = f"!  {clean(what)}.  fix: {clean(fix)}"
        for line in wrap(text, WIDTH, subsequent_indent="   ", break_on_hyphens=False):
            yield paint(line, WARN)


def _counts(ended: Ended) -> Iterator[str]:
    yield from verdict_words([result.verdict for result in ended.results])
    yield f"{ended.traces:,} traces"
    yield f"{ended.actions:,} actions"
    yield f"profile {clean(ended.profile)}"
    yield f"seed {ended.seed}"


def verdict_words(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield how often each verdict was given, the worst first: ``12 hold``."""
    for verdict, word in (
        (Verdict.VIOLATED, "violated"),
        (Verdict.KNOWN, "known"),
        (Verdict.HOLDS, "holds" if verdicts.count(Verdict.HOLDS) == 1 else "hold"),
        (Verdict.VACUOUS, "vacuous"),
        (Verdict.NOT_APPLICABLE, "not applicable"),
        (Verdict.UNKNOWN, "unknown"),
    ):
        if verdict in verdicts:
            yield f"{verdicts.count(verdict)} {word}"


def _times(counts: Mapping[str, int]) -> list[str]:
    return [f"{clean(word)} {times:,}" + ("" if times else " !") for word, times in counts.items()]


def _table(label: str, cells: list[str]) -> Iterator[str]:
    """Yield a label and its cells, wrapped."""
    for number, line in enumerate(filled(cells, WIDTH - _LABEL)):
        yield f"{label if number == 0 else '':<{_LABEL}}{line}"


def _transitions(transitions: Mapping[str, int]) -> Iterator[str]:
    """Yield every edge that was reached with its count, and before them those that were not."""
    reached = {clean(edge): times for edge, times in transitions.items() if times}
    never = [clean(edge) for edge, times in transitions.items() if not times]
    first = f"{len(reached)} of {len(transitions)}"
    if never:
        head, rest = f"{first}   never: ", WIDTH - _LABEL - len(first) - 10
        lines = filled([*(f"{edge}," for edge in never[:-1]), never[-1]], rest, between=" ")
        for number, line in enumerate(lines):
            start = "transitions" if number == 0 else ""
            yield f"{start:<{_LABEL}}{head if number == 0 else '':<{len(head)}}{line}"
    else:
        yield f"{'transitions':<{_LABEL}}{first}"
    width = max(map(len, reached), default=0)
    for edge, times in reached.items():
        yield f"{'':<{_LABEL}}{edge:<{width}}  {times:>7,}"


def _journeys(journeys: Mapping[str, int]) -> Iterator[str]:
    """Yield how requests came back that had been preempted or had loaded KV."""
    told = {
        clean(way): times
        for way, times in journeys.items()
        if way.count(" -> ") > 1 or "PREEMPTED" in way
    }
    width = max(map(len, told), default=0)
    for way, times in told.items():
        yield f"{way:<{width}}  {times:>7,}"


def _warnings(ended: Ended) -> Iterator[tuple[str, str]]:
    """Yield what was not tested, each with the way out."""
    for word, lacking in ended.seen.actions_missing.items():
        yield f"{word} never ran: the target lacks {lacking}", "give its adapter the capability"
    if ended.traces:
        yield from _never(ended)
    for reason, ids in by_reason(ended.results, Verdict.NOT_APPLICABLE):
        are = "is" if len(ids) == 1 else "are"
        what = f"{', '.join(ids)} {are} not applicable: the target {reason}"
        yield what, "give its adapter the capability"
    for reason, ids in by_reason(ended.results, Verdict.UNKNOWN):
        are = "is" if len(ids) == 1 else "are"
        yield f"{', '.join(ids)} {are} unknown: the checker failed, {reason}", "report it to us"
    if ended.crashes_ignored:
        what = f"{ended.crashes_ignored:,} traces ended in a crash that no chosen invariant covers"
        yield what, "add ENG-001 to --invariants"
    if ended.stopped_early:
        yield f"not all traces were run: {ended.stopped_early}", _after(ended.stopped_early)


def _never(ended: Ended) -> Iterator[tuple[str, str]]:
    """Yield what could have been reached and was not."""
    tried = {ended.profile, "ci"} if ended.profile == "nightly" else {ended.profile}
    profiles = [profile for profile in _WIDER if profile not in tried]
    more = f"another --seed, or --profile {', '.join(profiles[:-1])} or {profiles[-1]}"
    for word, times in ended.seen.actions.items():
        if not times and not ended.stopped_early:
            yield f"{word} never ran in {ended.traces:,} traces", more
    for missed in ended.known.results:
        if missed.is_missed:
            what = (
                f"{missed.signature} is known, was expected and not seen in {ended.traces:,} traces"
            )
            yield what, _end_entry(ended, missed)
    for result in ended.results:
        if result.verdict is Verdict.VACUOUS:
            yield f"{result.id} is vacuous in {ended.traces:,} traces, {result.reason}", more


def _end_entry(ended: Ended, missed: KnownResult) -> str:
    """Return what to do about an entry of the ledger that a long run did not show."""
    here = f"{ended.target}=={ended.version}" if ended.version else ended.target
    look = f"replay {missed.trace} --on {here}; if it is FIXED, " if missed.trace else ""
    if not ended.version:
        return f"{look}take it out of the known-issue ledger"
    return f"{look}end its releases before {ended.version} in the known-issue ledger"


def by_reason(
    results: Iterable[InvariantResult], verdict: Verdict
) -> Iterator[tuple[str, list[str]]]:
    """Yield each reason for a verdict with the invariants that have it."""
    ids: dict[str, list[str]] = {}
    for result in results:
        if result.verdict is verdict:
            ids.setdefault(result.reason, []).append(result.id)
    yield from ids.items()


def _after(stop: str) -> str:
    """Return what to do about a run that ended early."""
    if stop.startswith("--max-time"):
        return "a longer --max-time"
    if stop == "interrupted":
        return "run it again, with --max-time if it takes too long"
    return "mend what is told above, then run it again"
