"""``show``: what happens in a trace, in the terminal and in pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
from attrs import evolve

from schedcheck.catalogue import CatalogueMissing, entry
from schedcheck.catalogue.exemptions import known_issues
from schedcheck.cli.console import USAGE, complain, fault_code, painter, put, say
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
from schedcheck.engine.events import Fault, Outcome, Replayed
from schedcheck.engine.story import words_for, words_for_config
from schedcheck.model.options import Options
from schedcheck.model.trace import Header, Trace
from schedcheck.report.page import View, drawing_svg, page_html, timeline_json, view_of
from schedcheck.report.text import moment_lines, story_lines
from schedcheck.report.words import clean, fact_lines
from schedcheck.sut import TargetError
from schedcheck.tracefile import write_bytes

_PICTURES: dict[str, Callable[[View], bytes]] = {
    "html": lambda view: page_html(view).encode(),
    "svg": drawing_svg,
    "perfetto": timeline_json,
}


@click.command(short_help="Show what happens, action by action.")
@click.argument("trace", type=trace_argument)
@click.option("--at", type=int, help="Only this action, with what each request then holds.")
@click.option("--html", type=trace_argument, help="Draw it into a page of its own, OUT.html.")
@click.option("--svg", type=trace_argument, help="Draw a still picture of it.")
@click.option("--perfetto", type=trace_argument, help="Write a timeline that Perfetto opens.")
@on_option
@python_option
@in_process_option
@takes_pieces
def show(
    trace: Path,
    at: int | None,
    html: Path | None,
    svg: Path | None,
    perfetto: Path | None,
    on: str | None,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Show what happens in TRACE, action by action: queues and counts where they change.

    The trace is replayed on its own target. Where that is not at hand, its actions alone are shown;
    nothing is installed for the sake of showing.

    The page that --html writes is one file that asks nobody for anything; OUT.html#s4 opens it at
    action 4, arrow keys go on from there.
    """
    loaded, issues = load(trace), known_issues()
    options = pieces(scheduler=scheduler, connector=connector, config=config)
    actions = len(loaded.actions)
    if at is not None and not 1 <= at <= actions:
        raise click.UsageError(f"--at {at}: {trace} has actions 1 to {actions}")
    wanted = {"html": html, "svg": svg, "perfetto": perfetto}
    pictures = {form: path for form, path in wanted.items() if path is not None}
    if pictures and at is not None:
        raise click.UsageError(f"a picture shows every action: leave --at out, and open #s{at}")
    if pictures:
        loaded = made_with(loaded, options, on=on)
        _draw(loaded, trace, pictures, on, python, in_process=in_process, options=options)
        return
    for facts in (_facts(loaded.header), words_for_config(loaded.header.config).split(" · ")):
        for line in fact_lines(facts):
            put(line)
    try:
        loaded = made_with(loaded, options, on=on)
        must_be_ready(target_of(loaded, on, python), on)
        target, place = place_of(loaded, on, python, in_process=in_process)
        told = [
            replay_in(part, str(trace), target, place, known=issues, options=options)
            for part in _parts(loaded, range(at - 1, at + 1) if at else range(actions, actions + 1))
        ]
    except TargetError as error:
        told = [Fault(message=str(error))]
    last = told[-1]
    if isinstance(last, Fault) and last.is_ours:
        raise click.exceptions.Exit(fault_code(last))
    if isinstance(last, Fault):
        complain(f"{last.message}; only the actions are shown")
        for number, action in enumerate(loaded.actions, 1):
            if at in (None, number):
                put(f"{number:>4}  {clean(words_for(action))}")
        return
    before = told[0] if len(told) > 1 else None
    _show(last, before if isinstance(before, Replayed) else None, at)


def _draw(
    trace: Trace,
    path: Path,
    pictures: dict[str, Path],
    on: str | None,
    python: Path | None,
    *,
    in_process: bool,
    options: Options,
) -> None:
    """Write pictures of a trace. Raises TargetError where it cannot be replayed here."""
    must_be_ready(target_of(trace, on, python), on)
    target, place = place_of(trace, on, python, in_process=in_process)
    told = replay_in(
        trace, str(path), target, place, known=known_issues(), options=options, with_scenes=True
    )
    if isinstance(told, Fault):
        raise click.exceptions.Exit(fault_code(told))
    if not told.story:
        complain(told.reason)
        raise click.exceptions.Exit(USAGE)
    config = words_for_config(trace.header.config).split(" · ")
    view = view_of(told, config=config, page=_page_about(told))
    for form, destination in pictures.items():
        write_bytes(destination, _PICTURES[form](view))
        say(f"written to {destination}")
    if told.failure is None and told.outcome is Outcome.DRIFTED:
        complain(told.reason)


def _page_about(told: Replayed) -> str:
    """Return the page of what was violated, empty if nothing was or there is no page."""
    if told.failure is None:
        return ""
    try:
        return entry(told.failure.complaint.invariant).page.read_text(encoding="utf-8")
    except (CatalogueMissing, OSError):
        return ""


def _facts(header: Header) -> Iterator[str]:
    yield " ".join(filter(None, (header.target, header.version, *header.options.words)))
    if header.expect is not None:
        yield f"expects {header.expect.signature} at {header.expect.step}"
    if header.seed:
        yield f"seed/trace {header.seed}"


def _parts(trace: Trace, lengths: range) -> list[Trace]:
    """Return the trace's beginnings; only the whole of it is expected to show something."""
    shorter = evolve(trace.header, expect=None)
    return [
        trace
        if length == len(trace.actions)
        else Trace(header=shorter, actions=trace.actions[:length])
        for length in lengths
        if length
    ]


def _show(told: Replayed, before: Replayed | None, at: int | None) -> None:
    """Show the table, or one action with what it changed."""
    lines = story_lines(told.story, changes_only=True, paint=painter())
    if at is not None and told.story:
        lines = moment_lines(
            told.story[-1],
            told.holdings,
            before=before.story[-1] if before is not None and before.story else None,
            holdings_before=before.holdings if before is not None else (),
        )
    for line in lines:
        put(line)
    if told.failure is None and told.outcome in (Outcome.DRIFTED, Outcome.ERROR):
        complain(told.reason)
