"""The supervisor: has a job done, here or in a worker, and outlives whatever happens there.

Rules
-----
- A worker that hangs or dies in a trace leaves the trace in the black box. One rerun in a fresh
  worker, lost in the same way at the same action, confirms it: then it is a finding, ENG-002.
- If it is not confirmed, the trace is kept all the same, and where is said.
- An interrupt is passed on; what the worker still says within a few seconds is passed to ``emit``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import define, evolve, field, frozen

from schedcheck.engine.events import (
    Ended,
    Examined,
    Failure,
    Fault,
    Found,
    InvariantResult,
    JobEvent,
    Outcome,
    Progress,
    Replayed,
    Seen,
    Shrunk,
    Smaller,
    Started,
)
from schedcheck.engine.jobs import DoctorJob, Emit, Job, ReplayJob, RunJob, ShrinkJob
from schedcheck.engine.perform import perform as perform_here
from schedcheck.engine.saving import save
from schedcheck.engine.shrink import Budget, Reduction, reduce
from schedcheck.engine.targets import ENGINES, REFERENCE
from schedcheck.host.environments import prepare
from schedcheck.host.loss import INVARIANT, Loss, expecting_loss, failure_of_loss
from schedcheck.host.process import Interpreter, Worker
from schedcheck.host.worker import importing_from_here
from schedcheck.model.trace import Expectation, Trace
from schedcheck.model.verdict import Signature, Verdict
from schedcheck.sut import TargetError
from schedcheck.tracefile import TraceError, TraceUnwritable, decode, encode

HANG_SECONDS_MIN: Final = 10.0
"""Less would take a slow machine for a hang."""
SHRINK_SECONDS_MAX: Final = 20.0
"""How long a trace that kills its process is shrunk in a run, one worker to a candidate."""


@frozen
class InProcess:
    """Do the job in this process. A scheduler that hangs or dies takes us with it."""


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
    return target, Interpreter(_interpreter(python), needs_code=True)


def _interpreter(typed: Path) -> Path:
    """Return the interpreter that a user named, links kept: an environment is told by its own.

    Raises TargetError for what cannot be started.
    """
    try:
        python = typed.expanduser().absolute()
    except RuntimeError as error:
        raise TargetError(f"--python {typed}: {error}") from error
    if python.is_dir():
        inside = python / "bin" / "python"
        hint = f"; it has {inside}" if inside.is_file() else ""
        raise TargetError(f"--python {typed}: it is a folder, not an interpreter{hint}")
    if not python.is_file():
        raise TargetError(f"--python {typed}: no such file")
    if not os.access(python, os.X_OK):
        raise TargetError(f"--python {typed}: it cannot be executed (chmod +x?)")
    return python


def perform(job: Job, emit: Emit, *, place: Place, hang_seconds: float = 10.0) -> None:
    """Have a job done and emit what comes of it.

    KeyboardInterrupt passes, after what was found so far has been emitted. Raises TargetError if
    an interpreter cannot run this schedcheck, and OSError if no temporary file can be written.
    """
    if isinstance(place, InProcess):
        with importing_from_here(job):
            perform_here(job, emit)
        return
    with tempfile.TemporaryDirectory(prefix="schedcheck-") as folder:
        limit = max(HANG_SECONDS_MIN, hang_seconds)
        _Watch(job, emit, place, Path(folder), limit).run()


@define
class _Watch:
    """One job in a worker, and what becomes of it if the worker is lost."""

    job: Job
    emit: Emit
    place: Interpreter
    folder: Path
    hang_seconds: float
    version: str = field(init=False, default="")
    has_started: bool = field(init=False, default=False)
    traces: int = field(init=False, default=0)
    actions: int = field(init=False, default=0)
    found: set[str] = field(init=False, factory=set)
    """Invariants violated before the worker was lost."""
    signatures: dict[str, int] = field(init=False, factory=dict)
    is_done: bool = field(init=False, default=False)
    began: float = field(init=False, factory=time.monotonic)

    def run(self) -> None:
        loss = self._worker(self.job).run(self._pass_on)
        if self.is_done:
            return
        target = self.job.target
        if loss is None:
            self.emit(Fault(message=f"{target}: its worker ended without saying what came of it"))
            return
        trace = _trace_in(loss)
        if isinstance(self.job, DoctorJob):
            message = f"{target}: {loss.words()} while it was examined; schedcheck run says where"
            self.emit(Fault(message=message))
        elif trace is None:
            words = loss.words_outside_a_trace(has_started=self.has_started)
            self.emit(Fault(message=f"{target}: {words}"))
        elif self._is_confirmed(loss, trace):
            self._report(loss, trace)

    def _worker(self, job: Job) -> Worker:
        return Worker(job, self.place, self.folder, self.hang_seconds)

    def _pass_on(self, event: JobEvent) -> None:
        match event:
            case Started():
                self.version, self.has_started = event.version, True
            case Progress():
                self.traces, self.actions = event.traces, event.actions
            case Found(failure=failure):
                self.found.add(failure.complaint.invariant)
                self.signatures[failure.complaint.signature] = 1
            case Shrunk():
                self.is_done = isinstance(self.job, ShrinkJob)
            case Ended() | Replayed() | Examined() | Fault():
                self.is_done = True
            case _:
                pass
        self.emit(event)

    def _is_confirmed(self, loss: Loss, trace: Trace) -> bool:
        """Rerun the trace; if the worker is not lost again, say so and keep the trace.

        A trace that was saved as one that loses its worker just there is its own rerun.
        """
        expect = self._expected()
        if expect == Expectation(signature=loss.signature_in(trace), step=len(trace.actions)):
            return True
        try:
            again = self._lost_again(trace, loss.signature_in(trace))
        except KeyboardInterrupt:
            self._keep(loss, trace, "and the rerun to confirm it was interrupted")
            raise
        if again is not None and len(again.actions) == len(trace.actions):
            return True
        self._keep(loss, trace, "and not again when that trace was replayed")
        return False

    def _expected(self) -> Expectation | None:
        """Return what the job's trace, if it has one, is expected to show."""
        if isinstance(self.job, RunJob | DoctorJob):
            return None
        return decode(self.job.trace.encode(), name=self.job.name).header.expect

    def _lost_again(self, trace: Trace, wanted: Signature) -> Trace | None:
        """Replay a trace in a fresh worker; return what it was lost in, if in the wanted way.

        It looks past what is known as the worker did that was lost, so it says what it expects.
        """
        job = ReplayJob(
            target=self.job.target,
            trace=encode(expecting_loss(trace, wanted)).decode(),
            name="candidate",
            known=() if isinstance(self.job, DoctorJob) else self.job.known,
            options=self.job.options,
        )
        again = self._worker(job).run(lambda _event: None)
        lost_in = _trace_in(again) if again is not None else None
        if again is None or lost_in is None:
            return None
        if again.signature_in(lost_in) != wanted:
            return None
        return evolve(lost_in, header=evolve(lost_in.header, expect=trace.header.expect))

    def _keep(self, loss: Loss, trace: Trace, what_then: str) -> None:
        where = ""
        if isinstance(self.job, RunJob):
            try:
                where = f"; it is kept in {save(self._failure(loss, trace))}"
            except TraceUnwritable as error:
                where = f"; {error}; it is: {encode(trace).decode().rstrip()}"
        number = f"action {len(trace.actions)} of trace {trace.header.seed}".rstrip()
        self.emit(Fault(message=f"{loss.words()} once, at {number}, {what_then}{where}"))

    def _failure(self, loss: Loss, trace: Trace) -> Failure:
        """Return a loss as a failure, as it was found."""
        origin = ""
        if isinstance(self.job, RunJob):
            origin = f"profile {self.job.profile} · seed/trace {trace.header.seed}"
        length = len(trace.actions)
        return failure_of_loss(loss, trace, origin=origin, actions_found=length, is_minimal=False)

    def _report(self, loss: Loss, trace: Trace) -> None:
        match self.job:
            case ReplayJob():
                self.emit(self._replayed(loss, trace, self.job))
            case ShrinkJob():
                self._go_on_shrinking(loss, trace, self.job)
            case RunJob():
                self._found(loss, trace, SHRINK_SECONDS_MAX)
                self.emit(self._ended(self.job, loss, trace))

    def _go_on_shrinking(self, loss: Loss, trace: Trace, job: ShrinkJob) -> None:
        """Shrink a trace that is expected to lose its process; never let another slip into it."""
        expect = self._expected()
        if expect is not None and expect.signature == loss.signature_in(trace):
            self._found(loss, trace, job.seconds_max)
            return
        wanted = expect.signature if expect else "nothing"
        self.emit(
            Fault(
                message=f"{job.name} cannot be made smaller here: {loss.words()} in a part of it, "
                f"which is {loss.signature_in(trace)} and not {wanted}"
            )
        )

    def _found(self, loss: Loss, trace: Trace, seconds_max: float | None) -> None:
        first = self._failure(loss, trace)
        self.emit(Found(failure=first))
        reduction = self._shrink(loss, trace, seconds_max)
        shrunk = failure_of_loss(
            loss,
            reduction.trace,
            origin=first.origin,
            actions_found=first.actions_found,
            is_minimal=reduction.is_minimal,
        )
        self.emit(
            Shrunk(
                failure=shrunk,
                executions=reduction.executions,
                budget_spent=not reduction.is_minimal,
            )
        )

    def _shrink(self, loss: Loss, trace: Trace, seconds_max: float | None) -> Reduction:
        """Shrink a trace that kills its process, each candidate in a worker of its own.

        A trace that hangs is left as it is: each candidate would cost the whole hang limit.
        """
        if loss.how == "hung":
            return Reduction(trace=trace, executions=0, is_minimal=False)
        wanted = loss.signature_in(trace)

        def reproduce(candidate: Trace) -> Trace | None:
            return self._lost_again(candidate, wanted) if candidate.actions else None

        def on_smaller(smaller: Trace) -> None:
            told = failure_of_loss(loss, smaller, origin="", actions_found=0, is_minimal=False)
            signature = told.complaint.signature
            self.emit(Smaller(signature=signature, trace=told.trace, actions=told.actions))

        budget = Budget(seconds_max=seconds_max)
        try:
            return reduce(trace, reproduce, budget=budget, on_smaller=on_smaller)
        except ValueError:  # lost twice, but not a third time: it is told as it was found
            return Reduction(trace=trace, executions=budget.executions, is_minimal=False)

    def _replayed(self, loss: Loss, trace: Trace, job: ReplayJob) -> Replayed:
        expect = self._expected()
        signature = loss.signature_in(trace)
        failure = evolve(self._failure(loss, trace), is_minimal=True)
        is_expected = expect is not None and expect.signature == signature
        return Replayed(
            outcome=Outcome.FAILED if is_expected else Outcome.OTHER,
            target=job.target,
            version=trace.header.version,
            reason=f"{signature} at action {len(trace.actions)}",
            expected=str(expect.signature) if expect else "",
            story=failure.story,
            failure=failure,
        )

    def _ended(self, job: RunJob, loss: Loss, trace: Trace) -> Ended:
        """Sum up what is known: the worker's own counts are lost with it."""
        violated = sorted(self.found | {INVARIANT})
        return Ended(
            target=job.target,
            version=self.version,
            profile=job.profile,
            seed=job.seed,
            traces=self.traces,
            actions=self.actions,
            results=tuple(
                InvariantResult(id=one, verdict=Verdict.VIOLATED, witnessed=1) for one in violated
            ),
            seen=Seen(actions={}, signatures={**self.signatures, str(loss.signature_in(trace)): 1}),
            stopped_early=loss.words(),
            seconds=time.monotonic() - self.began,
        )


def _trace_in(loss: Loss) -> Trace | None:
    """Return the trace that a lost worker left behind; None if no action was begun in it."""
    try:
        return decode(loss.trace, name="the trace in progress") if loss.trace else None
    except TraceError:
        return None
