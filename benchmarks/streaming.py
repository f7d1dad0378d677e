"""How fast a recording is judged, beside json.loads on the same bytes; a curve over lengths.

    python benchmarks/streaming.py [RECORDING] [EVENTS_MAX]

RECORDING is one of vLLM (``benchmarks/foreign.py`` makes one), of which the lines before its first
violation are taken. Whoever is left there is aborted, and all of it is repeated under new names
until there are as many events as wanted. For each length: CPU seconds of json.loads over the
lines, of reading them into events, and of judging with every applicable invariant; the ratios; and
the most memory that the process ever had.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from schedcheck.recording.checking import Checker
from schedcheck.recording.formats import open_recording
from schedcheck.tracefile import RecordingReader


class Repeated:
    """A stream of a recording's lines again and again, requests named anew each time.

    It has the one method of a file that reading needs.
    """

    def __init__(self, header: bytes, lines: list[bytes], events: int) -> None:
        self._lines = self._all(header, lines, events)

    def _all(self, header: bytes, lines: list[bytes], events: int) -> Iterator[bytes]:
        yield header
        done = again = 0
        while done < events:
            for line in lines[: events - done]:
                yield re.sub(rb'"r(\d+)"', rb'"x%dr\1"' % again, line)
            done, again = done + len(lines), again + 1

    def readline(self, _most: int = -1) -> bytes:
        """Return the next line, nothing at the end."""
        return next(self._lines, b"")


def whole_lives(path: Path) -> tuple[bytes, list[bytes]]:
    """Return the header, and lines that leave nobody behind."""
    with path.open("rb") as stream:
        reader = open_recording(stream, str(path))
        checker = Checker(reader.beginning)
        for step in reader.steps():
            if checker.take(step):
                break
    header, *lines = path.read_bytes().splitlines(keepends=True)
    cut = step.number - 2
    while not lines[cut - 1].startswith(b'{"do":"complete"'):
        cut -= 1
    with path.open("rb") as stream:
        reader = open_recording(stream, str(path))
        checker = Checker(reader.beginning)
        for step in reader.steps():
            checker.take(step)
            if step.number == cut:
                break
    return header, [*lines[:cut], *closing(checker)]


def closing(checker: Checker) -> Iterator[bytes]:
    """Yield lines that abort whoever is left, and announce it."""
    lives = list(checker.judge.ledger.lives.values())
    for life in lives:
        if life.is_live:
            form = {"is": "controlled", "views": {life.name: None}}
            yield line({"do": "abort", "request": life.name}, form)
    due = [one.name for one in lives if (one.is_live or one.was_sent) and not one.announced]
    yield line({"do": "schedule"}, {"is": "scheduled", "step": 0, "names": [], "finished": due})
    yield line({"do": "complete"}, {"is": "completed", "step": 0})


def line(action: dict[str, object], form: dict[str, object]) -> bytes:
    """Return one line of a recording."""
    return json.dumps({**action, "recorded": [form]}, separators=(",", ":")).encode() + b"\n"


def measured(header: bytes, lines: list[bytes], events: int) -> tuple[float, float, float, int]:
    """Return CPU seconds of json.loads, reading and judging, and the bytes."""
    spent: list[float] = []
    size = 0
    for how in ("copy", "json", "read", "judge"):
        stream = Repeated(header, lines, events)
        began = time.process_time()
        if how in ("copy", "json"):
            while line := stream.readline():
                size += len(line) if how == "copy" else 0
                if how == "json":
                    json.loads(line)
        else:
            reader = RecordingReader(stream, "x")  # type: ignore[arg-type]
            checker = Checker(reader.beginning)
            for step in reader.steps():
                if how == "judge":
                    findings = checker.take(step)
                    assert not findings, findings
        spent.append(time.process_time() - began)
    copying, *others = spent  # making the lines is in all of them
    loads, reading, judging = (max(one - copying, 1e-9) for one in others)
    return loads, reading, judging, size


def main() -> None:
    """Print the table."""
    path = Path(sys.argv[1])
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    header, lines = whole_lives(path)
    print(f"{len(lines):,} lines repeated")
    print("events, MB; events/s: json.loads, read, judged; ratios to json.loads; memory (MB)")
    events = 1_000
    while events <= most:
        loads, reading, judging, size = measured(header, lines, events)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rates = "  ".join(f"{events / one:>9,.0f}" for one in (loads, reading, judging))
        ratios = f"{reading / loads:>5.1f}  {judging / loads:>6.1f}"
        print(f"{events:>10,}  {size / 1e6:>6.1f}  {rates}  {ratios}  {memory:>5.0f}", flush=True)
        events *= 10


if __name__ == "__main__":
    main()
