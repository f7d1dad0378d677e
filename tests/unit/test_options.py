"""A user's own pieces: how they are typed, what a trace says of them, and what a replay demands."""

from __future__ import annotations

import pytest
from attrs import evolve

from schedcheck.cli.pieces import again, made_with
from schedcheck.engine.saving import file_name
from schedcheck.engine.targets import resolve
from schedcheck.model.actions import Step
from schedcheck.model.options import NO_OPTIONS, BadOption, Options, options_of, value_of
from schedcheck.model.trace import Header, Trace
from schedcheck.report.text import command, failure_lines
from schedcheck.sut import TargetError
from schedcheck.tracefile import TraceError, decode, encode
from telling import FAILURE

MINE = Options(
    scheduler="my_pkg.my_mod:Mine",
    connector="my_store:Store",
    config=(("long_prefill_token_threshold", 3), ("watermark", 0.5)),
)
TRACE = Trace(header=Header(target="vllm", options=MINE), actions=(Step(),))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("true", True),
        ("False", False),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("fcfs", "fcfs"),
        ("", ""),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("1e999", "1e999"),
    ],
)
def test_a_value_is_read_as_it_is_meant(text, value):
    assert (type(value), value) == (type(value_of(text)), value_of(text))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"config": ("x",)}, "--config 'x' is not of the form key=value"),
        ({"config": ("=1",)}, "--config '=1' is not of the form key=value"),
        ({"config": ("x=1", "x=2")}, "--config gives x twice"),
        ({"scheduler": "mine"}, "--scheduler 'mine' is not of the form package.module:Class"),
        ({"scheduler": "m:a.b"}, "--scheduler 'm:a.b' is not of the form package.module:Class"),
        ({"connector": ":X"}, "--connector ':X' is not of the form package.module:Class"),
    ],
)
def test_what_is_not_written_as_an_option_is_said(typed, said):
    with pytest.raises(BadOption) as error:
        options_of(**typed)
    assert said == str(error.value)


def test_words_read_again_are_the_same_options():
    words = MINE.words
    config = tuple(words[i + 1] for i, word in enumerate(words) if word == "--config")
    assert MINE == options_of(scheduler=words[1], connector=words[3], config=config)
    assert () == NO_OPTIONS.words


# In a trace.


def test_a_trace_says_what_its_target_was_made_with():
    assert TRACE == decode(encode(TRACE), name="t")


def test_a_trace_of_an_engine_as_it_is_says_nothing_of_options():
    assert b"options" not in encode(Trace(header=Header(target="vllm"), actions=(Step(),)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("[]", "options: it is a list, not a JSON object"),
        ('{"code":"x"}', 'options: unknown field "code"'),
        ('{"scheduler":1}', "options: scheduler is 1, not a text"),
        ('{"scheduler":"os.system"}', "is not of the form package.module:Class"),
        ('{"config":[1]}', "options: config is no JSON object"),
        ('{"config":{"a":null}}', 'options: "a" is null, not a printable text, a number'),
        ('{"config":{"a":"\\u001b[2J"}}', "not a printable text"),
        ('{"config":{"a b":1}}', "is not of the form key=value"),
    ],
)
def test_a_header_with_options_that_are_none_is_refused(options, said):
    line = f'{{"format":"1.0","target":"vllm","options":{options}}}\n{{"do":"step"}}\n'
    with pytest.raises(TraceError) as error:
        decode(line.encode(), name="t")
    assert said in str(error.value)
    assert str(error.value).startswith("t:1: ")


# What a replay demands.


def test_the_same_options_given_again_replay_the_trace_as_it_is(capsys):
    assert TRACE == made_with(TRACE, MINE, on=None)
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (NO_OPTIONS, MINE),
        (evolve(MINE, scheduler=""), Options(scheduler=MINE.scheduler)),
        (evolve(MINE, connector=""), Options(connector=MINE.connector)),
        (evolve(MINE, config=MINE.config[1:]), Options(config=MINE.config[:1])),
    ],
)
def test_a_trace_does_not_choose_what_code_runs(given, missing):
    with pytest.raises(TargetError) as error:
        made_with(TRACE, given, on=None)
    assert f"say {' '.join(missing.words)}, or name the target without it, --on vllm" in str(
        error.value
    )


def test_a_piece_given_in_place_of_another_is_taken_and_said(capsys):
    given = evolve(MINE, scheduler="my_pkg.my_mod:Mended")
    assert given == made_with(TRACE, given, on=None).header.options
    assert "was made with --scheduler my_pkg.my_mod:Mine" in capsys.readouterr().err


def test_a_target_named_anew_goes_without_and_that_is_said(capsys):
    assert NO_OPTIONS == made_with(TRACE, NO_OPTIONS, on="vllm==0.14.0").header.options
    assert "and is replayed with none of them" in capsys.readouterr().err


def test_what_to_type_again_has_every_piece():
    typed = command("replay", "t", more=again(MINE, None))
    assert f"schedcheck replay t {' '.join(MINE.words)}" == typed
    told = "\n".join(failure_lines(evolve(FAILURE, options=MINE.words), path="t"))
    assert f"replay          {typed}" in told


def test_the_same_violation_of_another_scheduler_is_another_file():
    assert file_name(FAILURE) != file_name(evolve(FAILURE, options=MINE.words))


@pytest.mark.parametrize("target", ["reference", "my_pkg.my_mod:Adapter"])
def test_only_an_engine_takes_options(target):
    with pytest.raises(TargetError, match="takes no --scheduler: that is for the target vllm"):
        resolve(target, MINE)
