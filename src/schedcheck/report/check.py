"""What a checked recording showed: verdicts in one line, then what could not be said, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from schedcheck.engine.events import InvariantResult
from schedcheck.model.verdict import Verdict
from schedcheck.report.summary import by_reason, verdict_words
from schedcheck.report.words import BAD, GOOD, WARN, WIDTH, Paint, clean, filled, plain


def checked_lines(
    results: Sequence[InvariantResult],
    *,
    name: str,
    actions: int,
    events: int,
    requests: int,
    paint: Paint = plain,
) -> Iterator[str]:
    """Yield the end of a check. ``name`` is what was checked."""
    verdicts = [result.verdict for result in results]
    style = BAD if Verdict.VIOLATED in verdicts else GOOD
    facts = [clean(name), *verdict_words(verdicts)]
    facts += [f"{actions:,} actions", f"{events:,} events", f"{requests:,} requests"]
    for number, line in enumerate(filled(facts, WIDTH - 2, between=" · ")):
        yield paint(line if number == 0 else f"  {line}", style)
    for verdict in (Verdict.UNKNOWN, Verdict.NOT_APPLICABLE):
        for reason, ids in by_reason(results, verdict):
            are = "is" if len(ids) == 1 else "are"
            word = verdict.value.lower().replace("_", " ")
            text = f"!  {', '.join(ids)} {are} {word}: {clean(reason)}"
            for line in wrap(text, WIDTH, subsequent_indent="   ", break_on_hyphens=False):
                yield paint(line, WARN)
