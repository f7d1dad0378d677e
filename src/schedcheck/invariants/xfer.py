"""XFER: transfers of KV between the engine and the outside."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.capability import Capability
from schedcheck.model.snapshot import Snapshot, Status
from schedcheck.model.trace import Completed, Event, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger


def _load_open(_event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    return any(life.load is not None and life.is_live for life in ledger.lives.values())


@invariant(
    "XFER-001",
    "a request that loads KV waits until the end of its own load is reported",
    severity=Severity.CRITICAL,
    on=(Scheduled, Completed),
    requires={Capability.ASYNC_LOADS},
    witness=_load_open,
    witnessed_by="an asynchronous load is open",
    evidence=("https://github.com/vllm-project/vllm/pull/32255",),
)
def waits_for_its_load(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for rows of requests that load, and for requests that leave the state of loading."""
    for fact in ledger.facts:
        if fact.loading and not fact.finished:
            yield Mismatch(
                kind="scheduled-while-loading",
                subject=fact.row.name,
                expected="nothing is computed for it before its load is reported as ended",
                found=f"{fact.row.count} token(s) scheduled",
            )
    for name, old, new in ledger.changes:
        life = ledger.lives[name]
        left = old is Status.WAITING_FOR_REMOTE_KVS and new is not None and not new.is_finished
        if left and life.load is not None:
            yield Mismatch(
                kind="left-loading-early",
                subject=name,
                expected="it stays WAITING_FOR_REMOTE_KVS until its own load is reported",
                found=f"it became {new}",
            )
