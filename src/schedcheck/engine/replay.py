"""Replaying one trace: does it still show what it is expected to show?"""

from __future__ import annotations

from collections.abc import Sequence

from schedcheck.engine.events import Failure, Outcome, Replayed
from schedcheck.engine.executor import BlackBox
from schedcheck.engine.failures import failure_of
from schedcheck.engine.known import signatures_of
from schedcheck.engine.moments import moments_of, unseen_by
from schedcheck.engine.play import Playback, looking_past, play
from schedcheck.engine.scenes import scenes_of
from schedcheck.engine.story import holdings, tell
from schedcheck.invariants.registry import Invariant, every_invariant
from schedcheck.model.known import KnownIssue
from schedcheck.model.trace import Trace
from schedcheck.sut import Target, TargetError


def replay(
    target: Target,
    target_text: str,
    trace: Trace,
    *,
    invariants: Sequence[Invariant] | None = None,
    blackbox: BlackBox | None = None,
    known: Sequence[KnownIssue] = (),
    with_moments: bool = False,
    with_scenes: bool = False,
) -> Replayed:
    """Replay a trace strictly and say what became of its expectation.

    Known findings are looked past on the way to it. A trace that is expected to hold is to hold:
    then nothing is. ``with_moments`` tells everything that was to be seen as well, so that it can
    be compared, ``with_scenes`` each request after each action, so that it can be drawn.
    """
    expect = trace.header.expect
    expected = str(expect.signature) if expect else ""
    try:
        chosen = invariants or every_invariant()
        playback = (
            looking_past(
                signatures_of(known),
                expect.signature,
                lambda past: play(target, trace, chosen, blackbox=blackbox, known=past),
            )
            if expect is not None
            else play(target, trace, chosen, blackbox=blackbox)
        )
    except TargetError as error:
        return Replayed(
            outcome=Outcome.ERROR,
            target=target_text,
            version=target.version,
            reason=str(error),
            expected=expected,
            story=(),
        )
    outcome, reason = _outcome(trace, playback)
    return Replayed(
        outcome=outcome,
        target=target_text,
        version=target.version,
        reason=reason,
        expected=expected,
        story=tell(playback.records),
        holdings=holdings(playback.judge.ledger),
        failure=_failure(trace, playback),
        moments=moments_of(playback.records) if with_moments else (),
        unseen=unseen_by(target.capabilities) if with_moments else (),
        scenes=scenes_of(playback.records) if with_scenes else None,
    )


def _outcome(trace: Trace, playback: Playback) -> tuple[Outcome, str]:
    expect = trace.header.expect
    signatures = {finding.signature for finding in playback.findings}
    if expect is not None and expect.signature in signatures:
        return Outcome.FAILED, f"{expect.signature} at action {len(playback.records)}"
    if signatures:
        shown = ", ".join(map(str, sorted(signatures)))
        return Outcome.OTHER, f"{shown} at action {len(playback.records)}"
    if playback.drift:
        return Outcome.DRIFTED, playback.drift
    if playback.judge.is_cut_short:
        seen = ", ".join(map(str, sorted(playback.judge.known_seen)))
        number = len(playback.records)
        return Outcome.DRIFTED, f"what is known, {seen}, cut it short at action {number}"
    witness = expect.signature.invariant if expect else trace.header.witness
    if witness and witness not in playback.judge.witnessed:
        return Outcome.DRIFTED, f"every action was eligible, but nothing put {witness} to the test"
    if expect is not None:
        seen = ", ".join(map(str, sorted(playback.judge.known_seen)))
        but = f"; what is known did: {seen}" if seen else ""
        return (
            Outcome.FIXED,
            f"every action was eligible and {expect.signature} did not show{but}",
        )
    return Outcome.HOLDS, "every action was eligible and nothing was violated"


def _failure(trace: Trace, playback: Playback) -> Failure | None:
    findings = playback.findings
    if not findings:
        return None
    expect = trace.header.expect
    named = next(
        (one for one in findings if expect and one.signature == expect.signature),
        min(findings, key=lambda one: one.signature),
    )
    return failure_of(trace, playback, named, origin="", actions_found=len(trace.actions))
