"""Isolated environments for engines: prepared once, whole or not there at all.

Layout of the cache
-------------------
``base-NAME-HASH/``     a virtual environment with torch and the other packages of a generation
``ENGINE-VERSION-HASH/`` a virtual environment without pip: the engine's wheel, a path file that
                        names the base, and one that names a folder with schedcheck alone
``code/HASH/``          such folders
``logs/``               what pip said

A folder is built beside its name and renamed into place under a lock, so that two processes do
the work once, and one that is interrupted leaves nothing that looks finished. HASH stands for the
pins, the wheel and the Python version: a changed pin builds anew. A changed schedcheck rewrites
one path file. Locks need a POSIX system.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from attrs import frozen

from schedcheck.host.code import code_folder
from schedcheck.host.releases import RELEASES, Release, find_release
from schedcheck.sut import TargetError

Progress = Callable[[str], None]
"""Is told, in a few words, what is being done."""

_PIP_SECONDS_MAX: Final = 1800.0
_PYTHON: Final = f"py{sys.version_info.major}{sys.version_info.minor}"


class EnvironmentFailed(TargetError):
    """An environment could not be prepared; nothing of it is left behind."""


@frozen(kw_only=True)
class Environment:
    """A prepared engine environment."""

    release: Release
    folder: Path
    base: Path

    @property
    def python(self) -> Path:
        """The interpreter that has the engine and schedcheck."""
        return self.folder / "bin" / "python"

    def is_ready(self) -> bool:
        """Return whether it is there, whole."""
        return self.python.exists() and (self.base / "bin" / "python").exists()


class Installer(Protocol):
    """What makes environments and puts packages into them."""

    def make(self, folder: Path, *, with_pip: bool) -> None:
        """Make a virtual environment."""
        ...

    def install(
        self, base: Path, packages: Sequence[str], *, into: Path | None, log: Path, told: Progress
    ) -> None:
        """Install packages without their dependencies with a base's pip, into it or elsewhere."""
        ...


def cache_folder() -> Path:
    """Return where environments are kept: SCHEDCHECK_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("SCHEDCHECK_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "schedcheck"


def environment_for(release: Release, cache: Path | None = None) -> Environment:
    """Return where a release's environment is, or would be."""
    root = cache or cache_folder()
    base_mark = _mark(*release.pins())
    return Environment(
        release=release,
        folder=root / f"{release.engine}-{release.version}-{_mark(release.wheel, base_mark)}",
        base=root / f"base-{release.base}-{base_mark}",
    )


def prepared(cache: Path | None = None) -> tuple[Environment, ...]:
    """Return the environments that are ready, oldest release first."""
    every = (environment_for(release, cache) for release in RELEASES.values())
    return tuple(one for one in every if one.is_ready())


def prepare(
    requirement: str,
    *,
    progress: Progress,
    cache: Path | None = None,
    installer: Installer | None = None,
) -> Environment:
    """Return the environment of a release such as ``vllm==0.33.0``, building what is missing.

    Raises TargetError for a release that is not in the table, and EnvironmentFailed, in one line
    with the way out, if building fails. An interrupt passes through; it leaves nothing half-made.
    """
    release = find_release(requirement)
    root = cache or cache_folder()
    wanted = environment_for(release, root)
    builder = _Builder(root, installer or PipInstaller(), progress)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f".{release.base}.lock"):
            builder.base(wanted)
            builder.release(wanted)
        builder.enter(wanted)
    except subprocess.CalledProcessError as error:
        raise EnvironmentFailed(
            f"cannot prepare {requirement}: {error.output} (or audit an interpreter that has "
            f"{release.engine}: --python PATH)"
        ) from error
    except OSError as error:
        raise EnvironmentFailed(
            f"cannot prepare {requirement} in {root}: {_reason(error)}; SCHEDCHECK_CACHE chooses "
            f"another folder"
        ) from error
    return wanted


def remove(requirement: str, *, cache: Path | None = None) -> bool:
    """Remove a release's environment, and its base if no other release needs it.

    Returns whether there was one. Raises TargetError for a release that is not in the table.
    """
    release = find_release(requirement)
    root = cache or cache_folder()
    wanted = environment_for(release, root)
    if not root.is_dir():
        return False
    with _lock(root / f".{release.base}.lock"):
        was_there = wanted.folder.exists()
        shutil.rmtree(wanted.folder, ignore_errors=True)
        if not any(one.base == wanted.base for one in prepared(root)):
            shutil.rmtree(wanted.base, ignore_errors=True)
    return was_there


@frozen
class _Builder:
    root: Path
    installer: Installer
    progress: Progress

    def base(self, wanted: Environment) -> None:
        if (wanted.base / "bin" / "python").exists():
            return
        pins = wanted.release.pins()
        self.progress(f"{wanted.release.base}: torch and {len(pins) - 1} packages, once")
        with self._beside(wanted.base) as folder:
            self.installer.make(folder, with_pip=True)
            self._install(folder, pins, None, wanted.release.base)

    def release(self, wanted: Environment) -> None:
        if wanted.python.exists():
            return
        self.progress(f"{wanted.release.requirement}: its wheel")
        with self._beside(wanted.folder) as folder:
            self.installer.make(folder, with_pip=False)
            site = _site_packages(folder)
            name = f"{wanted.release.engine}-{wanted.release.version}"
            self._install(wanted.base, [wanted.release.wheel], site, name)
            (site / "schedcheck_base.pth").write_text(f"{_site_packages(wanted.base)}\n")

    def enter(self, wanted: Environment) -> None:
        """Let the environment see this very schedcheck, and nothing else of ours."""
        path_file = _site_packages(wanted.folder) / "schedcheck_code.pth"
        line = f"{code_folder(self.root)}\n"
        if not path_file.exists() or path_file.read_text() != line:
            beside = path_file.with_suffix(f".{os.getpid()}")
            beside.write_text(line)
            beside.replace(path_file)

    def _install(self, base: Path, packages: Sequence[str], into: Path | None, name: str) -> None:
        log = self.root / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.installer.install(base, packages, into=into, log=log, told=self.progress)

    @contextmanager
    def _beside(self, final: Path) -> Iterator[Path]:
        """Yield a folder that becomes ``final`` if all goes well, and vanishes if not."""
        for stale in self.root.glob(f".building-{final.name}-*"):
            shutil.rmtree(stale, ignore_errors=True)  # left by a killed process: we hold the lock
        folder = self.root / f".building-{final.name}-{os.getpid()}"
        try:
            yield folder
            folder.replace(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class PipInstaller:
    """Makes environments with ``venv`` and fills them with ``pip``."""

    def make(self, folder: Path, *, with_pip: bool) -> None:
        """Make a virtual environment of the running Python."""
        options = [] if with_pip else ["--without-pip"]
        done = subprocess.run(  # noqa: S603  our own interpreter
            [sys.executable, "-m", "venv", *options, str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-200:]
            raise subprocess.CalledProcessError(done.returncode, "venv", f"python -m venv: {said}")

    def install(
        self, base: Path, packages: Sequence[str], *, into: Path | None, log: Path, told: Progress
    ) -> None:
        """Run pip, keeping what it says in a log file and telling package by package."""
        command = [str(base / "bin" / "python"), "-m", "pip", "install", "--no-deps"]
        command += ["--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
        command += ["--target", str(into)] if into else []
        with log.open("w") as file:
            code = _run([*command, *packages], file.write, told)
        if code:
            raise subprocess.CalledProcessError(code, "pip", _why(log))


def _run(command: Sequence[str], write: Callable[[str], object], told: Progress) -> int:
    """Run a command in a session of its own, so that an interrupt reaches it through us alone."""
    with subprocess.Popen(  # noqa: S603  the base's own pip
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        limit = threading.Timer(_PIP_SECONDS_MAX, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                write(line)
                if line.startswith(("Collecting ", "Downloading ", "Installing ")):
                    told(" ".join(line.split()[:2])[:60])
            return process.wait()
        finally:
            limit.cancel()
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()


def _why(log: Path) -> str:
    """Return in a few words why pip failed."""
    text = log.read_text(errors="replace")
    lines = text.splitlines()
    errors = [line.removeprefix("ERROR: ").strip() for line in lines if line.startswith("ERROR: ")]
    said = errors[-1] if errors else (lines[-1].strip() if lines else "pip said nothing")
    marks = ("NewConnectionError", "ConnectTimeout", "ProxyError", "Name or service not known")
    if any(mark in text for mark in marks) or "Temporary failure in name resolution" in text:
        said = "no package registry could be reached"
    if "No space left on device" in text:
        said = "no space left on the disk"
    return f"{said[:240]}; all of it: {log}"


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "no space left on the disk"
    return error.strerror or str(error)


def _mark(*parts: str) -> str:
    return hashlib.sha256("\n".join([_PYTHON, *parts]).encode()).hexdigest()[:8]


def _site_packages(folder: Path) -> Path:
    return (
        folder
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file until the end of the block; the system lets it go if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
