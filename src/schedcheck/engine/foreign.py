"""Replaying a recording: how far it goes as it was recorded, and which part of it is enough."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from schedcheck.engine.campaign import Start
from schedcheck.engine.events import Compared, Progress
from schedcheck.engine.executor import Executor
from schedcheck.engine.jobs import Emit
from schedcheck.engine.moves import why_not
from schedcheck.engine.play import check_config, play_actions
from schedcheck.invariants.registry import Invariant
from schedcheck.judge import Judge
from schedcheck.model.trace import AnyEvent, Scheduled, Trace
from schedcheck.model.verdict import Signature
from schedcheck.recording.foreign import shape_of
from schedcheck.sut import Target, TargetError


def begin_with(
    target: Target,
    trace: Trace,
    shorter: Sequence[Trace],
    shapes: Sequence[str],
    invariant: Invariant,
    *,
    emit: Emit,
) -> Start:
    """Return the shortest known part of a recording that shows its signature when replayed.

    Emits what became of the replay of all of it. Raises TargetError, which says where the replay
    left the recording, if no part shows the signature.
    """
    check_config(target, trace.header.config)
    compared = compare(target, trace, shapes, invariant)
    emit(compared)
    assert trace.header.expect is not None
    signature, number = trace.header.expect.signature, len(trace.actions)
    tried = [*sorted(shorter, key=lambda one: len(one.actions)), trace]
    for candidate in tried:
        emit(Progress(doing=f"looking for {signature}", traces=1, actions=len(candidate.actions)))
        if _shows(target, candidate, invariant, signature):
            return Start(candidate, f"recording · {number:,} actions")
    raise TargetError(f"the replay does not show {signature}: {words_for(compared)}")


def _shows(target: Target, trace: Trace, invariant: Invariant, signature: Signature) -> bool:
    header = evolve(trace.header, expect=None)
    playback = play_actions(target, header, trace.actions, (invariant,), lenient=True)
    return any(finding.signature == signature for finding in playback.findings)


def compare(target: Target, trace: Trace, shapes: Sequence[str], invariant: Invariant) -> Compared:
    """Replay a recording as far as it goes, and say where it plans another step."""
    replayed: list[str] = []

    def watch(event: AnyEvent) -> None:
        if isinstance(event, Scheduled):
            replayed.append(shape_of(event))

    judge = Judge(trace.header.config, target.capabilities, (invariant,))
    executor, skipped = Executor(target.open(trace.header.config), judge, watch), ""
    try:
        for number, action in enumerate(trace.actions, 1):
            reason = why_not(action, judge.ledger, target.capabilities)
            if reason is not None:
                skipped = skipped or f"action {number} ({action.do}): {reason}"
            elif executor.apply(action).findings:
                break
            if list(shapes[: len(replayed)][-1:]) != replayed[-1:]:
                break  # it planned another step, or one too many
    finally:
        executor.close()
    same = next(
        (at for at, (one, other) in enumerate(zip(shapes, replayed, strict=False)) if one != other),
        min(len(shapes), len(replayed)),
    )
    return Compared(
        steps=len(shapes),
        same=same,
        recorded=shapes[same] if same < len(shapes) else "",
        replayed=replayed[same] if same < len(replayed) else "",
        skipped=skipped,
    )


def words_for(compared: Compared) -> str:
    """Return in words how a replay compares with its recording."""
    if compared.same == compared.steps:
        words = f"all {compared.steps:,} steps were replayed as they were recorded"
    else:
        ours, theirs = compared.replayed.split(), compared.recorded.split()
        words = (
            f"step {compared.same + 1:,} of {compared.steps:,} is another one: recorded "
            f"{_shown(theirs, ours)}, replayed {_shown(ours, theirs)}"
        )
    return f"{words}; not possible: {compared.skipped}" if compared.skipped else words


def _shown(rows: list[str], others: list[str]) -> str:
    """Return the rows that only one of two steps has; all of them if only their order differs."""
    text = " ".join([row for row in rows if row not in others] or rows) or "nothing"
    return text if len(text) <= 120 else f"{text[:119]}…"
