"""SCH: budgets, and the shape of what a step hands to the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.capability import Capability
from schedcheck.model.snapshot import Snapshot, Status
from schedcheck.model.trace import Completed, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger


def _two_rows(event: Scheduled, _before: Snapshot, _ledger: Ledger) -> bool:
    return len(event.output.rows) > 1


@invariant(
    "SCH-001",
    "a step names each request at most once, with at least one token to compute",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    witness=_two_rows,
    witnessed_by="a step schedules two requests",
    evidence=("https://github.com/vllm-project/vllm/pull/28558",),
)
def one_row_each(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the rows of each request."""
    for name, times in Counter(row.name for row in event.output.rows).items():
        if times > 1:
            yield Mismatch(
                kind="scheduled-twice",
                subject=name,
                expected="one row in this step",
                found=f"{times} rows",
            )
    for row in event.output.rows:
        if row.count < 1 or (row.start is not None and row.start < 0):
            yield Mismatch(
                kind="no-tokens",
                subject=row.name,
                expected="at least one token from a position of 0 or more",
                found=f"{row.count} token(s) from position {row.start}",
            )


def _budget_spent(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    total = sum(row.count for row in event.output.rows)
    return total >= ledger.config.max_num_batched_tokens


@invariant(
    "SCH-002",
    "a step computes no more tokens than max_num_batched_tokens",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    witness=_budget_spent,
    witnessed_by="a step spends the whole token budget",
)
def token_budget(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Add up the tokens of all rows."""
    total = sum(row.count for row in event.output.rows)
    if total > ledger.config.max_num_batched_tokens:
        yield Mismatch(
            kind="over-token-budget",
            subject=f"step {event.output.step_id}",
            expected=f"at most {ledger.config.max_num_batched_tokens} tokens",
            found=f"{total} tokens",
        )


def _house_full(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return _running(event) >= ledger.config.max_num_seqs


def _running(event: Scheduled) -> int:
    return max(len(event.output.rows), len(event.snapshot.queues.get("running", ())))


@invariant(
    "SCH-003",
    "no more requests run at once than max_num_seqs",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    witness=_house_full,
    witnessed_by="as many requests run as may",
)
def running_limit(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the rows of the step and the running queue."""
    if _running(event) > ledger.config.max_num_seqs:
        yield Mismatch(
            kind="over-running-limit",
            subject=f"step {event.output.step_id}",
            expected=f"at most {ledger.config.max_num_seqs} running requests",
            found=f"{_running(event)}",
        )


def _computes(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    return ledger.executed is not None and bool(ledger.executed.output.rows)


@invariant(
    "SCH-004",
    "the workers are only asked to compute tokens they know, of requests they know",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires={Capability.SHOWS_STARTS},
    witness=_computes,
    witnessed_by="a step computes something",
    evidence=("https://github.com/vllm-project/vllm/issues/45138",),
)
def workers_can_do_it(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report what the simulated worker found impossible when it executed the step."""
    for problem in ledger.worker_problems:
        if problem.kind != "table-too-short":
            yield Mismatch(
                kind=problem.kind,
                subject=problem.name,
                expected=problem.expected,
                found=problem.found,
            )


def _preempts(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return any(new is Status.PREEMPTED for _, _, new in ledger.changes)


@invariant(
    "SCH-005",
    "a request preempted while a step is planned has no tokens in that step",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.SHOWS_STATUS},
    witness=_preempts,
    witnessed_by="a request is preempted while a step is planned",
    evidence=(
        "https://github.com/vllm-project/vllm/issues/21594",
        "https://github.com/vllm-project/vllm/issues/23347",
    ),
)
def preempted_not_scheduled(
    event: Scheduled, before: Snapshot, ledger: Ledger
) -> Iterator[Mismatch]:
    """Look at the status that each row's request has once the step is planned."""
    for row in event.output.rows:
        view = event.snapshot.requests.get(row.name)
        if view is not None and view.status is Status.PREEMPTED:
            yield Mismatch(
                kind="scheduled-but-preempted",
                subject=row.name,
                expected="its row is taken out of the step when it is preempted",
                found=f"{row.count} token(s) scheduled, though its blocks are given away",
            )
