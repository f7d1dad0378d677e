"""PRG: progress. What is owed once nothing outside is open any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schedcheck.invariants.registry import invariant
from schedcheck.model.actions import IDLE_ROUNDS_MAX
from schedcheck.model.capability import Capability
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import Added, Completed, Controlled, Drained, Event, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life


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
            if life.awaits_chunk or _is_held_up(life.name, event.snapshot, ledger):
                continue
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


def _is_held_up(name: str, snapshot: Snapshot, ledger: Ledger) -> bool:
    """Return whether a pause keeps a request from being scheduled."""
    if ledger.paused is None:
        return False
    return not (ledger.paused.admission_only and snapshot.blocks_of(name))


GAINLESS_MAX: Final = 3
"""Preemptions of one request, none of them a gain to anybody, that are called a cascade."""


def _preempts_in_step(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return any(ledger.gainless.values())


@invariant(
    "PRG-003",
    "preemptions serve somebody: no request is preempted again and again while nobody gets further",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={Capability.SHOWS_STATUS, Capability.SHOWS_STARTS},
    witness=_preempts_in_step,
    witnessed_by="a step that is planned preempts a request",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/21809",
        "https://github.com/vllm-project/vllm/issues/49674",
    ),
)
def no_cascade(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count preemptions since any request last got further than it ever was."""
    for name, times in sorted(ledger.gainless.items()):
        if times > GAINLESS_MAX:
            yield Mismatch(
                kind="preempted-for-nothing",
                subject=name,
                expected="somebody computes a token that it never had when another gives way",
                found=f"preempted {times} times since anybody got further",
            )
            return


def _has_news(_event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    return any(_is_unannounced(life) for life in ledger.lives.values())


def _is_unannounced(life: Life) -> bool:
    return life.finished is not None and life.was_sent and not life.announced


@invariant(
    "PRG-004",
    "an engine does not fall asleep before the workers were told of every end",
    severity=Severity.MAJOR,
    on=(Completed, Controlled),
    requires={Capability.ANNOUNCES_FINISH},
    witness=_has_news,
    witnessed_by="a request that the workers know has ended, and they were not told yet",
    evidence=("https://github.com/vllm-project/vllm/pull/43433",),
)
def tells_before_it_sleeps(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare ``has_work`` with the ends that no step has announced."""
    if event.has_work:
        return
    for life in ledger.lives.values():
        if _is_unannounced(life):
            yield Mismatch(
                kind="asleep-with-news",
                subject=life.name,
                expected="one more step, which announces its end",
                found="the engine has no work, so the workers keep its state",
            )
            return
