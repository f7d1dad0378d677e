"""The worker process: does one job and says everything on a pipe of its own.

It needs attrs and msgspec and nothing else beside the engine. Its standard output belongs to the
engine, which may print what it likes; events go to the file descriptor named on the command line.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path
from typing import BinaryIO

from schedcheck import __version__
from schedcheck.engine.events import Fault, JobEvent
from schedcheck.engine.perform import perform
from schedcheck.host.blackbox import MappedBlackBox
from schedcheck.host.code import code_hash
from schedcheck.host.wire import VERSION, decode_job, encode


def greeting() -> bytes:
    """Return the first line a worker says, by which its supervisor knows that it fits."""
    return f"schedcheck {__version__} wire {VERSION} code {code_hash()}\n".encode()


def main() -> None:
    """Greet, read a job from standard input, do it."""
    pipe = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    pipe.write(greeting())
    line = sys.stdin.buffer.readline()
    if not line:
        return
    _end_with_the_supervisor(sys.stdin.buffer)

    def emit(event: JobEvent) -> None:
        pipe.write(encode(event))

    try:
        perform(decode_job(line), emit, blackbox=MappedBlackBox(Path(sys.argv[2])))
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001  whatever is left is a fault of our own
        message = f"{type(error).__name__}: {error}"
        emit(Fault(message=message, is_ours=True, traceback=traceback.format_exc()))


def _end_with_the_supervisor(stdin: BinaryIO) -> None:
    """Leave when standard input closes: then the supervisor is gone."""

    def wait() -> None:
        stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
