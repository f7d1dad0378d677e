"""Trace files are the one artifact with a compatibility promise, and they come from strangers."""

from __future__ import annotations

import errno
import gzip
import json
import random
from pathlib import Path

import attrs
import pytest

from schedcheck import tracefile
from schedcheck.model.actions import (
    ACTIONS,
    Abort,
    Add,
    AddChunk,
    AnswerLookup,
    Complete,
    Drain,
    FailTransfer,
    FinishSend,
    FinishTransfer,
    GrammarReady,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Schedule,
    Step,
)
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, LoadFailurePolicy, Policy, SchedulerConfig
from schedcheck.model.options import Options
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Expectation, Header, Trace
from schedcheck.model.verdict import Signature
from schedcheck.tracefile import (
    TraceError,
    TraceUnwritable,
    decode,
    encode,
    form,
    read,
    reading,
    write,
)

# --- What is written, byte by byte. If this fails, old traces may not be read as they were. ---

PINNED = (
    b'{"capabilities":["ABORT","ASYNC_LOADS"],'
    b'"config":{"block_size":2,"blocks_total":6,"chunked_prefill":true,'
    b'"load_failure_policy":"recompute","max_model_len":64,"max_num_batched_tokens":8,'
    b'"max_num_seqs":4,"max_steps_in_flight":1,"policy":"fcfs","prefix_caching":false},'
    b'"dialect":"v2","expect":{"signature":"REQ-001/new-after-preemption","step":8},'
    b'"format":"1.0","schedcheck":"0.1.0","seed":"7341/212","start":"cold","target":"vllm",'
    b'"version":"0.13.0","witness":""}\n'
    b'{"do":"add","request":"r0","spec":{"prompt":[["sys",4],["own",1]]}}\n'
    b'{"do":"add","request":"r1","spec":{"engine_id_of":"r0","load_async":false,"max_tokens":3,'
    b'"priority":-1,"prompt":[["output:r0",2]],"remote_tokens":2,"send_kv":true,"stop_at":0}}\n'
    b'{"do":"step"}\n'
    b'{"do":"step","finish_loads":["r0","r1"]}\n'
    b'{"do":"schedule"}\n'
    b'{"do":"complete","finish_loads":["r0"]}\n'
    b'{"bad_block":2,"do":"fail_transfer","request":"r1"}\n'
    b'{"do":"reset_prefix_cache","running":true}\n'
    b'{"do":"abort","request":"r0"}\n'
    b'{"do":"drain"}\n'
    b'{"do":"drain","steps_max":90}\n'
)

PINNED_TRACE = Trace(
    header=Header(
        target="vllm",
        version="0.13.0",
        config=SchedulerConfig(blocks_total=6, dialect=Dialect.V2),
        capabilities=frozenset({Capability.ASYNC_LOADS, Capability.ABORT}),
        seed="7341/212",
        schedcheck="0.1.0",
        expect=Expectation(signature=Signature("REQ-001", "new-after-preemption"), step=8),
    ),
    actions=(
        Add("r0", RequestSpec(prompt=(("sys", 4), ("own", 1)))),
        Add(
            "r1",
            RequestSpec(
                prompt=(("output:r0", 2),),
                max_tokens=3,
                stop_at=0,
                priority=-1,
                remote_tokens=2,
                load_async=False,
                send_kv=True,
                engine_id_of="r0",
            ),
        ),
        Step(),
        Step(finish_loads=("r0", "r1")),
        Schedule(),
        Complete(finish_loads=("r0",)),
        FailTransfer("r1", bad_block=2),
        ResetPrefixCache(running=True),
        Abort("r0"),
        Drain(),
        Drain(steps_max=90),
    ),
)


def test_a_trace_is_written_to_these_very_bytes():
    assert encode(PINNED_TRACE) == PINNED


def test_these_very_bytes_are_read_to_the_trace():
    assert decode(PINNED, name="x") == PINNED_TRACE


def test_keys_are_sorted_in_every_object():
    for line in PINNED.splitlines():
        assert json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")).encode() == line


def test_lines_can_be_written_one_by_one():
    lines = [tracefile.encode_action(action) for action in PINNED_TRACE.actions]
    assert tracefile.encode_header(PINNED_TRACE.header) + b"".join(lines) == PINNED


# --- Round trips. ---

SPEC = RequestSpec(prompt=(("own", 2),))
HEADER = Header(target="reference")
EVERY_ACTION = (
    Add("r0", SPEC),
    Schedule(),
    Complete(),
    Complete(finish_loads=("r0",)),
    Step(),
    Step(finish_loads=("r1", "r0")),
    FinishTransfer("r0"),
    FailTransfer("r0"),
    FailTransfer("r0", bad_block=3),
    FinishSend("r0"),
    Abort("r0"),
    Preempt("r0"),
    ResetPrefixCache(),
    ResetPrefixCache(running=True),
    AnswerLookup("r0"),
    GrammarReady("r0"),
    AddChunk("r0"),
    Pause(),
    Pause(admission_only=True),
    Resume(),
    Drain(),
    Drain(steps_max=7),
)
OTHER_CONFIG = {
    "blocks_total": 5,
    "block_size": 3,
    "max_num_batched_tokens": 7,
    "max_num_seqs": 2,
    "max_model_len": 33,
    "max_steps_in_flight": 3,
    "policy": Policy.PRIORITY,
    "chunked_prefill": False,
    "prefix_caching": True,
    "load_failure_policy": LoadFailurePolicy.FAIL,
    "num_speculative_tokens": 3,
    "max_loras": 2,
    "encoder_cache_size": 9,
    "max_num_encoder_input_tokens": 8,
    "sliding_window": 5,
    "async_scheduling": True,
    "dialect": Dialect.V2,
}
OTHER_SPEC = {
    "prompt": (("sys", 0), ("output:r9", 4), ("own", 1)),
    "max_tokens": 9,
    "stop_at": 4,
    "priority": 3,
    "remote_tokens": 5,
    "load_async": False,
    "send_kv": True,
    "engine_id_of": "r7",
    "lookup_undecided": True,
    "grammar": True,
    "adapter": "a",
    "salt": "x",
    "drafts": ((3, 1), (1, 0)),
    "chunks": (2, 1),
    "chunk_max_tokens": (3,),
}
OTHER_HEADER = {
    "target": "./adapter.py --with 'ü'",
    "version": "0.33.0+cpu",
    "config": SchedulerConfig(blocks_total=3),
    "capabilities": frozenset(Capability),
    "seed": "1/2",
    "schedcheck": "9.9",
    "expect": Expectation(signature=Signature("KV-002", "leak"), step=1),
    "witness": "REQ-001",
    "options": Options(scheduler="a.b:C", connector="d:E", config=(("k", 1), ("l", "ü"))),
}


def back(trace: Trace) -> Trace:
    return decode(encode(trace), name="x")


def names_of(kind: type) -> set[str]:
    return {field.name for field in attrs.fields(kind)}


@pytest.mark.parametrize("action", EVERY_ACTION, ids=repr)
def test_every_action_comes_back(action):
    trace = Trace(header=HEADER, actions=(action,))
    assert back(trace) == trace


@pytest.mark.parametrize("field", OTHER_CONFIG)
def test_every_field_of_the_config_comes_back(field):
    config = SchedulerConfig(**{field: OTHER_CONFIG[field]})
    trace = Trace(header=Header(target="reference", config=config), actions=(Step(),))
    assert config != SchedulerConfig()
    assert back(trace) == trace


@pytest.mark.parametrize("field", OTHER_SPEC)
def test_every_field_of_a_request_comes_back(field):
    chunks = (1,) if field == "chunk_max_tokens" else ()
    values = {"prompt": (("own", 1),), "chunks": chunks, field: OTHER_SPEC[field]}
    spec = RequestSpec(**values)
    trace = Trace(header=HEADER, actions=(Add("r0", spec),))
    assert back(trace) == trace


@pytest.mark.parametrize("field", OTHER_HEADER)
def test_every_field_of_the_header_comes_back(field):
    header = Header(**{"target": "reference", field: OTHER_HEADER[field]})
    assert back(Trace(header=header, actions=(Step(),))).header == header


def test_the_values_above_cover_every_kind_and_field():
    # A field added to the model without a line above would be written untested.
    assert {type(action) for action in EVERY_ACTION} == set(ACTIONS)
    assert set(OTHER_CONFIG) == names_of(SchedulerConfig)
    assert set(OTHER_SPEC) == names_of(RequestSpec)
    assert set(OTHER_HEADER) == names_of(Header)


def test_every_number_that_a_trace_holds_has_a_range():
    numbers = {
        key
        for kind in (*ACTIONS, RequestSpec, SchedulerConfig)
        for key, type_ in form.TYPES[kind].items()
        if type_ in (int, int | None)
    }
    assert numbers | {"step"} == set(form.RANGES)


@pytest.mark.parametrize("seed", range(20))
def test_random_traces_come_back(seed):
    source = random.Random(seed)

    def names() -> tuple[str, ...]:
        return tuple(f"r{source.randrange(9)}" for _ in range(source.randrange(3)))

    def some(values: dict[str, object]) -> dict[str, object]:
        return {key: value for key, value in values.items() if source.random() < 0.5}

    def request(values: dict[str, object]) -> RequestSpec:
        if "chunks" not in values:  # a limit without its chunk is refused
            values.pop("chunk_max_tokens", None)
        return RequestSpec(**{"prompt": (("ü", 3),), **values})

    actions = [Add(f"n{number}", request(some(OTHER_SPEC))) for number in range(5)]
    actions += [Step(names()) for _ in range(5)] + [Complete(names()) for _ in range(5)]
    actions += source.choices(EVERY_ACTION[1:], k=20)
    source.shuffle(actions)
    header = Header(
        **{"target": "t", **some(OTHER_HEADER), "config": SchedulerConfig(**some(OTHER_CONFIG))}
    )
    trace = Trace(header=header, actions=tuple(actions))
    assert back(trace) == trace
    assert encode(back(trace)) == encode(trace)


# --- What is tolerated. ---


def test_a_last_line_without_newline_is_complete():
    assert decode(PINNED[:-1], name="x") == PINNED_TRACE


def test_lines_may_end_as_on_windows():
    assert decode(PINNED.replace(b"\n", b"\r\n"), name="x") == PINNED_TRACE


def test_a_header_written_by_hand_needs_only_format_and_target():
    data = b'{"format": "1.0", "target": "reference"}\n{"do": "step"}\n'
    assert decode(data, name="x") == Trace(header=HEADER, actions=(Step(),))


def test_a_newer_minor_version_may_have_more_keys_and_says_which_were_skipped():
    newer = (
        PINNED.replace(b'"format":"1.0"', b'"colour":1,"format":"1.3"')
        .replace(b'"prompt":[["sys"', b'"media":[],"prompt":[["sys"')
        .replace(b'{"do":"step"}', b'{"do":"step","mood":{"events":[]}}')
        .replace(b'{"do":"drain"}', b'{"do":"drain","mood":{"events":[]}}')
        .replace(b'["ABORT",', b'["ABORT","FLY",')
    )
    said: list[str] = []
    assert decode(newer, name="x", on_ignored=said.append) == PINNED_TRACE
    assert decode(newer, name="x") == PINNED_TRACE
    since = "(the trace has format 1.3, this version knows 1.1)"
    assert said == [
        f'x:1: skipped unknown field "colour" in the header {since}',
        f'x:1: skipped unknown capability "FLY" {since}',
        f'x:2: skipped unknown field "media" in the spec of an add action {since}',
        f'x:4: skipped unknown field "mood" in a step action {since}',
        f'x:11: skipped unknown field "mood" in a drain action {since}',
    ]


def test_what_was_skipped_is_said_in_a_bounded_number_of_lines():
    keys = ",".join(f'"k{number}":0' for number in range(1000))
    said: list[str] = []
    data = f'{{"format":"1.2","target":"t",{keys}}}\n{{"do":"step"}}\n'.encode()
    decode(data, name="x", on_ignored=said.append)
    assert len(said) == 20


# --- What is refused: one line that names the file, the line and the fault. ---


GOES_ON = (
    "it goes on from another file, so it cannot be replayed: schedcheck check judges it, "
    "schedcheck shrink makes a trace of it"
)
RECORDED = "recorded is an object, not a list of events"
ACTIONS_KNOWN = (
    "add, schedule, complete, step, finish_transfer, fail_transfer, finish_send, abort, preempt, "
    "reset_prefix_cache, answer_lookup, grammar_ready, add_chunk, pause, resume, drain"
)
SPEC_KEYS = (
    "adapter, chunk_max_tokens, chunks, drafts, engine_id_of, grammar, load_async, "
    "lookup_undecided, max_tokens, priority, prompt, remote_tokens, salt, send_kv, stop_at"
)


def refusal(data: bytes, *, name: str = "x") -> str:
    with pytest.raises(TraceError) as caught:
        decode(data, name=name)
    return str(caught.value)


def with_action(line: str) -> bytes:
    return b'{"format":"1.0","target":"reference"}\n{"do":"step"}\n' + line.encode() + b"\n"


def with_header(**fields: object) -> bytes:
    header = {"format": "1.0", "target": "reference", **fields}
    return json.dumps(header).encode() + b'\n{"do":"step"}\n'


def with_spec(**fields: object) -> bytes:
    spec = {"prompt": [["own", 1]], **fields}
    return with_action(json.dumps({"do": "add", "request": "r0", "spec": spec}))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "x: it is empty"),
        (gzip.compress(PINNED), "x: it is compressed (gzip): unpack it first"),
        (b"PK\x03\x04rest", "x: it is compressed (zip): unpack it first"),
        (
            b"\xef\xbb\xbf" + PINNED,
            "x: it starts with a byte order mark: save it as UTF-8 without one",
        ),
        (PINNED.decode().encode("utf-16"), "x: it is UTF-16: save it as UTF-8"),
        (b"\n", "x:1: the line is empty; every line after the header holds one action"),
        (b"\x00\x01\x02 random", "x:1: it is not JSON: invalid character (byte 0)"),
        (b"[1, 2]\n", "x:1: a line holds one JSON object, not a list"),
        (b"null\n", "x:1: a line holds one JSON object, not null"),
        (b'{"do":"step"}\n', "x:1: it is no trace: its first line has no format"),
        (
            b'{"format":"1.0","target":"reference"}\n',
            "x: it has a header but no action: it was cut off, or never begun",
        ),
        (b"[" * 100_000, "x:1: it is nested too deep"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value[:40],
)
def test_what_is_no_trace_at_all(data, problem):
    assert refusal(data) == problem


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"format": "2.0"},
            "the trace has format 2.0, this version reads 1.x only: use a newer schedcheck",
        ),
        (
            {"format": "0.9"},
            "the trace has format 0.9, this version reads 1.x only: use an older schedcheck",
        ),
        ({"format": 1.0}, "format is 1.0, which is no version like 1.0"),
        ({"format": "1.0\n"}, 'format is "1.0?", which is no version like 1.0'),
        ({"format": "9" * 5000}, None),
        ({"target": ""}, "the header has no target"),
        ({"target": 3}, "target is 3, not a text"),
        ({"seed": "\x1b[2J"}, "seed is not a printable text of at most 2,000 characters"),
        ({"version": "v" * 2001}, "version is not a printable text of at most 2,000 characters"),
        ({"start": "warm"}, 'start is "warm"; this version can only replay from cold'),
        (
            {"start": "checkpoint"},
            GOES_ON,
        ),
        ({"dialect": "v9"}, 'dialect is "v9"; this version knows v1, v2'),
        ({"dialect": ["v1"]}, "dialect is a list; this version knows v1, v2"),
        ({"capabilities": ["FLY"]}, 'unknown capability "FLY" in the header'),
        (
            {"capabilities": "ABORT"},
            'capabilities is "ABORT": expected array, got str',
        ),
        ({"config": []}, "the config is a list, not a JSON object"),
        ({"config": None}, "the config is null, not a JSON object"),
        (
            {"config": {"policy": "lifo"}},
            'policy in the config is "lifo"; this version knows fcfs, priority',
        ),
        (
            {"config": {"blocks_total": 0}},
            "blocks_total in the config is 0; 1 to 1,000,000 are allowed",
        ),
        (
            {"config": {"blocks_total": 10**9}},
            "blocks_total in the config is 1000000000; 1 to 1,000,000 are allowed",
        ),
        (
            {"config": {"blocks_total": 10**30}},
            "blocks_total in the config is a number of 100 bits; 1 to 1,000,000 are allowed",
        ),
        (
            {"config": {"block_size": 2.0}},
            "block_size in the config is 2.0: expected int, got float",
        ),
        (
            {"config": {"block_size": True}},
            "block_size in the config is true: expected int, got bool",
        ),
        (
            {"config": {"prefix_caching": 1}},
            "prefix_caching in the config is 1: expected bool, got int",
        ),
        ({"config": {"dialect": "v2"}}, None),
        ({"expect": "REQ-001/x"}, 'expect is "REQ-001/x", not a JSON object'),
        (
            {"expect": {"signature": "REQ-001", "step": 1}},
            "expect: 'REQ-001' is no signature; one looks like REQ-001/kind-of-mismatch",
        ),
        ({"expect": {"signature": "A/b"}}, "step in expect is null: expected int, got null"),
        (
            {"expect": {"signature": "A/b", "step": 0}},
            "step in expect is 0; 1 to 1,000,000 are allowed",
        ),
        (
            {"expect": {"signature": "A/b", "step": 2}},
            "expect names step 2, but the trace ends with step 1: was it cut off?",
        ),
        (
            {"expect": {"signature": "A/b", "step": 1, "x": 1}},
            'unknown field "x" in expect; this version knows signature, step',
        ),
    ],
    ids=str,
)
def test_a_header_that_is_wrong(fields, problem):
    message = refusal(with_header(**fields))
    assert message.startswith("x:1: ")
    assert problem is None or message == f"x:1: {problem}"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{"do":"step","colour":"red"}',
            'unknown field "colour" in a step action; this version knows do, finish_loads',
        ),
        (
            '{"do":"abort","request":"r0","x":1}',
            'unknown field "x" in an abort action; this version knows do, request',
        ),
        (
            '{"do":"schedule","recorded":{}}',
            RECORDED,
        ),
        (
            '{"do":"fly"}',
            f'unknown action "fly"; this version knows {ACTIONS_KNOWN}',
        ),
        ('{"do":["add"]}', None),
        ('{"request":"r0"}', None),
        ('{"do":"abort"}', "an abort action has no request"),
        ('{"do":"abort","request":7}', "request in an abort action is 7: expected str, got int"),
        (
            '{"do":"abort","request":null}',
            "request in an abort action is null: expected str, got null",
        ),
        ('{"do":"add","request":"r0"}', "an add action has no spec"),
        (
            '{"do":"add","request":"r0","spec":3}',
            "the spec of an add action is 3, not a JSON object",
        ),
        ('{"do":"add","request":"r0","spec":{}}', "the spec of an add action has no prompt"),
        (
            '{"do":"step","finish_loads":"r0"}',
            'finish_loads in a step action is "r0": expected array, got str',
        ),
        (
            '{"do":"step","finish_loads":[0]}',
            "finish_loads in a step action is a list: expected str, got int - at $[0]",
        ),
        (
            '{"do":"drain","steps_max":0}',
            "steps_max in a drain action is 0; 1 to 1,000,000 are allowed",
        ),
        (
            '{"do":"fail_transfer","request":"r0","bad_block":-2}',
            "bad_block in a fail_transfer action is -2; 0 to 1,000,000 are allowed",
        ),
        ('{"do":"step","do":"drain"}', '"do" stands twice in one object'),
        ('{"do":"drain","steps_max":NaN}', "it is not JSON: invalid character (byte 26)"),
        ('{"do":"drain","steps_max":1e999}', None),
        ('{"do":"drain","steps_max":' + "9" * 5000 + "}", None),
        ('{"do":"drain","steps_max":' + "9" * 4000 + "}", None),
        (
            '{"do":"abort","request":"\\ud800"}',
            "a text holds half of a surrogate pair, which is no character",
        ),
        ('{"do":"step"} {"do":"step"}', "it is not JSON: trailing characters (byte 15)"),
        ('{"do":"step"', "it is not JSON: the line ends too early"),
        ("", "the line is empty; every line after the header holds one action"),
        ('"step"', 'a line holds one JSON object, not "step"'),
        (" " * (2**20 + 1), "the line is longer than 1 MiB"),
        ('{"do":"step","x":' + "[" * 50_000 + "]" * 50_000 + "}", "it is nested too deep"),
        ('{"do":"step","x":' + "[" * 300 + '":"' + "]" * 300 + "}", None),
    ],
    ids=lambda value: value[:50] if value else "-",
)
def test_an_action_that_is_wrong(line, problem):
    message = refusal(with_action(line))
    assert message.startswith("x:3: ")
    assert problem is None or message == f"x:3: {problem}"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"colour": 1},
            f'unknown field "colour" in the spec of an add action; this version knows {SPEC_KEYS}',
        ),
        ({"prompt": []}, "the prompt has no tokens; at least 1 is needed"),
        ({"prompt": [["own", 0]]}, "the prompt has no tokens; at least 1 is needed"),
        (
            {"prompt": [["own", -1], ["sys", 2]]},
            "a prompt segment has -1 tokens; 0 to 1,000,000 are allowed",
        ),
        (
            {"prompt": [["own", 10**30]]},
            "a prompt segment has a number of 100 bits tokens; 0 to 1,000,000 are allowed",
        ),
        (
            {"prompt": [["own", 600_000], ["sys", 600_000]]},
            "the prompt takes more than 1,000,000 tokens to compute",
        ),
        ({"prompt": ["own", 1]}, None),
        ({"prompt": [["own"]]}, None),
        ({"prompt": [["own", 1, 1]]}, None),
        ({"prompt": [[1, "own"]]}, None),
        ({"prompt": {"own": 1}}, None),
        (
            {"prompt": [["output:", 1]]},
            'prompt stream "" is no name: 1 to 200 printable characters, no spaces',
        ),
        (
            {"max_tokens": 0},
            "max_tokens in the spec of an add action is 0; 1 to 1,000,000 are allowed",
        ),
        ({"max_tokens": None}, None),
        ({"chunk_max_tokens": [1]}, "chunk_max_tokens has 1 number(s) for 0 chunk(s)"),
        (
            {"chunks": [1], "chunk_max_tokens": [0]},
            "chunk_max_tokens has 0; 1 to 1,000,000 are allowed",
        ),
        ({"stop_at": -1}, "stop_at in the spec of an add action is -1; 0 to 1,000,000 are allowed"),
        ({"priority": 2**31}, None),
        ({"remote_tokens": -1}, None),
        (
            {"send_kv": "yes"},
            'send_kv in the spec of an add action is "yes": expected bool, got str',
        ),
        (
            {"engine_id_of": "a\u202eb"},
            'engine_id_of "a?b" is no name: 1 to 200 printable characters, no spaces',
        ),
    ],
    ids=str,
)
def test_a_request_that_is_wrong(fields, problem):
    message = refusal(with_spec(**fields))
    assert message.startswith("x:3: ")
    assert problem is None or message == f"x:3: {problem}"


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\nb", "\x1b[31m", "\u2028", "\u202e", "\x7f", "n" * 201]
)
@pytest.mark.parametrize(
    "line",
    [
        {"do": "abort", "request": "NAME"},
        {"do": "step", "finish_loads": ["r0", "NAME"]},
        {"do": "add", "request": "NAME", "spec": {"prompt": [["own", 1]]}},
        {"do": "add", "request": "r0", "spec": {"prompt": [["NAME", 1]]}},
    ],
    ids=str,
)
def test_a_name_cannot_steer_a_terminal(name, line):
    message = refusal(with_action(json.dumps(line).replace("NAME", json.dumps(name)[1:-1])))
    assert message.endswith("is no name: 1 to 200 printable characters, no spaces")
    assert message.isprintable()


@pytest.mark.parametrize("name", ["r0", "cmpl-1:0", "ü", "n" * 200, "[red]"])
def test_a_name_may_be_any_short_printable_word(name):
    trace = Trace(header=HEADER, actions=(Add(name, SPEC), Abort(name)))
    assert back(trace) == trace


def test_a_name_is_added_once():
    twice = Trace(header=HEADER, actions=(Add("r0", SPEC), Step(), Add("r0", SPEC)))
    assert refusal(encode(twice)) == 'x:4: "r0" is added twice'


def test_an_unknown_action_is_refused_in_a_newer_minor_version_too():
    # It is not optional: a trace without it would be another one.
    message = refusal(with_action('{"do":"fly"}').replace(b'"1.0"', b'"1.7"'))
    assert message.startswith('x:3: unknown action "fly"; this version knows add, ')
    assert message.endswith(" (the trace has format 1.7, this version knows 1.1)")


# --- Cut off, damaged, too large. ---


def test_a_file_cut_off_anywhere_is_refused_or_whole_up_to_there():
    # The last action that is expected to matter is number 8, on line 9.
    ends = [index + 1 for index, byte in enumerate(PINNED) if byte == ord("\n")]
    for length in range(1, len(PINNED)):
        line = PINNED.count(b"\n", 0, length) + 1
        if length + 1 in ends or length in ends:
            continue  # between two lines: see below
        expected = f"x:{line}: the file ends in the middle of line {line}: it was cut off"
        assert refusal(PINNED[:length]) == expected, length


def test_a_file_cut_off_between_lines_before_what_it_shows_is_refused():
    lines = PINNED.splitlines(keepends=True)
    assert refusal(lines[0]) == "x: it has a header but no action: it was cut off, or never begun"
    assert refusal(b"".join(lines[:8])) == (
        "x:1: expect names step 8, but the trace ends with step 7: was it cut off?"
    )
    assert len(decode(b"".join(lines[:9]), name="x").actions) == 8


def test_the_middle_of_a_character_is_a_cut_too():
    whole = encode(Trace(header=HEADER, actions=(Abort("ü"),)))
    cut = whole[: whole.index("ü".encode()) + 1]
    assert refusal(cut) == "x:2: the file ends in the middle of line 2: it was cut off"


def test_bytes_that_are_not_utf8_are_said_to_be_so():
    assert refusal(PINNED.replace(b'"vllm"', b'"\xff\xfe"')) == (
        "x:1: it is not JSON: it is not UTF-8"
    )


@pytest.mark.parametrize("seed", range(10))
def test_damage_of_any_kind_gives_one_printable_line_or_a_trace(seed):
    source, messages = random.Random(seed), []
    for _ in range(200):
        data = bytearray(PINNED)
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(data))
            data[at : at + source.randint(0, 3)] = source.randbytes(source.randint(0, 3))
        try:
            damaged = decode(bytes(data), name="x")
        except TraceError as error:
            messages.append(str(error))
        else:
            assert back(damaged) == damaged
    assert messages
    assert [one for one in messages if not one.isprintable() or len(one) > 1000] == []


def test_random_bytes_give_one_printable_line():
    source = random.Random(0)
    for length in range(1, 300):
        message = refusal(source.randbytes(length))
        assert message.isprintable()
        assert len(message) < 1000


def test_a_file_has_bounds(monkeypatch):
    monkeypatch.setattr(form, "BYTES_MAX", len(PINNED))
    monkeypatch.setattr(form, "LINES_MAX", 12)
    assert decode(PINNED, name="x") == PINNED_TRACE
    assert "it is larger than" in refusal(PINNED + b"\n")
    monkeypatch.setattr(form, "LINES_MAX", 11)
    assert refusal(PINNED) == "x: it has more than 11 lines, the most that a trace may have"


def test_the_parts_of_a_trace_have_a_bound(monkeypatch):
    # Short names in long lists take many times their size once they are read.
    monkeypatch.setattr(reading, "PARTS_MAX", 8)
    trace = Trace(header=HEADER, actions=(Add("r0", SPEC), Step(("r0",) * 4)))
    assert back(trace) == trace
    more = attrs.evolve(trace, actions=(*trace.actions, Step()))
    assert refusal(encode(more)) == "x:4: more than 8 actions, prompt segments and names"


def test_all_prompts_together_have_a_bound():
    big = RequestSpec(prompt=(("own", form.TOKENS_MAX),))
    adds = tuple(Add(f"r{number}", big) for number in range(11))
    assert len(back(Trace(header=HEADER, actions=adds[:10])).actions) == 10
    assert refusal(encode(Trace(header=HEADER, actions=adds))) == (
        "x:12: all prompts together have more than 10,000,000 tokens"
    )


def test_prompts_that_double_at_each_turn_have_a_bound():
    # Forty such lines would take the toy model 2**40 tokens, though no prompt is longer than two.
    turns = [RequestSpec(prompt=((f"output:r{number}", 1),) * 2) for number in range(39)]
    adds = [Add(f"r{number}", spec) for number, spec in enumerate([SPEC, *turns])]
    assert refusal(encode(Trace(header=HEADER, actions=tuple(adds)))) == (
        "x:20: the prompt takes more than 1,000,000 tokens to compute"
    )


def test_conversations_have_a_bound_in_turns():
    turns = [RequestSpec(prompt=((f"output:r{number}", 1),)) for number in range(101)]
    adds = [Add(f"r{number}", spec) for number, spec in enumerate([SPEC, *turns])]
    assert len(back(Trace(header=HEADER, actions=tuple(adds[:101]))).actions) == 101
    assert refusal(encode(Trace(header=HEADER, actions=tuple(adds)))) == (
        "x:103: more than 100 requests continue one another's output"
    )


def test_a_stream_of_a_request_not_added_is_left_to_the_executor():
    trace = Trace(header=HEADER, actions=(Add("r0", RequestSpec(prompt=(("output:r9", 1),))),))
    assert back(trace) == trace


# --- Files. ---


def test_a_file_is_written_and_read(tmp_path):
    path = tmp_path / "new" / "folder" / "a.trace.jsonl"
    write(path, PINNED_TRACE)
    assert (path.read_bytes(), read(path)) == (PINNED, PINNED_TRACE)
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.trace.jsonl"
    path.write_bytes(b"old")
    tracefile.write_bytes(path, PINNED)
    assert path.read_bytes() == PINNED
    assert list(tmp_path.iterdir()) == [path]


def test_the_message_names_the_path(tmp_path):
    path = tmp_path / "x.trace.jsonl"
    path.write_bytes(with_action('{"do":"step","colour":1}'))
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value) == (
        f'{path}:3: unknown field "colour" in a step action; this version knows do, finish_loads'
    )
    assert (caught.value.name, caught.value.line) == (str(path), 3)


def test_a_name_of_a_file_cannot_steer_a_terminal_either():
    assert refusal(b"", name="\x1b[2J\n\udcff") == "?[2J??: it is empty"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "No such file or directory"),
        (".", "Is a directory"),
        ("file/below", "Not a directory"),
        ("a\0b", "embedded null"),
        ("n" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason(tmp_path, name, reason):
    (tmp_path / "file").touch()
    with pytest.raises(TraceError) as caught:
        read(tmp_path / name)
    assert f": cannot read it: {reason}" in str(caught.value)


def test_an_unreadable_file_is_named_with_the_reason(tmp_path, monkeypatch):
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)  # file modes do not stop the superuser
    with pytest.raises(TraceError) as caught:
        read(Path("secret"))
    assert str(caught.value) == "secret: cannot read it: Permission denied"


def test_no_more_is_read_than_a_trace_may_have(monkeypatch):
    monkeypatch.setattr(form, "BYTES_MAX", 100)
    monkeypatch.setattr(reading, "BYTES_MAX", 100)
    with pytest.raises(TraceError, match="larger than"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file/below", "Not a directory|File exists"),
        ("folder", "Is a directory"),
        ("a\0b", "embedded null"),
        ("n" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_named_with_the_reason(tmp_path, name, reason):
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceUnwritable, match=f"^cannot write .*: .*({reason})"):
        write(tmp_path / name, PINNED_TRACE)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
    assert (tmp_path / "file").read_bytes() == b"kept"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_nothing_half_written_stays_behind(tmp_path, monkeypatch, error):
    path = tmp_path / "a.trace.jsonl"
    path.write_bytes(b"old")

    def fail(self: Path, target: Path) -> None:
        assert self.read_bytes() == PINNED, "what replaces the file is complete"
        raise error

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises((TraceUnwritable, KeyboardInterrupt)) as caught:
        write(path, PINNED_TRACE)
    if isinstance(error, OSError):
        assert str(caught.value) == f"cannot write {path}: No space left"
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"
