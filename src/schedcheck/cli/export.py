"""``export``: a trace for those who mend the fault, as a bug report, a test or a trace file."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import evolve

from schedcheck import __version__
from schedcheck.catalogue.exemptions import known_issues
from schedcheck.cli.console import USAGE, complain, fault_code, put_bytes, say
from schedcheck.cli.pieces import made_with, pieces, takes_pieces
from schedcheck.cli.traces import (
    in_process_option,
    load,
    must_be_ready,
    on_option,
    place_of,
    python_option,
    replay_in,
    target_of,
    trace_argument,
)
from schedcheck.engine.events import Fault, Replayed
from schedcheck.model.options import Options
from schedcheck.model.trace import Trace
from schedcheck.report.export import CannotExport, issue_lines, own_test, vllm_test
from schedcheck.sut import TargetError
from schedcheck.tracefile import encode, write_bytes

_FORMS = ("pytest", "issue", "jsonl")


@click.command(short_help="Hand a trace over: as a test, a bug report or a trace.")
@click.argument("trace", type=trace_argument)
@click.option("--as", "form", type=click.Choice(_FORMS), required=True, help="In which form.")
@click.option("-o", "--output", type=trace_argument, help="Default: standard output.")
@on_option
@python_option
@in_process_option
@takes_pieces
def export(
    trace: Path,
    form: str,
    output: Path | None,
    on: str | None,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Hand TRACE over to those who can mend what it shows.

    pytest is a regression test. For vLLM it stands alone: it builds vLLM's Scheduler as vLLM's own
    tests do, and asserts what was violated; where no assertion stands alone, that is said in one
    line, exit code 2. For the reference and for adapters it replays the trace with schedcheck.

    issue is the body of a bug report in Markdown. jsonl is the trace itself, in its canonical form.

    The trace is replayed for what it shows, where its target is at hand; nothing is installed.
    """
    loaded = load(trace)
    if form == "jsonl":
        content = encode(loaded)
    else:
        options = pieces(scheduler=scheduler, connector=connector, config=config)
        told = _replayed(loaded, str(trace), on, python, in_process=in_process, options=options)
        content = _issue(loaded, told, on) if form == "issue" else _test(loaded, told, on)
    if output is None:
        put_bytes(content)
    else:
        write_bytes(output, content)
        say(f"written to {output}")


def _replayed(
    trace: Trace,
    name: str,
    on: str | None,
    python: Path | None,
    *,
    in_process: bool,
    options: Options,
) -> Replayed | None:
    """Return what a replay shows; None, saying why, where there can be none."""
    try:
        trace = made_with(trace, options, on=on)
        must_be_ready(target_of(trace, on, python), on)
        target, place = place_of(trace, on, python, in_process=in_process)
        told = replay_in(trace, name, target, place, known=known_issues(), options=options)
    except TargetError as error:
        told = Fault(message=str(error))
    if isinstance(told, Fault) and told.is_ours:
        raise click.exceptions.Exit(fault_code(told))
    if isinstance(told, Fault):
        complain(f"{told.message}; it is exported without being replayed")
        return None
    if told.failure is None:
        complain(f"it violates nothing on {told.target} {told.version}: {told.reason}")
    return told


def _issue(trace: Trace, told: Replayed | None, on: str | None) -> bytes:
    failure = told.failure if told is not None else None
    if failure is not None and told is not None:
        failure = evolve(failure, target=told.target, version=told.version)
    lines = issue_lines(trace, failure, schedcheck=__version__, on=on or "")
    return ("\n".join(lines) + "\n").encode()


def _test(trace: Trace, told: Replayed | None, on: str | None) -> bytes:
    target = on or trace.header.target
    try:
        if target.partition("==")[0] == "vllm":
            failure = told.failure if told is not None else None
            return vllm_test(trace, failure=failure).encode()
        return own_test(trace, target=target_of(trace, on, None)).encode()
    except CannotExport as error:
        complain(error)
        raise click.exceptions.Exit(USAGE) from error
