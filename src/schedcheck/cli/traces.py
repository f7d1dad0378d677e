"""``replay`` and ``shrink``, and what all commands about traces share."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import define, evolve, field

from schedcheck.catalogue.exemptions import known_issues
from schedcheck.cli.check import beside, rebuilt_from
from schedcheck.cli.console import (
    NOT_SHOWN,
    OK,
    OUR_FAULT,
    USAGE,
    VIOLATION,
    Seconds,
    Ticker,
    complain,
    fault_code,
    known_option,
    painter,
    preparing,
    put,
    say,
)
from schedcheck.cli.pieces import again, made_with, pieces, takes_pieces
from schedcheck.engine.events import (
    Compared,
    Fault,
    Found,
    JobEvent,
    Outcome,
    Progress,
    Replayed,
    Shrunk,
    Smaller,
)
from schedcheck.engine.foreign import words_for as words_for_replay
from schedcheck.engine.jobs import ReplayJob, ShrinkJob
from schedcheck.host.environments import environment_for
from schedcheck.host.releases import RELEASES
from schedcheck.host.supervisor import Place, perform, place_for
from schedcheck.model.known import KnownIssue
from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.model.trace import Trace
from schedcheck.report.text import (
    command,
    failure_lines,
    replay_lines,
)
from schedcheck.report.words import clean
from schedcheck.sut import TargetError
from schedcheck.tracefile import TraceError, encode, read, write_bytes

_CODES = {
    Outcome.FAILED: VIOLATION,
    Outcome.OTHER: VIOLATION,
    Outcome.FIXED: OK,
    Outcome.HOLDS: OK,
    Outcome.DRIFTED: NOT_SHOWN,
    Outcome.ERROR: USAGE,
}
_WORST_FIRST = (OUR_FAULT, USAGE, VIOLATION, NOT_SHOWN, OK)

trace_argument = click.Path(path_type=Path)
python_option = click.option(
    "--python", type=click.Path(path_type=Path), help="Run the target under this interpreter."
)
on_option = click.option("--on", help="Another target than the trace's own: vllm==0.14.0.")
in_process_option = click.option("--in-process", is_flag=True, help="Run it in this process.")


def target_of(trace: Trace, on: str | None, python: Path | None) -> str:
    """Return where a trace is to be replayed: the release it was found on, if it can be had.

    Raises TargetError for a trace that names an adapter: it may come from a stranger, and must not
    choose which code runs here.
    """
    if on:
        return on
    if ":" in trace.header.target:
        raise TargetError(
            f"the trace asks for the adapter {trace.header.target}; a trace does not choose what "
            f"code runs: say --on {trace.header.target}"
        )
    pinned = f"{trace.header.target}=={trace.header.version}"
    return pinned if python is None and pinned in RELEASES else trace.header.target


def load(path: Path) -> Trace:
    """Read a trace file, saying what of it is newer than this schedcheck. Raises TraceError."""
    return read(path, on_ignored=complain)


def place_of(
    trace: Trace, on: str | None, python: Path | None, *, in_process: bool
) -> tuple[str, Place]:
    """Return where a trace is replayed, prepared. Raises TargetError."""
    ticker = Ticker()
    try:
        return place_for(
            target_of(trace, on, python),
            python=python,
            in_process=in_process,
            progress=preparing(ticker),
        )
    finally:
        ticker.clear()


def replay_in(
    trace: Trace,
    name: str,
    target: str,
    place: Place,
    *,
    known: tuple[KnownIssue, ...] = (),
    with_moments: bool = False,
    options: Options = NO_OPTIONS,
    with_scenes: bool = False,
) -> Replayed | Fault:
    """Replay one trace on a target made with the options that were typed. Raises TargetError.

    ``with_moments``: telling everything that was to be seen; ``with_scenes``: what is to be drawn.
    """
    heard: list[JobEvent] = []
    job = ReplayJob(
        target=target,
        trace=encode(trace).decode(),
        name=name,
        known=known,
        with_moments=with_moments,
        options=options,
        with_scenes=with_scenes,
    )
    perform(job, heard.append, place=place)
    for event in heard:
        if isinstance(event, Replayed | Fault):
            return event
    return Fault(message=f"nothing was said about {name}", is_ours=True)


def must_be_ready(target: str, on: str | None) -> None:
    """Raise TargetError rather than prepare a release that nobody asked for."""
    if on is None and target in RELEASES and not environment_for(RELEASES[target]).is_ready():
        raise TargetError(f"{target} is not prepared (schedcheck env {target} does that)")


@click.command(short_help="Does a trace still show what it showed?")
@click.argument("traces", nargs=-1, required=True, type=trace_argument)
@on_option
@python_option
@in_process_option
@known_option
@takes_pieces
def replay(
    traces: tuple[Path, ...],
    on: str | None,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
    known: str | None,
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Replay TRACES: FAILED, OTHER, FIXED, HOLDS, DRIFTED or ERROR, one line each.

    What a trace is expected to show counts, known or not; what else is known is looked past.
    The first one that fails is told in full. Exit code 1 for FAILED and OTHER, 0 for FIXED and
    HOLDS, 3 for DRIFTED, 2 for ERROR; of several, the worst.
    """
    issues = known_issues(known)
    codes: list[int] = []
    first: tuple[str, Replayed] | None = None
    options = pieces(scheduler=scheduler, connector=connector, config=config)
    for path in traces:
        try:
            trace = made_with(load(path), options, on=on)
            target, place = place_of(trace, on, python, in_process=in_process)
            told = replay_in(trace, str(path), target, place, known=issues, options=options)
        except (TraceError, TargetError) as error:
            told = Fault(message=str(error))
        if isinstance(told, Fault):  # the others are replayed all the same
            codes.append(fault_code(told))
            continue
        codes.append(_CODES[told.outcome])
        for line in replay_lines(told, str(path), paint=painter()):
            put(line)
        if told.failure is not None and first is None:
            first = str(path), told
    if first is not None:
        _tell(*first, on=on, more=again(options, python))
    raise click.exceptions.Exit(next(code for code in _WORST_FIRST if code in codes))


def _tell(path: str, told: Replayed, *, on: str | None, more: tuple[str, ...]) -> None:
    """Tell what a trace violates, and on standard error what the engine said of it."""
    if told.failure is None:
        return
    put()
    for line in failure_lines(told.failure, path=path, on=on or "", more=more, paint=painter()):
        put(line)
    if told.failure.traceback:
        say("\nwhat the engine said:")
        for line in told.failure.traceback.splitlines():
            say(f"  {clean(line.expandtabs())}".rstrip())


@click.command(short_help="Make a failing trace as small as possible.")
@click.argument("trace", type=trace_argument)
@on_option
@python_option
@in_process_option
@click.option("--budget", type=Seconds(), default="60s", show_default=True, help="At most so long.")
@click.option("-o", "--output", type=trace_argument, help="Default: the trace itself.")
@known_option
@takes_pieces
def shrink(
    trace: Path,
    on: str | None,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
    budget: float,
    output: Path | None,
    known: str | None,
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Make a failing TRACE as small as possible without losing its signature.

    Every smaller trace is written at once, so that an interrupted or exhausted shrink goes on from
    where it was when it is started again on the output. A recording is replayed up to its first
    violation; what comes of it is written beside it.
    """
    issues = known_issues(known)
    options = pieces(scheduler=scheduler, connector=connector, config=config)
    rebuilt = rebuilt_from(trace)
    loaded = made_with(load(trace) if rebuilt is None else rebuilt.trace, options, on=on)
    target, place = place_of(loaded, on, python, in_process=in_process)
    job = ShrinkJob(
        target=target,
        trace=encode(loaded).decode(),
        name=str(trace),
        seconds_max=budget,
        known=issues,
        options=options,
    )
    if rebuilt is not None:
        found, line = rebuilt.finding.signature, rebuilt.line
        say(f"{found} on line {line:,} of {clean(str(trace))}: {len(loaded.actions):,} actions")
        shorter = tuple(encode(one).decode() for one in rebuilt.shorter)
        job = evolve(job, shorter=shorter, shapes=rebuilt.shapes)
        output = output or beside(trace)
    more = again(options, python)
    shrinking = _Shrinking(destination=output or trace, on=on or "", more=more)
    perform(job, shrinking.hear, place=place)
    raise click.exceptions.Exit(shrinking.code)


@define(kw_only=True)
class _Shrinking:
    """Turns the events of a shrink into text, a file and an exit code."""

    destination: Path
    on: str
    more: tuple[str, ...]
    ticker: Ticker = field(init=False, factory=Ticker)
    code: int = field(init=False, default=OK)

    def hear(self, event: JobEvent) -> None:
        if isinstance(event, Progress):
            self.ticker.progress(event)
            return
        self.ticker.clear()
        match event:
            case Found(failure=failure):
                found = clean(failure.complaint.signature)
                say(f"{found} in {failure.actions} actions; shrinking")
            case Compared():
                say(clean(words_for_replay(event)))
            case Smaller(trace=smaller, actions=actions):
                write_bytes(self.destination, smaller.encode())
                self.ticker.tell(f"{actions} actions")
            case Shrunk():
                self._shrunk(event)
            case Fault():
                self.code = fault_code(event)
            case _:
                pass

    def _shrunk(self, event: Shrunk) -> None:
        path = str(self.destination)
        write_bytes(self.destination, event.failure.trace.encode())
        for line in failure_lines(
            event.failure, path=path, on=self.on, more=self.more, paint=painter()
        ):
            put(line)
        say(f"{event.executions:,} candidates tried")
        if event.budget_spent:
            typed = command("shrink", path, on=self.on, more=self.more)
            say(f"the budget is spent: {typed} goes on from here")
