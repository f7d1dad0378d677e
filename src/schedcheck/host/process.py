"""One worker process: started, listened to, and ended with all that it started itself.

Rules
-----
- It runs in a session of its own with a fixed hash seed and a clean environment: a short list of
  variables, and no path of the parent's but what makes it run this very schedcheck.
- It is taken to hang when neither a report comes nor the black box moves for ``hang_seconds``
  while a trace is in progress. Starting up and importing an engine may take far longer.
- It is over when its end of the pipe is closed or the process is gone, whatever children of the
  engine still hold open.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from attrs import define, field, frozen

from schedcheck.engine.jobs import Emit, Job
from schedcheck.host import blackbox, wire
from schedcheck.host.code import code_folder, package_folder
from schedcheck.host.environments import cache_folder
from schedcheck.host.loss import Loss
from schedcheck.host.wire import WireError
from schedcheck.host.worker import WHERE_SIGNAL, greeting
from schedcheck.sut import TargetError

STARTUP_SECONDS_MAX: Final = 300.0
"""How long a worker may be silent outside a trace, imports of an engine included."""
INTERRUPT_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.2
_WHERE_SECONDS_MAX: Final = 1.0
"""How long a worker that hangs is given to write down where."""
_LINE_BYTES_MAX: Final = 64 * 2**20
_LOG_BYTES_MAX: Final = 2**20
"""A log that outgrows this begins anew: an engine may print for hours."""
_LOG_TAIL_BYTES: Final = 4000
_KEPT_VARIABLES: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TMPDIR|TZ|SSL_CERT_FILE|LD_LIBRARY_PATH"
    r"|PYTHONNOUSERSITE|XDG_\w+|SCHEDCHECK_\w+"
)
_LACKS: Final = re.compile(r"No module named '(attrs?|msgspec)'")


@frozen
class Interpreter:
    """Do the job in a worker process of this interpreter."""

    python: Path
    needs_code: bool = False
    """Whether schedcheck has to be brought along, because it is not installed there."""


@define
class Worker:
    """One worker process doing one job."""

    job: Job
    place: Interpreter
    folder: Path
    """Where its black box and its log go."""
    hang_seconds: float
    _has_greeted: bool = field(init=False, default=False)

    def run(self, emit: Emit) -> Loss | None:
        """Do the job; return how the worker was lost, if it was. Interrupts pass.

        Raises TargetError if the interpreter cannot run this schedcheck, or if something else
        than the worker writes into its pipe.
        """
        blackbox.create(self._box)
        read_end, write_end = os.pipe()
        # Appending, so that a log cut short goes on at its new end.
        self._log.write_bytes(b"")
        with self._log.open("ab") as log, _closing(read_end):
            try:
                process = self._start(write_end, log)
            finally:
                os.close(write_end)
            lines = Lines(read_end)
            try:
                _hand_over(wire.encode(self.job), process)
                return self._follow(process, lines, emit)
            except KeyboardInterrupt:
                self._interrupt(process, lines, emit)
                raise
            finally:
                _end(process)

    @property
    def _box(self) -> Path:
        return self.folder / "blackbox"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _start(self, write_end: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        python = str(self.place.python)
        command = [python, "-m", "schedcheck.host.worker", str(write_end), str(self._box)]
        try:
            return subprocess.Popen(  # noqa: S603  an interpreter the user chose
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                pass_fds=(write_end,),
                start_new_session=True,
            )
        except OSError as error:
            raise TargetError(f"cannot start {python}: {error.strerror}") from error

    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if _KEPT_VARIABLES.fullmatch(name)}
        home = package_folder().parent
        paths: list[str] = []
        if self.place.needs_code:
            paths.append(str(code_folder(cache_folder())))
        elif self.place.python == Path(sys.executable) and home.name not in _INSTALLED_IN:
            paths.append(str(home))
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONSAFEPATH": "1",  # the current folder hides nothing
        }

    def _follow(self, process: subprocess.Popen[bytes], lines: Lines, emit: Emit) -> Loss | None:
        """Pass reports on until there are no more, watching the black box meanwhile."""
        last_change, last_count = time.monotonic(), 0
        while True:
            is_over = process.poll() is not None
            has_spoken = False
            for line in lines.arriving(0.0 if is_over else _POLL_SECONDS):
                has_spoken = True
                self._take(line, emit)
            if lines.at_end or (is_over and not has_spoken):
                return self._ending(process)
            count, trace = blackbox.look(self._box)
            if has_spoken or count != last_count:
                last_change, last_count = time.monotonic(), count
            limit = self.hang_seconds if trace else STARTUP_SECONDS_MAX
            if time.monotonic() - last_change > limit:
                return self._hung(process, f"no answer for {limit:g} s", trace)
            self._cut_log()

    def _take(self, line: bytes, emit: Emit) -> None:
        if not self._has_greeted:
            if line != greeting():
                said = line[:100].decode(errors="replace").strip()
                raise TargetError(
                    f"{self.place.python} runs another schedcheck ({said}) than this one "
                    f"({greeting().decode().strip()})"
                )
            self._has_greeted = True
            return
        if not line.startswith(wire.BEGINNING):
            raise TargetError(
                f"{self.job.target} writes into the pipe by which its worker reports "
                f"({line[:40]!r}), so that no report can be trusted: an adapter may write only to "
                f"files that it opened"
            )
        emit(wire.decode_event(line))

    def _ending(self, process: subprocess.Popen[bytes]) -> Loss | None:
        _, trace = blackbox.look(self._box)
        try:
            code = process.wait(INTERRUPT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return self._hung(process, "it hung up, yet went on", trace)
        log = tail(self._log)
        if not self._has_greeted:
            raise TargetError(self._cannot_run(code, log))
        if code == 0 and not trace:
            return None
        return Loss("died", how_it_ended(code), trace, log)

    def _cannot_run(self, code: int, log: str) -> str:
        python = self.place.python
        if lacking := _LACKS.search(log):
            install = f"{python} -m pip install attrs msgspec"
            return f"{python} has no module {lacking[1]}, which a worker needs: {install}"
        said = next((line for line in reversed(log.splitlines()) if line.strip()), "nothing")
        return f"{python} cannot run schedcheck ({how_it_ended(code)}); it said: {said[-200:]}"

    def _hung(self, process: subprocess.Popen[bytes], detail: str, trace: bytes) -> Loss:
        """Have the worker write down where it is, if it still can."""
        size = self._log.stat().st_size
        with suppress(ProcessLookupError):
            process.send_signal(WHERE_SIGNAL)
        until = time.monotonic() + _WHERE_SECONDS_MAX
        while self._log.stat().st_size == size and time.monotonic() < until:
            time.sleep(0.05)
        return Loss("hung", detail, trace, tail(self._log))

    def _cut_log(self) -> None:
        if self._log.stat().st_size > _LOG_BYTES_MAX:
            os.truncate(self._log, 0)

    def _interrupt(self, process: subprocess.Popen[bytes], lines: Lines, emit: Emit) -> None:
        """Ask the worker to stop and pass on what it still has to say."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        until = time.monotonic() + INTERRUPT_SECONDS_MAX
        while not lines.at_end and time.monotonic() < until:
            for line in lines.arriving(_POLL_SECONDS):
                with suppress(WireError, TargetError):
                    self._take(line, emit)


_INSTALLED_IN: Final = ("site-packages", "dist-packages")
"""Folders whose packages the interpreter finds by itself. On PYTHONPATH they would come first."""


class Lines:
    """Whole lines from a pipe, as they come. A line is taken once, even if taking it fails."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pipe_closed = False
        self.whole: deque[bytes] = deque()
        self.rest = bytearray()
        self.selector = selectors.DefaultSelector()
        self.selector.register(descriptor, selectors.EVENT_READ)

    @property
    def at_end(self) -> bool:
        """Whether no line can come any more."""
        return self.pipe_closed and not self.whole

    def arriving(self, seconds: float) -> Iterator[bytes]:
        """Yield the lines that arrive within so many seconds; return when those are taken.

        Raises TargetError if a line has no end.
        """
        if not self.whole and not self.pipe_closed and self.selector.select(seconds):
            self._read()
        while self.whole:
            yield self.whole.popleft()

    def _read(self) -> None:
        data = os.read(self.descriptor, 1 << 16)
        self.pipe_closed = not data
        before, newline, after = data.rpartition(b"\n")
        if newline:
            *lines, last = before.split(b"\n")
            lines.append(last)
            lines[0] = bytes(self.rest) + lines[0]
            self.whole.extend(line + b"\n" for line in lines)
            self.rest = bytearray()
        self.rest += after
        if len(self.rest) > _LINE_BYTES_MAX:
            raise TargetError("the worker's pipe carries a line without an end")


def _hand_over(line: bytes, process: subprocess.Popen[bytes]) -> None:
    """Write a job without waiting for the worker: it may never read it."""
    pipe = process.stdin
    assert pipe is not None

    def write() -> None:
        with suppress(OSError, ValueError):
            pipe.write(line)
            pipe.flush()

    threading.Thread(target=write, daemon=True).start()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind: neither the worker nor what it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()


def how_it_ended(code: int) -> str:
    """Return what a process's return code means: ``exit code 3``, ``killed by SIGSEGV``."""
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def tail(log: Path) -> str:
    """Return the last lines of a log, fit for a terminal."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        text = file.read(_LOG_TAIL_BYTES).decode(errors="replace")
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
