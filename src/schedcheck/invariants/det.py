"""DET: the same actions lead to the same behaviour, however often one looks."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import Repeated
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger


def _was_repeated(_event: Repeated, _before: Snapshot, ledger: Ledger) -> bool:
    return bool(ledger.lives)


@invariant(
    "DET-001",
    "the same actions lead to the same behaviour when they are played again",
    severity=Severity.MAJOR,
    on=(Repeated,),
    witness=_was_repeated,
    witnessed_by="a trace is played twice",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/12071",
        "https://github.com/vllm-project/vllm/pull/27211",
    ),
)
def repeats(event: Repeated, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report the first event that came out otherwise the second time."""
    if event.difference:
        yield Mismatch(
            kind="played-differently",
            subject="the trace",
            expected="a second play of the same actions shows the same",
            found=event.difference,
        )


@invariant(
    "DET-002",
    "looking at a scheduler changes nothing",
    severity=Severity.MAJOR,
    on=(Repeated,),
    witness=_was_repeated,
    witnessed_by="a trace is played twice",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/44431",
        "https://github.com/vllm-project/vllm/pull/48668",
    ),
)
def looks_are_harmless(event: Repeated, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report the first state that showed itself differently when it was looked at twice."""
    if event.impurity:
        yield Mismatch(
            kind="changed-by-looking",
            subject="the snapshot",
            expected="two looks at one state show the same",
            found=event.impurity,
        )
