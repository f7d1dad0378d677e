"""A worker that was lost in the middle of a trace, as a finding: ENG-002."""

from __future__ import annotations

from typing import Final

from attrs import evolve, frozen

from schedcheck.engine.events import Complaint, Failure, StoryLine
from schedcheck.engine.story import words_for, words_for_config
from schedcheck.invariants.registry import get
from schedcheck.model.trace import Expectation, Trace
from schedcheck.model.verdict import Signature
from schedcheck.tracefile import encode

INVARIANT: Final = "ENG-002"


@frozen
class Loss:
    """How a worker was lost, and what it left behind."""

    how: str
    """``hung`` or ``died``."""
    detail: str
    """``no answer for 10 s``, ``exit code 3``, ``killed by SIGSEGV``."""
    trace: bytes
    """The trace in progress, empty when there was none."""
    log: str
    """The last lines that the engine printed."""

    def words(self) -> str:
        """Return what happened, in a few words."""
        return f"the engine's process {self.how} ({self.detail})"

    def words_outside_a_trace(self, *, has_started: bool) -> str:
        """Return what happened before, between or after the traces, in one line."""
        when = "outside any trace" if has_started else "while the target was loaded"
        said = " ".join(self.log.split())[-300:]
        return f"{self.words()} {when}" + (f"; it said: {said}" if said else "")

    def signature_in(self, trace: Trace) -> Signature:
        """Return the signature of being lost in a trace's last action."""
        return Signature(INVARIANT, f"{self.how}-in-{trace.actions[-1].do}")


def expecting_loss(trace: Trace, signature: Signature) -> Trace:
    """Return the trace, expected to lose its process at its last action."""
    expectation = Expectation(signature=signature, step=len(trace.actions))
    return evolve(trace, header=evolve(trace.header, expect=expectation))


def failure_of_loss(
    loss: Loss, trace: Trace, *, origin: str, actions_found: int, is_minimal: bool
) -> Failure:
    """Tell a trace in which the engine's process was lost."""
    invariant, last = get(INVARIANT), len(trace.actions)
    return Failure(
        complaint=Complaint(
            invariant=INVARIANT,
            kind=loss.signature_in(trace).kind,
            subject=trace.actions[-1].do,
            expected="the call returns",
            found=loss.detail,
            step=last,
        ),
        title=invariant.title,
        severity=invariant.severity,
        target=trace.header.target,
        version=trace.header.version,
        options=trace.header.options.words,
        origin=origin,
        trace=encode(expecting_loss(trace, loss.signature_in(trace))).decode(),
        story=tuple(
            StoryLine(
                number=number,
                action=words_for(action),
                note=loss.words() if number == last else "",
                is_violation=number == last,
            )
            for number, action in enumerate(trace.actions, 1)
        ),
        config=words_for_config(trace.header.config),
        evidence=invariant.evidence,
        traceback=loss.log,
        actions_found=actions_found,
        actions=last,
        is_minimal=is_minimal,
    )
