"""``schedcheck check``, and recording what speaks our protocol: from the outside."""

from __future__ import annotations

import gzip
import inspect
import io
import json
import logging
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from attrs import evolve

import schedcheck
from schedcheck.engine.executor import Executor
from schedcheck.engine.moves import decode
from schedcheck.engine.play import play
from schedcheck.engine.profiles import draw_load, get_profile
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.judge import Judge
from schedcheck.recording.checking import ENDED_KEPT, NEEDS_TOKENS, Checker
from schedcheck.recording.formats import open_recording
from schedcheck.tracefile import TraceError, read

MUTANT = "reference+resumed-as-new"


def drive(target, *, actions: int, seed: int = 7) -> None:
    """Search with one long trace and no end: what a busy engine goes through."""
    rng = random.Random(seed)
    load = evolve(draw_load(target, get_profile("pressure"), rng), requests_max=10**6)
    executor = Executor(target.open(load.config), Judge(load.config, target.capabilities, ()))
    for _ in range(actions):
        executor.apply(decode(rng.getrandbits(64), executor.judge.ledger, load))
    executor.close()


def record(folder: Path, text: str, *, actions: int = 300, seed: int = 7, **options) -> list[Path]:
    drive(schedcheck.record(resolve(text), folder=folder, **options), actions=actions, seed=seed)
    return sorted(folder.iterdir())


def check(*arguments: object, data: bytes | None = None) -> tuple[int, str, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "schedcheck", "check", *map(str, arguments)],
        input=data,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Path:
    """A recording of the reference with the seed fault."""
    return record(tmp_path_factory.mktemp("faulty"), MUTANT)[0]


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """The same of the reference."""
    return record(tmp_path_factory.mktemp("clean"), "reference")[0]


def test_a_violation_is_found_and_told_with_the_steps_before(faulty):
    code, out, err = check(faulty, "--invariants", "REQ-001")
    assert (1, "") == (code, err)
    assert out.startswith("VIOLATED  REQ-001  a preempted request comes back as resumed")
    assert "<- here" in out
    assert f"schedcheck shrink {faulty}" in out
    line = next(part for part in out.split(" · ") if part.startswith("line "))
    assert "scheduled" in faulty.read_text().splitlines()[int(line.split()[1]) - 1]


def test_what_is_clean_holds(clean):
    code, out, err = check(clean)
    assert (0, "") == (code, err)
    assert " hold · " in out
    assert "violated" not in out
    assert " actions" in out


def test_strict_is_not_content_with_what_was_never_tested(clean):
    assert 3 == check(clean, "--strict")[0]


@pytest.mark.parametrize(
    ("pack", "way"),
    [
        (gzip.compress, "file"),
        (zstandard.compress, "file"),
        (gzip.compress, "stdin"),
        (bytes, "stdin"),
    ],
)
def test_packed_files_and_standard_input(faulty, tmp_path, pack, way):
    data = pack(faulty.read_bytes())
    path = tmp_path / "packed"
    path.write_bytes(data)
    code, out, _ = check(path) if way == "file" else check("-", data=data)
    assert 1 == code
    assert "VIOLATED  REQ-001" in out


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bytes])
def test_what_was_cut_off_is_one_line_that_names_the_place(clean, tmp_path, pack):
    data = pack(clean.read_bytes())
    path = tmp_path / "cut"
    path.write_bytes(data[: len(data) * 2 // 3])
    code, out, err = check(path)
    assert (2, "") == (code, out)
    assert 1 == err.count("\n")
    assert err.startswith(f"schedcheck: {path}:")


def test_zstd_without_its_package_says_how(clean, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    stream = io.BytesIO(zstandard.compress(clean.read_bytes()))
    with pytest.raises(TraceError, match=r"pip install 'schedcheck\[zstd"):
        open_recording(stream, "x")


@pytest.mark.parametrize(
    "line",
    [
        '{"do":"complete","recorded":[{"is":"transfer","name":"r0"}]}',
        '{"do":"step","recorded":[{"is":"transfer","name":"r99","of":"send"}]}',
        '{"do":"step","recorded":[{"is":"controlled","action":{"do":"fly"}}]}',
        '{"do":"step","recorded":[{"is":"controlled","action":{"do":"abort","request":"a b"}}]}',
        '{"do":"add","request":"r0","spec":{"prompt":[["own",0]]},"recorded":[{"is":"added"}]}',
        "\x1b[31m",
    ],
)
def test_hostile_lines_are_one_line_each(tmp_path, line):
    path = tmp_path / "hostile"
    path.write_text(f'{{"format":"1.1","target":"vllm"}}\n{line}\n')
    code, out, err = check(path)
    assert (2, "", 1) == (code, out, err.count("\n"))
    assert f"{path}:2: " in err
    assert "\x1b" not in err


# --- In several files. ---


def shown(path: Path) -> set[str]:
    """Return the signatures that a file shows, in this process: it is sooner done."""
    with path.open("rb") as stream:
        reader = open_recording(stream, str(path))
        checker = Checker(reader.beginning)
        for recorded in reader.steps():
            if findings := checker.take(recorded):
                return {str(one.signature) for one in findings}
    return set()


def test_files_follow_one_another_are_bounded_and_each_is_judged_alone(tmp_path):
    files = record(tmp_path, "reference", actions=2_000, bytes_max=40_000, files_max=3)
    assert 3 == len(files)
    assert "0001" not in files[0].name
    assert all(one.stat().st_size < 60_000 for one in files)
    assert [set()] * 3 == [shown(path) for path in files]
    code, out, err = check(files[-1])
    assert (0, "") == (code, err), out
    assert '"start":"checkpoint"' in files[0].read_text().split("\n", 1)[0]


def test_a_violation_is_found_in_the_file_it_is_in(tmp_path):
    for seed in (7, 5, 9):
        folder = tmp_path / str(seed)
        files = record(folder, MUTANT, seed=seed, bytes_max=20_000, files_max=100)
        if any("REQ-001/new-after-preemption" in shown(path) for path in files[1:]):
            return
    pytest.fail("no later file shows the seed fault")


def test_a_recording_goes_on_where_an_earlier_one_ended(tmp_path):
    record(tmp_path, "reference", actions=20)
    names = [path.name for path in record(tmp_path, "reference", actions=20)]
    assert ["recording.0001.trace.jsonl", "recording.0002.trace.jsonl"] == names


def test_online_a_violation_is_logged_with_its_last_steps(tmp_path, caplog):
    with caplog.at_level(logging.ERROR, logger="schedcheck.recording"):
        record(tmp_path, MUTANT, check=True)
    told = [one.getMessage() for one in caplog.records if "REQ-001/" in one.getMessage()]
    assert 1 == len(told), "once, however often it happens"
    assert "the last steps:\n" in told[0]


# --- What is unknown. ---


def step(number: int, name: str, start: int, **more: object) -> str:
    row = {"is": "scheduled", "step": number, "names": [name], "starts": [start], **more}
    done = {"is": "completed", "step": number}
    return json.dumps({"do": "step", "recorded": [row, done]})


HEADER = json.dumps(
    {
        "format": "1.1",
        "target": "vllm",
        "capabilities": ["SHOWS_ROLES", "SHOWS_STARTS"],
        "config": {"max_num_batched_tokens": 100, "max_model_len": 1000},
    }
)
ADD = (
    '{"do":"add","request":"r1","spec":{"prompt":[["own",4]],"max_tokens":9},'
    '"recorded":[{"is":"added"}]}'
)


def judged(*lines: str) -> tuple[set[str], Checker]:
    reader = open_recording(io.BytesIO("\n".join((HEADER, *lines, "")).encode()), "x")
    checker = Checker(reader.beginning)
    found = {str(one.signature) for recorded in reader.steps() for one in checker.take(recorded)}
    return found, checker


def test_a_request_first_seen_running_gives_unknown_and_no_violation():
    again = step(1, "r7", 41, rows=[{"at": 0, "role": "NEW"}])
    found, checker = judged(step(0, "r7", 40), again)
    assert set() == found
    reason = "the history of r7 is unknown: it was first seen running"
    assert {"REQ-002": reason} == checker.doubts


def test_of_one_that_was_added_the_same_is_a_violation():
    found, checker = judged(ADD, step(0, "r1", 0))
    assert {"REQ-002/cached-before-new"} == found
    assert {} == checker.doubts


def test_beside_an_unknown_request_others_are_judged():
    found, _ = judged(step(0, "r7", 41), ADD, step(1, "r1", 0))
    assert {"REQ-002/cached-before-new"} == found


# --- Constant memory, and what cannot be asked. ---


def test_requests_that_ended_are_forgotten():
    lines: list[str] = []
    for number in range(500):
        name = f"r{number}"
        lines += [
            ADD.replace("r1", name),
            step(number, name, 0, rows=[{"at": 0, "role": "NEW"}]).replace(
                '"is": "completed"', f'"is": "completed", "finished": {{"{name}": "STOPPED"}}'
            ),
        ]
    found, checker = judged(*lines)
    assert set() == found
    assert 500 == checker.requests
    assert ENDED_KEPT >= len(checker.judge.ledger.lives)


def test_whoever_reads_token_values_is_known_to():
    """An invariant that looks at what only tokens show must not be asked without them."""
    words = ("memory_problems", "worker_problems", "token_at(", "sampled_to", "ledger.sampled")
    helpers = {"_compare(", "_samples_next(", "fact.proposed["}
    reading = {
        one.id
        for one in every_invariant()
        if any(word in inspect.getsource(one.check) for word in (*words, *helpers))
    }
    assert reading <= NEEDS_TOKENS
    assert reading


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(Path("invariants").rglob("control.trace.jsonl"))
        if read(path).header.target == "reference"
    ],
    ids=lambda path: path.parent.name,
)
def test_no_control_of_the_catalogue_is_a_violation_when_it_was_recorded(path, tmp_path):
    trace = read(path)
    target = schedcheck.record(resolve("reference"), folder=tmp_path)
    assert not play(target, trace, ()).findings
    with next(tmp_path.iterdir()).open("rb") as stream:
        reader = open_recording(stream, "x")
        checker = Checker(reader.beginning)
        assert [] == [one for recorded in reader.steps() for one in checker.take(recorded)]


# --- Dumps of vLLM's SchedulerOutput. ---


LIMITS = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "max_model_len": 64, "version": "0.13.0"}


def dump(**more: object) -> dict[str, object]:
    return {
        "scheduled_new_reqs": [],
        "scheduled_cached_reqs": {
            "req_ids": [],
            "resumed_req_ids": [],
            "new_token_ids": [],
            "all_token_ids": {},
            "new_block_ids": [],
            "num_computed_tokens": [],
            "num_output_tokens": [],
        },
        "num_scheduled_tokens": {},
        "total_num_scheduled_tokens": 0,
        "scheduled_spec_decode_tokens": {},
        "scheduled_encoder_inputs": {},
        "num_common_prefix_blocks": [0],
        "finished_req_ids": [],
        "free_encoder_mm_hashes": [],
        "preempted_req_ids": [],
        **more,
    }


def new(name: str, start: int = 0) -> dict[str, object]:
    return {
        "req_id": name,
        "prompt_token_ids": [1] * 4,
        "block_ids": [[1]],
        "num_computed_tokens": start,
    }


def dumped(tmp_path: Path, *lines: dict[str, object]) -> Path:
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


SEED_FAULT = (
    dump(scheduled_new_reqs=[new("a"), new("b")], num_scheduled_tokens={"a": 4, "b": 4}),
    dump(num_scheduled_tokens={}, preempted_req_ids=["b"]),
    dump(scheduled_new_reqs=[new("b")], num_scheduled_tokens={"b": 4}),
)


def test_a_dump_of_scheduler_outputs_shows_the_seed_fault(tmp_path):
    code, out, _ = check(dumped(tmp_path, LIMITS, *SEED_FAULT))
    assert 1 == code
    assert "VIOLATED  REQ-001" in out
    assert "line 4" in out


def test_the_limits_may_be_left_out(tmp_path):
    assert 1 == check(dumped(tmp_path, *SEED_FAULT))[0]


def test_a_dump_of_a_request_that_ends_and_comes_again_holds(tmp_path):
    code, out, err = check(
        dumped(
            tmp_path,
            SEED_FAULT[0],
            dump(finished_req_ids=["b"]),
            dump(scheduled_new_reqs=[new("b")], num_scheduled_tokens={"b": 4}),
        )
    )
    assert (0, "") == (code, err), out


@pytest.mark.parametrize(
    "line",
    [
        '{"num_scheduled_tokens": {"a": -1}}',
        '{"num_scheduled_tokens": []}',
        '{"num_scheduled_tokens": {}, "scheduled_cached_reqs": {"req_ids": ["a"]}}',
        '{"num_scheduled_tokens": {}, "scheduled_new_reqs": [{}]}',
        '{"num_scheduled_tokens": {"a"',
    ],
)
def test_a_dump_that_is_wrong_is_one_line(tmp_path, line):
    path = tmp_path / "dump.jsonl"
    path.write_text(f"{json.dumps(dump())}\n{line}")
    code, out, err = check(path)
    assert (2, "", 1) == (code, out, err.count("\n"))
    assert f"{path}:2: " in err
