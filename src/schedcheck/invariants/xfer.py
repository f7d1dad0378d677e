"""XFER: transfers of KV between the engine and the outside."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.capability import Capability
from schedcheck.model.config import LoadFailurePolicy
from schedcheck.model.output import FinishReason
from schedcheck.model.snapshot import Snapshot, Status
from schedcheck.model.trace import Completed, Controlled, Event, Scheduled
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


def _load_begins(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return bool(ledger.load_facts)


@invariant(
    "XFER-002",
    "no second load of a request begins while one is open",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.ASYNC_LOADS},
    witness=_load_begins,
    witnessed_by="a load begins",
    evidence=("https://github.com/vllm-project/vllm/pull/51595",),
)
def one_load_at_a_time(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look at each load that begins: was another one of the same request open?"""
    for fact in ledger.load_facts:
        if fact.loading:
            yield Mismatch(
                kind="load-while-loading",
                subject=fact.load.name,
                expected="no load begins before the end of the last one is reported",
                found=f"a load of {fact.load.count} token(s) began",
            )


@invariant(
    "XFER-003",
    "a load asks for tokens that are held outside, and gives them blocks",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    witness=_load_begins,
    witnessed_by="a load begins",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/53314",
        "https://github.com/LMCache/LMCache/pull/2091",
    ),
)
def loads_what_is_held(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the range of each load with what is held outside, and with its blocks."""
    size = ledger.config.block_size
    for fact in ledger.load_facts:
        load, held = fact.load, fact.life.spec.remote_tokens
        end = load.start + load.count
        if load.start < 0 or load.count < 1 or end > held:
            yield Mismatch(
                kind="beyond-what-is-held",
                subject=load.name,
                expected=f"tokens among the first {held}, at least one",
                found=f"{load.count} token(s) from {load.start}",
            )
            continue
        needed = -(-end // size) - load.start // size
        for group in load.block_ids or ():
            if len(group) < needed:
                yield Mismatch(
                    kind="too-few-blocks",
                    subject=load.name,
                    expected=f"{needed} block(s) for {load.count} token(s)",
                    found=f"{len(group)}",
                )
                break


@invariant(
    "XFER-004",
    "what a request has loaded is not loaded again unless it was preempted",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    witness=_load_begins,
    witnessed_by="a load begins",
    evidence=("https://github.com/vllm-project/vllm/pull/18232",),
)
def loads_once(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look at each load that begins: had an earlier one ended well, and was nothing lost since?"""
    for fact in ledger.load_facts:
        if fact.has_loaded:
            yield Mismatch(
                kind="loaded-again",
                subject=fact.load.name,
                expected="what it has loaded is kept",
                found=f"{fact.load.count} token(s) are loaded once more",
            )


def _send_begins(event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    return bool(ledger.sends_now)


@invariant(
    "XFER-005",
    "the KV of a request is sent once, if it is asked for, and only when it has ended",
    severity=Severity.MAJOR,
    on=(Completed, Controlled),
    requires={Capability.DELAYED_FREE},
    witness=_send_begins,
    witnessed_by="a send begins",
    evidence=("https://github.com/vllm-project/vllm/issues/46240",),
)
def sent_once(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look at each send that begins."""
    for name in ledger.sends_now:
        life = ledger.lives[name]
        if life.is_live:
            kind, found = "sent-alive", "it is unfinished"
        elif not life.spec.send_kv:
            kind, found = "sent-unasked", "nobody asked for it"
        elif life.times_sent > 1:
            kind, found = "sent-twice", f"send number {life.times_sent} began"
        else:
            continue
        yield Mismatch(
            kind=kind, subject=name, expected="one send, begun when it has ended", found=found
        )


def _a_load_failed(event: Completed, _before: Snapshot, _ledger: Ledger) -> bool:
    return bool(event.result.loads_failed)


@invariant(
    "XFER-006",
    "a failed load ends its request under the policy that says so, and under no other",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires={Capability.TRANSFER_FAULTS, Capability.SHOWS_STATUS},
    witness=_a_load_failed,
    witnessed_by="a load has failed",
    evidence=("https://github.com/vllm-project/vllm/issues/49250",),
)
def failure_policy_holds(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare what became of each request whose load failed with the policy."""
    fails = ledger.config.load_failure_policy is LoadFailurePolicy.FAIL
    for name in event.result.loads_failed:
        life, view = ledger.lives[name], before.requests.get(name)
        waited = view is not None and view.status is Status.WAITING_FOR_REMOTE_KVS
        ran = view is not None and view.status is Status.RUNNING
        step = ledger.executed
        if step and step.preemptions.get(name, life.times_preempted) != life.times_preempted:
            continue  # it lost those blocks since, and begins anew
        if fails and (waited or ran) and life.is_live and life.load is None:
            yield Mismatch(
                kind="goes-on-after-failure",
                subject=name,
                expected="it ends as ERROR: that is the policy",
                found="it goes on",
            )
    for name in ledger.finished_now:
        by_error = ledger.lives[name].finished is FinishReason.ERROR
        if by_error and not fails and event.result.loads_failed:
            yield Mismatch(
                kind="ended-by-failure",
                subject=name,
                expected="what was not loaded is computed: that is the policy",
                found="it ended as ERROR",
            )
