"""Making a failure presentable: everything a report needs, as plain data."""

from __future__ import annotations

from schedcheck.engine.events import Complaint, Failure, Stall
from schedcheck.engine.play import Playback
from schedcheck.engine.stall import stall_of
from schedcheck.engine.story import holdings, tell, words_for_config
from schedcheck.invariants.registry import get
from schedcheck.model.trace import Crashed, Trace
from schedcheck.model.verdict import Finding
from schedcheck.tracefile import encode


def complaint_of(finding: Finding) -> Complaint:
    """Return a finding as text."""
    return Complaint(
        invariant=finding.invariant,
        kind=finding.mismatch.kind,
        subject=finding.mismatch.subject,
        expected=finding.mismatch.expected,
        found=finding.mismatch.found,
        step=finding.step,
    )


def _stall(playback: Playback) -> Stall | None:
    """Return who waits for whom, if progress is among what is violated."""
    if not any(finding.invariant.startswith("PRG-") for finding in playback.findings):
        return None
    judge, events = playback.judge, playback.records[-1].events
    return stall_of(judge.ledger, capabilities=judge.capabilities, events=events)


def failure_of(
    trace: Trace,
    playback: Playback,
    finding: Finding,
    *,
    origin: str,
    actions_found: int,
    is_minimal: bool = False,
) -> Failure:
    """Tell a failing trace that was just played. ``finding`` is the one it is named after."""
    invariant = get(finding.invariant)
    crash = next(
        (event for event in playback.records[-1].events if isinstance(event, Crashed)), None
    )
    return Failure(
        complaint=complaint_of(finding),
        others=tuple(complaint_of(other) for other in playback.findings if other != finding),
        title=invariant.title,
        severity=invariant.severity,
        target=trace.header.target,
        version=trace.header.version,
        options=trace.header.options.words,
        origin=origin,
        trace=encode(trace.with_expectation(finding)).decode(),
        story=tell(playback.records),
        config=words_for_config(trace.header.config),
        holdings=holdings(playback.judge.ledger),
        stall=_stall(playback),
        evidence=invariant.evidence,
        known_before=tuple(map(str, sorted(playback.judge.known_seen))),
        traceback=crash.traceback if crash else "",
        actions_found=actions_found,
        actions=len(trace.actions),
        is_minimal=is_minimal,
    )
