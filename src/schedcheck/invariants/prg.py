"""PRG: progress. What is owed once nothing outside is open any more."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.actions import IDLE_ROUNDS_MAX
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import Added, Completed, Controlled, Drained, Event, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger


def _had_work(_event: Drained, _before: Snapshot, ledger: Ledger) -> bool:
    return any(not life.rejected for life in ledger.lives.values())


@invariant(
    "PRG-001",
    "in the quiet tail every request finishes",
    severity=Severity.CRITICAL,
    on=(Drained,),
    witness=_had_work,
    witnessed_by="the quiet tail begins after requests were added",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/44560",
        "https://github.com/vllm-project/vllm/pull/57841",
    ),
)
def everything_finishes(event: Drained, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report the requests that the quiet tail left unfinished."""
    if not event.unfinished:
        return
    stalled = event.idle_rounds >= IDLE_ROUNDS_MAX
    yield Mismatch(
        kind="stalled" if stalled else "not-finished-in-time",
        subject=" ".join(event.unfinished),
        expected="each finishes once transfers end and nothing new arrives",
        found=f"{event.idle_rounds} quiet rounds scheduled nothing"
        if stalled
        else f"unfinished after {event.rounds} quiet rounds",
    )


def _outstanding(_event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    return any(life.send is not None for life in ledger.lives.values())


@invariant(
    "PRG-002",
    "an engine does not fall asleep while a request is unfinished or a free is outstanding",
    severity=Severity.MAJOR,
    on=(Added, Scheduled, Completed, Controlled),
    witness=_outstanding,
    witnessed_by="a request that ended has its KV sent",
    evidence=("https://github.com/vllm-project/vllm/pull/43433",),
)
def stays_awake(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare ``has_work`` with what the Ledger knows to be outstanding."""
    if event.has_work:
        return
    for life in ledger.lives.values():
        if life.is_live:
            kind, what = "asleep-with-unfinished", "it is unfinished"
        elif life.send is not None:
            kind, what = "asleep-with-send", "its blocks wait for the end of a send"
        elif life.load is not None and life.name in event.snapshot.requests:
            kind, what = "asleep-with-load", "its blocks wait for the end of a load"
        else:
            continue
        yield Mismatch(
            kind=kind,
            subject=life.name,
            expected="the engine goes on stepping",
            found=f"it has no work, though {what}",
        )
        return
