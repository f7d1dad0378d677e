"""Recording vLLM's own Scheduler, and judging the files, where vLLM is prepared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import schedcheck
from schedcheck.host.code import code_folder
from schedcheck.host.environments import cache_folder, environment_for
from schedcheck.host.releases import find_release
from schedcheck.recording import vllm as recording
from schedcheck.recording.checking import Checker
from schedcheck.recording.formats import open_recording
from schedcheck.recording.vllm import options_of
from schedcheck.tracefile import RecordedStep, read

PROBE = Path(__file__).with_name("probe_recording.py")
SEED_FAULT = "REQ-001/new-after-preemption"
FAULTY = {"0.13.0": True, "0.33.0": False}


class Recorded:
    """What a probe answered, and the files that it left."""

    def __init__(self, release: str, folder: Path) -> None:
        self.release, self.folder, self.is_faulty = release, folder, FAULTY[release]
        environment = environment_for(find_release(f"vllm=={release}"))
        if not environment.is_ready():
            pytest.skip(f"vllm=={release} is not prepared; schedcheck env vllm=={release} does it")
        ran = subprocess.run(
            [environment.python, PROBE, folder],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(Path.home()),
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": str(code_folder(cache_folder())),
                "SCHEDCHECK_RECORD_FOLDER": str(folder),
                "SCHEDCHECK_RECORD_NAME": "named",
            },
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert 0 == ran.returncode, ran.stderr
        self.answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])

    def files(self, name: str) -> list[Path]:
        return sorted(self.folder.glob(f"{name}.*"))

    def judged(self, path: Path) -> tuple[set[str], Checker, list[RecordedStep]]:
        """Return what a file shows, up to the first step that shows something."""
        with path.open("rb") as stream:
            reader = open_recording(stream, str(path))
            checker, steps = Checker(reader.beginning), []
            for step in reader.steps():
                steps.append(step)
                if findings := checker.take(step):
                    return {str(one.signature) for one in findings}, checker, steps
        return set(), checker, steps


@pytest.fixture(scope="module", params=sorted(FAULTY))
def recorded(request, tmp_path_factory) -> Recorded:
    return Recorded(request.param, tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize("name", ["wrapped", "named", "ids"])
def test_the_seed_fault_is_in_the_recording_of_the_release_that_has_it(recorded, name):
    shown, checker, _ = recorded.judged(recorded.files(name)[0])
    assert ({SEED_FAULT} if recorded.is_faulty else set()) == shown
    assert "REQ-001" in checker.judge.witnessed
    assert {} == checker.judge.unknown


def test_the_header_says_which_release_and_which_limits(recorded):
    _, checker, _ = recorded.judged(recorded.files("wrapped")[0])
    header = checker.beginning.header
    assert ("vllm", recorded.release) == (header.target, header.version)
    config = header.config
    assert (4, 1, 4, 1, 8) == (
        *(config.blocks_total, config.block_size, config.max_num_batched_tokens),
        *(config.max_num_seqs, config.max_model_len),
    )


def test_no_token_is_written_unless_asked(recorded):
    def numbers(path: Path) -> list[int]:
        lines = map(json.loads, path.read_text().splitlines()[1:])
        return [one for line in lines for one in _numbers(line)]

    # The toy model's tokens are 1000 and more; nothing else in these files is so large.
    assert 1000 > max(numbers(recorded.files("wrapped")[0]))
    assert 1000 < max(numbers(recorded.files("ids")[0]))


def _numbers(value: object) -> list[int]:
    match value:
        case dict():
            return [one for entry in value.values() for one in _numbers(entry)]
        case list():
            return [one for entry in value for one in _numbers(entry)]
        case int():
            return [int(value)]
        case _:
            return []


def test_the_class_that_is_named_is_asynchronous_where_scheduling_is(recorded):
    told = recorded.answer["asynchronous"]
    assert (True, 0) == (told["is_async"], told["faults"])
    assert set() == recorded.judged(recorded.files("named")[1])[0]


def test_what_ran_before_has_an_unknown_history(recorded):
    shown, checker, steps = recorded.judged(recorded.files("attached")[0])
    assert set() == shown
    assert {"r0", "r1"} == {
        row.name
        for step in steps
        for event in step.events
        for row in getattr(getattr(event, "output", None), "rows", ())
    } | {"r0", "r1"}
    assert all("r0 is unknown" in reason for reason in checker.doubts.values())
    assert 0 == recorded.answer["attached"]["faults"]


def test_a_recorder_that_fails_is_told_of_once_and_gives_up_in_the_end(recorded):
    told = recorded.answer["broken"]
    assert (True, True) == (told["after one"], told["at last"])
    recording_only = [line for line in told["told"] if "REQ-001" not in line]
    assert [
        "schedcheck: recording failed; the engine is not affected",
        "schedcheck: recording ends after 5 faults",
    ] == recording_only
    # The second file goes on with what follows the first fault.
    shown, _, steps = recorded.judged(recorded.files("broken")[1])
    assert ({SEED_FAULT} if recorded.is_faulty else set()) == shown
    assert steps


def test_what_the_engine_raises_is_raised_and_recorded(recorded):
    assert "AttributeError" == recorded.answer["raising"]["raised"]
    shown, _, _ = recorded.judged(recorded.files("raising")[0])
    assert {"ENG-001/AttributeError-in-update_from_output"} == shown


def test_online_a_violation_is_logged_with_its_last_steps(recorded):
    told = recorded.answer["online"]["told"]
    assert int(recorded.is_faulty) == len(told)
    if told:
        assert f"{SEED_FAULT} at action 13, about r0" in told[0]
        assert "      13  schedule r0:new+2" in told[0]


def test_a_long_recording_shows_nothing_that_the_adapter_does_not_see(recorded):
    witnessed: set[str] = set()
    for number, told in enumerate(recorded.answer["long"]):
        (path,) = recorded.files(f"long{number}")
        shown, checker, _ = recorded.judged(path)
        assert 0 == told["faults"]
        assert shown <= set(told["seen"]), path
        assert {} == checker.judge.unknown
        witnessed |= checker.judge.witnessed
    assert {"REQ-001", "REQ-002", "REQ-004", "REQ-006", "XFER-001"} <= witnessed


def test_rotated_files_are_bounded_and_each_is_judged_alone(recorded):
    files = recorded.files("rotated")
    seen = set(recorded.answer["rotated"]["seen"])
    assert 4 == len(files)
    assert "0001" not in files[0].name
    assert all(one.stat().st_size < 40_000 for one in files)
    for path in files:
        shown, checker, _ = recorded.judged(path)
        assert shown <= seen, path
        assert {} == checker.judge.unknown
        assert not checker.beginning.is_whole


def test_a_recording_is_shrunk_on_the_release_that_it_is_of(recorded, tmp_path):
    path, small = recorded.files("wrapped")[0], tmp_path / "small.trace.jsonl"
    ran = subprocess.run(
        [sys.executable, "-m", "schedcheck", "shrink", path, "--budget", "60s", "-o", small],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    if not recorded.is_faulty:
        assert (2, True) == (ran.returncode, "it shows no violation" in ran.stderr)
        return
    assert 0 == ran.returncode, ran.stderr
    assert "all 6 steps were replayed as they were recorded" in ran.stderr
    assert 10 >= len(read(small).actions)


# --- Without any engine. ---


class Configured:
    def __init__(self, **said: object) -> None:
        self.vllm_config = type("Config", (), {"additional_config": {"schedcheck": said}})


def test_options_come_from_vllms_additional_config_then_from_the_environment(monkeypatch):
    monkeypatch.setenv("SCHEDCHECK_RECORD_FILES_MAX", "3")
    monkeypatch.setenv("SCHEDCHECK_RECORD_TOKENS", "1")
    options = options_of(Configured(tokens=False, folder="/var/x", bytes_max="1000"))
    assert (3, False, Path("/var/x"), 1000) == (
        *(options.files_max, options.tokens),
        *(options.folder, options.bytes_max),
    )


def test_a_wrong_option_is_named():
    with pytest.raises(ValueError, match="schedcheck: bytes_max of a recording cannot be 'many'"):
        options_of(Configured(bytes_max="many"))


def test_what_is_no_scheduler_cannot_be_recorded():
    with pytest.raises(TypeError, match="a dict cannot be recorded"):
        schedcheck.record({})


def test_the_module_names_only_what_it_has():
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        recording.Nonsense  # noqa: B018  asking is the test
