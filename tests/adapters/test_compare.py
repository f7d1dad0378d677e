"""One trace on several releases, as a user asks for it: the command line, and vLLM if prepared."""

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
