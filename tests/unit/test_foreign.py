"""``schedcheck shrink`` of a recording: rebuilt, replayed, compared, and made small."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

import schedcheck
from schedcheck.engine.executor import Executor
from schedcheck.engine.moves import decode
from schedcheck.engine.profiles import draw_load, get_profile
from schedcheck.engine.targets import resolve
from schedcheck.judge import Judge
from schedcheck.recording.checking import Checker
from schedcheck.recording.foreign import rebuild
from schedcheck.recording.formats import open_recording
from schedcheck.tracefile import read

MUTANT = "reference+resumed-as-new"
SEED_FAULT = "REQ-001/new-after-preemption"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Path:
    """One long search on the reference with the seed fault, whole and in several files."""
    folder = tmp_path_factory.mktemp("recordings")
    for name, bytes_max in (("whole", 2**20), ("part", 20_000)):
        target = schedcheck.record(resolve(MUTANT), folder=folder, name=name, bytes_max=bytes_max)
        rng = random.Random(7)
        load = evolve(draw_load(target, get_profile("pressure"), rng), requests_max=10**6)
        executor = Executor(target.open(load.config), Judge(load.config, target.capabilities, ()))
        for _ in range(300):
            executor.apply(decode(rng.getrandbits(64), executor.judge.ledger, load))
        executor.close()
    return folder


def without_tokens(path: Path, to: Path) -> Path:
    """Write a recording as it would be if nobody knew any token."""
    header, *lines = path.read_text().splitlines()
    said = json.loads(header)
    said["recording"]["tokens"] = "counts"
    to.write_text("\n".join([json.dumps(said), *lines, ""]))
    return to


def shrink(*arguments: object) -> tuple[int, str, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "schedcheck", "shrink", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


def only(text: str, begins: str) -> str:
    (line,) = [one for one in text.splitlines() if one.startswith(begins)]
    return line


def test_a_recording_becomes_a_small_trace_beside_it(recordings):
    path = recordings / "whole.0001.trace.jsonl"
    before = path.read_bytes()
    code, out, err = shrink(path, "--budget", "60s")
    assert (0, before) == (code, path.read_bytes()), err
    assert "VIOLATED  REQ-001" in out
    assert only(err, "all ").endswith("steps were replayed as they were recorded")
    small = read(recordings / "whole.0001.small.trace.jsonl")
    assert 10 >= len(small.actions)
    assert small.header.expect is not None
    assert SEED_FAULT == str(small.header.expect.signature)


def test_without_tokens_the_same(recordings, tmp_path):
    path = without_tokens(recordings / "whole.0001.trace.jsonl", tmp_path / "x.trace.jsonl")
    code, _, err = shrink(path, "--budget", "60s", "-o", tmp_path / "small.trace.jsonl")
    assert 0 == code, err
    assert 10 >= len(read(tmp_path / "small.trace.jsonl").actions)


def test_it_goes_on_from_what_it_has_written(recordings, tmp_path):
    path, small = recordings / "whole.0001.trace.jsonl", tmp_path / "small.trace.jsonl"
    _, _, err = shrink(path, "--budget", "0.1s", "-o", small)
    assert "the budget is spent" in err
    first = len(read(small).actions)
    code, _, err = shrink(small, "--budget", "60s")
    assert 0 == code, err
    assert first >= len(read(small).actions)
    assert 10 >= len(read(small).actions)


def test_where_the_replay_goes_other_ways_is_said(recordings):
    """The correct reference does not show the fault: the first step that differs is named."""
    path = recordings / "whole.0001.trace.jsonl"
    code, out, err = shrink(path, "--on", "reference", "--budget", "30s")
    assert (2, "") == (code, out)
    line = only(err, "schedcheck: the replay does not show")
    assert SEED_FAULT in line
    assert "is another one: recorded r" in line
    assert ":new+" in line
    assert ":resumed+" in line


def test_a_later_file_is_shrunk_alone(recordings, tmp_path):
    for path in sorted(recordings.glob("part.*.trace.jsonl"))[1:]:
        with path.open("rb") as stream:
            reader = open_recording(stream, str(path))
            checker = Checker(reader.beginning)
            if not any(checker.take(step) for step in reader.steps()):
                continue
        code, _, err = shrink(path, "--budget", "60s", "-o", tmp_path / "small.trace.jsonl")
        assert 0 == code, err
        assert 10 >= len(read(tmp_path / "small.trace.jsonl").actions)
        return
    pytest.fail("no later file shows the fault")


def test_a_recording_that_holds_cannot_be_shrunk(tmp_path):
    target = schedcheck.record(resolve("reference"), folder=tmp_path)
    config = resolve("reference").honours(
        draw_load(target, get_profile("quick"), random.Random(1)).config
    )
    executor = Executor(target.open(config), Judge(config, target.capabilities, ()))
    executor.close()
    code, out, err = shrink(tmp_path / "recording.0001.trace.jsonl")
    assert (2, "", 1) == (code, out, err.count("\n"))
    assert "it shows no violation; schedcheck check says what it was asked about" in err


def test_requests_are_described_as_they_turned_out_to_be(recordings, tmp_path):
    """What was loaded, how long the answer was, why it ended: all that only the end shows."""
    whole = recordings / "whole.0001.trace.jsonl"
    known = dict(read(whole).specs)
    path = without_tokens(whole, tmp_path / "x.trace.jsonl")
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        entry = json.loads(line)
        if entry.get("do") == "add":
            entry["spec"].pop("remote_tokens", None)
            entry["spec"].pop("stop_at", None)
            lines[number] = json.dumps(entry)
    path.write_text("\n".join([*lines, ""]))
    with path.open("rb") as stream:
        reader = open_recording(stream, str(path))
        rebuilt = rebuild(reader, Checker(reader.beginning))
    found = rebuilt.trace.specs
    loaded = {name: spec.remote_tokens for name, spec in found.items() if spec.remote_tokens}
    assert loaded
    assert all(tokens <= known[name].remote_tokens for name, tokens in loaded.items())
    ended = {
        name: spec
        for name, spec in found.items()
        if spec.stop_at is not None and known[name].stop_at is not None and not spec.chunks
    }
    assert ended
    assert {name: known[name].stop_at for name in ended} == {
        name: spec.stop_at for name, spec in ended.items()
    }
