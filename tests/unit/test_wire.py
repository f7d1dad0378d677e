"""What supervisor and worker say to each other, and the lines in which they say it."""

from __future__ import annotations

import os

import pytest

from schedcheck.engine.events import (
    JOB_EVENTS,
    Checked,
    Compared,
    Complaint,
    Ended,
    Examined,
    Fact,
    Failure,
    Fault,
    Found,
    InvariantResult,
    Known,
    KnownResult,
    Moment,
    Outcome,
    Progress,
    Replayed,
    Seen,
    Shrunk,
    Smaller,
    Started,
    StoryLine,
)
from schedcheck.engine.jobs import JOBS, DoctorJob, ReplayJob, RunJob, ShrinkJob
from schedcheck.host.process import Lines
from schedcheck.host.wire import BEGINNING, WireError, decode_event, decode_job, encode
from schedcheck.model.check import Check, State
from schedcheck.model.known import KnownIssue
from schedcheck.model.options import Options
from schedcheck.model.verdict import Severity, Verdict
from schedcheck.sut import TargetError
from telling import STALL

COMPLAINT = Complaint(
    invariant="KV-001", kind="a-kind", subject="r0", expected="1 · one", found="\u2028\n", step=1
)
FAILURE = Failure(
    complaint=COMPLAINT,
    others=(COMPLAINT,),
    title="a title",
    severity=Severity.CRITICAL,
    target="t",
    version="1",
    origin="",
    trace='{"format":"1.0"}\n{"do":"step"}\n',
    story=(StoryLine(number=1, action="step", waiting=("r0",), blocks_free=0, is_violation=True),),
    config="",
    stall=STALL,
    traceback='File "x"\n',
    actions_found=9,
    actions=1,
)
ISSUE = KnownIssue(
    engine="t", first="0.9", signature="KV-001/a-kind", reason="r · s", link="unreported"
)
EVENTS = (
    Checked(check=Check(what="w", state=State.MISSING, detail="d", fix="f")),
    Examined(target="t", version="1"),
    Started(target="t", version="", profile="p", seed=1, traces_max=2, invariants=3),
    Progress(doing="searching", traces=1, actions=2),
    Found(failure=FAILURE),
    Smaller(signature="KV-001/a-kind", trace="", actions=1),
    Shrunk(failure=FAILURE, executions=7, budget_spent=True),
    Ended(
        target="t",
        version="",
        profile="p",
        seed=-1,
        traces=1,
        actions=2,
        results=(InvariantResult(id="KV-001", verdict=Verdict.VACUOUS, witnessed=0),),
        seen=Seen(actions={"add": 0}, transitions={"A -> B": 1}),
        known=Known(
            results=(KnownResult(signature="KV-001/a-kind", reason="r", link="l", traces=3),),
            traces=3,
            traces_cut=1,
            dropped={"KV-002/b": 2},
        ),
        seconds=0.5,
    ),
    Replayed(
        outcome=Outcome.FAILED,
        target="t",
        version="",
        reason="",
        expected="",
        story=(),
        failure=FAILURE,
        moments=(
            Moment(
                number=1,
                action="step",
                event="schedule",
                facts=(Fact("status", "r0", None), Fact("free blocks", "", "1")),
            ),
        ),
        unseen=("cached",),
    ),
    Compared(steps=3, same=1, recorded="r0:new+1", replayed="", skipped="action 2 (step): s"),
    Fault(message="m", is_ours=True, traceback="t"),
)
JOB_EXAMPLES = (
    RunJob(target="t", seed=2**40, seconds_max=1.5, known=(ISSUE,)),
    ReplayJob(target="t", trace="{}\n", name="n", known=(ISSUE, ISSUE), with_moments=True),
    ShrinkJob(target="t", trace="{}\n", name="n"),
    DoctorJob(target="t", options=Options(scheduler="a:B", config=(("k", 1.5), ("l", True)))),
    ShrinkJob(target="t", trace="{}\n", name="n", shorter=("{}\n",), shapes=("r0:new+1",)),
)


def test_there_is_an_example_of_everything():
    assert set(JOB_EVENTS) == set(map(type, EVENTS))
    assert set(JOBS) == set(map(type, JOB_EXAMPLES))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.word)
def test_an_event_comes_back_as_it_was(event):
    assert event == decode_event(encode(event))


@pytest.mark.parametrize("job", JOB_EXAMPLES, ids=lambda job: job.word)
def test_a_job_comes_back_as_it_was(job):
    assert job == decode_job(encode(job))


@pytest.mark.parametrize("thing", [*EVENTS, *JOB_EXAMPLES], ids=lambda thing: thing.word)
def test_everything_is_one_line_that_begins_as_every_line_does(thing):
    """Otherwise a report could not be told from what a stranger writes into the pipe."""
    line = encode(thing)
    assert line.startswith(BEGINNING)
    assert [line] == line.splitlines(keepends=True)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage\n",
        b"[]\n",
        b"null\n",
        b"\xff\n",
        b"{}\n",
        b'{"word":"exec","body":{}}\n',
        b'{"word":["fault"],"body":{}}\n',
        b'{"word":"fault"}\n',
        b'{"word":"fault","body":{}}\n',
        b'{"word":"fault","body":{"message":1}}\n',
        b'{"word":"progress","body":{"doing":"x","traces":"1","actions":2}}\n',
        encode(JOB_EXAMPLES[0]),
        encode(EVENTS[0])[:-9],
    ],
)
def test_what_is_no_event_is_refused(line):
    with pytest.raises(WireError):
        decode_event(line)


def test_an_event_is_no_job():
    with pytest.raises(WireError):
        decode_job(encode(EVENTS[0]))


@pytest.fixture
def pipe():
    read_end, write_end = os.pipe()
    yield Lines(read_end), write_end
    os.close(read_end)


def test_lines_arrive_whole_whatever_the_pieces(pipe):
    lines, write_end = pipe
    heard = []
    for piece in (b"a", b"b\nc", b"\n\nd\ne", b"f\n"):
        os.write(write_end, piece)
        heard.append(list(lines.arriving(0)))
    assert [[], [b"ab\n"], [b"c\n", b"\n", b"d\n"], [b"ef\n"]] == heard
    assert [] == list(lines.arriving(0))
    assert not lines.at_end
    os.write(write_end, b"half")
    os.close(write_end)
    assert [] == [line for _ in range(2) for line in lines.arriving(0)]
    assert lines.at_end


def test_lines_that_were_read_survive_an_interrupt(pipe):
    """Otherwise Ctrl-C while one finding is saved loses the findings right behind it."""
    lines, write_end = pipe
    os.write(write_end, b"first\nsecond\nthird\n")
    os.close(write_end)
    arriving = lines.arriving(0)
    assert b"first\n" == next(arriving)
    with pytest.raises(KeyboardInterrupt):
        arriving.throw(KeyboardInterrupt)
    assert not lines.at_end
    assert [b"second\n", b"third\n"] == list(lines.arriving(0))


def test_a_line_without_an_end_is_refused(pipe, monkeypatch):
    """Otherwise a target that writes into the pipe fills the supervisor's memory."""
    monkeypatch.setattr("schedcheck.host.process._LINE_BYTES_MAX", 10)
    lines, write_end = pipe
    os.write(write_end, b"x" * 11)
    with pytest.raises(TargetError, match="without an end"):
        list(lines.arriving(0))
    os.close(write_end)
