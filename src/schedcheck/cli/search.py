"""``schedcheck run``: search for violations."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import define, evolve, field

from schedcheck.catalogue.exemptions import known_issues
from schedcheck.cli.console import (
    NOT_SHOWN,
    OK,
    USAGE,
    VIOLATION,
    Keeper,
    Seconds,
    Ticker,
    complain,
    fault_code,
    known_option,
    painter,
    preparing,
    put,
    put_bytes,
    say,
)
from schedcheck.cli.pieces import again, pieces, takes_pieces
from schedcheck.cli.reports import Reports
from schedcheck.engine.events import (
    Ended,
    Failure,
    Fault,
    Found,
    JobEvent,
    Progress,
    Shrunk,
    Smaller,
    Started,
)
from schedcheck.engine.jobs import RunJob
from schedcheck.engine.profiles import get_profile
from schedcheck.host import wire
from schedcheck.host.supervisor import perform, place_for
from schedcheck.invariants.registry import select
from schedcheck.model.config import Dialect
from schedcheck.model.options import Options
from schedcheck.model.verdict import Verdict
from schedcheck.report.text import command, failure_lines, story_lines, summary_lines
from schedcheck.report.words import clean

_LINES_AT_ONCE = 12
"""How much of a failure is shown before it is shrunk: its end, where it went wrong."""


@click.command(short_help="Search for violations.")
@click.argument("target", default="reference")
@click.option("--profile", default="quick", show_default=True, help="How long and what kind.")
@click.option("--invariants", default="", help="Patterns: 'KV-*,!KV-003'. Default: all.")
@click.option("--seed", default=0, show_default=True, help="Where the search begins.")
@click.option("--max-time", type=Seconds(), help="Begin no trace after this: 90s, 10m, 1h.")
@click.option(
    "--dialect",
    type=click.Choice([dialect.value for dialect in Dialect]),
    help="How it speaks to its workers. Default: each trace draws one.",
)
@known_option
@click.option("--strict", is_flag=True, help="Exit 3 if an invariant is vacuous or unknown.")
@click.option("--json", "as_json", is_flag=True, help="Events as JSON Lines instead of text.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write SARIF 2.1.0 to this file.")
@click.option("--github", is_flag=True, help="Annotate a workflow. Default: if there is one.")
@click.option("--in-process", is_flag=True, help="Run the target in this process.")
@click.option("--python", type=click.Path(path_type=Path), help="Run it under this interpreter.")
@takes_pieces
def run(
    target: str,
    profile: str,
    invariants: str,
    seed: int,
    max_time: float | None,
    dialect: str | None,
    known: str | None,
    strict: bool,  # noqa: FBT001  click passes options by name
    as_json: bool,  # noqa: FBT001
    junit: Path | None,
    sarif: Path | None,
    github: bool,  # noqa: FBT001
    in_process: bool,  # noqa: FBT001
    python: Path | None,
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Search TARGET for violations.

    TARGET is reference, reference+MUTANT, vllm (what is installed), vllm==RELEASE (prepared once,
    in an environment of its own) or package.module:Adapter.

    What the known-issue ledger says of the target's release is told as KNOWN, with its reason and
    link, and is no violation: a trace goes on past it, and later findings about the same requests
    and blocks are counted and dropped. Exit code 1 is for what the ledger does not say. A run of
    at least 4,000 traces that does not show an entry says so.
    """
    ticker = Ticker()
    options = pieces(scheduler=scheduler, connector=connector, config=config)
    try:
        get_profile(profile)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not select(invariants):
        raise click.UsageError(f"--invariants {invariants!r} takes every invariant away")
    issues = known_issues(known)
    name, place = place_for(
        target, python=python, in_process=in_process, progress=preparing(ticker)
    )
    ticker.clear()
    job = RunJob(
        target=name,
        profile=profile,
        invariants=invariants,
        seed=seed,
        seconds_max=max_time,
        dialect=dialect or "",
        known=issues,
        options=options,
    )
    adapter = target if ":" in target else ""
    reports = Reports(junit=junit, sarif=sarif, github=github)
    listener = _Listener(
        ticker=ticker,
        strict=strict,
        as_json=as_json,
        adapter=adapter,
        options=options,
        more=again(options, python),
        reports=reports,
    )
    try:
        perform(job, listener.hear, place=place)
    finally:
        listener.finish()
    raise click.exceptions.Exit(listener.code)


@define(kw_only=True)
class _Listener:
    """Turns the events of a run into text, files and an exit code."""

    ticker: Ticker
    strict: bool
    as_json: bool
    adapter: str
    """The adapter that a replay has to be given, empty for a target known by name."""
    options: Options
    more: tuple[str, ...]
    """What else a replay has to be given."""
    reports: Reports
    code: int = field(init=False, default=OK)
    keeper: Keeper = field(init=False, factory=Keeper)
    pending: dict[str, Failure] = field(init=False, factory=dict)
    """Found and not shrunk yet."""
    paths: list[str] = field(init=False, factory=list)
    """Where the traces are that were told."""

    def hear(self, event: JobEvent) -> None:
        if isinstance(event, Progress):
            self.ticker.progress(event)
            return
        if isinstance(event, Smaller):
            self._smaller(event)
        self.ticker.clear()
        if isinstance(event, Found):  # saved first, whatever becomes of the output
            self._found(event.failure)
        if self.as_json:
            shown = evolve(event, seconds=0.0) if isinstance(event, Ended) else event
            put_bytes(wire.encode(shown))
        match event:
            case Started(note=note) if note:
                complain(note)
            case Shrunk(failure=failure):
                self._shrunk(failure)
            case Ended():
                self._ended(event)
            case Fault():
                self.code = fault_code(event)
            case _:
                pass

    def _found(self, failure: Failure) -> None:
        self.code = VIOLATION
        self.pending[failure.complaint.signature] = failure
        path = self.keeper.keep(failure)
        saved = f", saved as {path}" if path else ""
        found = clean(failure.complaint.signature)
        say(f"found {found} in {failure.actions} actions{saved}; shrinking it")
        for line in story_lines(failure.story[-_LINES_AT_ONCE:]):
            say(f"  {line}")

    def _smaller(self, event: Smaller) -> None:
        """Keep what the reducer has so far, so that an interrupt loses none of it."""
        failure = self.pending.get(event.signature)
        if failure is not None and self.keeper.could_write:
            self.keeper.keep(evolve(failure, trace=event.trace))

    def _shrunk(self, failure: Failure) -> None:
        self.pending.pop(failure.complaint.signature, None)
        self._tell(failure, self.keeper.keep(failure))

    def _tell(self, failure: Failure, path: str) -> None:
        if path and path not in self.paths:
            self.paths.append(path)
        self.reports.tell(failure, path)
        if not self.as_json:
            for line in failure_lines(failure, path=path, more=self.more, paint=painter()):
                put(line)
            put()

    def _ended(self, event: Ended) -> None:
        self.reports.ended = event
        if not self.as_json:
            name = " ".join(filter(None, (event.target, event.version, *self.options.words)))
            for line in summary_lines(event, name=name, paint=painter()):
                put(line)
        rate = event.actions / event.seconds if event.seconds else 0.0
        say(f"{event.seconds:.1f} s, {rate:,.0f} actions per second")
        verdicts = {result.verdict for result in event.results}
        doubtful = bool(verdicts & {Verdict.VACUOUS, Verdict.UNKNOWN})
        if Verdict.VIOLATED in verdicts:
            self.code = VIOLATION
        elif not event.traces or verdicts <= {Verdict.NOT_APPLICABLE}:
            say("nothing ran: no invariant of those chosen was put to the test")
            self.code = NOT_SHOWN
        elif self.strict and doubtful:
            say("--strict: an invariant that is vacuous or unknown is not a pass")
            self.code = NOT_SHOWN

    def finish(self) -> None:
        """Tell what an interrupt kept from being shrunk, and last how to replay what was found."""
        self.ticker.clear()
        pending, self.pending = list(self.pending.values()), {}
        for failure in pending:
            self._tell(failure, self.keeper.path_of(failure))
        if not self.as_json:
            for number, path in enumerate(self.paths):
                typed = clean(command("replay", path, on=self.adapter, more=self.more))
                put(f"{'replay' if number == 0 else '':<13}{typed}")
        self.reports.write()
        if not self.keeper.could_write:
            self.code = USAGE
