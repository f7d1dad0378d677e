"""What people type, and what they get: output, exit codes, files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

QUICK = ("--invariants", "KV-002", "--max-time", "60s")


def traces(folder: Path) -> list[Path]:
    return sorted((folder / ".schedcheck" / "traces").glob("*.trace.jsonl"))


def test_a_mutant_is_found_told_saved_and_replayed(schedcheck, tmp_path):
    ran = schedcheck("run", "reference+freed-while-loading", *QUICK)
    assert 1 == ran.returncode, ran.stderr
    assert ran.stdout.startswith("VIOLATED  KV-002  ")
    (trace,) = traces(tmp_path)
    assert f"schedcheck replay {trace.relative_to(tmp_path)}" in ran.stdout

    again = schedcheck("replay", trace)
    assert (1, True) == (again.returncode, again.stdout.startswith("FAILED "))
    fixed = schedcheck("replay", trace, "--on", "reference")
    assert (0, True) == (fixed.returncode, fixed.stdout.startswith("FIXED "))
    shown = schedcheck("show", trace)
    assert (0, True) == (shown.returncode, "<- here" in shown.stdout)
    at = schedcheck("show", trace, "--at", 2)
    assert (0, True) == (at.returncode, "WAITING_FOR_REMOTE_KVS  holds 1 block(s)" in at.stdout)


def test_the_same_seed_gives_the_same_bytes(schedcheck):
    first, second = (schedcheck("run", "reference+lost-from-queues") for _ in range(2))
    assert first.stdout == second.stdout
    assert all(len(line) <= 100 for line in first.stdout.splitlines())
    assert "actions per second" in first.stderr


def test_json_is_one_event_a_line(schedcheck):
    ran = schedcheck("run", "reference+freed-while-loading", *QUICK, "--json")
    words = [json.loads(line)["word"] for line in ran.stdout.splitlines()]
    assert ("started", "ended") == (words[0], words[-1])
    assert {"found", "shrunk"} <= set(words)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nothing"), "no target 'nothing'"),
        (("run", "reference+resumed-as-old"), "did you mean resumed-as-new?"),
        (("run", "no_such_module:Adapter"), "does not import: ModuleNotFoundError"),
        (("run", "vllm==0.12.9"), "release '0.12.9' of vllm cannot be prepared"),
        (("run", "sglang==1.0"), "no engine 'sglang' can be prepared"),
        (("run", "--profile", "slow"), "no profile 'slow'"),
        (("run", "--invariants", "NO-*"), "no invariant matches 'NO-*'"),
        (("run", "--dialect", "v9"), "v9"),
        (("run", "--max-time", "soon"), "'soon' is no duration"),
        (("run", "--python", "/no/such/python", "vllm"), "no such file"),
        (("run", "--python", sys.prefix, "vllm"), f"not an interpreter; it has {sys.prefix}"),
        (("run", "--python", __file__, "vllm"), "it cannot be executed (chmod +x?)"),
        (("run", "--config", "x", "vllm"), "--config 'x' is not of the form key=value"),
        (("run", "--scheduler", "x", "vllm"), "is not of the form package.module:Class"),
        (("run", "--connector", "x:Y"), "reference takes no --connector: that is for the target"),
        (("run", "--connector", "x:Y", "m:A"), "the adapter m:A takes no --connector"),
        (("replay", "no-such-file"), "cannot read"),
        (("explain", "REQ-999"), "no invariant 'REQ-999'"),
        (("env", "vllm"), "names no release"),
        (("run", "--known", "no-such.toml"), "no-such.toml: cannot read it: No such file"),
        (("frobnicate",), "No such command"),
    ],
)
def test_bad_input_gets_one_clear_line(schedcheck, arguments, said):
    ran = schedcheck(*arguments)
    assert 2 == ran.returncode
    assert said in ran.stderr
    assert 1 == len(ran.stderr.strip().splitlines()), ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout


def test_the_doctor_says_one_line_a_check(schedcheck, tmp_path):
    ran = schedcheck("doctor")
    assert (0, "") == (ran.returncode, ran.stderr)
    *checks, last = ran.stdout.splitlines()
    assert {"ok"} == {line.split()[0] for line in checks}
    assert f"reference · {len(checks)} ok" == last
    (tmp_path / "odd.py").write_text(
        "from schedcheck.reference.target import ReferenceTarget, CAPABILITIES\n"
        "from schedcheck.model.capability import Capability\n"
        "def adapter():\n"
        "    claims = CAPABILITIES - {Capability.SHOWS_QUEUES}\n"
        "    return ReferenceTarget('odd', capabilities=claims)\n"
    )
    odd = schedcheck("doctor", "odd:adapter")
    assert 1 == odd.returncode, odd.stderr
    assert "changed  capability SHOWS_QUEUES: not claimed, yet seen" in odd.stdout
    assert "         fix: claim it" in odd.stdout
    none = schedcheck("doctor", "no_such_module:Adapter")
    assert (2, "") == (none.returncode, none.stdout)
    assert 1 == len(none.stderr.splitlines())


def test_a_registry_that_cannot_be_reached_is_one_clear_line(schedcheck, tmp_path):
    ran = schedcheck(
        *("run", "vllm==0.13.0"),
        SCHEDCHECK_CACHE=str(tmp_path / "cache"),
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_EXTRA_INDEX_URL="",
        PIP_FIND_LINKS="",
        PIP_RETRIES="1",
    )
    assert (2, "") == (ran.returncode, ran.stdout)
    preparing, problem = ran.stderr.splitlines()
    assert preparing.startswith("preparing vllm-gen4: torch and ")
    assert (
        "cannot prepare vllm==0.13.0: no package registry could be reached (127.0.0.1)" in problem
    )
    assert not list((tmp_path / "cache").glob("base-*")), "nothing half-made is left"


GOOD = '{"format":"1.0","target":"reference"}\n{"do":"step"}\n'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\x17random" * 50,
        GOOD[:-6].encode(),
        GOOD.replace('"do"', '"colour":1,"do"').encode(),
        GOOD.replace("1.0", "9.0").encode(),
        GOOD.replace("reference", "__import__('os').system('x')").encode(),
        ("[" * 100_000).encode(),
        (GOOD + '{"do":"add","request":"\\u001b[2J","spec":{"prompt":[["own",1]]}}\n').encode(),
    ],
    ids=["empty", "random", "cut-off", "unknown-field", "newer", "code", "deep", "escape"],
)
def test_a_bad_trace_gets_one_clear_line(schedcheck, tmp_path, content):
    path = tmp_path / "bad.trace.jsonl"
    path.write_bytes(content)
    for command in ("replay", "shrink"):
        ran = schedcheck(command, path)
        assert 2 == ran.returncode, ran
        assert 1 == len(ran.stderr.strip().splitlines()), ran.stderr
        assert "\x1b" not in ran.stderr
        assert content == path.read_bytes(), "nothing is lost"


def test_a_folder_that_cannot_be_written_loses_no_trace(schedcheck, tmp_path):
    (tmp_path / ".schedcheck").write_text("in the way")
    ran = schedcheck("run", "reference+freed-while-loading", *QUICK)
    assert 2 == ran.returncode
    assert "cannot write" in ran.stderr
    assert '{"do":"abort"' in ran.stderr.replace(" ", ""), "the trace itself is there"


def test_an_interrupt_keeps_what_was_found(tmp_path):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "schedcheck", "run", "reference+freed-while-loading"),
            *("--profile", "nightly"),
        ],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(300):
        if traces(tmp_path):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert 130 == process.returncode, err
    assert traces(tmp_path)
    assert "interrupted" in out + err


def test_nothing_to_ask_is_exit_code_three(schedcheck, tmp_path):
    (tmp_path / "narrow.py").write_text(
        "from schedcheck.reference.target import ReferenceTarget, CAPABILITIES\n"
        "from schedcheck.model.capability import Capability\n"
        "def adapter():\n"
        "    lacking = CAPABILITIES - {Capability.SHOWS_QUEUES}\n"
        "    return ReferenceTarget('narrow', capabilities=lacking)\n"
    )
    ran = schedcheck("run", "narrow:adapter", "--invariants", "REQ-005", "--max-time", "1s")
    assert 3 == ran.returncode
    assert "nothing ran" in ran.stderr


@pytest.mark.parametrize("what", ["invariants", "mutants", "adapters", "actions", "profiles"])
def test_lists(schedcheck, what):
    ran = schedcheck("list", what)
    assert (0, "") == (ran.returncode, ran.stderr)
    assert len(ran.stdout.splitlines()) > 1


def test_explain_shows_page_and_trace(schedcheck):
    ran = schedcheck("explain", "req-001")
    assert 0 == ran.returncode, ran.stderr
    assert "## Not covered" in ran.stdout
    assert "It must kill: resumed-as-new" in ran.stdout
    assert "VIOLATED  REQ-001" in ran.stdout


def test_shrinking_goes_on_from_a_saved_trace(schedcheck, tmp_path):
    schedcheck("run", "reference+freed-while-loading", *QUICK)
    (trace,) = traces(tmp_path)
    output = tmp_path / "again.trace.jsonl"
    ran = schedcheck("shrink", trace, "-o", output, "--budget", "20s")
    assert 0 == ran.returncode, ran.stderr
    assert len(output.read_bytes().splitlines()) <= len(trace.read_bytes().splitlines())
    assert 1 == schedcheck("replay", output).returncode


def test_a_trace_does_not_choose_what_code_runs(schedcheck, tmp_path):
    """A trace comes from a stranger: whatever its header names must not be imported unasked."""
    (tmp_path / "surprise.py").write_text("open('ran', 'w').close()\ndef adapter(): ...\n")
    path = tmp_path / "gift.trace.jsonl"
    path.write_text(GOOD.replace("reference", "surprise:adapter"))
    for command in ("replay", "shrink"):
        ran = schedcheck(command, path)
        assert 2 == ran.returncode
        assert "say --on surprise:adapter" in ran.stderr
    schedcheck("show", path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["replay", "shrink", "bisect", "diff"])
@pytest.mark.parametrize("piece", ["scheduler", "connector"])
def test_a_trace_does_not_choose_what_stands_behind_an_engine(schedcheck, tmp_path, command, piece):
    (tmp_path / "surprise.py").write_text("open('ran', 'w').close()\n")
    path = tmp_path / "gift.trace.jsonl"
    expect = '"expect":{"signature":"REQ-001/x","step":1}'
    options = f'"options":{{"{piece}":"surprise:Piece"}}'
    path.write_text(
        f'{{"format":"1.0","target":"vllm","version":"0.33.0",{expect},{options}}}\n'
        '{"do":"step"}\n'
    )
    more = ("--on", "vllm==0.33.0") if command == "diff" else ()
    ran = schedcheck(command, path, *more)
    assert 2 == ran.returncode
    assert f"say --{piece} surprise:Piece" in ran.stderr
    assert 1 == len(ran.stderr.splitlines())
    assert not (tmp_path / "ran").exists()


def test_an_entry_of_the_catalogue_is_found_and_written(schedcheck, tmp_path):
    """In a checkout of its own, from which the entry has been taken away."""
    source = Path(__file__).parents[2]
    checkout = tmp_path / "checkout"
    for folder in ("src", "invariants"):
        shutil.copytree(source / folder, checkout / folder)
    (old,) = (checkout / "invariants").glob("REQ-005-*")
    shutil.rmtree(old)

    wrote = schedcheck("catalogue", "--new", "REQ-005", PYTHONPATH=str(checkout / "src"))
    assert 0 == wrote.returncode, wrote.stderr
    assert "" == wrote.stderr
    (new,) = (checkout / "invariants").glob("REQ-005-*")
    minimal, control = new / "minimal.trace.jsonl", new / "control.trace.jsonl"
    assert "minimal  REQ-005/" in wrote.stdout
    assert f"invariants/{new.name}/minimal.trace.jsonl" in wrote.stdout
    assert 4 == wrote.stdout.count("is unfinished.  fix: write it")
    replayed = schedcheck("replay", minimal, control)
    assert 1 == replayed.returncode
    assert replayed.stdout.startswith("FAILED ")
    assert "\nHOLDS " in replayed.stdout

    refused = schedcheck("catalogue", "--new", "ENG-002")
    assert (2, "") == (refused.returncode, refused.stdout)
    assert refused.stderr.startswith("schedcheck: no mutant names ENG-002 in must_kill")


LEDGER = """
[[known]]
engine = "reference+double-free-on-preemption"
releases = "all"
signature = "KV-003/free-twice"
reason = "It is a mutant."
link = "https://example.org/issues/1"
"""
DOUBLE_FREE = ("run", "reference+double-free-on-preemption", "--invariants", "KV-003")


def test_what_is_known_is_told_and_only_the_rest_is_a_violation(schedcheck, tmp_path):
    ledger = tmp_path / "known.toml"
    ledger.write_text(LEDGER)
    some = schedcheck(*DOUBLE_FREE, "--known", ledger)
    assert 1 == some.returncode, some.stderr
    assert "KNOWN        KV-003/free-twice" in some.stdout
    assert "https://example.org/issues/1" in some.stdout
    assert "free-and-held" in "".join(path.read_text() for path in traces(tmp_path))
    assert "free-twice" not in some.stderr

    ledger.write_text(LEDGER + LEDGER.replace("free-twice", "free-and-held"))
    both = schedcheck(*DOUBLE_FREE, "--known", ledger)
    assert (0, True) == (both.returncode, " · 1 known · " in both.stdout), both.stderr
    assert "VIOLATED" not in both.stdout
    told = schedcheck(*DOUBLE_FREE, "--known", ledger, "--json")
    known = json.loads(told.stdout.splitlines()[-1])["body"]["known"]
    assert {"KV-003/free-twice", "KV-003/free-and-held"} == {
        one["signature"] for one in known["results"] if one["traces"]
    }
    assert {"It is a mutant."} == {one["reason"] for one in known["results"]}

    nothing = schedcheck(*DOUBLE_FREE, "--known", "none", "--max-time", "20s")
    assert (1, False) == (nothing.returncode, "KNOWN" in nothing.stdout)


def test_a_worker_is_told_what_is_known_of_the_release_that_it_runs(schedcheck, tmp_path):
    """The parent does not know which version an adapter has."""
    (tmp_path / "mine.py").write_text(
        "from attrs import evolve\n"
        "from schedcheck.reference.target import reference_target\n"
        "target = evolve(reference_target('double-free-on-preemption'), name='mine', "
        "version='1.2')\n"
    )
    ledger = tmp_path / "known.toml"
    both = LEDGER + LEDGER.replace("free-twice", "free-and-held")
    mine = both.replace("reference+double-free-on-preemption", "mine")
    arguments = ("run", "mine:target", *DOUBLE_FREE[2:], "--known", ledger, "--max-time", "30s")
    for last, code in (("1.2", 0), ("1.1", 1)):
        ledger.write_text(mine.replace('"all"', f'{{ from = "1.0", to = "{last}" }}'))
        ran = schedcheck(*arguments)
        assert code == ran.returncode, ran.stdout + ran.stderr
