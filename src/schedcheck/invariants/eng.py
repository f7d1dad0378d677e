"""ENG: faults of an engine as such."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import Completed, Crashed, Event, Hung, Malformed
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger


def _returned(event: Event, _before: Snapshot, _ledger: Ledger) -> bool:
    return isinstance(event, Completed)


@invariant(
    "ENG-001",
    "the engine does not raise",
    severity=Severity.CRITICAL,
    on=(Crashed, Completed),
    witness=_returned,
    witnessed_by="a step was executed and its result taken",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/29764",
        "https://github.com/vllm-project/vllm/issues/23347",
    ),
)
def does_not_raise(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report an exception that came out of the engine."""
    if isinstance(event, Crashed) and event.piece:
        yield Mismatch(
            kind=f"{event.error}-in-{event.function}",
            subject=event.call,
            expected=f"the {event.piece}'s {event.function} returns",
            found=f"the {event.piece}, not the engine, raises {event.error}: {event.message}",
        )
    elif isinstance(event, Crashed):
        yield Mismatch(
            kind=f"{event.error}-in-{event.function}",
            subject=event.call,
            expected="the call returns",
            found=f"{event.error}: {event.message}" if event.message else event.error,
        )


@invariant(
    "ENG-002",
    "every call into the engine returns",
    severity=Severity.CRITICAL,
    on=(Hung, Completed),
    witness=_returned,
    witnessed_by="a step was executed and its result taken",
)
def returns(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report a call that did not return, or in which the engine's process ended."""
    if isinstance(event, Hung):
        yield Mismatch(
            kind=f"{event.how}-in-{event.call}",
            subject=event.call,
            expected="the call returns",
            found=event.detail,
        )


@invariant(
    "ENG-003",
    "the engine answers within the protocol",
    severity=Severity.CRITICAL,
    on=(Malformed, Completed),
    witness=_returned,
    witnessed_by="a step was executed and its result taken",
)
def answers_sensibly(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report an answer that is not of the protocol's form."""
    if isinstance(event, Malformed) and event.piece:
        yield Mismatch(
            kind=f"{event.piece}-{event.clause}",
            subject=event.call,
            expected=f"the {event.piece} keeps to its contract with the engine",
            found=event.problem,
        )
    elif isinstance(event, Malformed):
        yield Mismatch(
            kind=f"malformed-{event.call}",
            subject=event.call,
            expected="an answer of the form that the protocol says",
            found=event.problem,
        )
