"""``list``, ``explain`` and ``env``: what there is to know."""

from __future__ import annotations

import click

from schedcheck import catalogue
from schedcheck.cli.console import USAGE, Ticker, painter, preparing, say
from schedcheck.cli.traces import replay_once
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import ENGINES
from schedcheck.host import environments
from schedcheck.host.releases import RELEASES
from schedcheck.invariants.registry import every_invariant, get
from schedcheck.model.actions import ACTIONS
from schedcheck.reference.mutants.registry import MUTANTS
from schedcheck.report.text import failure_lines
from schedcheck.tracefile import read

_THINGS = ("invariants", "mutants", "adapters", "actions", "profiles")


@click.command("list")
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
                (one.do, " ".join(sorted(one.needs)) or "-", (one.__doc__ or "").partition("\n")[0])
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
        click.echo(f"{first:<{widths[0]}}{middle}  {text}".rstrip())


@click.command()
@click.argument("invariant")
def explain(invariant: str) -> None:
    """Show the page of an INVARIANT, and the smallest trace that violates it."""
    chosen = get(invariant.upper())
    entry = catalogue.entry(chosen.id)
    click.echo(entry.page.read_text("utf-8").rstrip())
    kills = [one.name for one in MUTANTS if chosen.id in one.must_kill]
    click.echo(f"\nIt must kill: {', '.join(kills) or 'nothing in process'}")
    click.echo(f"Severity: {chosen.severity.value}. Put to the test when {chosen.witnessed_by}.")
    if chosen.requires:
        click.echo(f"Requires: {', '.join(sorted(chosen.requires))}.")
    if not entry.minimal.exists():
        return
    trace = read(entry.minimal)
    told = replay_once(trace, entry.minimal, trace.header.target, None, in_process=True)
    if told is not None and told.failure is not None:
        click.echo()
        for line in failure_lines(told.failure, path=str(entry.minimal), paint=painter()):
            click.echo(line)


@click.command()
@click.argument("target", required=False)
@click.option("--remove", is_flag=True, help="Remove the environment instead.")
def env(target: str | None, remove: bool) -> None:  # noqa: FBT001  click passes options by name
    """Prepare the environment of TARGET (vllm==0.33.0), or show those there are."""
    if target is None:
        click.echo(f"cache  {environments.cache_folder()}")
        for release in RELEASES.values():
            found = environments.environment_for(release)
            state = str(found.python) if found.is_ready() else "not prepared"
            click.echo(f"{release.requirement}  {state}")
        return
    if remove:
        was_there = environments.remove(target)
        click.echo(f"{target}  {'removed' if was_there else 'was not prepared'}")
        return
    if "==" not in target:
        say(f"schedcheck: {target!r} names no release; one looks like vllm==0.33.0")
        raise click.exceptions.Exit(USAGE)
    ticker = Ticker()
    ready = environments.prepare(target, progress=preparing(ticker))
    ticker.clear()
    click.echo(f"{target}  {ready.python}")
