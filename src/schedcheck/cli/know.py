"""``list``, ``explain`` and ``env``: what there is to know."""

from __future__ import annotations

from textwrap import wrap

import click

from schedcheck import catalogue
from schedcheck.cli.console import Ticker, painter, preparing, put
from schedcheck.cli.traces import load, replay_in
from schedcheck.engine.events import Replayed
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import ENGINES
from schedcheck.host import environments
from schedcheck.host.releases import RELEASES
from schedcheck.host.supervisor import InProcess
from schedcheck.invariants.registry import every_invariant, get
from schedcheck.model.actions import ACTIONS
from schedcheck.reference.mutants.registry import MUTANTS
from schedcheck.report.text import failure_lines
from schedcheck.report.words import WIDTH

_THINGS = ("invariants", "mutants", "adapters", "actions", "profiles")


@click.command("list", short_help="List what there is to name.")
@click.argument("what", type=click.Choice(_THINGS))
def list_(what: str) -> None:
    """List invariants, mutants, adapters, actions or profiles."""
    rows: list[tuple[str, str, str]] = []
    match what:
        case "invariants":
            rows = [(one.id, one.severity.value, one.title) for one in every_invariant()]
        case "mutants":
            rows = [(one.name, " ".join(one.must_kill) or "holds", one.summary) for one in MUTANTS]
        case "adapters":
            rows = [(name, "", text) for name, (_, text) in ENGINES.items()]
            rows += [
                (one.requirement, "", f"prepared from {one.wheel}") for one in RELEASES.values()
            ]
        case "actions":
            rows = [
                (one.do, " ".join(sorted(one.needs)) or "-", _first_line(one.__doc__))
                for one in ACTIONS
            ]
        case _:
            rows = [
                (one.name, f"{one.traces:,} x {one.actions}", one.summary)
                for one in PROFILES.values()
            ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for first, second, text in rows:
        middle = f"  {second:<{widths[1]}}" if widths[1] else ""
        start = f"{first:<{widths[0]}}{middle}  "
        for number, line in enumerate(wrap(text, WIDTH - len(start), break_on_hyphens=False)):
            put(f"{start if number == 0 else ' ' * len(start)}{line}")


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0].replace("``", "")


@click.command(short_help="Show the page of an invariant.")
@click.argument("invariant")
def explain(invariant: str) -> None:
    """Show the page of an INVARIANT, and the smallest trace that violates it.

    INVARIANT is an id such as REQ-001; a whole signature is taken as well.
    """
    chosen = get(invariant.partition("/")[0].upper())
    entry = catalogue.entry(chosen.id)
    put(entry.page.read_text("utf-8").rstrip())
    put()
    kills = ", ".join(one.name for one in MUTANTS if chosen.id in one.must_kill)
    requires = f"Requires: {', '.join(sorted(chosen.requires))}." if chosen.requires else ""
    for fact in (
        f"It must kill: {kills or 'nothing in process'}",
        f"Severity: {chosen.severity.value}. Put to the test when {chosen.witnessed_by}.",
        requires,
    ):
        for line in wrap(fact, WIDTH, break_on_hyphens=False):
            put(line)
    if not entry.minimal.exists():
        return
    trace = load(entry.minimal)
    told = replay_in(trace, str(entry.minimal), trace.header.target, InProcess())
    if isinstance(told, Replayed) and told.failure is not None:
        put()
        for line in failure_lines(told.failure, path=str(entry.minimal), paint=painter()):
            put(line)


@click.command(short_help="Prepare or show the environment of a release.")
@click.argument("target", required=False)
@click.option("--remove", is_flag=True, help="Remove the environment instead.")
def env(target: str | None, remove: bool) -> None:  # noqa: FBT001  click passes options by name
    """Prepare the environment of TARGET (vllm==0.33.0), or show those there are."""
    if target is None:
        if remove:
            raise click.UsageError("--remove needs a TARGET such as vllm==0.33.0")
        put(f"cache  {environments.cache_folder()}")
        for release in RELEASES.values():
            found = environments.environment_for(release)
            put(f"{release.requirement}  {found.python if found.is_ready() else 'not prepared'}")
        return
    if "==" not in target:
        raise click.UsageError(f"{target!r} names no release; one looks like vllm==0.33.0")
    if remove:
        was_there = environments.remove(target)
        put(f"{target}  {'removed' if was_there else 'was not prepared'}")
        return
    ticker = Ticker()
    try:
        ready = environments.prepare(target, progress=preparing(ticker))
    finally:
        ticker.clear()
    put(f"{target}  {ready.python}")
