"""A trace handed over, from the user's side: the command, and what others do with its output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schedcheck.catalogue import entry
from schedcheck.host.environments import environment_for
from schedcheck.host.releases import find_release
from schedcheck.tracefile import read

SEED_FAULT = """\
{"config":{"block_size":1,"blocks_total":3,"chunked_prefill":true,"load_failure_policy":"recompute",\
"max_model_len":3,"max_num_batched_tokens":1,"max_num_seqs":1,"max_steps_in_flight":1,\
"policy":"fcfs","prefix_caching":false},"expect":{"signature":"REQ-001/new-after-preemption",\
"step":6},"format":"1.0","target":"vllm","version":"0.13.0"}
{"do":"add","request":"NAME","spec":{"max_tokens":2,"prompt":[["own",1]],"remote_tokens":1}}
{"do":"step"}
{"do":"reset_prefix_cache","running":true}
{"do":"schedule"}
{"do":"complete","finish_loads":["NAME"]}
{"do":"schedule"}
"""
"""vllm#31583, as it was found and shrunk on 0.13.0; fixed in 0.14.0."""


@pytest.fixture
def seed_fault(tmp_path) -> Path:
    path = tmp_path / "seed-fault.trace.jsonl"
    path.write_text(SEED_FAULT.replace("NAME", "r2"))
    return path


def run_with(release: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the one test of test_it.py under a release that has no schedcheck beside it."""
    environment = environment_for(find_release(f"vllm=={release}"))
    if not environment.is_ready():
        pytest.skip(f"vllm=={release} is not prepared; schedcheck env vllm=={release} does it")
    code = (
        "import sys, test_it\n"
        "assert 'schedcheck' not in sys.modules\n"
        "for name in dir(test_it):\n"
        "    if name.startswith('test_'):\n"
        "        getattr(test_it, name)()\n"
        "        print(name, 'passed')\n"
    )
    return subprocess.run(
        [environment.python, "-c", code],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_a_test_for_vllm_fails_where_the_fault_is_and_passes_where_it_is_mended(
    schedcheck, tmp_path
):
    """With a request whose name would be code, if names were code."""
    path = tmp_path / "seed-fault.trace.jsonl"
    path.write_text(SEED_FAULT.replace("NAME", "'''`\\\\'+exit(3)+'"))
    made = schedcheck("export", path, "--as", "pytest", "-o", "test_it.py")
    assert (0, "") == (made.returncode, made.stdout)

    failed = run_with("0.13.0", tmp_path)
    assert "was preempted and is sent as new, not resumed" in failed.stderr
    assert "AssertionError" in failed.stderr
    passed = run_with("0.14.0", tmp_path)
    assert (0, "test_req_001_new_after_preemption passed\n") == (passed.returncode, passed.stdout)


@pytest.mark.parametrize("release", ["0.9.2", "0.33.0"])
def test_a_test_for_vllm_runs_on_the_oldest_and_the_newest_release(schedcheck, tmp_path, release):
    """What it builds the scheduler with came and went between these."""
    path = tmp_path / "plain.trace.jsonl"
    header = SEED_FAULT.splitlines()[0].replace('"step":6', '"step":2')
    add = SEED_FAULT.splitlines()[1].replace("NAME", "r0").replace('"max_tokens":2,', "")
    path.write_text(f'{header}\n{add}\n{{"do":"drain"}}\n')
    made = schedcheck("export", path, "--as", "pytest", "-o", "test_it.py")
    assert 0 == made.returncode, made.stderr
    ran = run_with(release, tmp_path)
    assert (0, "test_req_001_new_after_preemption passed\n") == (ran.returncode, ran.stdout), (
        ran.stderr
    )


def test_a_test_that_replays_runs_under_pytest(schedcheck, tmp_path):
    trace = entry("REQ-001").minimal
    for on, code in ((), 1), (("--on", "reference"), 0):
        made = schedcheck("export", trace, "--as", "pytest", "-o", "test_it.py", *on)
        assert 0 == made.returncode, made.stderr
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "test_it.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert code == ran.returncode, ran.stdout
        assert bool(code) == ("VIOLATED  REQ-001" in ran.stdout)


def test_an_issue_has_what_the_terminal_shows(schedcheck, seed_fault):
    need = environment_for(find_release("vllm==0.13.0"))
    told = schedcheck("export", seed_fault, "--as", "issue")
    assert 0 == told.returncode, told.stderr
    assert told.stdout.startswith("# REQ-001: a preempted request comes back as resumed")
    if need.is_ready():
        assert "VIOLATED  REQ-001" in told.stdout
        assert "sent in scheduled_new_reqs (PREEMPTED -> WAITING_FOR_REMOTE_KVS -> new)" in (
            told.stdout
        )
    else:
        assert "it is exported without being replayed" in told.stderr


def test_an_issue_of_a_mutant(schedcheck):
    told = schedcheck("export", entry("REQ-001").minimal, "--as", "issue")
    assert (0, "") == (told.returncode, told.stderr)
    assert "## Found" in told.stdout
    assert "--on reference+resumed-as-new" in told.stdout


def test_jsonl_is_the_trace_in_its_canonical_form(schedcheck, seed_fault, tmp_path):
    made = schedcheck("export", seed_fault, "--as", "jsonl", "-o", "again.trace.jsonl")
    assert (0, "") == (made.returncode, made.stdout)
    again = tmp_path / "again.trace.jsonl"
    assert read(seed_fault) == read(again)
    printed = schedcheck("export", again, "--as", "jsonl")
    assert again.read_text() == printed.stdout


def test_what_cannot_be_asserted_alone_is_one_line(schedcheck, seed_fault):
    text = seed_fault.read_text().replace("REQ-001/new-after-preemption", "KV-004/read-foreign")
    seed_fault.write_text(text)
    told = schedcheck("export", seed_fault, "--as", "pytest")
    assert (2, "") == (told.returncode, told.stdout)
    last = told.stderr.splitlines()[-1]
    assert "no assertion for KV-004/read-foreign that stands alone" in last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '--as'"),
        (("--as", "html"), "'html' is not one of 'pytest', 'issue', 'jsonl'"),
        (("--as", "jsonl", "-o", "/dev/null/x"), "cannot write"),
    ],
)
def test_a_wrong_export_is_one_line(schedcheck, seed_fault, arguments, said):
    told = schedcheck("export", seed_fault, *arguments)
    assert (2, "") == (told.returncode, told.stdout)
    assert said in told.stderr
    assert 1 == len(told.stderr.splitlines())


def test_a_trace_of_a_strangers_adapter_runs_nothing(schedcheck, tmp_path):
    (tmp_path / "surprise.py").write_text("open('ran', 'w').close()\ndef adapter(): ...\n")
    path = tmp_path / "gift.trace.jsonl"
    path.write_text('{"format":"1.0","target":"surprise:adapter"}\n{"do":"step"}\n')
    for form in ("pytest", "issue", "jsonl"):
        told = schedcheck("export", path, "--as", form)
        assert (2 if form == "pytest" else 0) == told.returncode
    assert not (tmp_path / "ran").exists()
