"""The body of a bug report: what was seen, on which version, and the trace that shows it.

A stranger's words stand in fenced blocks alone, where GitHub makes neither links, mentions nor
markup of them. A fence is longer than any run of backticks within it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from schedcheck.engine.events import Failure
from schedcheck.engine.story import words_for, words_for_config
from schedcheck.invariants.registry import UnknownInvariant, get
from schedcheck.model.trace import FORMAT, Trace
from schedcheck.report.text import failure_lines
from schedcheck.report.words import clean
from schedcheck.tracefile import SUFFIX, encode


def issue_lines(
    trace: Trace, failure: Failure | None, *, schedcheck: str, on: str = ""
) -> Iterator[str]:
    """Yield the report, in Markdown, its title first.

    ``failure`` is what a replay showed, None if there was none; ``schedcheck`` our own version;
    ``on`` the target it was replayed on, empty if that is the trace's own.
    """
    title, about = _title(trace, failure)
    yield f"# {title}"
    yield ""
    if failure is not None:
        yield from _expected_and_found(failure)
    yield "## What happens"
    yield ""
    if failure is not None:
        # Where the reporter's own file lies is nobody's business; how to replay comes below.
        told = list(failure_lines(failure))
    else:
        told = [
            f"{number:>4}  {words_for(action)}" for number, action in enumerate(trace.actions, 1)
        ]
    yield from fenced(told, "text")
    yield ""
    yield "## Versions and configuration"
    yield ""
    yield from fenced(_facts(trace, failure, schedcheck), "text")
    yield ""
    yield "## Trace"
    yield ""
    yield from fenced(encode(trace).decode().splitlines(), "json", escape=_json_line)
    yield ""
    yield "## How to replay"
    yield ""
    file = f"{about}{SUFFIX}"
    yield f"Save the trace above as `{file}`, then:"
    yield ""
    yield from fenced(_commands(trace, file, on), "sh")


def _title(trace: Trace, failure: Failure | None) -> tuple[str, str]:
    """Return a title and a file's name, in words of our own."""
    expect = trace.header.expect
    id_ = failure.complaint.invariant if failure else expect.signature.invariant if expect else ""
    try:
        invariant = get(id_)
    except UnknownInvariant:
        return "A trace of a scheduler", "report"
    return f"{invariant.id}: {invariant.title}", invariant.id


def _expected_and_found(failure: Failure) -> Iterator[str]:
    complaint = failure.complaint
    for head, text in (("Expected", complaint.expected), ("Found", complaint.found)):
        yield f"## {head}"
        yield ""
        yield from fenced([text], "text")
        yield ""


def _facts(trace: Trace, failure: Failure | None, schedcheck: str) -> Iterator[str]:
    header = trace.header
    target, version = header.target, header.version
    if failure is not None:
        target, version = failure.target, failure.version
    yield f"engine      {target} {version}".rstrip()
    yield f"schedcheck  {schedcheck}, trace format {FORMAT}"
    yield f"config      {words_for_config(header.config)}"
    yield f"dialect     {header.config.dialect}"
    if header.seed:
        yield f"seed/trace  {header.seed}"


def _commands(trace: Trace, file: str, on: str) -> Iterator[str]:
    """Yield what to type; a target whose name could mean something to a shell is left out."""
    target = on or trace.header.target
    is_plain = re.fullmatch(r"[A-Za-z0-9_.:=+-]+", target) is not None
    if not is_plain:
        yield "# the target has a name that is no word: say yourself what --on is"
        target = "TARGET"
    pinned = f"{target}=={trace.header.version}"
    if not on and re.fullmatch(r"vllm==\d+\.\d+\.\d+", pinned):
        target = pinned
    yield f"schedcheck replay {file} --on {target}"
    yield f"schedcheck show {file} --on {target}"


def fenced(
    lines: Iterable[str], language: str, *, escape: Callable[[str], str] = clean
) -> Iterator[str]:
    """Yield lines within a fence that none of them can close, each on one line and printable."""
    body = [escape(line) for line in lines]
    runs = (len(run) for line in body for run in re.findall("`+", line))
    fence = "`" * max(3, 1 + max(runs, default=0))
    yield f"{fence}{language}"
    yield from body
    yield fence


def _json_line(line: str) -> str:
    """Return a line of JSON that means the same and is printable."""
    return "".join(char if char.isprintable() else _escaped(char) for char in line)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
