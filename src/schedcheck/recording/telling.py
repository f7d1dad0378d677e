"""Telling of a violation that was seen while it happened: in the log, with the last steps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from schedcheck.model.trace import Completed, Scheduled, StepRecord
from schedcheck.model.verdict import Finding, Signature
from schedcheck.recording.checking import Checker

LOG: Final = logging.getLogger("schedcheck.recording")
_SIGNATURES_MAX: Final = 20


def tell_of(checker: Checker, findings: Iterable[Finding], told: set[Signature]) -> None:
    """Log findings with the last steps, each signature once."""
    for finding in findings:
        if finding.signature in told or len(told) >= _SIGNATURES_MAX:
            continue
        told.add(finding.signature)
        mismatch = finding.mismatch
        lines = [f"  {line}" for record in checker.last for line in _lines(record)]
        LOG.error(
            "schedcheck: %s at action %d, about %s: expected %s; found %s; the last steps:\n%s",
            *(finding.signature, finding.step, mismatch.subject),
            *(mismatch.expected, mismatch.found, "\n".join(lines)),
        )


def _lines(record: StepRecord) -> Iterator[str]:
    words = [record.action.do, str(getattr(record.action, "request", ""))]
    for event in record.events:
        if isinstance(event, Scheduled):
            words += [
                f"{row.name}:{row.role.value.lower()}+{row.count}" for row in event.output.rows
            ]
            words += [f"{name}:preempted" for name in event.output.preempted or ()]
        elif isinstance(event, Completed):
            words += [f"{name}:{why.value.lower()}" for name, why in event.output.finished.items()]
            words += [f"{name}:loaded" for name in event.result.loads_finished]
    text = " ".join(filter(None, words))
    yield f"{record.number:>6}  {text if len(text) <= 400 else f'{text[:399]}…'}"
