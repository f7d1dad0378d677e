"""The text of failures, summaries, replays and stories, compared with the files beside this one.

Everything is made by hand, so that a change here is a change of the report and of nothing else.
"""

from __future__ import annotations

from textwrap import wrap

from attrs import evolve

from schedcheck.engine.events import Known, KnownResult, Outcome, Seen, Stall, StalledRequest
from schedcheck.model.verdict import Severity, Verdict
from schedcheck.report.stall import stall_sentence, stall_state, stall_table
from schedcheck.report.text import (
    failure_lines,
    moment_lines,
    replay_lines,
    story_lines,
    summary_lines,
)
from telling import (
    COMPLAINT,
    FAILURE,
    HOSTILE,
    SEEN,
    STALL,
    STORY,
    UNSHRUNK,
    ended,
    line,
    replayed,
    result,
)

PATH = ".schedcheck/traces/REQ-001-e972.trace.jsonl"


def test_a_failure(same_as):
    same_as("failure.txt", failure_lines(FAILURE, path=PATH))


def test_a_failure_of_progress_shows_who_holds_what(same_as):
    stalled = evolve(
        FAILURE,
        complaint=evolve(
            COMPLAINT,
            invariant="PRG-001",
            kind="stalled",
            subject="r0 r1",
            expected="each finishes once transfers end and nothing new arrives",
            found="6 quiet rounds scheduled nothing",
        ),
        title="in the quiet tail every request finishes",
        story=(
            line(1, "add r0 prompt=5 max=1 remote=4", "r0 | | "),
            line(2, "add r1 prompt=4 max=1 remote=3", "r0 r1 | | "),
            line(
                3,
                "drain",
                "r0 r1 | | ",
                0,
                note="r0 loads 4, r1 loads 3, r0 r1 loaded, 8 quiet rounds, the last 6 scheduled "
                "nothing",
                is_violation=True,
            ),
        ),
        holdings=(
            "r0  WAITING  holds 4 block(s) (1 2 3 4), 4 of 5 tokens computed",
            "r1  WAITING  holds 3 block(s) (5 6 7), 3 of 4 tokens computed",
        ),
        stall=STALL,
        actions=3,
    )
    same_as("failure-of-progress.txt", failure_lines(stalled, path=PATH))


def test_stalls_of_every_kind(same_as):
    """A table too wide for its last column, requests that are lost, and what is not shown."""
    told = Stall(
        requests=(
            StalledRequest(
                name="r0",
                status="WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
                queue="a_queue_with_a_long_name",
                place=10,
                queue_length=12,
                tokens_computed=0,
                tokens_known=1000,
                blocks_held=0,
                blocks_to_go_on=12,
                blocks_to_finish=63,
                is_at_most=True,
                awaits=("its grammar",),
            ),
            StalledRequest(name="r1", status="WAITING", is_in_no_queue=True),
            StalledRequest(name="r2", is_tracked=False, is_in_no_queue=True),
            StalledRequest(
                name="r3",
                status="WAITING_FOR_REMOTE_KVS",
                queue="waiting",
                place=1,
                queue_length=1,
                overdue="its load",
            ),
            StalledRequest(
                name="r4",
                status="FINISHED_ABORTED",
                has_ended=True,
                blocks_held=3,
                awaits=("the end of its load",),
            ),
            StalledRequest(name="r5", status="RUNNING", is_moving=True),
            StalledRequest(name="r6", blocks_to_go_on=9, never_fits=True),
            StalledRequest(name=HOSTILE, status=HOSTILE, queue=HOSTILE, place=1, behind=HOSTILE),
        ),
        more=3,
        blocks_free=1,
        blocks_total=8,
        blocks_unaccounted=4,
        running=("r5",),
        has_work=False,
    )
    roots = [evolve(told, root=request.name) for request in told.requests]
    same_as(
        "stalls.txt",
        [
            *stall_table(told, width=98),
            "",
            *wrap(stall_state(told), 98),
            "",
            *(line for one in roots for line in wrap(stall_sentence(one), 98)),
            "",
            *stall_table(evolve(told, requests=told.requests[1:3], more=0), width=98),
        ],
    )


def test_a_failure_that_is_not_minimal_found_with_others_and_replayed_elsewhere(same_as):
    told = evolve(
        UNSHRUNK,
        severity=Severity.MAJOR,
        title="the end of a request is announced to the workers exactly once, in the next step "
        "that is planned after it, whoever ended it",
        target="a_package_with_a_long_name.and_a_module:AnAdapterOfSomeScheduler",
        version="2026.12.1+cpu",
        config=" · ".join(f"setting_{number} {number}" for number in range(9)),
        others=(
            evolve(COMPLAINT, invariant="TOK-001", kind="token-lost"),
            evolve(COMPLAINT, invariant="KV-001", kind="blocks-not-returned"),
        ),
        evidence=("https://github.com/vllm-project/vllm/pull/31583", "a talk"),
    )
    same_as(
        "failure-not-minimal.txt",
        failure_lines(told, path="my traces/it's one.trace.jsonl", on="vllm==0.14.0"),
    )


def test_what_strangers_say_moves_no_cursor_and_breaks_no_line(same_as):
    told = evolve(
        FAILURE,
        complaint=evolve(COMPLAINT, kind=HOSTILE, subject=HOSTILE, expected=HOSTILE, found=HOSTILE),
        title=HOSTILE,
        target=HOSTILE,
        version=HOSTILE,
        origin=HOSTILE,
        config=HOSTILE,
        story=(line(1, HOSTILE, f"{HOSTILE} | | ", note=HOSTILE, is_violation=True),),
        evidence=(HOSTILE,),
        holdings=(HOSTILE,),
    )
    seen = Seen(
        actions={HOSTILE: 1},
        actions_missing={HOSTILE: HOSTILE},
        transitions={HOSTILE: 0},
        journeys={f"PREEMPTED -> {HOSTILE}": 1},
        signatures={HOSTILE: 1},
    )
    over = ended(
        result("REQ-001", Verdict.VACUOUS, HOSTILE),
        result("REQ-002", Verdict.UNKNOWN, HOSTILE),
        seen=seen,
        profile=HOSTILE,
        stopped_early=HOSTILE,
    )
    same_as(
        "hostile.txt",
        [
            *failure_lines(told, path=HOSTILE, on=HOSTILE),
            *summary_lines(over, name=HOSTILE),
            *replay_lines(replayed(Outcome.OTHER, HOSTILE), HOSTILE),
            *moment_lines(
                line(1, HOSTILE, note=HOSTILE), (HOSTILE,), before=STORY[0], holdings_before=()
            ),
        ],
    )


def test_the_end_of_a_green_run(same_as):
    same_as("summary-green.txt", summary_lines(ended(), name="reference"))


def test_the_end_of_a_run_that_left_much_untested(same_as):
    seen = Seen(
        actions={"add": 2911, "step": 4020, "abort": 0},
        actions_missing={"fail_transfer": "TRANSFER_FAULTS", "finish_send": "DELAYED_FREE"},
        transitions={
            "WAITING -> RUNNING": 2400,
            **{
                f"{before} -> {after}": 0
                for before in ("WAITING", "RUNNING", "PREEMPTED", "WAITING_FOR_REMOTE_KVS")
                for after in ("FINISHED_ABORTED", "FINISHED_ERROR")
            },
        },
        signatures={"REQ-001/new-after-preemption": 24},
    )
    over = ended(
        result("ENG-001"),
        result("REQ-001", Verdict.VIOLATED),
        result("KV-003", Verdict.NOT_APPLICABLE, "lacks SHOWS_FREE_BLOCKS"),
        result("KV-006", Verdict.NOT_APPLICABLE, "lacks SHOWS_FREE_BLOCKS"),
        result("REQ-005", Verdict.NOT_APPLICABLE, "lacks SHOWS_QUEUES"),
        result("TOK-001", Verdict.VACUOUS, "never: a request that was preempted delivers a token"),
        result("XFER-001", Verdict.UNKNOWN, "KeyError: 'r3'"),
        seen=seen,
        crashes_ignored=3,
    )
    same_as("summary-warnings.txt", summary_lines(over, name="my_engine 1.2"))


def test_the_end_of_a_run_in_which_known_issues_were_seen_and_missed(same_as):
    link = "https://github.com/vllm-project/vllm/pull/31583"
    told = (
        KnownResult(signature="REQ-001/new-after-preemption", reason="Lost.", link=link, traces=24),
        KnownResult(
            signature="ENG-001/AssertionError-in-_update_request_with_output",
            reason="The output of a step that was planned before a reset is taken for that of the "
            "request which was admitted afterwards, so that an assertion fails.",
            link="unreported",
            traces=3,
        ),
        KnownResult(
            signature="SCH-004/tokens-unknown",
            reason="Never told, since it was not seen.",
            link=link,
            traces=0,
            is_missed=True,
            trace="SCH-004-workers-can-do-it/known/vllm-0.33.0.trace.jsonl",
        ),
        KnownResult(signature="SCH-005/a", reason="", link="", traces=0, is_missed=True),
        KnownResult(signature="SCH-006/a", reason="Neither seen nor missed.", link="", traces=0),
    )
    known = Known(
        results=told,
        traces=26,
        traces_cut=3,
        dropped={"TOK-001/token-wrong": 7, "KV-004/read-foreign": 1_200},
    )
    over = ended(
        result("REQ-001", Verdict.KNOWN),
        result("KV-001"),
        target="vllm",
        version="0.13.0",
        traces=4000,
        known=known,
    )
    same_as("summary-known.txt", summary_lines(over, name="vllm 0.13.0"))


def test_a_failure_beside_something_known_says_what_is_before_it():
    told = failure_lines(evolve(FAILURE, known_before=("KV-001/a", "KV-002/b")), path=PATH)
    assert "  known before    KV-001/a, KV-002/b" in list(told)


def test_the_end_of_a_run_cut_short_before_anything_was_run(same_as):
    nothing = Seen(
        actions=dict.fromkeys(SEEN.actions, 0), transitions=dict.fromkeys(SEEN.transitions, 0)
    )
    over = ended(
        result("REQ-001", Verdict.VACUOUS, "never: a preempted request is scheduled again"),
        seen=nothing,
        traces=0,
        actions=0,
        stopped_early="interrupted",
    )
    same_as("summary-nothing.txt", summary_lines(over))


def test_replays(same_as):
    long = "invariants/REQ-001-resumed-not-new/known/vllm-0.13.0-and-a-little-more.trace.jsonl"
    told = [
        (replayed(Outcome.FAILED, "REQ-001/new-after-preemption at action 4"), "a.trace.jsonl"),
        (replayed(Outcome.OTHER, "TOK-001/token-lost at action 4"), "a.trace.jsonl"),
        (
            replayed(
                Outcome.FIXED,
                "every action was eligible and REQ-001/new-after-preemption did not show",
            ),
            "a.trace.jsonl",
        ),
        (replayed(Outcome.HOLDS, "every action was eligible and nothing was violated"), long),
        (replayed(Outcome.DRIFTED, "action 3 (preempt r0) was not eligible"), "a.trace.jsonl"),
        (replayed(Outcome.ERROR, "it refuses a pool of 3 blocks"), "a.trace.jsonl"),
    ]
    same_as("replays.txt", [line for one, name in told for line in replay_lines(one, name)])


LONG = (
    line(1, "add r0 prompt=2 max=2 remote=2 sync priority=1 send", "r0 | | "),
    line(2, "add r1 prompt=3 max=1 shares=s0:2+output:r0:1 stop_at=0", "r0 r1 | | "),
    line(3, "step", "r1 | r0 | ", 5, note="r0 loads 2"),
    line(4, "finish_transfer r0", "r1 | r0 | ", 5),
    line(5, "step", " | | r0 r1", 1, note="r0 loaded, r0 new +1, r1 new +2"),
    line(6, "abort r0", " | | r1", 5),
    line(7, "add r2 prompt=1", "r2 r3 r4 r5 r6 r7 | | r1", 5, note="r2 refused: too long"),
)


def test_a_story_of_which_only_changes_are_shown(same_as):
    same_as("story-changes.txt", story_lines(LONG, changes_only=True))


def test_one_moment_of_a_story(same_as):
    same_as(
        "moment.txt",
        moment_lines(
            LONG[4],
            (
                "r0  RUNNING  holds 3 block(s) (1 2 3), 3 of 4 tokens computed",
                "r1  RUNNING  holds 3 block(s) (4 5 6), 2 of 3 tokens computed",
                "r3  WAITING  holds 0 block(s), 0 of 2 tokens computed",
            ),
            before=LONG[3],
            holdings_before=(
                "r0  WAITING_FOR_REMOTE_KVS  holds 2 block(s) (1 2), 0 of 2 tokens computed",
                "r1  WAITING  holds 0 block(s), 0 of 3 tokens computed",
                "r2  RUNNING  holds 1 block(s) (7), 1 of 1 tokens computed",
                "r3  WAITING  holds 0 block(s), 0 of 2 tokens computed",
            ),
        ),
    )


def test_the_first_moment_of_a_story_has_nothing_before_it(same_as):
    held = ("r0  WAITING  holds 0 block(s), 0 of 2 tokens computed",)
    same_as("moment-first.txt", moment_lines(LONG[0], held))
