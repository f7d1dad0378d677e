"""What a run says about known issues: they are told, and are no violations."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from schedcheck.engine.events import Ended
from schedcheck.report.words import WARN, WIDTH, Paint, clean, filled, plain

_LABEL = 13
"""Columns of the labels on the left."""


def known_lines(ended: Ended, *, paint: Paint = plain) -> Iterator[str]:
    """Yield each known issue that was seen, with reason and link, and what became of its traces."""
    known = ended.known
    for one in known.results:
        if not one.traces:
            continue
        head = [clean(one.signature), f"{one.traces:,} of {ended.traces:,} traces", clean(one.link)]
        for number, line in enumerate(filled(head, WIDTH - _LABEL, between=" · ")):
            yield paint(f"{'' if number else 'KNOWN':<{_LABEL}}{line}", WARN)
        for line in wrap(clean(one.reason), WIDTH - _LABEL, break_on_hyphens=False):
            yield f"{'':<{_LABEL}}{line}"
    if not known.traces:
        return
    share = 100 * known.traces_cut / max(1, ended.traces)
    yield (
        f"{'cut short':<{_LABEL}}{known.traces_cut:,} of {ended.traces:,} traces ({share:.1f} %) "
        f"by known faults, which {known.traces:,} showed"
    )
    dropped = [f"{clean(word)} {times:,}" for word, times in known.dropped.items()]
    for number, line in enumerate(filled(dropped, WIDTH - _LABEL)):
        yield f"{'' if number else 'led to':<{_LABEL}}{line}"
