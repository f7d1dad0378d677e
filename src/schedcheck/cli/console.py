"""What commands share: exit codes, saying things, colour, progress, and reading durations."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import click

from schedcheck.engine.events import Failure, Fault, Progress
from schedcheck.engine.saving import FOLDER, file_name, save
from schedcheck.report.github import defused
from schedcheck.report.words import Paint, clean, plain
from schedcheck.tracefile import TraceUnwritable

OK: Final = 0
VIOLATION: Final = 1
USAGE: Final = 2
NOT_SHOWN: Final = 3
OUR_FAULT: Final = 70
INTERRUPTED: Final = 130
NOBODY_READS: Final = 141
"""What a shell reports of a command whose reader left, SIGPIPE: neither a pass nor a violation."""


class OutputLost(Exception):
    """Standard output takes no more; whoever catches it ends with ``code``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def in_workflow() -> bool:
    """Return whether a GitHub workflow reads what is said."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def put(text: str = "") -> None:
    """Put a line on standard output. Raises OutputLost."""
    put_bytes(_encoded(defused(text) if in_workflow() else text))


def put_command(text: str) -> None:
    """Put a command to a workflow on standard error, which is read like standard output there."""
    _say(text)


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode(sys.stdout.encoding or "utf-8", "replace")


def put_bytes(content: bytes) -> None:
    """Put something on standard output as it is. Raises OutputLost."""
    try:
        sys.stdout.flush()  # what click has put there comes first
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        _give_up(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise OutputLost("", NOBODY_READS) from error
        raise OutputLost(f"cannot write standard output: {error.strerror}", USAGE) from error


def say(text: str) -> None:
    """Say something to the person, not to whoever reads the output."""
    _say(defused(text) if in_workflow() else text)


def _say(text: str) -> None:
    try:
        click.echo(text, err=True)
    except OSError:
        _give_up(sys.stderr)


def complain(problem: object) -> None:
    """Say in one line what is wrong, whatever strangers' text is in it."""
    say(f"schedcheck: {clean(' '.join(str(problem).split()))}")


def complain_of_ourselves(problem: str, trace: str) -> None:
    """Say that schedcheck itself is broken; ``trace`` is the traceback, shown when asked for."""
    complain(f"a fault of our own, please report it: {problem}")
    if os.environ.get("SCHEDCHECK_DEBUG"):
        say(trace)
    else:
        say("SCHEDCHECK_DEBUG=1 shows where")


def _give_up(stream: IO[str]) -> None:
    """Let what is still written vanish, so that the end of the process does not fail on it."""
    with suppress(OSError, ValueError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def painter() -> Paint:
    """Return what colours text for standard output: nothing unless it is a terminal."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return plain
    # Rich takes longer to import than most commands take to run.
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)

    def paint(text: str, style: str) -> str:
        with console.capture() as captured:
            console.print(Text(text, style=style), end="", soft_wrap=True)
        return captured.get()

    return paint


class Seconds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A duration above 0 such as ``90s``, ``10m`` or ``1h``; a plain number is seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", str(value))
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no duration above 0, such as 90s, 10m or 1h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


known_option = click.option(
    "--known",
    metavar="FILE|none",
    help="Known-issue ledger. Default: the catalogue's exemptions.toml; none: everything counts.",
)
"""Where what is known to be wrong is written down."""


class Ticker:
    """One line on a terminal's standard error that says what is being done."""

    def __init__(self) -> None:
        self.shows = sys.stderr.isatty()
        self.width = 0

    def tell(self, text: str) -> None:
        """Replace the line."""
        if self.shows:
            text = clean(text)[:78]
            self._write(f"\r{text:<{self.width}}")
            self.width = len(text)

    def progress(self, event: Progress) -> None:
        """Say where a run is."""
        self.tell(f"{event.doing}: {event.traces:,} traces, {event.actions:,} actions")

    def clear(self) -> None:
        """Take the line away."""
        if self.shows and self.width:
            self._write(f"\r{' ' * self.width}\r")
            self.width = 0

    def _write(self, text: str) -> None:
        try:
            click.echo(text, nl=False, err=True)
        except OSError:
            self.shows = False


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

    def path_of(self, failure: Failure) -> str:
        """Return where a failure's trace was saved, empty if that failed."""
        return str(self.folder / file_name(failure)) if self.could_write else ""

    def keep(self, failure: Failure) -> str:
        """Save a failure's trace and return its file; where that fails, say the trace itself."""
        try:
            return str(save(failure, self.folder))
        except TraceUnwritable as error:
            if self.could_write:
                complain(f"{error}; the traces found follow")
            self.could_write = False
            say(failure.trace.rstrip("\n"))
            return ""


def fault_code(fault: Fault) -> int:
    """Say what could not be done, and return the exit code for it."""
    if fault.is_ours:
        complain_of_ourselves(fault.message, fault.traceback)
        return OUR_FAULT
    complain(fault.message)
    return USAGE
