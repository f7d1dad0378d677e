"""Events as plain text: at most 100 columns, readable without colour, the same everywhere.

Nothing here depends on a terminal, on time or on the order of a set, so that one seed and profile
give the same bytes. ``paint`` is where colour comes in, for those who show it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from schedcheck.engine.events import Failure, Outcome, Replayed
from schedcheck.report.stall import stall_sentence, stall_state, stall_table
from schedcheck.report.story import moment_lines, story_lines
from schedcheck.report.summary import summary_lines
from schedcheck.report.words import BAD, GOOD, WARN, WIDTH, Paint, clean, fact_lines, plain

__all__ = [
    "command",
    "failure_lines",
    "moment_lines",
    "replay_lines",
    "story_lines",
    "summary_lines",
]


# A failure.


def failure_lines(
    failure: Failure,
    *,
    path: str = "",
    on: str = "",
    more: Sequence[str] | None = None,
    paint: Paint = plain,
) -> Iterator[str]:
    """Yield a failure as it looks in a terminal, in pytest and in an issue.

    ``path`` is where its trace is, empty if it was not saved; ``on`` the target on which it is seen
    again, empty if that is the trace's own; ``more`` what else has to be typed for that, by default
    what the trace's target was made with.
    """
    complaint = failure.complaint
    if ":" in failure.target:
        on = on or failure.target  # a trace itself may not choose what code runs
    head = f"VIOLATED  {clean(complaint.invariant)}  "
    title = wrap(clean(failure.title), WIDTH - len(head) - 10)
    first = f"{head}{title[0] if title else ''}"
    yield paint(f"{first:<{WIDTH - 9}}{failure.severity.value:>9}", BAD)
    for line in title[1:]:
        yield paint(f"{'':<{len(head)}}{line}", BAD)
    more = failure.options if more is None else more
    size = f"{failure.actions_found} -> {failure.actions} actions"
    if failure.actions_found == failure.actions:
        size = f"{failure.actions} actions"
    made_of = [" ".join(failure.options)] if failure.options else []
    target = _target(failure.target, failure.version)
    facts = [target, *made_of, *failure.origin.split(" · "), size]
    yield from _indented(fact_lines(facts, WIDTH - 2))
    yield from _indented(fact_lines(failure.config.split(" · "), WIDTH - 2))
    yield ""
    yield from _indented(story_lines(failure.story, paint=paint))
    yield ""
    if failure.stall is not None:
        yield from _indented(stall_table(failure.stall, width=WIDTH - 2, paint=paint))
        yield ""
        yield from _labelled("state", [stall_state(failure.stall)])
        yield from _labelled("waits for", [stall_sentence(failure.stall)])
        yield ""
    elif failure.holdings and complaint.invariant.startswith("PRG"):
        yield from _labelled("held blocks", failure.holdings)
        yield ""
    yield from _labelled("about", [f"{complaint.subject} · {complaint.kind}"])
    yield from _labelled("expected", [complaint.expected])
    yield from _labelled("found", [complaint.found])
    yield from _labelled("also", [one.signature for one in failure.others])
    yield ""
    yield from _labelled("like upstream", [", ".join(map(_short_link, failure.evidence))])
    yield from _labelled("known before", [", ".join(failure.known_before)])
    if failure.origin and not failure.is_minimal:
        way_on = command("shrink", path, on=on, more=more) if path else "shrinking was cut short"
        yield from _labelled("not minimal", [way_on], cut=False)
    if path:
        yield from _labelled("replay", [command("replay", path, on=on, more=more)], cut=False)
    yield from _labelled("page", [f"schedcheck explain {complaint.invariant}"])


def command(verb: str, path: str, *, on: str = "", more: Sequence[str] = ()) -> str:
    """Return what to type to do something with a trace."""
    words = ["schedcheck", verb, path, *(["--on", on] if on else []), *more]
    return " ".join(map(shlex.quote, words))


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


# A replay.


def replay_lines(told: Replayed, name: str, *, paint: Paint = plain) -> Iterator[str]:
    """Yield one line about a replayed trace, or more where one would be too long."""
    styles = {Outcome.FAILED: BAD, Outcome.OTHER: BAD, Outcome.FIXED: GOOD, Outcome.HOLDS: GOOD}
    word = paint(f"{told.outcome.value:<7}", styles.get(told.outcome, WARN))
    name, what = clean(name), f"on {_target(told.target, told.version)}: {clean(told.reason)}"
    if 9 + len(name) + 2 + len(what) <= WIDTH:
        yield f"{word}  {name}  {what}"
        return
    yield f"{word}  {name}"
    for line in wrap(what, WIDTH - 9, break_on_hyphens=False):
        yield f"{'':<9}{line}"
