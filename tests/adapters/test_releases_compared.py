"""``bisect`` and ``diff`` as a user types them: an adapter that dies, and vLLM where prepared."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedcheck.host.environments import environment_for
from schedcheck.host.releases import find_release

SEED_FAULT = """\
{"config":{"block_size":1,"blocks_total":3,"max_model_len":3,"max_num_batched_tokens":1,\
"max_num_seqs":1,"prefix_caching":false},"expect":{"signature":"REQ-001/new-after-preemption",\
"step":6},"format":"1.0","target":"vllm","version":"0.13.0"}
{"do":"add","request":"r2","spec":{"max_tokens":2,"prompt":[["own",1]],"remote_tokens":1}}
{"do":"step"}
{"do":"reset_prefix_cache","running":true}
{"do":"schedule"}
{"do":"complete","finish_loads":["r2"]}
{"do":"schedule"}
"""
"""A preempted request comes back from an asynchronous load as new: vllm#31583."""


def need(*releases: str) -> None:
    """Skip the test unless all these releases are prepared."""
    for release in releases:
        if not environment_for(find_release(f"vllm=={release}")).is_ready():
            pytest.skip(f"vllm=={release} is not prepared; schedcheck env vllm=={release} does it")


@pytest.fixture
def seed_fault(tmp_path) -> Path:
    path = tmp_path / "seed-fault.trace.jsonl"
    path.write_text(SEED_FAULT)
    return path


# bisect


def test_the_release_that_fixed_the_seed_fault_is_found(schedcheck, seed_fault):
    need("0.11.2", "0.12.0", "0.13.0", "0.14.0")
    ran = schedcheck("bisect", seed_fault, "--from", "0.11.2", "--to", "0.14.0", "--prepared")
    assert (1, "") == (ran.returncode, ran.stderr)
    expected = """\
REQ-001/new-after-preemption · 6 action(s) · 4 release(s) of vllm, 0.11.2 to 0.14.0

release  outcome
0.11.2   DRIFTED  action 3 (reset_prefix_cache) was not eligible: the target lacks RESET_RUNNING
0.12.0   FAILED
0.13.0   FAILED
0.14.0   FIXED

first failing  0.12.0   nothing older tells: 1 passed over
last failing   0.13.0
first fixed    0.14.0
"""
    assert expected == ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prepared",), "no release of vllm asked about is prepared"),
        (("--target", "reference"), "no engine 'reference' can be prepared, only vllm"),
        (("--from", "0.1"), "release '0.1' of vllm cannot be prepared"),
    ],
)
def test_bad_input_to_bisect_gets_one_clear_line(schedcheck, seed_fault, arguments, said):
    ran = schedcheck("bisect", seed_fault, *arguments, SCHEDCHECK_CACHE=seed_fault.parent / "none")
    assert (2, "") == (ran.returncode, ran.stdout)
    assert said in ran.stderr
    assert 1 == len(ran.stderr.splitlines())


# diff


def test_two_releases_part_where_one_was_mended(schedcheck, seed_fault):
    need("0.13.0", "0.14.0")
    ran = schedcheck("diff", seed_fault, "--on", "vllm==0.14.0")
    assert (1, "") == (ran.returncode, ran.stderr)
    expected = """\
they part at action 6: schedule

                 vllm 0.13.0                   vllm 0.14.0
  r2 sent as     new                           resumed
  r2 hands over  1 token(s)                    2 token(s)
  violates       REQ-001/new-after-preemption  –

"""
    assert expected == ran.stdout


def test_a_release_that_lacks_an_action_drifts_before_anything_differs(schedcheck, seed_fault):
    need("0.11.2", "0.13.0")
    ran = schedcheck("diff", seed_fault, "--on", "vllm==0.13.0", "--on", "vllm==0.11.2")
    assert (3, "") == (ran.returncode, ran.stderr)
    assert ran.stdout.startswith(
        "no difference in 2 action(s), no further:\n  vllm 0.11.2 drifted:"
    )
    assert "action 3 (reset_prefix_cache) was not eligible" in ran.stdout
    assert "not compared, since one of them does not show it: cached\n" in ran.stdout


ADAPTER = """
import os
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.target import ReferenceSystem, ReferenceTarget

class System(ReferenceSystem):
    calls = 0

    def schedule(self):
        self.calls += 1
        if self.calls == {dies}:
            os._exit(7)
        return super().schedule()

class Adapter(ReferenceTarget):
    def open(self, config):
        return System(Scheduler(config))

def adapter():
    return Adapter("dying")
"""


@pytest.mark.parametrize(("dies", "action"), [(1, "2: step"), (2, "4: schedule")])
def test_an_engine_that_dies_parts_from_one_that_does_not(
    schedcheck, seed_fault, tmp_path, dies, action
):
    (tmp_path / "dying.py").write_text(ADAPTER.format(dies=dies))
    ran = schedcheck("diff", seed_fault, "--on", "reference", "--on", "dying:adapter")
    assert 1 == ran.returncode, ran.stderr
    assert ran.stdout.startswith(f"they part at action {action}")
    assert "the engine's process died (exit code 7)" in ran.stdout
    assert all(len(line) <= 100 for line in ran.stdout.splitlines())


def test_the_same_command_says_the_same(schedcheck, seed_fault):
    first, second = (
        schedcheck("diff", seed_fault, "--on", "reference", "--on", "reference+resumed-as-new")
        for _ in range(2)
    )
    assert (1, first.stdout) == (first.returncode, second.stdout)
    assert "r2 sent as  resumed    new" in first.stdout


def test_a_trace_that_names_an_adapter_does_not_choose_what_code_runs(schedcheck, seed_fault):
    seed_fault.write_text(SEED_FAULT.replace('"target":"vllm"', '"target":"dying:adapter"'))
    for arguments in (("--on", "reference"), (seed_fault,)):
        ran = schedcheck("diff", seed_fault, *arguments)
        assert (2, "") == (ran.returncode, ran.stdout)
        assert "a trace does not choose what code runs" in ran.stderr
