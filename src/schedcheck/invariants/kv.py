"""KV: blocks, who owns them and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.capability import Capability
from schedcheck.model.output import Role, Row
from schedcheck.model.snapshot import RequestView, Snapshot
from schedcheck.model.trace import Added, Completed, Controlled, Drained, Event, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger

_CALLS = (Added, Scheduled, Completed, Controlled)


def _ended_well(event: Drained, _before: Snapshot, ledger: Ledger) -> bool:
    return not event.unfinished and any(life.was_sent for life in ledger.lives.values())


@invariant(
    "KV-001",
    "when everything has finished, every block is free again and no request is left behind",
    severity=Severity.MAJOR,
    on=(Drained,),
    witness=_ended_well,
    witnessed_by="requests that ran have all finished in the quiet tail",
    evidence=("https://github.com/vllm-project/vllm/pull/43433",),
)
def blocks_come_back(event: Drained, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare free and total after the quiet tail."""
    if event.unfinished:
        return
    free, total = event.snapshot.blocks_free, event.snapshot.blocks_total
    if free is not None and total is not None and free != total:
        yield Mismatch(
            kind="blocks-not-returned",
            subject="the block pool",
            expected=f"{total} of {total} blocks free",
            found=f"{free} free after {event.rounds} quiet rounds",
        )
    if event.snapshot.requests:
        names = " ".join(sorted(event.snapshot.requests))
        yield Mismatch(
            kind="left-behind",
            subject=names,
            expected="no request is tracked",
            found=f"still tracked after {event.rounds} quiet rounds",
        )


def _transfer_open(_event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    return bool(ledger.open_loads() or ledger.open_sends())


@invariant(
    "KV-002",
    "the blocks of an open transfer are neither freed nor given to another request",
    severity=Severity.CRITICAL,
    on=_CALLS,
    requires={Capability.SHOWS_BLOCK_TABLES},
    witness=_transfer_open,
    witnessed_by="a load or a send is open",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/32255",
        "https://github.com/vllm-project/vllm/issues/46240",
    ),
)
def transfer_owns_blocks(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for the blocks of open loads and sends in the free list and in other tables."""
    for life in ledger.open_loads():
        assert life.load is not None
        blocks = frozenset(b for group in life.load.load.block_ids or () for b in group)
        yield from _given_away(blocks, life.name, "loading", event.snapshot, shared=True)
    for life in ledger.open_sends():
        assert life.send is not None
        yield from _given_away(life.send.blocks, life.name, "sending", event.snapshot, shared=False)
    for problem in ledger.memory_problems:
        if problem.kind == "write-into-transfer":
            yield Mismatch(
                kind=problem.kind,
                subject=problem.name,
                expected=problem.expected,
                found=problem.found,
            )


def _given_away(
    blocks: frozenset[int], owner: str, doing: str, snapshot: Snapshot, *, shared: bool
) -> Iterator[Mismatch]:
    """Yield a mismatch when blocks are free, or (``shared``) in another request's table."""
    free = sorted(blocks.intersection(snapshot.free_block_ids or ()))
    expected = f"the blocks of {owner} stay its own until its {doing} has ended"
    if free:
        yield Mismatch(
            kind=f"freed-while-{doing}",
            subject=owner,
            expected=expected,
            found=f"block(s) {_listed(free)} are free",
        )
        return
    if not shared:
        return
    for name in sorted(snapshot.requests):
        taken = sorted(blocks & snapshot.blocks_of(name))
        if name != owner and taken:
            yield Mismatch(
                kind=f"reused-while-{doing}",
                subject=owner,
                expected=expected,
                found=f"{name} holds block(s) {_listed(taken)}",
            )
            return


def _listed(blocks: list[int]) -> str:
    return " ".join(str(block) for block in blocks)


def _holds_blocks(event: Event, _before: Snapshot, _ledger: Ledger) -> bool:
    return any(view.block_ids for view in event.snapshot.requests.values())


@invariant(
    "KV-003",
    "a block is free once, and never free while a request holds it",
    severity=Severity.CRITICAL,
    on=_CALLS,
    requires={Capability.SHOWS_BLOCK_TABLES, Capability.SHOWS_FREE_BLOCKS},
    witness=_holds_blocks,
    witnessed_by="a request holds blocks",
    evidence=("https://github.com/vllm-project/vllm/pull/45357",),
)
def free_or_owned(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for repeated ids in the free list, and for ids that are both free and held."""
    free = event.snapshot.free_block_ids or ()
    distinct = frozenset(free)
    if len(distinct) != len(free):
        twice = sorted(block for block, times in Counter(free).items() if times > 1)
        yield Mismatch(
            kind="free-twice",
            subject=f"block {twice[0]}",
            expected="each block stands in the free list at most once",
            found=f"block(s) {_listed(twice)} stand there more than once",
        )
    for name in sorted(event.snapshot.requests):
        both = sorted(distinct & event.snapshot.blocks_of(name))
        if both:
            yield Mismatch(
                kind="free-and-held",
                subject=name,
                expected="the blocks that it holds are not free",
                found=f"block(s) {_listed(both)} are",
            )


def _holds_exclusively(event: Event, before: Snapshot, ledger: Ledger) -> bool:
    return not ledger.config.prefix_caching and _holds_blocks(event, before, ledger)


@invariant(
    "KV-006",
    "where blocks are exclusive and no prefix is cached, no block is held by two requests",
    severity=Severity.CRITICAL,
    on=_CALLS,
    requires={Capability.SHOWS_BLOCK_TABLES, Capability.EXCLUSIVE_BLOCKS},
    witness=_holds_exclusively,
    witnessed_by="a request holds blocks while no prefix is cached",
    evidence=("https://github.com/vllm-project/vllm/pull/32255",),
)
def one_owner(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for ids in two tables."""
    if ledger.config.prefix_caching:
        return
    owners: dict[int, str] = {}
    for name in sorted(event.snapshot.requests):
        for block in sorted(event.snapshot.blocks_of(name)):
            other = owners.setdefault(block, name)
            if other != name:
                yield Mismatch(
                    kind="two-owners",
                    subject=f"block {block}",
                    expected="one request holds it",
                    found=f"{other} and {name} hold it",
                )
                return


def _reads_back(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    step = ledger.executed
    return step is not None and any((row.start or 0) > 0 for row in step.output.rows)


@invariant(
    "KV-004",
    "whatever a step reads from KV memory was computed, hit or loaded for exactly that prefix",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires={Capability.SHOWS_BLOCK_TABLES, Capability.SHOWS_STARTS},
    witness=_reads_back,
    witnessed_by="a step goes on behind tokens computed or loaded before",
    evidence=("https://github.com/vllm-project/vllm/pull/32255",),
)
def reads_what_was_written(
    event: Completed, before: Snapshot, ledger: Ledger
) -> Iterator[Mismatch]:
    """Report what the shadow memory found when it executed the step."""
    for problem in ledger.memory_problems:
        if problem.kind.startswith("read-"):
            yield Mismatch(
                kind=problem.kind,
                subject=problem.name,
                expected=problem.expected,
                found=problem.found,
            )


def _computes(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    return ledger.executed is not None and bool(ledger.executed.output.rows)


@invariant(
    "KV-005",
    "a block table has room for every token that a step computes",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires={Capability.SHOWS_BLOCK_TABLES, Capability.SHOWS_STARTS},
    witness=_computes,
    witnessed_by="a step computes something",
    evidence=("https://github.com/vllm-project/vllm/issues/23347",),
)
def table_has_room(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report where the simulated worker ran out of table."""
    for problem in ledger.worker_problems:
        if problem.kind == "table-too-short":
            yield Mismatch(
                kind=problem.kind,
                subject=problem.name,
                expected=problem.expected,
                found=problem.found,
            )


def _is_settled(event: Event, ledger: Ledger) -> bool:
    """Whether no step, transfer or delayed free may hold blocks that no table shows."""
    return ledger.is_quiet() and all(
        name in ledger.lives and ledger.lives[name].is_live for name in event.snapshot.requests
    )


def _settled_with_blocks(event: Event, before: Snapshot, ledger: Ledger) -> bool:
    return _is_settled(event, ledger) and _holds_blocks(event, before, ledger)


@invariant(
    "KV-007",
    "when nothing is open, every block is free or in the table of a request",
    severity=Severity.MAJOR,
    on=_CALLS,
    requires={Capability.SHOWS_BLOCK_TABLES},
    witness=_settled_with_blocks,
    witnessed_by="a request holds blocks while no step, transfer or pause is open",
    evidence=("https://github.com/xLLM-AI/xllm/issues/828",),
)
def none_is_lost(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the free blocks and the distinct ones in tables."""
    snapshot = event.snapshot
    if snapshot.blocks_free is None or snapshot.blocks_total is None:
        return
    if not _is_settled(event, ledger):
        return
    held = {block for name in snapshot.requests for block in snapshot.blocks_of(name)}
    if snapshot.blocks_free + len(held) < snapshot.blocks_total:
        yield Mismatch(
            kind="blocks-lost",
            subject="the block pool",
            expected=f"{snapshot.blocks_total} blocks, free or held",
            found=f"{snapshot.blocks_free} free and {len(held)} held",
        )


@invariant(
    "KV-008",
    "a block has as many references as tables that hold it, and never fewer",
    severity=Severity.CRITICAL,
    on=_CALLS,
    requires={Capability.SHOWS_BLOCK_TABLES, Capability.SHOWS_REF_COUNTS},
    witness=_holds_blocks,
    witnessed_by="a request holds blocks",
    evidence=(
        "https://github.com/vllm-project/vllm/issues/42571",
        "https://github.com/LMCache/LMCache/issues/1365",
    ),
)
def references_add_up(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the references to each block with the tables it stands in."""
    refs = event.snapshot.block_refs
    if refs is None:
        return
    tables = Counter(
        block for name in event.snapshot.requests for block in event.snapshot.blocks_of(name)
    )
    settled = _is_settled(event, ledger)
    for block in sorted({*refs, *tables}):
        counted = refs.get(block, 0)
        if counted < tables[block] or counted < 0:
            kind, expected = "too-few-references", f"at least {tables[block]} reference(s)"
        elif settled and counted > tables[block]:
            kind, expected = "too-many-references", f"{tables[block]} reference(s): nothing is open"
        else:
            continue
        yield Mismatch(
            kind=kind, subject=f"block {block}", expected=expected, found=f"{counted} counted"
        )
        return


def _has_computed(event: Event, _before: Snapshot, _ledger: Ledger) -> bool:
    return any(view.block_ids and view.num_computed_tokens for view in _live_views(event))


def _live_views(event: Event) -> list[RequestView]:
    views = event.snapshot.requests.values()
    return [view for view in views if view.status is None or not view.status.is_finished]


@invariant(
    "KV-009",
    "a request holds blocks for every computed token that its next token looks at",
    severity=Severity.CRITICAL,
    on=_CALLS,
    requires={Capability.SHOWS_BLOCK_TABLES, Capability.SHOWS_STATUS},
    witness=_has_computed,
    witnessed_by="a request has computed tokens and holds blocks",
    evidence=("https://github.com/vllm-project/vllm/pull/47728",),
)
def holds_what_it_looks_at(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the blocks between the window's first token and the last one computed."""
    config = ledger.config
    for name in sorted(event.snapshot.requests):
        view = event.snapshot.requests[name]
        computed = view.num_computed_tokens
        finished = view.status is not None and view.status.is_finished
        if finished or view.block_ids is None or not computed or computed < 0:
            continue
        behind = config.first_attended(computed) // config.block_size
        needed = config.blocks_for(computed) - behind
        for group in view.block_ids:
            if len(group) < needed:
                yield Mismatch(
                    kind="computed-without-blocks",
                    subject=name,
                    expected=f"at least {needed} block(s) for tokens up to {computed - 1}",
                    found=f"{len(group)} held",
                )
                break


def _looks_through_a_window(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    window = ledger.config.sliding_window
    return window > 0 and any((row.start or 0) > window for row in event.output.rows)


@invariant(
    "KV-010",
    "blocks that lie wholly behind the sliding window are given back when a request is scheduled",
    severity=Severity.MINOR,
    on=(Scheduled,),
    requires={
        Capability.SLIDING_WINDOW,
        Capability.SHOWS_BLOCK_TABLES,
        Capability.SHOWS_STARTS,
        Capability.SHOWS_ROLES,
    },
    witness=_looks_through_a_window,
    witnessed_by="a request is scheduled beyond the length of the window",
    evidence=("https://github.com/vllm-project/vllm/pull/34568",),
)
def window_moves(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the blocks of each running row: those of its window and of what it computes."""
    config = ledger.config
    if not config.sliding_window or config.num_speculative_tokens:
        return  # how much room is kept for drafts is the engine's affair
    for fact in ledger.facts:
        row, view = fact.row, event.snapshot.requests.get(fact.row.name)
        if row.role is not Role.RUNNING or view is None or row.start is None:
            continue
        # What a load that failed had room for, it keeps.
        life = fact.life
        end = max(row.start + row.count, life.computed_max, life.load_end_max)
        most = config.blocks_for(end)
        most -= config.first_attended(_oldest_start(row, ledger)) // config.block_size
        for group in view.block_ids or ():
            if len(group) > most:
                yield Mismatch(
                    kind="behind-the-window",
                    subject=row.name,
                    expected=f"at most {most} block(s): the window, and what the step computes",
                    found=f"{len(group)} held",
                )
                break


def _oldest_start(row: Row, ledger: Ledger) -> int:
    """Return where the oldest step in flight starts for a row's request, this one included."""
    starts = [
        one.start
        for step in ledger.in_flight
        for one in step.output.rows
        if one.name == row.name and one.start is not None
    ]
    return min(starts, default=row.start or 0)
