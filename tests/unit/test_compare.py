"""Comparing two playbacks: where they part, and what is told of it."""

from __future__ import annotations

import sys

import pytest
from attrs import evolve

from schedcheck import cli
from schedcheck.catalogue import entries
from schedcheck.cli import traces
from schedcheck.engine.compare import Comparison, Difference, Parting, Side, compare
from schedcheck.engine.events import Fact, Fault, Moment, Outcome
from schedcheck.engine.moments import BLOCK_TOPICS, unseen_by
from schedcheck.engine.replay import replay
from schedcheck.engine.targets import resolve
from schedcheck.host.supervisor import InProcess
from schedcheck.model.capability import Capability
from schedcheck.model.trace import Trace
from schedcheck.report.diff import diff_lines
from schedcheck.tracefile import read, write
from telling import FAILURE, HOSTILE, line, replayed

MINIMAL = {one.id: one.minimal for one in entries() if one.minimal.exists()}


def played(trace: Trace, on: str) -> Side:
    told = replay(resolve(on), on, trace, with_moments=True)
    drift = told.reason if told.outcome is Outcome.DRIFTED else ""
    return Side(label=on, moments=told.moments, unseen=frozenset(told.unseen), drift=drift)


def moment(number: int, *facts: Fact, action: str = "step", event: str = "schedule") -> Moment:
    return Moment(number=number, action=action, event=event, facts=facts)


def side(*moments: Moment, **more: object) -> Side:
    return Side(label="one", moments=moments, **more)


FREE = Fact("free blocks", "", "3")
TAKEN = Fact("free blocks", "", "2")


# On schedulers.


@pytest.mark.parametrize("id_", MINIMAL)
def test_a_mutant_parts_from_the_reference_where_it_violates_something_or_before(id_):
    """A fault that shows but makes no difference would be one that ``diff`` is blind to."""
    trace = read(MINIMAL[id_])
    found = compare(played(trace, "reference"), played(trace, trace.header.target))
    assert trace.header.expect is not None
    assert found.parting is not None
    assert 1 <= found.parting.number <= trace.header.expect.step
    assert found.parting.number - 1 == found.actions


@pytest.mark.parametrize("id_", ["REQ-001", "PRG-001", "KV-006"])
def test_the_same_scheduler_does_not_part_from_itself(id_):
    trace = read(MINIMAL[id_])
    one = played(trace, trace.header.target)
    assert Comparison(actions=len(trace.actions)) == compare(one, one, ignored=frozenset())


def test_the_seed_fault_is_told_as_what_the_workers_were_sent():
    trace = read(MINIMAL["REQ-001"])
    found = compare(played(trace, "reference"), played(trace, "reference+resumed-as-new"))
    assert found.parting == Parting(
        number=6,
        action="step",
        event="schedule",
        differences=(
            Difference(about="r0 sent as", values=("resumed", "new")),
            Difference(about="violates", values=("", "REQ-001/new-after-preemption")),
        ),
    )


def test_what_a_target_lacks_it_does_not_show():
    every = frozenset(Capability)
    assert () == unseen_by(every)
    assert ("running", "waiting") == unseen_by(every - {Capability.SHOWS_QUEUES})


# On hand-made moments.


def test_a_request_that_is_there_on_one_side_alone_is_told_once():
    view = Fact("status", "r0", "RUNNING"), Fact("computed", "r0", "1"), Fact("holds", "r0", "2")
    found = compare(side(moment(1, *view)), side(moment(1)))
    assert (Difference(about="r0 status", values=("RUNNING", "")),) == found.parting.differences
    other = evolve(view[2], value="0")
    found = compare(side(moment(1, *view)), side(moment(1, *view[:2], other)))
    assert (Difference(about="r0 holds", values=("2", "0")),) == found.parting.differences


def test_what_engines_count_for_themselves_parts_nobody_and_is_told_beside():
    """One release counts a load when it begins, another when it ends; both are right."""
    one, other = (
        side(
            moment(1, FREE),
            moment(2, FREE, Fact("computed", "r0", count)),
            moment(3, free, Fact("computed", "r0", count)),
        )
        for count, free in (("0", FREE), ("4", TAKEN))
    )
    found = compare(one, other)
    own = Difference(about="r0 computed", values=("0", "4"), is_own_count=True)
    assert (2, (own,)) == (found.aside.number, found.aside.differences)
    free = Difference(about="free blocks", values=("3", "2"))
    assert (3, (own, free)) == (found.parting.number, found.parting.differences)
    told = list(diff_lines(found, one, other))
    assert "engines count for themselves: at action 2 r0 computed is 0 / 4" == told[-1]
    alike = compare(one, other, ignored=frozenset({"free blocks"}))
    assert (None, 3, found.aside) == (alike.parting, alike.actions, alike.aside)
    assert None is compare(one, other, ignored=frozenset({"computed", "free blocks"})).aside


def test_a_request_that_is_scheduled_twice_differs_from_one_that_is_once():
    row = Fact("computes", "r0", "1")
    found = compare(side(moment(1, row)), side(moment(1, row, row)))
    assert (Difference(about="r0 computes", values=("1", "1, 1")),) == found.parting.differences


def test_what_was_done_comes_before_what_it_led_to():
    facts = (FREE, Fact("violates", "", "x"), Fact("loads", "r0", "1"))
    found = compare(side(moment(1, *facts)), side(moment(1)))
    assert ["r0 loads", "violates", "free blocks"] == [
        one.about for one in found.parting.differences
    ]


@pytest.mark.parametrize(
    ("facts", "unseen"),
    [((FREE, Fact("cached", "r0", "1")), {"cached"}), ((FREE, Fact("cached", "r0", None)), ())],
    ids=["never shown", "not shown there"],
)
def test_what_one_side_does_not_show_is_not_compared_and_named(facts, unseen):
    other = side(moment(1, FREE, Fact("cached", "r0", "2")))
    found = compare(side(moment(1, *facts), unseen=frozenset(unseen)), other)
    assert Comparison(actions=1, uncompared=("cached",)) == found
    assert any("does not show it: cached" in told for told in diff_lines(found, other, other))


def test_block_numbers_are_compared_only_if_so_asked():
    one, other = (side(moment(1, Fact("block numbers", "r0", value))) for value in ("(1)", "(2)"))
    assert "block numbers" in BLOCK_TOPICS
    assert compare(one, other).parting is None
    assert compare(one, other, ignored=frozenset()).parting is not None


def test_an_ignored_topic_hides_nothing_else():
    one = side(moment(1, FREE), moment(2, FREE, Fact("status", "r0", "RUNNING")))
    other = side(moment(1, TAKEN), moment(2, TAKEN, Fact("status", "r0", "WAITING")))
    found = compare(one, other, ignored=frozenset({"free blocks"}))
    assert (2, ["r0 status"]) == (
        found.parting.number,
        [row.about for row in found.parting.differences],
    )


def test_something_else_that_happens_is_all_that_is_told():
    crash = moment(1, TAKEN, Fact("violates", "", "ENG-001/x"), event="schedule raises KeyError")
    found = compare(side(moment(1, FREE)), side(crash))
    assert (
        Difference(about="what happens", values=("schedule", "schedule raises KeyError")),
        Difference(about="violates", values=("", "ENG-001/x")),
    ) == found.parting.differences
    found = compare(side(moment(1, FREE)), side(moment(1, TAKEN, action="drain")))
    assert (Difference(about="action", values=("step", "drain")),) == found.parting.differences


@pytest.mark.parametrize("swap", [False, True])
def test_an_action_that_leads_to_more_on_one_side_parts_them(swap):
    one = side(moment(1), moment(1, event="complete"), moment(2))
    other = side(moment(1), moment(2))
    values = ("complete", "nothing more")
    if swap:
        one, other, values = other, one, values[::-1]
    found = compare(one, other)
    assert (0, 1) == (found.actions, found.parting.number)
    assert (Difference(about="what happens", values=values),) == found.parting.differences


@pytest.mark.parametrize("swap", [False, True])
def test_a_trace_that_goes_on_parts_from_one_that_is_over(swap):
    one, other, values = (
        side(moment(1), moment(2)),
        side(moment(1)),
        ("schedule", "the trace is over"),
    )
    if swap:
        one, other, values = other, one, values[::-1]
    found = compare(one, other)
    assert (1, 2) == (found.actions, found.parting.number)
    assert (Difference(about="what happens", values=values),) == found.parting.differences


def test_drift_before_anything_differs_is_told_as_drift():
    whole, part = side(moment(1), moment(2)), side(moment(1), drift="action 2 was not eligible")
    for found in (compare(whole, part), compare(part, whole)):
        assert Comparison(actions=1, drifted=(part,)) == found
    assert Comparison(actions=1, drifted=(part, part)) == compare(part, part)
    none = side(drift="action 1 was not eligible")
    assert Comparison(actions=0, drifted=(none,)) == compare(none, part)


def test_drift_after_something_differs_is_no_matter():
    part = side(moment(1, FREE), drift="action 2 was not eligible")
    assert 1 == compare(part, side(moment(1, TAKEN), moment(2))).parting.number


# What is told.


def test_what_is_told():
    first, second = evolve(side(), label="vllm 0.13.0"), evolve(side(), label="vllm 0.14.0")
    rows = (
        Difference(about="r2 sent as", values=("new", "resumed")),
        Difference(about="violates", values=("REQ-001/new-after-preemption", "")),
    )
    parting = Parting(number=6, action="step", event="schedule", differences=rows)
    expected = """\
they part at action 6: step (schedule)

              vllm 0.13.0                   vllm 0.14.0
  r2 sent as  new                           resumed
  violates    REQ-001/new-after-preemption  –

"""
    found = Comparison(actions=5, parting=parting)
    assert expected == "".join(f"{told}\n" for told in diff_lines(found, first, second))
    assert ["no difference in 6 action(s): vllm 0.13.0 and vllm 0.14.0"] == list(
        diff_lines(Comparison(actions=6), first, second)
    )
    drifted = Comparison(actions=2, drifted=(evolve(second, drift="action 3 was not eligible"),))
    assert [
        "no difference in 2 action(s), no further:",
        "  vllm 0.14.0 drifted: action 3 was not eligible",
    ] == list(diff_lines(drifted, first, second))


@pytest.mark.parametrize("text", ["x", HOSTILE, "word " * 40, "w" * 130, "é" * 61 + " " + "漢" * 9])
@pytest.mark.parametrize("other", ["", "y", "other " * 30, "o" * 99])
def test_nothing_told_is_too_wide_or_moves_a_cursor_or_is_cut_off(text, other):
    one, two = evolve(side(), label=text), evolve(side(), label=other or "label")
    row = Difference(about=text, values=(text, other))
    parting = Parting(number=1, action=text, event=other, differences=(row,))
    drifted = evolve(one, drift=text)
    for found in (
        Comparison(actions=0, parting=parting, uncompared=(text,), aside=parting),
        Comparison(actions=0, drifted=(drifted,)),
        Comparison(actions=0),
    ):
        lines = list(diff_lines(found, one, two))
        assert all(told.isprintable() and len(told) <= 100 for told in lines)
    (*_, last) = (told for told in diff_lines(Comparison(actions=0, parting=parting), one, two))
    assert "" == last


# The command.


@pytest.fixture
def diff(tmp_path, monkeypatch, capsys):
    """Return what types ``diff`` in an empty folder; ``events`` stand in for an engine's."""

    def run(*arguments, events=()):
        if events:
            left = iter(events)
            monkeypatch.setattr(traces, "perform", lambda _job, emit, **_place: emit(next(left)))
            monkeypatch.setattr(traces, "place_for", lambda on, **_more: (on, InProcess()))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["schedcheck", "diff", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        said = capsys.readouterr()
        return leaving.value.code, said.out, said.err

    return run


SEED_FAULT = MINIMAL["REQ-001"]
PART = "they part at action 6: step (schedule)\n"
MUTANT = "reference+resumed-as-new"


@pytest.mark.parametrize(
    "arguments",
    [
        (SEED_FAULT, "--on", "reference"),
        (SEED_FAULT, "--on", "reference", "--on", MUTANT),
        (SEED_FAULT, SEED_FAULT, "--on", "reference", "--on", MUTANT),
    ],
    ids=["its own and another", "two", "two traces"],
)
def test_they_part(diff, arguments):
    code, out, err = diff(*arguments)
    assert (1, "", True) == (code, err, out.startswith(PART))
    assert MUTANT in out.splitlines()[2]


@pytest.mark.parametrize(
    "arguments",
    [
        (SEED_FAULT, SEED_FAULT),
        (SEED_FAULT, SEED_FAULT, "--on", "reference"),
        (SEED_FAULT, "--on", MUTANT, "--blocks"),
    ],
)
def test_nothing_differs(diff, arguments):
    code, out, err = diff(*arguments)
    assert (0, "") == (code, err)
    assert out.startswith("no difference in 6 action(s): the first and the second")


def test_two_traces_on_one_target_are_called_by_their_files(diff, tmp_path):
    shorter = tmp_path / "shorter.trace.jsonl"
    trace = read(SEED_FAULT)
    write(shorter, Trace(header=evolve(trace.header, expect=None), actions=trace.actions[:5]))
    code, out, _err = diff(SEED_FAULT, shorter)
    assert (1, True) == (code, out.startswith(PART))
    assert ["minimal.trace.jsonl", "shorter.trace.jsonl"] == out.splitlines()[2].split()
    assert ["what", "happens", "schedule", "the", "trace", "is", "over"] == (
        out.splitlines()[3].split()
    )


def test_what_is_ignored_is_not_told_and_must_exist(diff):
    code, out, err = diff(
        SEED_FAULT, "--on", "reference", "--ignore", "sent as", "--ignore", "colour"
    )
    assert (1, ["violates"]) == (code, [told.split()[0] for told in out.splitlines()[3:-1]])
    assert "schedcheck: --ignore 'colour': there is nothing of that name\n" == err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing argument 'TRACES...'"),
        ((SEED_FAULT,), "diff compares one trace on two targets (--on vllm==0.14.0), or two"),
        ((SEED_FAULT,) * 3, "at most two traces, at most two --on"),
        ((SEED_FAULT, *("--on", "reference") * 3), "at most two traces, at most two --on"),
        (("nowhere", "--on", "reference"), "nowhere: cannot read it"),
        ((SEED_FAULT, "--on", "nothing"), "no target 'nothing'"),
        ((SEED_FAULT, "--on", "vllm==0.12.9"), "release '0.12.9' of vllm cannot be prepared"),
    ],
)
def test_bad_input_gets_one_clear_line(diff, arguments, said):
    code, out, err = diff(*arguments)
    assert (2, "", 1) == (code, out, len(err.splitlines()))
    assert said in err


GOOD = replayed(Outcome.FIXED, "fixed", moments=(moment(1, FREE), moment(2, FREE)))


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (GOOD, 0),
        (evolve(GOOD, moments=(moment(1, TAKEN),)), 1),
        (replayed(Outcome.DRIFTED, "it drifted", moments=(moment(1, FREE),)), 3),
        (replayed(Outcome.ERROR, "it cannot be given this configuration"), 2),
        (Fault(message="it does not import"), 2),
        (Fault(message="broken", is_ours=True), 70),
    ],
)
def test_exit_codes(diff, event, code):
    if event.word == "replayed":
        event = evolve(event, story=event.story[:2])
    assert code == diff(SEED_FAULT, "--on", "vllm", "--on", "vllm", events=(GOOD, event))[0]


def test_a_silent_witness_is_no_drift(diff):
    """Every action was carried out, so there is nothing that could not be compared."""
    silent = evolve(GOOD, outcome=Outcome.DRIFTED, story=tuple(line(n, "step") for n in range(6)))
    assert 0 == diff(SEED_FAULT, "--on", "vllm", "--on", "vllm", events=(GOOD, silent))[0]


def test_a_worker_that_was_lost_is_replayed_up_to_there(diff):
    story = (line(1, "step"), line(2, "step", note="the engine's process died (exit code 7)"))
    lost = replayed(Outcome.OTHER, "lost", failure=evolve(FAILURE, story=story))
    before = evolve(GOOD, moments=(moment(1, FREE),))
    code, out, _err = diff(SEED_FAULT, "--on", "vllm", "--on", "vllm", events=(GOOD, lost, before))
    assert (1, True) == (code, out.startswith("they part at action 2: step (schedule)"))
    assert "what happens  schedule   the engine's process died (exit code 7)" in out


def test_moments_are_told_only_if_so_asked():
    """They are many times as large as the rest of what a replay says."""
    trace = read(SEED_FAULT)
    told = replay(resolve("reference"), "reference", trace)
    assert ((), ()) == (told.moments, told.unseen)
