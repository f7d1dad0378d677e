"""The worker process: does one job and says everything on a pipe of its own.

It needs attrs and msgspec and nothing else beside the engine. Standard input, output and error
are the engine's: it may print what it likes and reads nothing. Reports go to the file descriptor
named on the command line. What the engine forks is no worker: it reports nothing.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from schedcheck import __version__
from schedcheck.engine.events import Fault, JobEvent
from schedcheck.engine.executor import said_by, traceback_of
from schedcheck.engine.jobs import Emit, Job
from schedcheck.engine.perform import perform
from schedcheck.host.blackbox import MappedBlackBox
from schedcheck.host.code import code_hash
from schedcheck.host.wire import VERSION, decode_job, encode

WHERE_SIGNAL: Final = signal.SIGUSR2
"""Makes a worker write down where it is, also when it hangs in native code."""
_PR_SET_PDEATHSIG: Final = 1


def greeting() -> bytes:
    """Return the first line a worker says, by which its supervisor knows that it fits."""
    return f"schedcheck {__version__} wire {VERSION} code {code_hash()}\n".encode()


def main() -> None:
    """Greet, read a job from standard input, do it, and end the process."""
    faulthandler.enable()
    faulthandler.register(WHERE_SIGNAL, all_threads=False)
    reports, orders = int(sys.argv[1]), _take_standard_input()
    os.set_inheritable(reports, False)  # noqa: FBT003  that is how it is called
    box = MappedBlackBox(Path(sys.argv[2]))
    pid = os.getpid()

    def emit(event: JobEvent) -> None:
        if os.getpid() != pid:
            os._exit(0)  # a copy that the engine forked goes on in our code: it has no business
        _write(reports, encode(event))

    def let_go() -> None:
        os.close(reports)
        os.close(orders)
        box.let_go()

    os.register_at_fork(after_in_child=let_go)
    _write(reports, greeting())
    line = _read_line(orders)
    if line:
        _end_with_the_supervisor(orders)
        _perform(line, emit, box)
    _leave(0)


def _perform(line: bytes, emit: Emit, box: MappedBlackBox) -> None:
    was_asked = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal was_asked
        was_asked = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        job = decode_job(line)
        with importing_from_here(job):
            perform(job, emit, blackbox=box)
    except Exception as error:  # noqa: BLE001  whatever is left is a fault of our own
        _complain(emit, error, is_ours=True)
    except BaseException as error:  # noqa: BLE001  a stranger's, unless we were asked to stop
        if not was_asked:
            _complain(emit, error, is_ours=False)


@contextmanager
def importing_from_here(job: Job) -> Iterator[None]:
    """Let an adapter, or a user's own piece of an engine, be found in the current folder.

    Only now: what is imported already, schedcheck above all, cannot be hidden from there.
    """
    here = str(Path.cwd()) if ":" in job.target or job.options.imports else ""
    if here:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _complain(emit: Emit, error: BaseException, *, is_ours: bool) -> None:
    who = "" if is_ours else "the target stops its worker: "
    message = f"{who}{type(error).__name__}: {said_by(error)}"
    emit(Fault(message=message, is_ours=is_ours, traceback=traceback_of(error)))


def _leave(code: int) -> None:
    """End at once: an engine's threads and exit handlers may take their time, or hang."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def _take_standard_input() -> int:
    """Return a descriptor for what was standard input, which the engine then finds empty."""
    orders = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return orders


def _read_line(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
        if part.endswith(b"\n"):
            return b"".join(parts)
    return b""


def _write(descriptor: int, data: bytes) -> None:
    """Write everything: a signal may cut a single write short."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _end_with_the_supervisor(orders: int) -> None:
    """Leave, with all that the engine started, when the supervisor is gone."""
    if sys.platform == "linux":
        # The only way out of native code that never lets another thread run.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait() -> None:
        while os.read(orders, 1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
