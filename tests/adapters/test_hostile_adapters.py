"""Adapters that raise, answer nonsense, loop for ever, die or print."""

from __future__ import annotations

from pathlib import Path

import pytest

ADAPTER = """
import os, sys, time
from attrs import evolve
from schedcheck.reference.target import ReferenceTarget, ReferenceSystem
from schedcheck.reference.scheduler import Scheduler

class System(ReferenceSystem):
    calls = 0

    def schedule(self):
        self.calls += 1
        {body}
        return super().schedule()

class Adapter(ReferenceTarget):
    def open(self, config):
        return System(Scheduler(config))

def adapter():
    return Adapter("hostile")
"""


@pytest.fixture
def hostile(schedcheck, tmp_path: Path):
    """Return what runs a target whose ``schedule`` begins with some code."""

    def run(body: str, *arguments: str):
        (tmp_path / "hostile.py").write_text(ADAPTER.format(body=body))
        return schedcheck("run", "hostile:adapter", "--max-time", "2s", *arguments)

    return run


def trace_of(tmp_path: Path, invariant: str) -> Path:
    (found,) = (tmp_path / ".schedcheck" / "traces").glob(f"{invariant}-*.trace.jsonl")
    return found


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        ("if self.calls == 2: raise KeyError('lost')", "ENG-001/KeyError-in-schedule"),
        ("if self.calls == 2: sys.exit(3)", "ENG-001/SystemExit-in-schedule"),
        ("if self.calls == 2: return None", "ENG-003/malformed-schedule"),
        ("if self.calls == 2: os._exit(7)", "ENG-002/died-in-"),
        ("if self.calls == 2: os.kill(os.getpid(), 11)", "ENG-002/died-in-"),
    ],
)
def test_it_is_a_finding_with_a_trace_that_replays(hostile, schedcheck, tmp_path, body, signature):
    ran = hostile(body)
    assert 1 == ran.returncode, ran.stderr
    assert f"VIOLATED  {signature[:7]}" in ran.stdout
    again = schedcheck("replay", trace_of(tmp_path, signature[:7]))
    assert 1 == again.returncode, again.stderr
    assert again.stdout.startswith("FAILED ")
    assert signature in again.stdout


def test_a_call_that_never_returns_is_a_finding(hostile, schedcheck, tmp_path):
    ran = hostile("while self.calls == 2: time.sleep(0.1)")
    assert 1 == ran.returncode, ran.stderr
    assert "VIOLATED  ENG-002" in ran.stdout
    assert "no answer for 10 s" in ran.stdout
    again = schedcheck("replay", trace_of(tmp_path, "ENG-002"))
    assert (1, True) == (again.returncode, again.stdout.startswith("FAILED "))


def test_what_an_engine_prints_disturbs_nobody(hostile):
    noise = (
        "print('{\"word\": \"ended\"}' * 50); os.write(1, b'\\xff' * 99); os.write(2, b'!' * 99)"
    )
    ran = hostile(noise)
    assert 0 == ran.returncode, ran.stderr
    assert "word" not in ran.stdout


def test_an_adapter_that_dies_while_it_is_loaded_is_one_line(schedcheck, tmp_path):
    (tmp_path / "hostile.py").write_text("import os\nprint('bye', flush=True)\nos._exit(9)\n")
    ran = schedcheck("run", "hostile:adapter")
    assert 2 == ran.returncode
    assert "died (exit code 9) while the target was loaded; it said: bye" in ran.stderr
    assert 1 == len(ran.stderr.strip().splitlines())


def test_a_death_that_does_not_repeat_is_said_and_not_a_finding(hostile, tmp_path):
    """Otherwise whatever kills a process from outside would be blamed on the engine."""
    flag = tmp_path / "once"
    ran = hostile(
        f"if self.calls == 2 and not os.path.exists({str(flag)!r}): "
        f"open({str(flag)!r}, 'w').close(); os._exit(7)"
    )
    assert 2 == ran.returncode
    assert "and not again when that trace was replayed" in ran.stderr
