"""CACHE: the prefix cache. What is shared is what was meant, and stays what it was."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.actions import ResetPrefixCache
from schedcheck.model.capability import Capability
from schedcheck.model.output import Rejected
from schedcheck.model.snapshot import Snapshot, Status
from schedcheck.model.trace import Completed, Controlled, Event, TransferEnded
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger

_NEEDS = {
    Capability.PREFIX_CACHING,
    Capability.SHOWS_BLOCK_TABLES,
    Capability.SHOWS_STARTS,
    Capability.SHOWS_ROLES,
}


def _problems(ledger: Ledger, *kinds: str) -> Iterator[Mismatch]:
    for problem in ledger.memory_problems:
        if problem.kind in kinds:
            yield Mismatch(
                kind=problem.kind,
                subject=problem.name,
                expected=problem.expected,
                found=problem.found,
            )


def _reads_a_hit(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    step = ledger.executed
    return step is not None and any(tokens for tokens, _ in step.hits.values())


@invariant(
    "CACHE-001",
    "a prefix hit is on KV that was computed or loaded for exactly that prefix",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires=_NEEDS,
    witness=_reads_a_hit,
    witnessed_by="a request that hit a prefix computes its first tokens",
    evidence=(
        "https://github.com/vllm-project/vllm/issues/44701",
        "https://github.com/vllm-project/vllm/issues/3264",
        "https://github.com/vllm-project/vllm/pull/37164",
    ),
)
def hits_what_was_written(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report blocks that were hit and hold something else when they are read."""
    kinds = ("hit-unwritten", "hit-foreign", "hit-failed-load", "hit-refused-draft")
    yield from _problems(ledger, *kinds)


def _hit_after_reset(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    step = ledger.executed
    return step is not None and any(tokens and resets for tokens, resets in step.hits.values())


@invariant(
    "CACHE-002",
    "after the prefix cache was emptied nothing is hit that was written before",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires=_NEEDS | {Capability.RESET_PREFIX_CACHE},
    witness=_hit_after_reset,
    witnessed_by="a prefix is hit after the cache was emptied",
    evidence=(
        "https://github.com/vllm-project/vllm/issues/9744",
        "https://github.com/InternLM/lmdeploy/issues/4917",
    ),
)
def reset_forgets(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report blocks that were hit although their KV is older than the last reset."""
    yield from _problems(ledger, "hit-stale")


def _writes_beside_sharers(_event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    tables = [ledger.snapshot.blocks_of(name) for name in ledger.snapshot.requests]
    shared = sum(map(len, tables)) > len(frozenset().union(*tables))
    return shared and ledger.executed is not None and bool(ledger.executed.output.rows)


@invariant(
    "CACHE-003",
    "a block that several requests hold is never overwritten with something else",
    severity=Severity.CRITICAL,
    on=(Completed, TransferEnded),
    requires=_NEEDS,
    witness=_writes_beside_sharers,
    witnessed_by="a step writes KV while two requests share a block",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/37164",
        "https://github.com/vllm-project/vllm/issues/49250",
    ),
)
def shared_stays_as_it_is(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report writes that change KV in a block which another request still holds."""
    yield from _problems(ledger, "overwrites-shared")


def _tells(event: Completed, _before: Snapshot, _ledger: Ledger) -> bool:
    return any(sum(counts) for counts in event.output.cached_tokens.values())


@invariant(
    "CACHE-004",
    "the counts of hit and loaded tokens told to a client are those of its first admission",
    severity=Severity.MINOR,
    on=(Completed,),
    requires={Capability.SHOWS_CACHED_TOKENS},
    witness=_tells,
    witnessed_by="a client is told of tokens that were hit or loaded",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/36752",
        "https://github.com/LMCache/LMCache/issues/2912",
    ),
)
def counts_make_sense(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare what a client is told with where its request was first scheduled from."""
    for name, (hit, loaded) in event.output.cached_tokens.items():
        life = ledger.lives[name]
        told_with = len(event.output.delivered.get(name, ()))
        known = len(life.prompt) + len(life.delivered) - told_with
        first = life.first_start
        if hit >= 0 and loaded >= 0 and hit + loaded in life.load_ends:
            continue
        if first is not None and hit >= 0 and loaded >= 0 and hit + loaded != first:
            yield Mismatch(
                kind="wrong-counts",
                subject=name,
                expected=f"{first} together: with so many computed it was first scheduled",
                found=f"{hit} hit, {loaded} loaded",
            )
        elif hit < 0 or loaded < 0 or hit + loaded >= known:
            yield Mismatch(
                kind="impossible-counts",
                subject=name,
                expected=f"0 or more of each, together fewer than its {known} tokens",
                found=f"{hit} hit, {loaded} loaded",
            )


def _resets(event: Controlled, _before: Snapshot, _ledger: Ledger) -> bool:
    return isinstance(event.action, ResetPrefixCache)


@invariant(
    "CACHE-005",
    "a forced reset leaves nothing running, and a reset is refused only while blocks are in use",
    severity=Severity.MAJOR,
    on=(Controlled,),
    requires={Capability.RESET_PREFIX_CACHE, Capability.SHOWS_STATUS},
    witness=_resets,
    witnessed_by="the prefix cache is to be emptied",
    evidence=("https://github.com/vllm-project/vllm/pull/46066",),
)
def resets_do_what_they_say(
    event: Controlled, before: Snapshot, ledger: Ledger
) -> Iterator[Mismatch]:
    """Look at the scheduler after a reset, done or refused."""
    if not isinstance(event.action, ResetPrefixCache):
        return
    running = [
        name for name, view in event.snapshot.requests.items() if view.status is Status.RUNNING
    ]
    preempted = any(new is Status.PREEMPTED for _, _, new in ledger.changes)
    was_done = preempted or not isinstance(event.answer, Rejected)
    if event.action.running and was_done and running:
        yield Mismatch(
            kind="still-running",
            subject=" ".join(running),
            expected="whatever ran is preempted by a forced reset",
            found="it runs on",
        )
    free, total = event.snapshot.blocks_free, event.snapshot.blocks_total
    is_open = bool(ledger.in_flight) or any(
        life.load or life.send for life in ledger.lives.values()
    )
    if isinstance(event.answer, Rejected) and free == total and total and not is_open:
        yield Mismatch(
            kind="refused-though-free",
            subject="the prefix cache",
            expected="it is emptied: no block is in use",
            found=f"refused: {event.answer.reason}",
        )
