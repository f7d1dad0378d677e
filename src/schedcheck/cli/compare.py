"""``bisect`` and ``diff``: one trace on several releases, or two traces, compared."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import evolve

from schedcheck.catalogue.exemptions import known_issues
from schedcheck.cli.console import (
    NOT_SHOWN,
    OK,
    USAGE,
    VIOLATION,
    Ticker,
    complain,
    fault_code,
    painter,
    put,
)
from schedcheck.cli.pieces import made_with, pieces, takes_pieces
from schedcheck.cli.traces import load, place_of, replay_in, target_of
from schedcheck.engine.bisect import Bisection, Tried
from schedcheck.engine.compare import Side, compare
from schedcheck.engine.events import Fact, Failure, Fault, Moment, Outcome, Replayed
from schedcheck.engine.moments import BLOCK_TOPICS, VIOLATES
from schedcheck.host.environments import environment_for
from schedcheck.host.releases import RELEASES, find_release
from schedcheck.host.supervisor import Place
from schedcheck.model.trace import Trace
from schedcheck.report.bisect import bisect_lines
from schedcheck.report.diff import diff_lines
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
@takes_pieces
def bisect(
    trace: Path,
    target: str | None,
    oldest: str | None,
    newest: str | None,
    prepared: bool,  # noqa: FBT001  click passes options by name
    every: bool,  # noqa: FBT001
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Find the first and the last release on which TRACE fails with its own signature.

    The search goes outward from the release on which the trace was found, by halving. A release
    that tells nothing (DRIFTED, OTHER, or ERROR where it cannot be loaded) is passed over. Exit
    code 1 if the trace fails somewhere, 0 if nowhere, 3 if no release tells, 2 if none can be
    loaded or the input is wrong.
    """
    options = pieces(scheduler=scheduler, connector=connector, config=config)
    loaded = made_with(load(trace), options, on=None)
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
            told = replay_in(
                self.trace,
                self.name,
                target,
                place,
                known=known_issues(),
                options=self.trace.header.options,
            )
        except TargetError as error:
            told = Fault(message=str(error))
        self.ticker.clear()
        if isinstance(told, Fault) and told.is_ours:
            raise click.exceptions.Exit(fault_code(told))
        if isinstance(told, Fault):
            return Tried(release=version, outcome=Outcome.ERROR, reason=told.message)
        return Tried(release=version, outcome=told.outcome, reason=told.reason)


@click.command(short_help="Where do two replays part?")
@click.argument("traces", nargs=-1, required=True, type=_trace_argument)
@click.option("--on", "targets", multiple=True, help="A target to replay on; give it twice.")
@click.option("--blocks", is_flag=True, help="Compare block numbers too, not only how many.")
@click.option("--ignore", multiple=True, help="Not this, as a line calls it: 'computed'.")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="Run a target that names no release under this interpreter.",
)
@takes_pieces
def diff(
    traces: tuple[Path, ...],
    targets: tuple[str, ...],
    blocks: bool,  # noqa: FBT001  click passes options by name
    ignore: tuple[str, ...],
    python: Path | None,
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Replay one trace on two targets, or two traces, and show where they part.

    One TRACE is compared on two targets, the first of them its own if --on is given once. Two
    TRACES are each replayed on their own target, or on those given. Exit code 0 if nothing differs,
    1 if they part, 3 if one drifted before, 2 if one cannot be replayed.
    """
    options = pieces(scheduler=scheduler, connector=connector, config=config)
    first, second = (
        _played(made_with(trace, options, on=None), path, on, python)
        for trace, path, on in _asked(traces, targets)
    )
    first, second = _told_apart(first, second, traces)
    ignored = frozenset(ignore) | (frozenset() if blocks else BLOCK_TOPICS)
    found = compare(first, second, ignored=ignored)
    for topic in sorted(set(ignore) - first.topics - second.topics):
        complain(f"--ignore {topic!r}: there is nothing of that name")
    for line in diff_lines(found, first, second, paint=painter()):
        put(line)
    code = VIOLATION if found.parting is not None else NOT_SHOWN if found.drifted else OK
    raise click.exceptions.Exit(code)


def _asked(
    paths: tuple[Path, ...], targets: tuple[str, ...]
) -> tuple[tuple[Trace, Path, str | None], ...]:
    """Return the two replays that were asked for: a trace, its file, and where."""
    if len(paths) > 2 or len(targets) > 2:
        raise click.UsageError("diff compares two replays: at most two traces, at most two --on")
    if len(paths) == 1 and not targets:
        raise click.UsageError("diff compares one trace on two targets (--on vllm==0.14.0), or two")
    if len(paths) == 1 and len(targets) == 1:
        places: tuple[str | None, ...] = (None, targets[0])
    else:
        places = (targets or (None,)) * 2
    return (load(paths[0]), paths[0], places[0]), (load(paths[-1]), paths[-1], places[1])


def _played(trace: Trace, path: Path, on: str | None, python: Path | None) -> Side:
    """Replay a trace and keep all that is to be seen. Raises TargetError if it cannot be."""
    wanted = target_of(trace, on, None)
    target, place = place_of(trace, wanted, None if "==" in wanted else python, in_process=False)
    told = _replayed(trace, path, target, place)
    if told.failure is not None and not told.moments:
        told = _until_lost(trace, path, target, place, told.failure)
    has_drifted = told.outcome is Outcome.DRIFTED and len(told.story) < len(trace.actions)
    return Side(
        label=f"{told.target} {told.version}".strip(),
        moments=told.moments,
        unseen=frozenset(told.unseen),
        drift=told.reason if has_drifted else "",
    )


def _replayed(trace: Trace, path: Path, target: str, place: Place) -> Replayed:
    """Replay a trace. Raises TargetError if it cannot be; a fault of ours ends the command."""
    told = replay_in(
        trace, str(path), target, place, with_moments=True, options=trace.header.options
    )
    if isinstance(told, Fault) and told.is_ours:
        raise click.exceptions.Exit(fault_code(told))
    if isinstance(told, Fault):
        raise TargetError(told.message)
    if told.outcome is Outcome.ERROR:
        raise TargetError(told.reason)
    return told


def _until_lost(trace: Trace, path: Path, target: str, place: Place, failure: Failure) -> Replayed:
    """Replay up to where a worker was lost, which took its own account of it with it."""
    last = failure.story[-1]
    header = evolve(trace.header, expect=None)
    before = Trace(header=header, actions=trace.actions[: last.number - 1])
    told = _replayed(before, path, target, place)
    violates = Fact(VIOLATES, "", failure.complaint.signature)
    loss = Moment(number=last.number, action=last.action, event=last.note, facts=(violates,))
    return evolve(told, outcome=Outcome.OTHER, moments=(*told.moments, loss))


def _told_apart(first: Side, second: Side, paths: tuple[Path, ...]) -> tuple[Side, Side]:
    """Return two sides with labels that differ: targets, or else the traces' files."""
    for labels in (
        (first.label, second.label),
        (paths[0].name, paths[-1].name),
        (str(paths[0]), str(paths[-1])),
    ):
        if labels[0] != labels[1]:
            return evolve(first, label=labels[0]), evolve(second, label=labels[1])
    return evolve(first, label="the first"), evolve(second, label="the second")
