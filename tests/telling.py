"""Hand-made events for tests of what people see, where no scheduler is at hand."""

from __future__ import annotations

from attrs import evolve

from schedcheck.engine.events import (
    Complaint,
    Ended,
    Failure,
    InvariantResult,
    Lack,
    Link,
    Outcome,
    Replayed,
    Seen,
    Stall,
    StalledRequest,
    StoryLine,
)
from schedcheck.model.verdict import Severity, Verdict

HOSTILE = "\x1b[2J[bold red]x[/] \u202egnp\r\n\x00"
"""What a stranger may call something: it clears a screen, colours, turns round, breaks a line."""


def line(number: int, action: str, queues: str = " | | ", free: int | None = 7, **more: object):
    """Return a line of a story; ``queues`` is waiting | loading | running."""
    waiting, loading, running = (tuple(part.split()) for part in queues.split("|"))
    return StoryLine(
        number=number,
        action=action,
        waiting=waiting,
        loading=loading,
        running=running,
        blocks_free=free,
        blocks_total=7,
        **more,
    )


STORY = (
    line(1, "add r0 prompt=5 max=2 remote=4", "r0 | | "),
    line(2, "step", " | r0 | ", 3, note="r0 loads 4"),
    line(3, "preempt r0", "r0 | | "),
    line(4, "schedule", " | | r0", 3, note="r0 new +1", is_violation=True),
)

COMPLAINT = Complaint(
    invariant="REQ-001",
    kind="new-after-preemption",
    subject="r0",
    expected="it comes back in scheduled_cached_reqs, as resumed",
    found="sent in scheduled_new_reqs (PREEMPTED -> WAITING_FOR_REMOTE_KVS -> new)",
    step=4,
)

TRACE = '{"format":"1.0","target":"reference"}\n{"do":"step"}\n'

FAILURE = Failure(
    complaint=COMPLAINT,
    title="a preempted request comes back as resumed, never as new",
    severity=Severity.CRITICAL,
    target="vllm",
    version="0.13.0",
    origin="profile quick · seed 0 · trace 15",
    trace=TRACE,
    story=STORY,
    config="7 blocks of 1 · budget 2 · max_num_seqs 2",
    evidence=("https://github.com/vllm-project/vllm/pull/31583",),
    actions_found=46,
    actions=4,
    is_minimal=True,
)

STALL = Stall(
    requests=(
        StalledRequest(
            name="r0",
            status="WAITING",
            queue="waiting",
            place=1,
            queue_length=2,
            tokens_computed=4,
            tokens_known=5,
            blocks_held=4,
            blocks_to_go_on=1,
            blocks_to_finish=1,
            lacks=(Lack.BLOCKS,),
        ),
        StalledRequest(
            name="r1",
            status="WAITING",
            queue="waiting",
            place=2,
            queue_length=2,
            tokens_computed=3,
            tokens_known=4,
            blocks_held=3,
            blocks_to_go_on=1,
            blocks_to_finish=1,
            lacks=(Lack.BLOCKS, Lack.TURN),
            behind="r0",
        ),
    ),
    blocks_free=0,
    blocks_total=7,
    blocks_unaccounted=0,
    running=(),
    is_quiet=True,
    chain=(
        Link(waiter="r0", lacks=Lack.BLOCKS, on="r1"),
        Link(waiter="r1", lacks=Lack.BLOCKS, on="r0"),
    ),
    is_cycle=True,
)
"""Two loads that fill the pool, each request needing one more block."""

UNSHRUNK = evolve(FAILURE, actions=46, is_minimal=False)


def result(id_: str, verdict: Verdict = Verdict.HOLDS, reason: str = "") -> InvariantResult:
    return InvariantResult(
        id=id_, verdict=verdict, witnessed=int(verdict is Verdict.HOLDS), reason=reason
    )


SEEN = Seen(
    actions={"add": 2911, "step": 4020, "abort": 611},
    transitions={"(absent) -> WAITING": 2911, "WAITING -> RUNNING": 2400},
    journeys={
        "PREEMPTED -> WAITING_FOR_REMOTE_KVS -> resumed": 34,
        "PREEMPTED -> resumed": 359,
        "WAITING -> new": 2000,
    },
)

ENDED = Ended(
    target="reference",
    version="",
    profile="quick",
    seed=7341,
    traces=300,
    actions=11204,
    results=(result("KV-001"), result("REQ-001")),
    seen=SEEN,
    seconds=3.25,
)


def ended(*results: InvariantResult, **more: object) -> Ended:
    return evolve(ENDED, results=results or ENDED.results, **more)


def replayed(outcome: Outcome, reason: str, **more: object) -> Replayed:
    return Replayed(
        outcome=outcome,
        target="vllm",
        version="0.14.0",
        reason=reason,
        expected=COMPLAINT.signature,
        story=STORY,
        **more,
    )
