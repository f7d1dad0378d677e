"""The supervisor: has a job done, here or in a worker, and outlives whatever happens there.

Rules
-----
- A worker runs in a session of its own with a fixed hash seed and a clean environment: a short list
  of variables, and no path of the parent's but what makes it run this very schedcheck.
- It is taken to hang when neither an event comes nor the black box moves for ``hang_seconds`` while
  a trace is in progress. Starting up and importing an engine may take far longer.
- A worker that hangs or dies in a trace leaves the trace in the black box. One rerun in a fresh
  worker confirms it: then it is a finding, ENG-002. If it is not confirmed, that is said.
- An interrupt is passed on; what the worker still says within a few seconds is passed to ``emit``.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from schedcheck.engine.events import (
    Ended,
    Fault,
    Found,
    InvariantResult,
    JobEvent,
    Outcome,
    Progress,
    Replayed,
    Seen,
    Shrunk,
    Started,
)
from schedcheck.engine.jobs import Emit, Job, ReplayJob, RunJob
from schedcheck.engine.perform import perform as perform_here
from schedcheck.engine.shrink import Budget, Reduction, reduce
from schedcheck.engine.targets import ENGINES, REFERENCE
from schedcheck.host import blackbox, wire
from schedcheck.host.code import code_folder, package_folder
from schedcheck.host.environments import cache_folder, prepare
from schedcheck.host.loss import INVARIANT, Loss, failure_of_loss
from schedcheck.host.wire import WireError, decode_event
from schedcheck.host.worker import greeting
from schedcheck.model.trace import Trace
from schedcheck.model.verdict import Verdict
from schedcheck.sut import TargetError
from schedcheck.tracefile import TraceError, decode, encode

STARTUP_SECONDS_MAX: Final = 300.0
"""How long a worker may take from its start to its first trace, imports included."""
INTERRUPT_SECONDS_MAX: Final = 5.0
SHRINK_SECONDS_MAX: Final = 20.0
"""How long a trace that kills its process is shrunk, one worker to a candidate."""
_LOG_TAIL_BYTES: Final = 4000
_KEPT_VARIABLES: Final = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "SSL_CERT_FILE",
    "XDG_CACHE_HOME", "SCHEDCHECK_CACHE", "LD_LIBRARY_PATH",
)  # fmt: skip


@frozen
class InProcess:
    """Do the job in this process. A scheduler that hangs or dies takes us with it."""


@frozen
class Interpreter:
    """Do the job in a worker process of this interpreter."""

    python: Path
    needs_code: bool = False
    """Whether schedcheck has to be brought along, because it is not installed there."""


Place = InProcess | Interpreter


def place_for(
    target: str, *, python: Path | None, in_process: bool, progress: Callable[[str], None]
) -> tuple[str, Place]:
    """Return what a target is called where it is run, and that place.

    A release such as ``vllm==0.33.0`` is prepared first. Raises TargetError, in one line, for a
    release that cannot be had and for choices that exclude each other.
    """
    name = target.partition("+")[0].partition("==")[0]
    if "==" in target:
        if python is not None or in_process:
            raise TargetError(
                f"{target} has an environment of its own; leave --python and --in-process out"
            )
        environment = prepare(target, progress=progress)
        # Its own path file may name another checkout's code by the time a worker starts.
        return name, Interpreter(environment.python, needs_code=True)
    if in_process or (name == REFERENCE and python is None):
        return target, InProcess()
    if name not in ENGINES and ":" not in target:
        return target, InProcess()  # it does not exist, which is quickest said here
    if python is None:
        return target, Interpreter(Path(sys.executable))
    if not python.is_file():
        raise TargetError(f"--python {python}: no such file")
    return target, Interpreter(python, needs_code=True)


def perform(job: Job, emit: Emit, *, place: Place, hang_seconds: float = 10.0) -> None:
    """Have a job done and emit what comes of it.

    KeyboardInterrupt passes, after what was found so far has been emitted. Raises OSError if no
    temporary file can be written.
    """
    if isinstance(place, InProcess):
        perform_here(job, emit)
        return
    with tempfile.TemporaryDirectory(prefix="schedcheck-") as folder:
        watch = _Watch(job, emit, place, Path(folder), max(10.0, hang_seconds))
        watch.run()


@define
class _Watch:
    """One job in a worker, and what becomes of it if the worker is lost."""

    job: Job
    emit: Emit
    place: Interpreter
    folder: Path
    hang_seconds: float
    version: str = field(init=False, default="")
    traces: int = field(init=False, default=0)
    actions: int = field(init=False, default=0)
    is_done: bool = field(init=False, default=False)

    def run(self) -> None:
        loss = self._worker(self.job).run(self._pass_on)
        if loss is None or self.is_done:
            return
        try:
            trace = decode(loss.trace, name="the trace in progress") if loss.trace else None
        except TraceError:
            trace = None
        if trace is None:
            self.emit(Fault(message=f"{self.job.target}: {loss.words_outside_a_trace()}"))
        elif self._is_lost_again(trace) is None:
            self.emit(
                Fault(
                    message=f"{loss.words()} once, at action {len(trace.actions)} of trace "
                    f"{trace.header.seed}, and not again when that trace was replayed"
                )
            )
        else:
            self._report(loss, trace)

    def _worker(self, job: Job) -> _Worker:
        return _Worker(job, self.place, self.folder, self.hang_seconds)

    def _pass_on(self, event: JobEvent) -> None:
        if isinstance(event, Started):
            self.version = event.version
        if isinstance(event, Progress):
            self.traces, self.actions = event.traces, event.actions
        self.is_done = self.is_done or isinstance(event, Ended | Replayed | Fault)
        self.emit(event)

    def _is_lost_again(self, trace: Trace) -> Trace | None:
        """Replay a trace in a fresh worker; return what it was lost in, if it was."""
        job = ReplayJob(target=self.job.target, trace=encode(trace).decode(), name="candidate")
        loss = self._worker(job).run(lambda _event: None)
        if loss is None or not loss.trace:
            return None
        return decode(loss.trace, name="candidate")

    def _report(self, loss: Loss, trace: Trace) -> None:
        if isinstance(self.job, ReplayJob):
            self.emit(self._replayed(loss, trace))
            return
        origin = ""
        if isinstance(self.job, RunJob):
            origin = f"profile {self.job.profile} · seed/trace {trace.header.seed}"
        found = len(trace.actions)
        first = failure_of_loss(loss, trace, origin=origin, actions_found=found, is_minimal=False)
        self.emit(Found(failure=first))
        reduction = self._shrink(loss, trace)
        shrunk = failure_of_loss(
            loss,
            reduction.trace,
            origin=origin,
            actions_found=found,
            is_minimal=reduction.is_minimal,
        )
        self.emit(
            Shrunk(
                failure=shrunk,
                executions=reduction.executions,
                budget_spent=not reduction.is_minimal,
            )
        )
        if isinstance(self.job, RunJob):
            self.emit(self._ended(self.job, loss, shrunk.complaint.signature))

    def _shrink(self, loss: Loss, trace: Trace) -> Reduction:
        """Shrink a trace that kills its process, each candidate in a worker of its own.

        A trace that hangs is left as it is: each candidate would cost the whole hang limit.
        """
        if loss.how == "hung":
            return Reduction(trace=trace, executions=0, is_minimal=False)
        wanted = loss.signature_in(trace)

        def reproduce(candidate: Trace) -> Trace | None:
            lost_in = self._is_lost_again(candidate)
            same = lost_in is not None and loss.signature_in(lost_in) == wanted
            return lost_in if same else None

        return reduce(trace, reproduce, budget=Budget(seconds_max=SHRINK_SECONDS_MAX))

    def _replayed(self, loss: Loss, trace: Trace) -> Replayed:
        assert isinstance(self.job, ReplayJob)
        expect = decode(self.job.trace.encode(), name=self.job.name).header.expect
        signature = loss.signature_in(trace)
        length = len(trace.actions)
        failure = failure_of_loss(loss, trace, origin="", actions_found=length, is_minimal=True)
        is_expected = expect is not None and expect.signature == signature
        return Replayed(
            outcome=Outcome.FAILED if is_expected else Outcome.OTHER,
            target=self.job.target,
            version=trace.header.version,
            reason=f"{signature} at action {length}",
            expected=str(expect.signature) if expect else "",
            story=failure.story,
            failure=failure,
        )

    def _ended(self, job: RunJob, loss: Loss, signature: str) -> Ended:
        return Ended(
            target=job.target,
            version=self.version,
            profile=job.profile,
            seed=job.seed,
            traces=self.traces,
            actions=self.actions,
            results=(InvariantResult(id=INVARIANT, verdict=Verdict.VIOLATED, witnessed=1),),
            seen=Seen(actions={}, signatures={signature: 1}),
            stopped_early=loss.words(),
        )


@define
class _Worker:
    """One worker process doing one job."""

    job: Job
    place: Interpreter
    folder: Path
    hang_seconds: float
    _buffer: bytes = field(init=False, default=b"")

    def run(self, emit: Emit) -> Loss | None:
        """Do the job; return how the worker was lost, if it was. Interrupts pass."""
        box, log = self.folder / "blackbox", self.folder / "log"
        blackbox.create(box)
        read_end, write_end = os.pipe()
        command = [str(self.place.python), "-m", "schedcheck.host.worker", str(write_end), str(box)]
        with log.open("wb") as log_file, _closing(read_end):
            try:
                process = subprocess.Popen(  # noqa: S603  an interpreter the user chose
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env=self._environment(),
                    pass_fds=(write_end,),
                    start_new_session=True,
                )
            except OSError as error:
                raise TargetError(f"cannot start {self.place.python}: {error.strerror}") from error
            finally:
                os.close(write_end)
            try:
                assert process.stdin is not None
                with suppress(BrokenPipeError):
                    process.stdin.write(wire.encode(self.job))
                    process.stdin.flush()
                return self._follow(process, read_end, box, log, emit)
            except KeyboardInterrupt:
                self._interrupt(process, read_end, emit)
                raise
            finally:
                _end(process)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # An adapter may live where the user stands; an engine must not be shadowed from there.
        paths = [str(Path.cwd())] if ":" in self.job.target else []
        if self.place.needs_code:
            paths.append(str(code_folder(cache_folder())))
        elif self.place.python == Path(sys.executable):
            paths.append(str(package_folder().parent))
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
        }

    def _follow(
        self, process: subprocess.Popen[bytes], read_end: int, box: Path, log: Path, emit: Emit
    ) -> Loss | None:
        """Pass events on until the pipe closes, watching the black box meanwhile."""
        last_change, last_count, has_begun = time.monotonic(), 0, False
        lines = _Lines(read_end)
        while True:
            for line in lines.wait(0.2):
                self._take(line, emit)
                last_change = time.monotonic()
            if lines.at_end:
                return self._ending(process, box, log)
            count, trace = blackbox.look(box)
            if count != last_count:
                last_change, last_count, has_begun = time.monotonic(), count, True
            limit = self.hang_seconds if has_begun and trace else STARTUP_SECONDS_MAX
            if time.monotonic() - last_change > limit:
                detail = f"no answer for {limit:g} s"
                return Loss("hung", detail, trace, _tail(log))

    def _take(self, line: bytes, emit: Emit) -> None:
        if line.startswith(b"schedcheck "):
            if line != greeting():
                raise TargetError(
                    f"{self.place.python} runs another schedcheck ({line.decode().strip()}) than "
                    f"this one ({greeting().decode().strip()})"
                )
            return
        emit(decode_event(line))

    def _ending(self, process: subprocess.Popen[bytes], box: Path, log: Path) -> Loss | None:
        try:
            code = process.wait(INTERRUPT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return None  # its work is said and done; it is only slow to leave
        _, trace = blackbox.look(box)
        if code == 0 and not trace:
            return None
        return Loss("died", _how_it_ended(code), trace, _tail(log))

    def _interrupt(self, process: subprocess.Popen[bytes], read_end: int, emit: Emit) -> None:
        """Ask the worker to stop and pass on what it still has to say."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        lines, until = _Lines(read_end), time.monotonic() + INTERRUPT_SECONDS_MAX
        while not lines.at_end and time.monotonic() < until:
            for line in lines.wait(0.2):
                with suppress(WireError):  # the first may be the rest of a line
                    self._take(line, emit)


class _Lines:
    """Whole lines from a pipe, as they come."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.at_end, self.rest = descriptor, False, b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(descriptor, selectors.EVENT_READ)

    def wait(self, seconds: float) -> Iterator[bytes]:
        """Yield the lines that arrive within so many seconds; return at the first silence."""
        if not self.selector.select(seconds):
            return
        data = os.read(self.descriptor, 1 << 16)
        self.at_end = not data
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            yield line + b"\n"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind: neither the worker nor what it started."""
    with suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how_it_ended(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _tail(log: Path) -> str:
    text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
