"""``bisect`` and ``diff``: one trace on several releases, or two traces, compared."""

from __future__ import annotations

from pathlib import Path

import click

from schedcheck.cli.console import (
    NOT_SHOWN,
    OK,
    USAGE,
    VIOLATION,
    Ticker,
    fault_code,
    painter,
    put,
)
from schedcheck.cli.traces import load, place_of, replay_in
from schedcheck.engine.bisect import Bisection, Tried
from schedcheck.engine.events import Fault, Outcome
from schedcheck.host.environments import environment_for
from schedcheck.host.releases import RELEASES, find_release
from schedcheck.model.trace import Trace
from schedcheck.report.bisect import bisect_lines
from schedcheck.report.words import fact_lines
from schedcheck.sut import TargetError

_trace_argument = click.Path(path_type=Path)


@click.command(short_help="On which releases does a trace fail?")
@click.argument("trace", type=_trace_argument)
@click.option("--target", help="The engine whose releases are tried. Default: the trace's own.")
@click.option("--from", "oldest", help="No release older than this: 0.10.0.")
@click.option("--to", "newest", help="No release newer than this.")
@click.option("--prepared", is_flag=True, help="Only releases that are prepared already.")
@click.option("--every", is_flag=True, help="Try every release: a fault may come and go.")
def bisect(
    trace: Path,
    target: str | None,
    oldest: str | None,
    newest: str | None,
    prepared: bool,  # noqa: FBT001  click passes options by name
    every: bool,  # noqa: FBT001
) -> None:
    """Find the first and the last release on which TRACE fails with its own signature.

    The search goes outward from the release on which the trace was found, by halving. A release
    that tells nothing (DRIFTED, OTHER, or ERROR where it cannot be loaded) is passed over. Exit
    code 1 if the trace fails somewhere, 0 if nowhere, 3 if no release tells, 2 if none can be
    loaded or the input is wrong.
    """
    loaded = load(trace)
    header = loaded.header
    if header.expect is None:
        raise TargetError(f"{trace} is not expected to violate anything: nothing to look for")
    engine = target or header.target
    if "==" in engine:
        raise TargetError(f"--target {engine} names one release; --from and --to choose among them")
    versions = _releases(engine, oldest, newest, prepared=prepared)
    attempting = _Attempting(loaded, str(trace), engine)
    found = Bisection(versions, attempting.attempt)
    own = header.version.partition("+")[0] if engine == header.target else ""
    asked = f"{len(versions)} release(s) of {engine}, {versions[0]} to {versions[-1]}"
    signature, actions = str(header.expect.signature), f"{len(loaded.actions)} action(s)"
    for line in fact_lines([signature, actions, asked]):
        put(line)
    put()
    try:
        found.run(own, every=every)
    finally:  # an interrupt loses nothing of what was seen
        attempting.ticker.clear()
        if found.tried:
            for line in bisect_lines(found, paint=painter()):
                put(line)
    raise click.exceptions.Exit(_bisect_code(found))


def _bisect_code(found: Bisection) -> int:
    if found.failing:
        return VIOLATION
    if found.fixed:
        return OK
    return USAGE if all(one.outcome is Outcome.ERROR for one in found.tried) else NOT_SHOWN


def _releases(
    engine: str, oldest: str | None, newest: str | None, *, prepared: bool
) -> tuple[str, ...]:
    """Return the versions to be asked about, oldest first. Raises TargetError if none is left."""
    every = [one for one in RELEASES.values() if one.engine == engine]
    first, last = (
        every.index(find_release(f"{engine}=={end.removeprefix(f'{engine}==')}")) if end else other
        for end, other in ((oldest, 0), (newest, len(every) - 1))
    )
    if not every:
        find_release(f"{engine}==")  # which says what there is
    if first > last:
        raise TargetError(f"--from {oldest} is newer than --to {newest}")
    asked = every[first : last + 1]
    left = [one.version for one in asked if not prepared or environment_for(one).is_ready()]
    if not left:
        raise TargetError(
            f"--prepared: no release of {engine} asked about is prepared "
            f"(schedcheck env {asked[-1].requirement} prepares one)"
        )
    return tuple(left)


class _Attempting:
    """Replays a trace on one release after another."""

    def __init__(self, trace: Trace, name: str, engine: str) -> None:
        self.trace, self.name, self.engine = trace, name, engine
        self.ticker = Ticker()

    def attempt(self, version: str) -> Tried:
        """Replay on one release, preparing it first. A fault of ours ends it all."""
        on = f"{self.engine}=={version}"
        try:
            target, place = place_of(self.trace, on, None, in_process=False)
            self.ticker.tell(f"replaying on {on}")
            told = replay_in(self.trace, self.name, target, place)
        except TargetError as error:
            told = Fault(message=str(error))
        self.ticker.clear()
        if isinstance(told, Fault) and told.is_ours:
            raise click.exceptions.Exit(fault_code(told))
        if isinstance(told, Fault):
            return Tried(release=version, outcome=Outcome.ERROR, reason=told.message)
        return Tried(release=version, outcome=told.outcome, reason=told.reason)
