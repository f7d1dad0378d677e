"""A run in a GitHub workflow: annotations, and the summary of its step.

A workflow reads commands in whatever a process prints. So a stranger's words are escaped in our
own commands (``annotation``), and defused wherever else they might begin a line (``defused``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from schedcheck.engine.events import Ended, Failure
from schedcheck.model.verdict import Severity
from schedcheck.report.export.issue import fenced
from schedcheck.report.junit import Told, title_of
from schedcheck.report.summary import summary_lines
from schedcheck.report.text import failure_lines
from schedcheck.report.words import clean

_SUMMARY_BYTES_MAX: Final = 900_000
"""GitHub takes 1 MiB for each step and nothing of what is larger."""
_ESCAPES: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_VALUE_ESCAPES: Final = {**_ESCAPES, ":": "%3A", ",": "%2C"}


def defused(text: str) -> str:
    """Return text in which no line is a command to a workflow."""
    text = re.sub(r"(?m)^(\s*):(?=:)", r"\1: ", text)
    return text.replace("##[", "## [")


def annotation(told: Told) -> str:
    """Return the command that puts a violation on the page of a workflow's run."""
    failure, complaint = told.failure, told.failure.complaint
    return workflow_command(
        "warning" if failure.severity is Severity.MINOR else "error",
        f"{complaint.subject}: {complaint.found}",
        f"expected: {complaint.expected}",
        f"{failure.target} {failure.version}".strip() + f", {failure.actions} actions",
        title=f"{complaint.invariant} {title_of(complaint.invariant)}".strip(),
        file=told.path,
        line=complaint.step + 1,
    )


def workflow_command(word: str, *lines: str, title: str, file: str, line: int) -> str:
    """Return the command for an ``error`` or a ``warning`` at a place; ``file`` may be empty."""
    places = {"file": file, "line": str(line) if file else "", "title": title}
    values = ",".join(
        f"{key}={_escaped(clean(value), _VALUE_ESCAPES)}" for key, value in places.items() if value
    )
    message = "\n".join(map(clean, lines))
    return f"::{word} {values}::{_escaped(message, _ESCAPES)}"


def append_to_summary(text: str) -> str:
    """Add Markdown to the summary of a workflow's step, if there is one; return what went wrong."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return ""
    try:
        with Path(path).open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        return f"cannot write the step summary: {error.strerror}"
    return ""


def _escaped(text: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(char, char) for char in text)


def step_summary(ended: Ended | None, told: Sequence[Told]) -> str:
    """Return what a workflow shows of a step, in Markdown, never too long to be shown."""
    kept: list[str] = []
    left = _SUMMARY_BYTES_MAX
    parts = [*map(_violation, told), _end(ended)]
    for number, part in enumerate(parts):
        text = "\n".join(part)
        if len(text.encode()) > left:
            kept.append(f"{len(parts) - number} more in the log.")
            break
        kept.append(text)
        left -= len(text.encode())
    return "\n\n".join(["## schedcheck", *kept]) + "\n"


def _violation(told: Told) -> Iterator[str]:
    yield f"### {_title(told.failure)}"
    yield ""
    yield from fenced(failure_lines(told.failure, path=told.path), "text")


def _title(failure: Failure) -> str:
    """Return a heading in words of our own."""
    title = title_of(failure.complaint.invariant)
    return f"{failure.complaint.invariant}: {title}" if title else "A violation"


def _end(ended: Ended | None) -> Iterator[str]:
    if ended is None:
        yield "The run did not come to its end."
        return
    name = f"{ended.target} {ended.version}".strip()
    yield from fenced(summary_lines(ended, name=name), "text")
