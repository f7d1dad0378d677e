"""``replay``, ``shrink`` and ``show``: what is done with a trace."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import evolve

from schedcheck.cli.console import (
    NOT_SHOWN,
    OK,
    USAGE,
    VIOLATION,
    Seconds,
    Ticker,
    fault_code,
    painter,
    preparing,
    say,
)
from schedcheck.engine.events import (
    Fault,
    Found,
    JobEvent,
    Outcome,
    Progress,
    Replayed,
    Shrunk,
    Smaller,
)
from schedcheck.engine.jobs import ReplayJob, ShrinkJob
from schedcheck.engine.story import words_for, words_for_config
from schedcheck.host.releases import RELEASES
from schedcheck.host.supervisor import perform, place_for
from schedcheck.model.trace import Trace
from schedcheck.report.text import clean, failure_lines, replay_line, story_lines
from schedcheck.sut import TargetError
from schedcheck.tracefile import encode, read, write_bytes

_CODES = {
    Outcome.FAILED: VIOLATION,
    Outcome.OTHER: VIOLATION,
    Outcome.FIXED: OK,
    Outcome.HOLDS: OK,
    Outcome.DRIFTED: NOT_SHOWN,
    Outcome.ERROR: USAGE,
}
_WORST_FIRST = (USAGE, VIOLATION, NOT_SHOWN, OK)

_trace_argument = click.Path(path_type=Path)
_python_option = click.option(
    "--python", type=click.Path(path_type=Path), help="Run the target under this interpreter."
)
_on_option = click.option("--on", help="Another target than the trace's own: vllm==0.14.0.")
_in_process_option = click.option("--in-process", is_flag=True, help="Run it in this process.")


def target_of(trace: Trace, on: str | None, python: Path | None) -> str:
    """Return where a trace is to be replayed: the release it was found on, if it can be had."""
    if on:
        return on
    pinned = f"{trace.header.target}=={trace.header.version}"
    return pinned if python is None and pinned in RELEASES else trace.header.target


@click.command()
@click.argument("traces", nargs=-1, required=True, type=_trace_argument)
@_on_option
@_python_option
@_in_process_option
def replay(
    traces: tuple[Path, ...],
    on: str | None,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
) -> None:
    """Replay TRACES: FAILED, OTHER, FIXED, HOLDS, DRIFTED or ERROR, one line each.

    The first one that fails is told in full. Exit code 1 for FAILED and OTHER, 0 for FIXED and
    HOLDS, 3 for DRIFTED, 2 for ERROR; of several, the worst.
    """
    codes: list[int] = []
    told_one = False
    for path in traces:
        trace = read(path)
        target = target_of(trace, on, python)
        told = replay_once(trace, path, target, python, in_process=in_process)
        if told is None:
            codes.append(USAGE)
            continue
        click.echo(replay_line(told, str(path), paint=painter()))
        codes.append(_CODES[told.outcome])
        if told.failure is not None and not told_one:
            told_one = True
            click.echo()
            for line in failure_lines(told.failure, path=_again(path, on), paint=painter()):
                click.echo(line)
    raise click.exceptions.Exit(next(code for code in _WORST_FIRST if code in codes))


def _again(path: Path, on: str | None) -> str:
    return f"{path} --on {on}" if on else str(path)


def replay_once(
    trace: Trace, path: Path, target: str, python: Path | None, *, in_process: bool
) -> Replayed | None:
    """Replay one trace; None, having said why, if that cannot be done."""
    ticker = Ticker()
    name, place = place_for(
        target, python=python, in_process=in_process, progress=preparing(ticker)
    )
    ticker.clear()
    heard: list[JobEvent] = []
    job = ReplayJob(target=name, trace=encode(trace).decode(), name=str(path))
    perform(job, heard.append, place=place)
    for event in heard:
        if isinstance(event, Replayed):
            return event
        if isinstance(event, Fault):
            fault_code(event)
    return None


@click.command()
@click.argument("trace", type=_trace_argument)
@_on_option
@_python_option
@_in_process_option
@click.option("--budget", type=Seconds(), default="60s", show_default=True, help="At most so long.")
@click.option("-o", "--output", type=_trace_argument, help="Default: the trace itself.")
def shrink(
    trace: Path,
    on: str | None,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
    budget: float,
    output: Path | None,
) -> None:
    """Make a failing TRACE as small as possible without losing its signature.

    Every smaller trace is written at once, so that an interrupted or exhausted shrink goes on from
    where it was when it is started again on the output.
    """
    read_trace = read(trace)
    destination = output or trace
    ticker = Ticker()
    name, place = place_for(
        target_of(read_trace, on, python),
        python=python,
        in_process=in_process,
        progress=preparing(ticker),
    )
    code = OK

    def hear(event: JobEvent) -> None:
        nonlocal code
        if isinstance(event, Progress):
            ticker.progress(event)
            return
        ticker.clear()
        match event:
            case Found(failure=failure):
                say(f"{failure.complaint.signature} in {failure.actions} actions; shrinking")
            case Smaller(trace=smaller, actions=actions):
                write_bytes(destination, smaller.encode())
                ticker.tell(f"{actions} actions")
            case Shrunk(failure=failure, executions=executions, budget_spent=spent):
                write_bytes(destination, failure.trace.encode())
                for line in failure_lines(failure, path=str(destination), paint=painter()):
                    click.echo(line)
                say(f"{executions:,} candidates tried")
                if spent:
                    say(f"the budget is spent: schedcheck shrink {destination} goes on from here")
            case Fault():
                code = fault_code(event)
            case _:
                pass

    job = ShrinkJob(
        target=name, trace=encode(read_trace).decode(), name=str(trace), seconds_max=budget
    )
    perform(job, hear, place=place)
    raise click.exceptions.Exit(code)


@click.command()
@click.argument("trace", type=_trace_argument)
@click.option("--at", type=int, help="Only this action, with what each request then holds.")
@_on_option
@_python_option
@_in_process_option
def show(
    trace: Path,
    at: int | None,
    on: str | None,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
) -> None:
    """Show what happens in TRACE, action by action."""
    read_trace = read(trace)
    actions = len(read_trace.actions)
    if at is not None and not 1 <= at <= actions:
        raise click.UsageError(f"--at {at}: {trace} has actions 1 to {actions}")
    target = target_of(read_trace, on, python)
    header = read_trace.header
    expects = f"expects {header.expect.signature} at {header.expect.step}" if header.expect else ""
    heading = " · ".join(
        part for part in (f"{header.target} {header.version}".strip(), expects, header.seed) if part
    )
    click.echo(clean(heading))
    click.echo(words_for_config(header.config))
    # A part of a trace is not expected to show what the whole of it does.
    part = Trace(header=evolve(header, expect=None), actions=read_trace.actions[:at])
    cut = part if at else read_trace
    try:
        told = replay_once(cut, trace, target, python, in_process=in_process)
    except TargetError as error:
        say(f"schedcheck: {clean(str(error))}; only the actions are shown")
        told = None
    if told is None:
        for number, action in enumerate(read_trace.actions, 1):
            if at in (None, number):
                click.echo(f"{number:>4}  {clean(words_for(action))}")
        return
    for line in story_lines(told.story[-1:] if at else told.story, paint=painter()):
        click.echo(line)
    for holding in told.holdings if at else ():
        click.echo(f"  {clean(holding)}")
    if told.failure is None and told.outcome in (Outcome.DRIFTED, Outcome.ERROR):
        say(f"schedcheck: {clean(told.reason)}")
