"""A regression test that replays a trace with schedcheck: for the reference and for adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from schedcheck.invariants.registry import UnknownInvariant, get
from schedcheck.model.trace import Trace
from schedcheck.report.export.template import literal
from schedcheck.tracefile import encode


def own_test(trace: Trace, *, target: str) -> str:
    """Return the source of a test module that replays ``trace`` on ``target``.

    It fails as long as anything is violated, and when the trace no longer fits.
    """
    return "\n".join(_lines(trace, target)) + "\n"


def _lines(trace: Trace, target: str) -> Iterator[str]:
    id_, title = _about(trace)
    count = len(trace.actions)
    yield f'"""{title}.'
    yield ""
    yield f"From a trace of {count} action{'' if count == 1 else 's'}, replayed with schedcheck."
    yield '"""'
    yield ""
    yield "from schedcheck.engine.events import Outcome"
    yield "from schedcheck.engine.replay import replay"
    yield "from schedcheck.engine.targets import resolve"
    yield "from schedcheck.report.text import failure_lines"
    yield "from schedcheck.tracefile import decode"
    yield ""
    yield f"TARGET = {literal(target)}"
    yield "TRACE = ("
    for line in encode(trace).decode().splitlines(keepends=True):
        yield from (f"    {literal(part)}" for part in re.findall(r".{1,80}", line, re.DOTALL))
    yield ")"
    yield ""
    yield ""
    yield f"def test_{re.sub(r'[^a-z0-9]+', '_', id_.lower())}():"
    yield '    told = replay(resolve(TARGET), TARGET, decode(TRACE.encode(), name="TRACE"))'
    yield '    violated = "\\n".join(failure_lines(told.failure)) if told.failure else ""'
    yield "    assert told.failure is None, violated"
    yield "    assert told.outcome in (Outcome.FIXED, Outcome.HOLDS), told.reason"


def _about(trace: Trace) -> tuple[str, str]:
    """Return what the test is called and its title, in words of our own."""
    expect = trace.header.expect
    wanted = expect.signature.invariant if expect else trace.header.witness
    try:
        invariant = get(wanted)
    except UnknownInvariant:
        return "trace", "Nothing is violated"
    return invariant.id, f"{invariant.id}: {invariant.title}"
