"""``schedcheck check``: judge what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

import click
from attrs import evolve, frozen

from schedcheck.cli.console import (
    NOT_SHOWN,
    OK,
    VIOLATION,
    Ticker,
    complain,
    painter,
    put,
)
from schedcheck.engine.events import InvariantResult
from schedcheck.engine.failures import failure_of
from schedcheck.engine.play import Playback
from schedcheck.engine.results import result_of
from schedcheck.invariants.registry import Invariant, select
from schedcheck.model.trace import Trace
from schedcheck.model.verdict import Finding, Verdict
from schedcheck.recording.checking import Checker
from schedcheck.recording.foreign import NothingShown, Rebuilt, rebuild
from schedcheck.recording.formats import open_recording
from schedcheck.report.check import checked_lines
from schedcheck.report.text import command, failure_lines
from schedcheck.sut import TargetError
from schedcheck.tracefile import SUFFIX, RecordedStep, TraceError

_TELL_EVERY: Final = 10_000
"""Steps between two words about how far it is."""


@click.command(short_help="Judge a recorded trace.")
@click.argument("trace", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--invariants", default="", help="Patterns: 'KV-*,!KV-003'. Default: all.")
@click.option("--strict", is_flag=True, help="Exit 3 if an invariant is vacuous or unknown.")
def check(trace: Path, invariants: str, strict: bool) -> None:  # noqa: FBT001  by name
    """Judge TRACE, a recording or - for standard input, step by step up to the first violation.

    It may be of any length, packed with gzip or zstd, and be ours or a dump of vLLM's
    SchedulerOutput as JSON Lines. Exit code 0 if everything holds, 1 for a violation.
    """
    is_stdin = str(trace) == "-"
    name = "standard input" if is_stdin else str(trace)
    chosen = select(invariants)
    with _stream(trace, name) as stream:
        reader = open_recording(stream, name, on_ignored=complain)
        checker = Checker(reader.beginning, chosen)
        found = _judge(checker, reader.steps(), name)
    if found is not None:
        for line in _told(checker, found, name, path="" if is_stdin else str(trace)):
            put(line)
    results = [_result(checker, one, found) for one in chosen]
    for line in checked_lines(
        results,
        name=name,
        actions=checker.last[-1].number if checker.last else 0,
        events=checker.events,
        requests=checker.requests,
        paint=painter(),
    ):
        put(line)
    raise click.exceptions.Exit(_code(results, strict=strict))


def rebuilt_from(path: Path) -> Rebuilt | None:
    """Return the traces that a recording holds; None for a file that is a trace already.

    Raises TraceError, and TargetError for a recording that shows no violation.
    """
    with _stream(path, str(path)) as stream:
        reader = open_recording(stream, str(path), on_ignored=complain)
        if not reader.beginning.is_recording:
            return None
        try:
            return rebuild(reader, Checker(reader.beginning))
        except NothingShown as error:
            raise TargetError(f"{path}: {error}") from error


def beside(path: Path) -> Path:
    """Return where a trace made of a recording goes."""
    stem = path.name.partition(".trace.")[0].partition(".jsonl")[0]
    return path.with_name(f"{stem}.small{SUFFIX}")


@contextmanager
def _stream(trace: Path, name: str) -> Iterator[BinaryIO]:
    """Open what is to be read, unbuffered. Raises TraceError."""
    if str(trace) == "-":
        yield cast("BinaryIO", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
        return
    try:
        stream = trace.open("rb", buffering=0)
    except OSError as error:
        raise TraceError(name, 0, f"cannot read it: {error.strerror}") from error
    with stream:
        yield cast("BinaryIO", stream)


def _judge(checker: Checker, steps: Iterable[RecordedStep], name: str) -> _Found | None:
    """Judge step by step up to the first that shows something. Raises TraceError."""
    ticker = Ticker()
    try:
        for step in steps:
            try:
                findings = checker.take(step)
            except (ValueError, LookupError) as error:
                raise TraceError(name, step.line, f"it makes no sense: {error}") from error
            if findings:
                return _Found(findings, step.line)
            if step.number % _TELL_EVERY == 0:
                ticker.tell(f"checking: {step.number:,} actions")
    finally:
        ticker.clear()
    return None


@frozen
class _Found:
    """What was wrong, and on which line it stands."""

    findings: tuple[Finding, ...]
    line: int


def _told(checker: Checker, found: _Found, name: str, *, path: str) -> Iterator[str]:
    """Yield the violation with the last steps before it, and what can be done with it."""
    header, last = checker.beginning.header, tuple(checker.last)
    trace = Trace(header=header, actions=tuple(record.action for record in last))
    failure = failure_of(
        trace,
        Playback(records=last, judge=checker.judge),
        min(found.findings, key=lambda one: one.signature),
        origin=f"{name} · line {found.line:,}",
        actions_found=last[-1].number,
        is_minimal=True,  # how to make it smaller is said below
    )
    yield from failure_lines(evolve(failure, actions=last[-1].number), paint=painter())
    if path:
        yield f"  {'smaller':<15} {command('shrink', path)}"
    yield ""


def _result(checker: Checker, one: Invariant, found: _Found | None) -> InvariantResult:
    reason = checker.not_asked.get(one.id)
    if reason is not None and one.requires <= checker.judge.capabilities:
        return InvariantResult(
            id=one.id, verdict=Verdict.NOT_APPLICABLE, witnessed=0, reason=reason
        )
    return result_of(
        one,
        checker.judge.capabilities,
        witnessed=int(one.id in checker.judge.witnessed),
        violated={finding.invariant for finding in found.findings} if found else (),
        known=(),
        unknown=checker.doubts
        | {id_: f"its checker failed, {why}" for id_, why in checker.judge.unknown.items()},
    )


def _code(results: Iterable[InvariantResult], *, strict: bool) -> int:
    verdicts = {result.verdict for result in results}
    if Verdict.VIOLATED in verdicts:
        return VIOLATION
    return NOT_SHOWN if strict and verdicts & {Verdict.VACUOUS, Verdict.UNKNOWN} else OK
