"""What commands share: exit codes, colour, progress, and reading durations."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from schedcheck.engine.events import Failure, Fault, Progress
from schedcheck.engine.saving import FOLDER, save
from schedcheck.report.text import Paint, clean, plain
from schedcheck.tracefile import TraceUnwritable

OK: Final = 0
VIOLATION: Final = 1
USAGE: Final = 2
NOT_SHOWN: Final = 3
OUR_FAULT: Final = 70


def say(text: str) -> None:
    """Say something to the person, not to whoever reads the output."""
    click.echo(text, err=True)


def painter() -> Paint:
    """Return what colours text for standard output: nothing unless it is a terminal."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return plain
    console = Console(highlight=False, markup=False, emoji=False)

    def paint(text: str, style: str) -> str:
        with console.capture() as captured:
            console.print(Text(text, style=style), end="", soft_wrap=True)
        return captured.get()

    return paint


class Seconds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A duration such as ``90s``, ``10m`` or ``1h``; a plain number is seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; one looks like 90s, 10m or 1h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


class Ticker:
    """One line on a terminal's standard error that says what is being done."""

    def __init__(self) -> None:
        self.shows = sys.stderr.isatty()
        self.width = 0

    def tell(self, text: str) -> None:
        """Replace the line."""
        if self.shows:
            text = clean(text)[:78]
            click.echo(f"\r{text:<{self.width}}", nl=False, err=True)
            self.width = len(text)

    def progress(self, event: Progress) -> None:
        """Say where a run is."""
        self.tell(f"{event.doing}: {event.traces:,} traces, {event.actions:,} actions")

    def clear(self) -> None:
        """Take the line away."""
        if self.shows and self.width:
            click.echo(f"\r{' ' * self.width}\r", nl=False, err=True)
            self.width = 0


def preparing(ticker: Ticker) -> Callable[[str], None]:
    """Return what tells a person that an environment is being prepared."""

    def tell(text: str) -> None:
        if ticker.shows:
            ticker.tell(f"preparing {text}")
        elif ": " in text:  # the two large steps, not every package
            say(f"preparing {text}")

    return tell


class Keeper:
    """Saves each failure as soon as it is known, so that nothing is lost."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.could_write = True

    def keep(self, failure: Failure) -> str:
        """Save a failure's trace and return its file; where that fails, say the trace itself."""
        try:
            return str(save(failure, self.folder))
        except TraceUnwritable as error:
            self.could_write = False
            say(f"schedcheck: {clean(str(error))}; the trace is:")
            say(failure.trace.rstrip("\n"))
            return ""


def fault_code(fault: Fault) -> int:
    """Say what could not be done, and return the exit code for it."""
    if fault.is_ours:
        say(f"schedcheck: a fault of our own, please report it: {clean(fault.message)}")
        if os.environ.get("SCHEDCHECK_DEBUG"):
            say(fault.traceback)
        return OUR_FAULT
    say(f"schedcheck: {clean(fault.message)}")
    return USAGE
