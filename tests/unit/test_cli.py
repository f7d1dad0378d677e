"""The command line on hand-made events: exit codes, what goes where, and that nothing is lost.

Whole runs, with an engine behind them, are in ``tests/adapters/test_command_line.py``.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from attrs import evolve

from schedcheck import catalogue, cli
from schedcheck.catalogue.check import Checked, Problem
from schedcheck.catalogue.exemptions import known_issues
from schedcheck.catalogue.new import CannotAdd, NothingKilled, Written
from schedcheck.cli import console, curate, know, search, traces
from schedcheck.engine.events import Fault, Found, Outcome, Progress, Shrunk, Smaller
from schedcheck.engine.hunt import Kills
from schedcheck.engine.jobs import ReplayJob, RunJob, ShrinkJob
from schedcheck.host.supervisor import InProcess
from schedcheck.model.verdict import Verdict
from schedcheck.reference.mutants.registry import find
from schedcheck.sut import TargetError
from schedcheck.tracefile import TraceUnwritable, read
from telling import COMPLAINT, ENDED, FAILURE, STORY, TRACE, UNSHRUNK, ended, replayed, result

SMALLER = Smaller(signature=COMPLAINT.signature, trace=TRACE * 2, actions=3)
SHRUNK = Shrunk(failure=FAILURE, executions=12, budget_spent=False)
RED = ended(result("REQ-001", Verdict.VIOLATED))


class Told:
    """How a command ended, and what it said where."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def type_in(tmp_path, monkeypatch, capsys) -> Callable[..., Told]:
    """Return what types a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("SCHEDCHECK_DEBUG", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Told:
        monkeypatch.setattr(sys, "argv", ["schedcheck", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        said = capsys.readouterr()
        return Told(leaving.value.code, said.out, said.err)

    return run


@pytest.fixture
def engine(monkeypatch) -> Callable[..., list]:
    """Return what puts hand-made events in an engine's place; an exception among them is raised."""

    def stand_in(*events: object) -> list:
        jobs = []

        def perform(job, emit, *, place):
            jobs.append(job)
            for event in events[len(jobs) - 1] if isinstance(events[0], tuple) else events:
                if isinstance(event, BaseException):
                    raise event
                emit(event)

        for module in (search, traces):
            monkeypatch.setattr(module, "perform", perform)
            monkeypatch.setattr(
                module,
                "place_for",
                lambda target, **_more: (target.partition("==")[0], InProcess()),
            )
        return jobs

    return stand_in


def saved(tmp_path: Path) -> list[str]:
    """Return the content of every trace that was kept."""
    return [path.read_text() for path in sorted((tmp_path / ".schedcheck").rglob("*.jsonl"))]


# Exit codes of a run.


@pytest.mark.parametrize(
    ("code", "events", "arguments"),
    [
        (0, [ENDED], []),
        (0, [ENDED], ["--strict"]),
        (1, [Found(failure=UNSHRUNK), SHRUNK, RED], []),
        (1, [RED], ["--strict"]),
        (0, [ended(result("KV-001"), result("REQ-001", Verdict.VACUOUS, "never"))], []),
        (3, [ended(result("KV-001"), result("REQ-001", Verdict.VACUOUS, "never"))], ["--strict"]),
        (0, [ended(result("KV-001"), result("REQ-001", Verdict.UNKNOWN, "x"))], []),
        (0, [ended(result("REQ-001", Verdict.KNOWN))], []),
        (0, [ended(result("REQ-001", Verdict.KNOWN))], ["--strict"]),
        (1, [ended(result("KV-001", Verdict.VIOLATED), result("REQ-001", Verdict.KNOWN))], []),
        (3, [ended(result("KV-001"), result("REQ-001", Verdict.UNKNOWN, "x"))], ["--strict"]),
        (0, [ended(result("KV-001"), result("REQ-001", Verdict.NOT_APPLICABLE))], ["--strict"]),
        (3, [ended(result("KV-001", Verdict.NOT_APPLICABLE, "lacks ABORT"))], []),
        (3, [evolve(ENDED, traces=0)], []),
        (2, [Fault(message="cannot be loaded")], []),
        (2, [TargetError("cannot be loaded")], []),
        (70, [Fault(message="broken", is_ours=True)], []),
        (70, [RuntimeError("broken")], []),
        (130, [KeyboardInterrupt()], []),
        (130, [Found(failure=UNSHRUNK), RED, KeyboardInterrupt()], []),
    ],
)
def test_a_run_ends_with_the_exit_code_it_deserves(type_in, engine, code, events, arguments):
    engine(*events)
    assert code == type_in("run", *arguments).code


def test_a_job_is_what_was_asked_for(type_in, engine):
    jobs = engine(ENDED)
    type_in(
        *("run", "vllm==0.33.0", "--profile", "ci", "--invariants", "KV-*", "--seed", 7),
        *("--max-time", "2m", "--dialect", "v2"),
    )
    expected = RunJob(
        target="vllm",
        profile="ci",
        invariants="KV-*",
        seed=7,
        seconds_max=120.0,
        dialect="v2",
        known=known_issues(),
    )
    assert [expected] == jobs


LEDGER = """
[[known]]
engine = "mine"
releases = "all"
signature = "KV-001/left-behind"
reason = "It is."
link = "unreported"
"""


@pytest.mark.parametrize(
    ("choice", "expected"), [("none", []), ("mine.toml", ["KV-001/left-behind"])]
)
def test_a_ledger_of_ones_own_replaces_the_one_in_the_catalogue(
    type_in, engine, trace, tmp_path, choice, expected
):
    (tmp_path / "mine.toml").write_text(LEDGER)
    told = ended(result("KV-001")), replayed(Outcome.FIXED, "fixed"), SHRUNK
    jobs = engine(*((one,) for one in told))
    type_in("run", "--known", choice)
    type_in("replay", trace, "--known", choice)
    type_in("shrink", trace, "--known", choice)
    assert [expected] * 3 == [[one.signature for one in job.known] for job in jobs]


@pytest.mark.parametrize("command", ["run", "replay", "shrink"])
def test_a_ledger_that_is_wrong_is_one_line_and_nothing_runs(
    type_in, engine, trace, tmp_path, command
):
    jobs = engine(ENDED)
    (tmp_path / "mine.toml").write_text(LEDGER.replace("reason", "reson"))
    told = type_in(command, *([] if command == "run" else [trace]), "--known", "mine.toml")
    said = "schedcheck: mine.toml: entry 1 (mine KV-001/left-behind): unknown key 'reson'"
    assert (2, "", []) == (told.code, told.out, jobs)
    assert told.err.startswith(said)
    assert 1 == len(told.err.splitlines())


def test_the_seed_is_0_unless_it_is_given(type_in, engine):
    """Otherwise the same command would not print the same bytes twice."""
    jobs = engine(ENDED)
    type_in("run")
    assert [0] == [job.seed for job in jobs]


# What goes where.


def test_standard_output_has_the_failure_and_the_summary_and_no_time(type_in, engine):
    engine(Progress(doing="searching", traces=1, actions=2), Found(failure=UNSHRUNK), SHRUNK, RED)
    told = type_in("run")
    assert told.out.startswith("VIOLATED  REQ-001  ")
    assert "46 -> 4 actions" in told.out
    assert "reference · 1 violated · 300 traces" in told.out
    assert "3.2" not in told.out
    assert "3.2 s, 3,447 actions per second" in told.err
    assert "searching" not in told.out + told.err, "progress belongs on a terminal"


def test_the_last_lines_say_how_to_replay_what_was_found(type_in, engine):
    other = evolve(FAILURE, complaint=evolve(COMPLAINT, invariant="TOK-001", kind="token-lost"))
    engine(SHRUNK, evolve(SHRUNK, failure=other), SHRUNK, RED)
    last = type_in("run").out.splitlines()[-2:]
    assert ["replay       schedcheck replay ", "             schedcheck replay "] == [
        line.partition(".schedcheck")[0] for line in last
    ]
    assert ["REQ-001", "TOK-001"] == [Path(line.split()[-1]).name[:7] for line in last]


def test_what_was_found_is_shown_at_once_on_standard_error(type_in, engine):
    engine(Found(failure=UNSHRUNK), KeyboardInterrupt())
    told = type_in("run")
    assert "found REQ-001/new-after-preemption in 46 actions, saved as .schedcheck/" in told.err
    assert "<- here" in told.err


def test_json_is_the_events_alone_a_line_each_and_without_times(type_in, engine):
    engine(Progress(doing="x", traces=1, actions=2), Found(failure=UNSHRUNK), SMALLER, SHRUNK, RED)
    told = type_in("run", "--json")
    events = [json.loads(line) for line in told.out.splitlines()]
    assert ["found", "smaller", "shrunk", "ended"] == [event["word"] for event in events]
    assert 0.0 == events[-1]["body"]["seconds"]
    assert 1 == told.code


def test_a_terminal_gets_colours_and_no_color_takes_them_away(type_in, engine, monkeypatch):
    monkeypatch.setattr(console.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    engine(RED)  # which is bold as well: that has to go too
    assert "\x1b[" in type_in("run").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in type_in("run").out


@pytest.fixture
def workflow(type_in, tmp_path, monkeypatch) -> Path:
    """Be in a workflow, and return the file of its step summary."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


def test_reports_are_written_beside_what_is_said(type_in, engine, tmp_path):
    engine(Found(failure=UNSHRUNK), SHRUNK, RED)
    plain = type_in("run")
    engine(Found(failure=UNSHRUNK), SHRUNK, RED)
    told = type_in("run", "--junit", "new/j.xml", "--sarif", "s.sarif")
    assert (1, plain.out) == (told.code, told.out)
    assert "46 -&gt; 4 actions" in (tmp_path / "new" / "j.xml").read_text()
    (found,) = json.loads((tmp_path / "s.sarif").read_text())["runs"][0]["results"]
    assert "REQ-001" == found["ruleId"]


def test_a_workflow_is_told_without_being_asked(type_in, engine, workflow):
    engine(Found(failure=UNSHRUNK), SHRUNK, RED)
    told = type_in("run", "--json")
    assert [] == [line for line in told.out.splitlines() if not line.startswith("{")]
    assert 1 == told.err.count("\n::error file=.schedcheck/traces/REQ-001-")
    assert "### REQ-001: a preempted request" in workflow.read_text()


def test_elsewhere_nothing_is_annotated_unless_asked(type_in, engine):
    for options, times in ((), 0), (("--github",), 1):
        engine(SHRUNK, RED)
        assert times == type_in("run", *options).err.count("::error")


def test_what_is_said_in_a_workflow_gives_no_orders(type_in, engine, workflow):
    """A request's name must not set a variable of the workflow."""
    order = evolve(STORY[0], action="::stop-commands::x ##[error]y")
    failure = evolve(FAILURE, story=(order,), traceback="::error::x")
    engine(Found(failure=failure), evolve(SHRUNK, failure=failure), RED)
    told = type_in("run")
    lines = [line.strip() for line in (told.out + told.err).splitlines()]
    assert 1 == len([line for line in lines if line.startswith("::")])
    assert "##[" not in told.out + told.err


def test_a_report_that_cannot_be_written_is_one_line(type_in, engine, tmp_path):
    (tmp_path / "file").write_text("in the way")
    engine(RED)
    told = type_in("run", "--junit", "file/j.xml")
    assert 2 == told.code
    assert "cannot write file/j.xml" in told.err


# Nothing is lost.


def test_a_failure_is_saved_when_found_and_replaced_when_it_gets_smaller(
    type_in, engine, tmp_path, monkeypatch
):
    found, done = evolve(UNSHRUNK, trace="found\n"), evolve(FAILURE, trace="done\n")
    contents = []

    def perform(job, emit, *, place):
        for event in (Found(failure=found), SMALLER, evolve(SHRUNK, failure=done)):
            emit(event)
            contents.append(saved(tmp_path))

    engine(ENDED)
    monkeypatch.setattr(search, "perform", perform)
    told = type_in("run")
    assert [["found\n"], [TRACE * 2], ["done\n"]] == contents
    (path,) = (tmp_path / ".schedcheck" / "traces").iterdir()
    assert f"schedcheck replay .schedcheck/traces/{path.name}" in told.out


def test_an_interrupt_tells_what_was_found_and_keeps_the_smallest_trace(type_in, engine, tmp_path):
    engine(Found(failure=UNSHRUNK), SMALLER, RED, KeyboardInterrupt())
    told = type_in("run")
    assert 130 == told.code
    assert "VIOLATED  REQ-001" in told.out
    assert "not minimal" in told.out
    assert [TRACE * 2] == saved(tmp_path)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_trace_that_cannot_be_saved_goes_to_standard_error(type_in, engine, tmp_path, options):
    (tmp_path / ".schedcheck").write_text("in the way")
    engine(Found(failure=UNSHRUNK), SMALLER, SHRUNK, RED)
    told = type_in("run", *options)
    assert 2 == told.code
    assert TRACE in told.err
    assert 1 == told.err.count("cannot write")
    assert "schedcheck replay" not in told.out


class Lost:
    """A standard output that takes nothing."""

    encoding = "utf-8"

    def __init__(self, error: OSError) -> None:
        self.error, self.buffer = error, self

    def write(self, content: object) -> int:
        raise self.error

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "cannot write standard output: No"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_output_that_is_gone_is_no_pass_and_no_fault_of_ours(
    type_in, engine, tmp_path, monkeypatch, error, code, said, options
):
    engine(Found(failure=UNSHRUNK), SHRUNK, RED)
    monkeypatch.setattr(sys, "stdout", Lost(error))
    told = type_in("run", *options)
    assert code == told.code
    assert said in told.err
    assert "our own" not in told.err
    assert [TRACE] == saved(tmp_path)


# Faults.


def test_a_fault_of_ours_is_one_line_and_a_traceback_only_when_asked_for(
    type_in, engine, monkeypatch
):
    engine(RuntimeError("broken\n\x1b[2Jin two"))
    told = type_in("run")
    assert "please report it: RuntimeError: broken ?[2Jin two\n" in told.err
    assert "Traceback" not in told.err
    monkeypatch.setenv("SCHEDCHECK_DEBUG", "1")
    assert "Traceback" in type_in("run").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--profile", "slow"), "no profile 'slow'; there are quick, ci"),
        (("run", "--invariants", "NO-*"), "no invariant matches 'NO-*'"),
        (("run", "--invariants", "!*"), "'!*' takes every invariant away"),
        (("run", "--dialect", "v9"), "'v9' is not one of 'v1', 'v2'"),
        (("run", "--seed", "x"), "'x' is not a valid integer"),
        (("run", "--max-time", "0s"), "'0s' is no duration above 0, such as 90s, 10m or 1h"),
        (("run", "a", "b"), "unexpected extra argument"),
        (("replay",), "Missing argument 'TRACES...'"),
        (("replay", "nowhere"), "nowhere: cannot read it"),
        (("shrink", "nowhere"), "nowhere: cannot read it"),
        (("show", "nowhere"), "nowhere: cannot read it"),
        (("list",), "Choose from: invariants, mutants, adapters, actions, profiles"),
        (("list", "secrets"), "'secrets' is not one of 'invariants'"),
        (("explain", "REQ-999"), "no invariant 'REQ-999'"),
        (("env", "vllm"), "'vllm' names no release"),
        (("env", "vllm==0.1"), "release '0.1' of vllm cannot be prepared"),
        (("env", "--remove"), "--remove needs a TARGET"),
        (("frobnicate",), "No such command 'frobnicate'"),
        (("--frobnicate",), "No such option"),
    ],
)
def test_a_wrong_command_gets_one_clear_line(type_in, engine, arguments, said):
    jobs = engine(ENDED)
    told = type_in(*arguments)
    assert (2, "", []) == (told.code, told.out, jobs)
    assert said in told.err
    assert 1 == len(told.err.splitlines())


def test_no_command_shows_what_there_is(type_in):
    told = type_in()
    assert (2, "") == (told.code, told.out)
    for name in ("run", "replay", "shrink", "show", "bisect", "diff", "list", "explain", "env"):
        assert f"\n  {name} " in told.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("1.5m", 90.0), ("7", 7.0), ("5 s", 5.0)],
)
def test_durations(text, expected):
    assert expected == console.Seconds().convert(text, None, None)


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "0.0m", "1d", "1h30m", "1e3", "inf", "nan"])
def test_what_is_no_duration(text):
    with pytest.raises(click.BadParameter, match="is no duration above 0"):
        console.Seconds().convert(text, None, None)


# Traces.


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "a.trace.jsonl"
    path.write_text(TRACE)
    return path


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.FAILED, 1),
        (Outcome.OTHER, 1),
        (Outcome.FIXED, 0),
        (Outcome.HOLDS, 0),
        (Outcome.DRIFTED, 3),
        (Outcome.ERROR, 2),
    ],
)
def test_a_replay_ends_with_the_exit_code_of_its_outcome(type_in, engine, trace, outcome, code):
    engine(replayed(outcome, "so it is"))
    told = type_in("replay", trace)
    assert code == told.code
    assert told.out.startswith(f"{outcome.value:<7}  {trace}")


def test_of_several_traces_each_is_told_and_the_worst_decides(type_in, engine, trace):
    """A file that cannot be read must not keep the others from being replayed."""
    jobs = engine(
        (replayed(Outcome.FIXED, "fixed"),),
        (replayed(Outcome.FAILED, "failed", failure=FAILURE),),
        (replayed(Outcome.FAILED, "failed", failure=FAILURE),),
    )
    bad = trace.with_name("bad")
    bad.write_text("junk")
    told = type_in("replay", trace, bad, trace, trace)
    assert (2, 3) == (told.code, len(jobs))
    assert ["FIXED", "FAILED", "FAILED"] == [
        line.split()[0] for line in told.out.splitlines() if str(trace) in line and "on" in line
    ][:3]
    assert 1 == told.out.count("VIOLATED"), "the first failure is told in full, and only that"
    assert f"{bad}:1:" in told.err


def test_a_fault_of_ours_is_worse_than_any_outcome(type_in, engine, trace):
    engine((Fault(message="x", is_ours=True),), (replayed(Outcome.FAILED, "failed"),))
    assert 70 == type_in("replay", trace, trace).code


def test_a_replay_elsewhere_says_how_to_do_it_again(type_in, engine, trace):
    jobs = engine(replayed(Outcome.FAILED, "failed", failure=FAILURE))
    told = type_in("replay", trace, "--on", "vllm==0.14.0")
    assert f"schedcheck replay {trace} --on vllm==0.14.0\n" in told.out
    assert ["vllm"] == [job.target for job in jobs if isinstance(job, ReplayJob)]


def test_what_an_engine_raised_is_told_beside_the_failure(type_in, engine, trace):
    crashed = evolve(FAILURE, traceback="Traceback:\n\tKeyError: '\x1b[2J'\n")
    engine(replayed(Outcome.FAILED, "failed", failure=crashed))
    told = type_in("replay", trace)
    assert "KeyError: '?[2J'" in told.err
    assert "KeyError" not in told.out


def test_shrinking_writes_every_smaller_trace_at_once(type_in, engine, trace):
    jobs = engine(Found(failure=UNSHRUNK), SMALLER, KeyboardInterrupt())
    output = trace.with_name("smaller.trace.jsonl")
    told = type_in("shrink", trace, "-o", output, "--budget", "1m")
    assert (130, TRACE * 2) == (told.code, output.read_text())
    assert TRACE == trace.read_text()
    assert [60.0] == [job.seconds_max for job in jobs if isinstance(job, ShrinkJob)]


def test_a_budget_that_is_spent_says_how_to_go_on(type_in, engine, trace):
    engine(Found(failure=UNSHRUNK), evolve(SHRUNK, budget_spent=True))
    told = type_in("shrink", trace)
    assert 0 == told.code
    assert f"the budget is spent: schedcheck shrink {trace} goes on from here" in told.err


def test_a_shrunk_trace_that_cannot_be_written_is_one_line(type_in, engine, trace, tmp_path):
    engine(SMALLER)
    told = type_in("shrink", trace, "-o", tmp_path)
    assert 2 == told.code
    assert "cannot write" in told.err


def test_show_replays_and_tells_what_changes(type_in, engine, trace):
    engine(evolve(replayed(Outcome.FAILED, ""), failure=FAILURE))
    told = type_in("show", trace)
    assert 0 == told.code
    assert "   2  step" in told.out
    assert "<- here" in told.out


def test_show_at_compares_with_the_action_before(type_in, engine, trace):
    trace.write_text(TRACE + '{"do":"step"}\n')
    before = evolve(replayed(Outcome.HOLDS, ""), story=STORY[:1], holdings=("r0  WAITING",))
    after = evolve(replayed(Outcome.HOLDS, ""), story=STORY[:2], holdings=("r0  RUNNING",))
    jobs = engine((before,), (after,))
    told = type_in("show", trace, "--at", 2)
    assert [2, 3] == [len(job.trace.splitlines()) for job in jobs]
    assert "RUNNING\n                  (before: WAITING)" in told.out
    assert "waiting     –  (before: r0)" in told.out


@pytest.mark.parametrize("at", [0, 2, -1])
def test_show_at_an_action_that_is_not_there(type_in, engine, trace, at):
    engine(ENDED)
    told = type_in("show", trace, "--at", at)
    assert (2, "") == (told.code, told.out)
    assert "has actions 1 to 1" in told.err


def test_show_without_the_target_shows_the_actions(type_in, engine, trace):
    engine(Fault(message="vllm is not installed"))
    told = type_in("show", trace)
    assert (0, "   1  step") == (told.code, told.out.splitlines()[-1])
    assert "schedcheck: vllm is not installed; only the actions are shown\n" == told.err


def test_show_prepares_no_environment(type_in, engine, trace, monkeypatch, tmp_path):
    """A look at a file must not download gigabytes."""
    monkeypatch.setenv("SCHEDCHECK_CACHE", str(tmp_path / "cache"))
    trace.write_text(TRACE.replace('"reference"', '"vllm","version":"0.13.0"'))
    jobs = engine(ENDED)
    told = type_in("show", trace)
    assert (0, []) == (told.code, jobs)
    assert "vllm==0.13.0 is not prepared (schedcheck env vllm==0.13.0 does that)" in told.err


def test_show_draws_every_picture_that_is_asked_for(type_in, engine, trace, tmp_path):
    jobs = engine(evolve(replayed(Outcome.FAILED, ""), failure=FAILURE))
    told = type_in("show", trace, "--html", "a.html", "--svg", "b/a.svg", "--perfetto", "a.json")
    assert (0, "") == (told.code, told.out)
    assert [True] == [job.with_scenes for job in jobs]
    beginnings = [(tmp_path / name).read_text()[:5] for name in ("a.html", "b/a.svg", "a.json")]
    assert ["<!doc", "<?xml", '{"tra'] == beginnings
    assert "## Not covered" in (tmp_path / "a.html").read_text(), "the invariant's page"


def test_a_picture_needs_the_target(type_in, engine, trace, tmp_path):
    engine(Fault(message="vllm is not installed"))
    told = type_in("show", trace, "--svg", "a.svg")
    assert (2, "schedcheck: vllm is not installed\n") == (told.code, told.err)
    assert not (tmp_path / "a.svg").exists()


def test_a_picture_is_of_every_action(type_in, engine, trace):
    engine(ENDED)
    told = type_in("show", trace, "--html", "a.html", "--at", 1)
    assert 2 == told.code
    assert "leave --at out, and open #s1" in told.err


def test_a_picture_that_cannot_be_written_is_one_line(type_in, engine, trace, tmp_path):
    engine(evolve(replayed(Outcome.FAILED, ""), failure=FAILURE))
    told = type_in("show", trace, "--html", tmp_path)
    assert (2, 1) == (told.code, len(told.err.splitlines()))
    assert "cannot write" in told.err


# What there is to know.


@pytest.mark.parametrize("what", know._THINGS)
def test_lists_are_tables_of_at_most_100_columns(type_in, what):
    told = type_in("list", what)
    assert (0, "") == (told.code, told.err)
    assert [] == [line for line in told.out.splitlines() if len(line) > 100]
    assert "``" not in told.out


def test_a_command_that_only_looks_imports_nothing_heavy():
    """Otherwise ``schedcheck list`` would take seconds."""
    code = (
        "import sys, schedcheck.cli\n"
        "heavy = ('hypothesis', 'pytest', '_pytest', 'rich', 'vllm', 'torch')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "[]\n" == ran.stdout


def test_an_ended_run_says_its_time_on_standard_error_alone(type_in, engine):
    engine(evolve(ENDED, seconds=0.0))
    first = type_in("run")
    engine(evolve(ENDED, seconds=12.0))
    second = type_in("run")
    assert first.out == second.out
    assert first.err != second.err


# The catalogue.

MUTANT = find("lost-from-queues")
KILLED = Kills(mutant=MUTANT, found=frozenset({"REQ-005"}), traces=3)
PROBLEM = Problem(where="REQ-005 minimal", what="action 1 (step) can be removed", fix="mend it")


@pytest.fixture
def checked(monkeypatch) -> Callable[..., None]:
    """Return what puts a result in the place of checking the catalogue."""

    def stand_in(*problems: Problem, kills: tuple[Kills, ...] = (KILLED,)) -> None:
        whole = Checked(kills=kills, problems=problems, minimal=25, controls=25, lawful=0, known=2)
        monkeypatch.setattr(curate, "check_everything", lambda _tell: whole)

    return stand_in


def test_a_catalogue_in_order_is_exit_code_0(type_in, checked):
    checked()
    told = type_in("catalogue", "--check")
    assert (0, "") == (told.code, told.err)
    assert "lost-from-queues       3  x REQ-005" in told.out.splitlines()
    first, last = told.out.splitlines()[-2:]
    assert ("0 problems · 1 of 1 mutants killed · ", "2 known") == (first[:37], last)
    assert [] == [line for line in told.out.splitlines() if len(line) > 100]


def test_a_problem_is_a_line_with_its_fix_and_exit_code_1(type_in, checked):
    checked(PROBLEM)
    told = type_in("catalogue", "--check")
    assert 1 == told.code
    assert "!  REQ-005 minimal: action 1 (step) can be removed.  fix: mend it" in told.out
    assert told.out.splitlines()[-2].startswith("1 problem · ")


@pytest.mark.parametrize("arguments", [(), ("--check", "--new", "REQ-001")])
def test_the_catalogue_is_asked_one_thing(type_in, arguments):
    told = type_in("catalogue", *arguments)
    assert (2, "", "say either --check or --new ID") == (
        told.code,
        told.out,
        told.err.removeprefix("schedcheck: ").partition(" (")[0],
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CannotAdd("no mutant names ENG-002 in must_kill"), 2),
        (NothingKilled("ENG-002 kills none of them"), 1),
        (TraceUnwritable("cannot write it"), 2),
    ],
)
def test_an_entry_that_cannot_be_written_is_one_line(type_in, monkeypatch, error, code):
    def fail(*_arguments):
        raise error

    monkeypatch.setattr(curate, "write_entry", fail)
    told = type_in("catalogue", "--new", "eng-002")
    assert (code, "", f"schedcheck: {error}\n") == (told.code, told.out, told.err)


def test_an_entry_of_what_is_not_registered(type_in):
    told = type_in("catalogue", "--new", "REQ-999")
    assert (2, "", True) == (told.code, told.out, "no invariant 'REQ-999'" in told.err)


def test_an_entry_says_what_was_written_and_what_is_left_to_do(type_in, monkeypatch):
    entry = catalogue.entry("REQ-005")
    minimal, control = read(entry.minimal), read(entry.control)
    written = Written(entry=entry, minimal=minimal, control=control, has_new_page=True)
    monkeypatch.setattr(curate, "write_entry", lambda *_arguments: written)
    monkeypatch.setattr(curate, "of_invariant", lambda _invariant: [PROBLEM])
    told = type_in("catalogue", "--new", "REQ-005")
    folder = f"invariants/{entry.folder.name}"
    assert 0 == told.code
    assert [
        f"minimal  {minimal.header.expect.signature} at action 3 on reference+lost-from-queues",
        f"         {folder}/minimal.trace.jsonl",
        "control  2 actions on reference",
        f"         {folder}/control.trace.jsonl",
        f"page     {folder}/invariant.md begun",
        "",
        "!  REQ-005 minimal: action 1 (step) can be removed.  fix: mend it",
    ] == told.out.splitlines()
    monkeypatch.setattr(curate, "write_entry", lambda *_arguments: evolve(written, control=None))
    assert 1 == type_in("catalogue", "--new", "REQ-005").code
