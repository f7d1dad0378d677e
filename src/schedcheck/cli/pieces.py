"""A user's own pieces on a command line: ``--scheduler``, ``--connector`` and ``--config``.

A trace names those it was found with, and a replay has to be given them again: what is typed
chooses which code runs, never what a trace says.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from attrs import evolve

from schedcheck.cli.console import complain
from schedcheck.model.options import BadOption, Options, options_of
from schedcheck.model.trace import Trace
from schedcheck.sut import TargetError

F = TypeVar("F", bound=Callable[..., Any])

_CLASS = "package.module:Class"


def takes_pieces(command: F) -> F:
    """Let a command take the options whose values ``pieces`` reads."""
    for option in (
        click.option(
            "--config",
            metavar="KEY=VALUE",
            multiple=True,
            help="An option of the engine; may be given several times.",
        ),
        click.option(
            "--connector", metavar=_CLASS, help="Your KV connector, behind vLLM's scheduler."
        ),
        click.option(
            "--scheduler", metavar=_CLASS, help="Your subclass of vLLM's Scheduler, in its place."
        ),
    ):
        command = option(command)
    return command


def pieces(
    *, scheduler: str | None = None, connector: str | None = None, config: tuple[str, ...] = ()
) -> Options:
    """Return what was typed. Raises click.UsageError."""
    try:
        return options_of(scheduler=scheduler, connector=connector, config=config)
    except BadOption as error:
        raise click.UsageError(str(error)) from error


def made_with(trace: Trace, given: Options, *, on: str | None) -> Trace:
    """Return a trace as one that was made with the options given.

    Raises TargetError if one that its header names was not given, unless ``--on`` names the whole
    target anew. Where they differ, it is said.
    """
    named = trace.header.options
    if named == given:
        return trace
    missing = _missing(named, given)
    if missing.words and on is None:
        raise TargetError(
            f"the trace was made with {_typed(named)}; a trace does not choose what code runs: "
            f"say {_typed(missing)}, or name the target without it, --on {trace.header.target}"
        )
    complain(
        f"the trace was made with {_typed(named)}, and is replayed with {_typed(given)}"
        if named.words
        else f"the trace was made without {_typed(given)}"
    )
    return evolve(trace, header=evolve(trace.header, options=given))


def again(given: Options, python: Path | None) -> tuple[str, ...]:
    """Return what else has to be typed to meet the same target again."""
    return (*given.words, *(("--python", str(python)) if python else ()))


def _missing(named: Options, given: Options) -> Options:
    """Return the options that one has and the other lacks altogether."""
    keys = dict(given.config)
    return Options(
        scheduler="" if given.scheduler else named.scheduler,
        connector="" if given.connector else named.connector,
        config=tuple(pair for pair in named.config if pair[0] not in keys),
    )


def _typed(options: Options) -> str:
    return shlex.join(options.words) or "none of them"
