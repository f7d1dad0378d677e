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
pins, the wheel and the Python: a changed pin builds anew. A changed schedcheck rewrites one path
file. Path files are relative, so the cache may be moved. Locks need a POSIX system (``flock``).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, Protocol
from urllib.parse import urlsplit

from attrs import frozen

from schedcheck.host.code import code_folder
from schedcheck.host.releases import RELEASES, Release, find_release
from schedcheck.sut import TargetError

Progress = Callable[[str], None]
"""Is told, in a few words, what is being done; the large steps hold a colon."""

_PIP_SECONDS_MAX: Final = 3600.0
_PROOF_SECONDS_MAX: Final = 300.0
_PYTHON: Final = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
"""Stands for version, build and machine: a home folder may serve several."""
_UNREACHABLE: Final = (
    "NewConnectionError", "NameResolutionError", "Temporary failure in name resolution",
    "ConnectTimeout", "ReadTimeout", "ProxyError", "SSLError",
)  # fmt: skip
_IGNORED: Final = re.compile(r"The repository located at (\S+) is not a trusted or secure host")


class EnvironmentFailed(TargetError):
    """An environment could not be prepared; nothing of it is left behind."""


class InstallFailed(Exception):
    """An installer failed; the message is the cause in one line."""


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


@frozen(kw_only=True)
class Work:
    """What goes with everything an installer is asked to do."""

    log: Path
    """Takes what the commands say."""
    told: Progress
    lock: int
    """A descriptor to be inherited: while a command runs the lock is held, whatever kills us."""


class Installer(Protocol):
    """What makes environments and puts packages into them. Each method raises InstallFailed."""

    def make(self, folder: Path, *, with_pip: bool, work: Work) -> None:
        """Make a virtual environment."""
        ...

    def install(
        self, base: Path, packages: Sequence[str], *, into: Path | None, work: Work
    ) -> None:
        """Install packages without their dependencies with a base's pip, into it or elsewhere."""
        ...

    def prove(self, base: Path, module: str, *, work: Work) -> None:
        """Import a module and what a worker needs of ours."""
        ...


def cache_folder() -> Path:
    """Return where environments are kept: SCHEDCHECK_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("SCHEDCHECK_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "schedcheck"


def environment_for(release: Release, cache: Path | None = None) -> Environment:
    """Return where a release's environment is, or would be."""
    root = cache or cache_folder()
    base_mark = _mark(*release.pins())
    return Environment(
        release=release,
        folder=root / f"{_name(release)}-{_mark(release.wheel, base_mark)}",
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
    with the way out, if building fails. An interrupt passes as KeyboardInterrupt, which is also
    what SIGTERM and SIGHUP become meanwhile; it leaves nothing half-made.
    """
    release = find_release(requirement)
    root = (cache or cache_folder()).absolute()
    wanted = environment_for(release, root)
    try:
        if not wanted.is_ready():
            root.mkdir(parents=True, exist_ok=True)
            with _terminating_as_interrupt(), _lock(root, release, progress) as lock:
                _sweep(root, release)
                builder = _Builder(root, installer or PipInstaller(), progress, lock)
                builder.base(wanted)
                builder.release(wanted)
        _enter(wanted, root)
    except InstallFailed as error:
        raise EnvironmentFailed(
            f"cannot prepare {requirement}: {error}; another way is --python PATH, an interpreter "
            f"that has {release.engine}"
        ) from error
    except OSError as error:
        raise EnvironmentFailed(
            f"cannot prepare {requirement} in {root}: {_reason(error)}; SCHEDCHECK_CACHE chooses "
            f"another folder"
        ) from error
    return wanted


def remove(requirement: str, *, cache: Path | None = None) -> bool:
    """Remove a release's environments, for whatever Python, and bases that then serve nobody.

    Returns whether there was one. Raises TargetError for a release that is not in the table, and
    EnvironmentFailed if it cannot be removed.
    """
    release = find_release(requirement)
    root = (cache or cache_folder()).absolute()
    if not root.is_dir():
        return False
    try:
        with _lock(root, release, lambda _text: None):
            _sweep(root, release)
            gone = sorted(root.glob(f"{_name(release)}-*"))
            for folder in gone:
                _discard(folder)
            serving = [file.read_text() for file in root.glob("[!.]*/lib/*/*/schedcheck_base.pth")]
            for base in sorted(root.glob(f"base-{release.base}-*")):
                if not any(base.name in line for line in serving):
                    _discard(base)
    except OSError as error:
        raise EnvironmentFailed(f"cannot remove {requirement}: {_reason(error)}") from error
    return bool(gone)


@frozen
class _Builder:
    """Builds what is missing. Its owner holds the lock."""

    root: Path
    installer: Installer
    progress: Progress
    lock: int

    def base(self, wanted: Environment) -> None:
        if (wanted.base / "bin" / "python").exists():
            return
        release = wanted.release
        pins = release.pins()
        self.progress(f"{release.base}: torch and {len(pins) - 1} packages, once")
        work = self._work(release.base)
        with self._beside(wanted.base) as folder:
            self.installer.make(folder, with_pip=True, work=work)
            self.installer.install(folder, pins, into=None, work=work)
            self.installer.prove(folder, release.proof, work=work)

    def release(self, wanted: Environment) -> None:
        if wanted.python.exists():
            return
        release = wanted.release
        self.progress(f"{release.requirement}: its wheel")
        work = self._work(_name(release))
        with self._beside(wanted.folder) as folder:
            self.installer.make(folder, with_pip=False, work=work)
            site = site_packages(folder)
            self.installer.install(wanted.base, [release.wheel], into=site, work=work)
            (site / "schedcheck_base.pth").write_text(_line(site_packages(wanted.base), site))

    def _work(self, name: str) -> Work:
        log = self.root / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("")
        return Work(log=log, told=self.progress, lock=self.lock)

    @contextmanager
    def _beside(self, final: Path) -> Iterator[Path]:
        """Yield a folder that becomes ``final`` if all goes well, and vanishes if not."""
        folder = self.root / f".building-{final.name}-{os.getpid()}"
        try:
            yield folder
            if final.exists():  # its interpreter is gone, or it would have been used
                _discard(final)
            folder.rename(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class PipInstaller:
    """Makes environments with ``venv`` and fills them with ``pip``, wheels only."""

    def make(self, folder: Path, *, with_pip: bool, work: Work) -> None:
        """Make a virtual environment of the running Python."""
        options = [] if with_pip else ["--without-pip"]
        command = [sys.executable, "-I", "-m", "venv", *options, str(folder)]
        if _run(command, work=work, seconds_max=_PROOF_SECONDS_MAX):
            raise InstallFailed(f"{sys.executable} -m venv fails: {_told(work.log)}")

    def install(
        self, base: Path, packages: Sequence[str], *, into: Path | None, work: Work
    ) -> None:
        """Run pip, keeping what it says in a log file and telling package by package."""
        command = [str(base / "bin" / "python"), "-I", "-m", "pip", "install", "--no-deps"]
        command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
        command += ["--no-warn-script-location", "--progress-bar=off"]
        command += ["--target", str(into)] if into else []
        # pip unpacks in its temporary folder first: there, /tmp may be too small and is left full.
        scratch = (into or base) / ".tmp"
        scratch.mkdir()
        extra = {"TMPDIR": str(scratch), "PIP_USER": "0"}
        if _run([*command, *packages], work=work, seconds_max=_PIP_SECONDS_MAX, more=extra):
            raise InstallFailed(_why(work.log))
        shutil.rmtree(scratch)

    def prove(self, base: Path, module: str, *, work: Work) -> None:
        """Import what the base is for: a torch that lacks its libraries is found out here."""
        command = [str(base / "bin" / "python"), "-I", "-c", f"import attrs, msgspec, {module}"]
        if _run(command, work=work, seconds_max=_PROOF_SECONDS_MAX):
            raise InstallFailed(f"{module} does not import: {_told(work.log)}")


def _run(
    command: Sequence[str], *, work: Work, seconds_max: float, more: Mapping[str, str] | None = None
) -> int:
    """Run a command in a session of its own, so that an interrupt reaches it through us alone.

    Whatever ends this ends the command and all it started. Raises InstallFailed if it takes too
    long.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (
        work.log.open("a") as log,
        subprocess.Popen(  # noqa: S603  our own interpreter, or the base's
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**kept, **(more or {})},
            pass_fds=(work.lock,),
            start_new_session=True,
        ) as process,
    ):
        late = threading.Event()

        def give_up() -> None:
            late.set()
            _kill(process)

        limit = threading.Timer(seconds_max, give_up)
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if what := _worth_telling(line):
                    work.told(what)
            code = process.wait()
        finally:
            limit.cancel()
            _kill(process)
    if late.is_set():
        raise InstallFailed(f"{command[3]} took longer than {seconds_max / 60:g} min")
    return code


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process and its children. What they were writing is thrown away, so at once."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _worth_telling(line: str) -> str:
    if line.startswith("WARNING: Retrying "):
        return "again, since the package registry does not answer"
    if line.startswith("Installing collected packages"):
        return "unpacking"
    verb, _, rest = line.strip().partition(" ")
    if verb not in {"Collecting", "Processing", "Downloading"}:
        return ""
    return f"{verb.lower()} {rest.rpartition('/')[2]}"[:70]


def _why(log: Path) -> str:
    """Return in a few words why pip failed."""
    text = log.read_text(errors="replace")
    errors = [line[7:].strip() for line in text.splitlines() if line.startswith("ERROR: ")]
    said = errors[-1] if errors else ""
    missing = said.removeprefix("No matching distribution found for ")
    if missing == said:
        return _told(log, said)
    if any(mark in text for mark in _UNREACHABLE):
        return _told(log, f"no package registry could be reached{_asked(text)}")
    if ignored := _IGNORED.search(text):
        return _told(log, f"pip ignores the registry {ignored[1]}: it is not https, nor trusted")
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    said = f"no registry that pip knows{_asked(text)} has a wheel of {missing} for {python} on "
    said += "this machine"
    if "+cpu" in missing:
        said += " (PIP_EXTRA_INDEX_URL tells pip of one with the CPU builds of torch)"
    return _told(log, said)


def _asked(text: str) -> str:
    """Return which registries pip says it looked in, without what may be secret in their URLs."""
    line = next((one for one in text.splitlines() if one.startswith("Looking in indexes: ")), "")
    urls = line.removeprefix("Looking in indexes: ").split(", ")
    hosts = [host for url in urls if (host := urlsplit(url).hostname)]
    return f" ({', '.join(dict.fromkeys(hosts))})" if hosts else ""


def _told(log: Path, said: str = "") -> str:
    """Return what was said, by default the last line of a log, and where the rest of it is."""
    text = log.read_text(errors="replace")
    if "No space left on device" in text:
        said = "no space left on the disk"
    last = next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "nothing")
    return f"{(said or last)[:240]}; all of it: {log}"


def _enter(wanted: Environment, root: Path) -> None:
    """Let the environment see this very schedcheck, and nothing else of ours."""
    site = site_packages(wanted.folder)
    path_file = site / "schedcheck_code.pth"
    line = _line(code_folder(root), site)
    if not path_file.exists() or path_file.read_text() != line:
        beside = path_file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        beside.write_text(line)
        beside.replace(path_file)


def _line(folder: Path, site: Path) -> str:
    """Return the line of a path file in ``site``; Python reads it relative to that folder."""
    return f"{os.path.relpath(folder, site)}\n"


def _sweep(root: Path, release: Release) -> None:
    """Remove what killed processes left; whoever holds the lock knows that nobody works on it."""
    for name in (f"base-{release.base}", _name(release)):
        for mark in (".building", ".old"):
            for stale in root.glob(f"{mark}-{name}-*"):
                shutil.rmtree(stale, ignore_errors=True)


def _discard(folder: Path) -> None:
    """Remove a folder, so that an interrupt on the way leaves nothing that looks whole."""
    aside = folder.with_name(f".old-{folder.name}-{os.getpid()}")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "no space left on the disk"
    return error.strerror or str(error)


def _name(release: Release) -> str:
    return f"{release.engine}-{release.version}"


def _mark(*parts: str) -> str:
    return hashlib.sha256("\n".join([str(_PYTHON), *parts]).encode()).hexdigest()[:8]


def site_packages(folder: Path) -> Path:
    """Return where a virtual environment of the running Python keeps its packages."""
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder)}))


@contextmanager
def _lock(root: Path, release: Release, progress: Progress) -> Iterator[int]:
    """Hold a generation's lock file; the system lets it go when all who hold it are dead."""
    with (root / f".{release.base}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{release.base}: waiting for another process that is at it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    """Turn a request to end, which would otherwise end us at once, into KeyboardInterrupt."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    changed: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        both = (signal.SIGTERM, signal.SIGHUP)
        changed = [one for one in both if signal.getsignal(one) is signal.SIG_DFL]
    for one in changed:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one in changed:
            signal.signal(one, signal.SIG_DFL)
