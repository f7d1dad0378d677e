"""The recorded form: what happened beside each action, written small and read back as it was."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import pytest
from attrs import evolve

from schedcheck.catalogue import folder
from schedcheck.engine.play import Playback, play
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.output import EngineOutput, WorkerResult
from schedcheck.model.trace import Completed, Crashed, StepRecord, Trace
from schedcheck.tracefile import (
    EventEncoder,
    RecordingReader,
    Tokens,
    TraceError,
    decode,
    encode_recording_header,
    encode_step,
    read,
)
from schedcheck.tracefile.recorded import RecordingForm

CONTROLS = sorted(folder().rglob("*.trace.jsonl"))


@cache
def played(path: Path) -> tuple[Trace, Playback]:
    trace = read(path)
    return trace, play(resolve(trace.header.target), trace, every_invariant())


def recorded(trace: Trace, records: Iterable[StepRecord], tokens: Tokens = Tokens.TOY) -> bytes:
    encoder = EventEncoder(tokens)
    lines = [encode_recording_header(trace.header, RecordingForm(tokens=tokens))]
    for record in records:
        forms = [encoder.form_of(event, record.action) for event in record.events]
        lines.append(encode_step(record.action, forms))
    return b"".join(lines)


def reader(data: bytes) -> RecordingReader:
    return RecordingReader(io.BytesIO(data), "x")


def on_the_reference() -> list[Path]:
    return [path for path in CONTROLS if read(path).header.target.startswith("reference")]


def as_kept(event: object) -> object:
    """A traceback is for whoever was there, and is not kept."""
    return evolve(event, traceback="") if isinstance(event, Crashed) else event


@pytest.mark.parametrize(
    "path", on_the_reference(), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_every_event_of_the_catalogue_is_read_back_as_it_was(path):
    trace, playback = played(path)
    read_back = list(reader(recorded(trace, playback.records)).steps())
    assert [record.action for record in playback.records] == [one.action for one in read_back]
    expected = [as_kept(event) for record in playback.records for event in record.events]
    assert expected == [event for one in read_back for event in one.events]


def test_the_catalogue_holds_enough_to_make_this_a_test():
    kinds = {
        type(event).__name__
        for path in on_the_reference()
        for record in played(path)[1].records
        for event in record.events
    }
    assert {"Added", "Scheduled", "Completed", "Controlled", "TransferEnded", "Drained"} <= kinds


def pressed() -> tuple[Trace, Playback]:
    return played(folder() / "REQ-001-resumed-not-new" / "control.trace.jsonl")


def test_a_cold_recording_is_replayed_as_the_trace_it_holds():
    trace, playback = pressed()
    assert trace == decode(recorded(trace, playback.records), name="x")


def test_without_token_values_their_numbers_are_kept():
    trace, playback = pressed()
    data = recorded(trace, playback.records, Tokens.COUNTS)
    found = [event for one in reader(data).steps() for event in one.events]
    expected = [event for record in playback.records for event in record.events]
    for before, after in zip(expected, found, strict=True):
        if isinstance(before, Completed) and isinstance(after, Completed):
            assert counts(before.result, before.output) == counts(after.result, after.output)
        assert before.snapshot == after.snapshot
    assert not any(value > 9_999 for value in numbers(msgspec.json.decode(data.split(b"\n")[-2])))


def counts(result: WorkerResult, output: EngineOutput) -> list[dict[str, int]]:
    return [
        {name: len(tokens) for name, tokens in values.items()}
        for values in (result.sampled, output.delivered)
    ]


def numbers(value: object) -> list[int]:
    match value:
        case dict():
            return [one for entry in value.values() for one in numbers(entry)]
        case list():
            return [one for entry in value for one in numbers(entry)]
        case bool() | str() | None:
            return []
        case _:
            return [value]


def test_a_step_like_the_one_before_is_told_in_few_bytes():
    data = (
        b'{"format":"1.1","target":"reference","recording":{"tokens":"counts"}}\n'
        b'{"do":"schedule","recorded":[{"is":"scheduled","step":0,"names":["r0","r1"],'
        b'"counts":[4,1],"starts":[0,9]}]}\n'
        b'{"do":"complete","recorded":[{"is":"completed","step":0}]}\n'
        b'{"do":"schedule","recorded":[{"is":"scheduled","step":1}]}\n'
    )
    steps = [one.events[0] for one in reader(data).steps()]
    assert [("r0", 4, 1), ("r1", 10, 1)] == [
        (row.name, row.start, row.count) for row in steps[2].output.rows
    ]
    assert {"r0": (0,), "r1": (0,)} == steps[1].result.sampled == steps[1].output.delivered


HEADER = b'{"format":"1.1","target":"vllm"}\n'
STEP = b'{"do":"schedule","recorded":[{"is":"scheduled","step":0,"names":["r0"],"starts":[0]}]}\n'


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (b"", "x: it is empty"),
        (b"[]\n", "x:1: a line holds one JSON object, not a list"),
        (b"{}\n", "x:1: it is no trace: its first line has no format"),
        (HEADER + STEP + STEP[:40], "x:3: the file ends in the middle of line 3: it was cut off"),
        (HEADER + b"nonsense\n", "x:2: it is not JSON: invalid character (byte 4)"),
        (HEADER + b"\n", "x:2: Input data was truncated"),
        (HEADER + b'{"do":"fly"}\n', None),
        (HEADER + b'{"do":"step","recorded":[{"is":"flown"}]}\n', None),
        (
            HEADER + b'{"do":"step","recorded":[{"is":"scheduled","step":0,"mood":1}]}\n',
            "x:2: Object contains unknown field mood in recorded[0]",
        ),
        (
            HEADER + b'{"do":"step","recorded":[{"is":"scheduled","step":"0"}]}\n',
            "x:2: Expected int, got str in recorded[0].step",
        ),
        (
            HEADER + STEP.replace(b'"starts":[0]', b'"starts":[0,1]'),
            "x:2: 1 names, 1 counts and 2 starts do not fit",
        ),
        (
            HEADER + STEP.replace(b'"starts":[0]', b'"starts":[0],"rows":[{"at":7}]'),
            "x:2: rows says more about row 7, but there are 1",
        ),
        (
            HEADER
            + STEP
            + b'{"do":"complete","recorded":[{"is":"completed","step":0,"sampled":[1,1]}]}\n',
            "x:3: 2 counts of tokens do not fit the 1 rows",
        ),
        (
            HEADER
            + STEP
            + b'{"do":"complete","recorded":[{"is":"completed","step":0,"sampled":[99999999]}]}\n',
            None,
        ),
        (
            HEADER + b'{"do":"step","recorded":[{"is":"added"}]}\n',
            "x:2: a request is added beside a step action",
        ),
        (HEADER + b'{"do":"step","recorded":' + b"[" * 5000 + b"]" * 5000 + b"}\n", None),
        (
            b'{"format":"1.1","target":"vllm","start":"checkpoint","checkpoint":{"lives":[{}]}}\n',
            "x:1: checkpoint in the header: Object missing required field name in lives[0]",
        ),
        (b'{"format":"1.1","target":"vllm","recording":{"tokens":"all"}}\n', None),
    ],
    ids=range(18),
)
def test_what_is_wrong_is_one_line_that_names_file_line_and_fault(lines, problem):
    with pytest.raises(TraceError) as caught:
        list(reader(lines).steps())
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith("x:")
    assert problem is None or message == problem


def test_every_prefix_of_a_recording_is_read_or_refused_in_one_line():
    trace, playback = pressed()
    data = recorded(trace, playback.records)
    lines = refused = 0
    for end in range(1, len(data), 7):
        try:
            lines += len(list(reader(data[:end]).steps()))
        except TraceError:
            refused += 1
    assert lines > 0
    assert refused > 0


def test_reading_keeps_nothing_of_what_it_has_read():
    """A file of any length: the reader holds a bounded number of requests."""
    add = (
        b'{"do":"add","request":"r%d","spec":{"prompt":[["own",2]]},"recorded":[{"is":"added"}]}\n'
    )
    data = HEADER + b"".join(add % number for number in range(6_000))
    reading = reader(data)
    assert 6_000 == sum(1 for _ in reading.steps())
    assert 4_096 == len(reading._specs)
    assert 4_096 >= len(reading._reader.prompts)
