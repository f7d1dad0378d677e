"""Adapters that raise, answer nonsense, loop for ever, die or print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schedcheck.engine.events import (
    Ended,
    Fault,
    Found,
    Outcome,
    Replayed,
    Shrunk,
    Smaller,
    Started,
)
from schedcheck.engine.jobs import ReplayJob, RunJob, ShrinkJob
from schedcheck.host.supervisor import Interpreter, perform, place_for
from schedcheck.sut import TargetError

ADAPTER = """
import os, sys, time
from attrs import evolve
from schedcheck.model.output import Load
from schedcheck.reference.target import ReferenceTarget, ReferenceSystem
from schedcheck.reference.scheduler import Scheduler

NONSENSE = {{"start": "a", "count": 1, "is_async": True}}

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
        ("return evolve(super().schedule(), rows=None)", "ENG-003/malformed-schedule"),
        ("return evolve(super().schedule(), rows=(1,))", "ENG-003/malformed-schedule"),
        ("return evolve(super().schedule(), finished=([],))", "ENG-003/malformed-schedule"),
        (  # an oracle that counts with it would fail
            "return evolve(super().schedule(), loads=(Load(name='r0', **NONSENSE),))",
            "ENG-003/malformed-schedule",
        ),
        ("raise ValueError(chr(0xD800))", "ENG-001/ValueError-in-schedule"),
        ("raise type('Odd', (Exception,), {'__str__': 0})", "ENG-001/Odd-in-schedule"),
        ("input()", "ENG-001/EOFError-in-schedule"),
    ],
)
def test_it_is_a_finding_with_a_trace_that_replays(hostile, schedcheck, tmp_path, body, signature):
    ran = hostile(body)
    assert 1 == ran.returncode, ran.stderr
    assert f"VIOLATED  {signature[:7]}" in ran.stdout
    again = schedcheck("replay", trace_of(tmp_path, signature[:7]), "--on", "hostile:adapter")
    assert 1 == again.returncode, again.stderr
    assert again.stdout.startswith("FAILED ")
    assert signature in again.stdout


def test_a_call_that_never_returns_is_a_finding(hostile, schedcheck, tmp_path):
    ran = hostile("while self.calls == 2: time.sleep(0.1)")
    assert 1 == ran.returncode, ran.stderr
    assert "VIOLATED  ENG-002" in ran.stdout
    assert "no answer for 10 s" in ran.stdout
    again = schedcheck("replay", trace_of(tmp_path, "ENG-002"), "--on", "hostile:adapter")
    assert (1, True) == (again.returncode, again.stdout.startswith("FAILED "))


def test_what_an_engine_prints_disturbs_nobody(hostile):
    noise = (
        "print('{\"word\": \"ended\"}' * 50); os.write(1, b'\\xff' * 99); os.write(2, b'!' * 99)"
    )
    ran = hostile(noise)
    assert 0 == ran.returncode, ran.stderr
    assert "word" not in ran.stdout


@pytest.mark.parametrize(
    "body",
    [
        "if self.calls == 2: os.fork() or time.sleep(60)",
        "if self.calls == 2: os.fork()",
        "if self.calls == 2: import subprocess; subprocess.Popen(['sleep', '60'], close_fds=False)",
    ],
    ids=["a-copy-that-stays", "a-copy-that-goes-on", "a-child-that-stays"],
)
def test_what_an_engine_starts_is_not_waited_for_and_says_nothing(hostile, body):
    ran = hostile(body)
    assert 0 == ran.returncode, ran.stderr
    assert 1 == ran.stderr.count("actions per second"), "one end, not one for each copy"


def test_what_writes_into_our_pipe_is_told_so(hostile):
    ran = hostile("os.write(int(sys.orig_argv[-2]), b'garbage\\n')")
    assert 2 == ran.returncode
    assert "writes into the pipe by which its worker reports" in ran.stderr
    assert 1 == len(ran.stderr.strip().splitlines()), ran.stderr


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("def open(self, config): raise KeyError('no')", "in open: KeyError: 'no'"),
        ("def honours(self, config): raise KeyError('no')", "in honours: KeyError: 'no'"),
        ("def honours(self, config): return None", "returns a NoneType"),
        ("def open(self, config): os._exit(3)", "died (exit code 3)"),
        ("def open(self, config): raise KeyboardInterrupt", "stops its worker: KeyboardInterrupt"),
    ],
)
def test_a_target_that_cannot_be_opened_is_one_line(schedcheck, tmp_path, method, said):
    text = ADAPTER.format(body="pass").replace("class Adapter(ReferenceTarget):", "class Other:")
    text = f"{text}\nclass Adapter(ReferenceTarget):\n    {method}\n"
    (tmp_path / "hostile.py").write_text(text)
    ran = schedcheck("run", "hostile:adapter")
    assert 2 == ran.returncode, ran
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_current_folder_hides_nothing_from_a_worker(tmp_path, monkeypatch):
    """Otherwise a folder that happens to hold a file of such a name cannot be tested from."""
    (tmp_path / "hostile.py").write_text(ADAPTER.format(body="pass"))
    for name in ("schedcheck", "attrs", "msgspec", "mmap", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('hidden')\n")
    monkeypatch.chdir(tmp_path)
    heard = []
    job = RunJob(target="hostile:adapter", seconds_max=0.1)
    perform(job, heard.append, place=Interpreter(Path(sys.executable)))
    assert (Started, Ended) == (type(heard[0]), type(heard[-1])), heard


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
    assert str(trace_of(tmp_path, "ENG-002").relative_to(tmp_path)) in ran.stderr, "nothing is lost"


DIES = """
import os, time
from schedcheck.reference.target import ReferenceTarget, ReferenceSystem
from schedcheck.reference.scheduler import Scheduler

class System(ReferenceSystem):
    def control(self, action):
        {body}

class Adapter(ReferenceTarget):
    def open(self, config):
        return System(Scheduler(config))

def adapter():
    return Adapter("dies")
"""
TRACE = """\
{{"format":"1.0","target":"dies:adapter","expect":{{"signature":"{signature}","step":3}}}}
{{"do":"add","request":"r0","spec":{{"max_tokens":5,"prompt":[["own",1]]}}}}
{{"do":"step"}}
{{"do":"abort","request":"r0"}}
"""


@pytest.fixture
def dying(tmp_path, monkeypatch):
    """Return what does a job with a target that dies of any control."""
    monkeypatch.chdir(tmp_path)

    def do(kind, signature, body="os._exit(7)", **more):
        (tmp_path / "dies.py").write_text(DIES.format(body=body))
        heard = []
        trace = TRACE.format(signature=signature)
        job = kind(target="dies:adapter", trace=trace, name="the trace", **more)
        perform(job, heard.append, place=Interpreter(Path(sys.executable)))
        return heard

    return do


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(0)",
        "os.abort()",
        "os.kill(os.getpid(), 11)",
        "os.kill(os.getpid(), 15); time.sleep(60)",
        "os.fork() or time.sleep(60); os._exit(4)",
        "os.closerange(3, 64); os._exit(4)",
    ],
)
@pytest.mark.parametrize(
    ("signature", "outcome"),
    [("ENG-002/died-in-abort", Outcome.FAILED), ("KV-001/blocks-not-returned", Outcome.OTHER)],
)
def test_replaying_what_kills_its_process(dying, body, signature, outcome):
    (event,) = dying(ReplayJob, signature, body)
    assert isinstance(event, Replayed)
    assert (outcome, "ENG-002/died-in-abort at action 3") == (event.outcome, event.reason)


def test_shrinking_what_kills_its_process(dying):
    first, *smaller, last = dying(ShrinkJob, "ENG-002/died-in-abort", seconds_max=30)
    assert (Found, Shrunk) == (type(first), type(last))
    assert {Smaller} == set(map(type, smaller)), "each smaller one at once: it may be interrupted"
    assert 2 == last.failure.actions


def test_shrinking_never_slips_to_a_death(dying):
    """Otherwise the trace of another fault would be written over the one to be shrunk."""
    (event,) = dying(ShrinkJob, "KV-001/blocks-not-returned")
    assert isinstance(event, Fault)
    assert "ENG-002/died-in-abort and not KV-001/blocks-not-returned" in event.message


def workers_in(folder: Path) -> list[str]:
    """Return the worker processes that were started in a folder."""
    ran = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    pids = [line.split()[0] for line in ran.stdout.splitlines() if "schedcheck.host.worker" in line]
    found = []
    for pid in pids:
        try:
            found += [pid] if Path(f"/proc/{pid}/cwd").readlink() == folder else []
        except OSError:
            continue  # it is gone meanwhile
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["interrupt", "kill"]
)
def test_no_worker_outlives_its_supervisor(tmp_path, how, code):
    """Also not one that hangs: whoever is gone cannot end it."""
    body = "open('hangs', 'w').close()\n        while True: pass"
    (tmp_path / "hostile.py").write_text(ADAPTER.format(body=body))
    process = subprocess.Popen(
        [sys.executable, "-m", "schedcheck", "run", "hostile:adapter"],
        cwd=tmp_path,
        env=os.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for((tmp_path / "hangs").exists)
    assert 1 == len(workers_in(tmp_path))
    process.send_signal(how)
    assert code == process.wait(30)
    wait_for(lambda: not workers_in(tmp_path))
    assert [] == workers_in(tmp_path)


def wait_for(condition) -> None:
    """Wait until something is so, at most 30 s."""
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)


def test_an_interpreter_without_what_a_worker_needs_is_told_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    monkeypatch.setenv("SCHEDCHECK_CACHE", str(tmp_path / "cache"))
    _, place = place_for("vllm", python=python, in_process=False, progress=print)
    job = ReplayJob(target="vllm", trace="", name="")
    with pytest.raises(TargetError, match=r"no module attrs?, .*-m pip install attrs msgspec"):
        perform(job, print, place=place)
