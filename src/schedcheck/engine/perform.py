"""Doing a job, whatever it is, wherever this process runs."""

from __future__ import annotations

import time

from schedcheck.engine.campaign import Campaign, Start, shrink_and_report
from schedcheck.engine.doctor import Examination
from schedcheck.engine.events import Checked, Examined, Fault
from schedcheck.engine.executor import BlackBox, function_of_target, said_by, traceback_of
from schedcheck.engine.foreign import begin_with
from schedcheck.engine.jobs import DoctorJob, Emit, Job, ReplayJob, RunJob, ShrinkJob
from schedcheck.engine.known import signatures_of
from schedcheck.engine.profiles import get_profile
from schedcheck.engine.replay import replay
from schedcheck.engine.shrink import Budget
from schedcheck.engine.targets import resolve, surface_of
from schedcheck.invariants.registry import every_invariant, get, select
from schedcheck.model.config import Dialect
from schedcheck.model.known import covering
from schedcheck.sut import TargetError
from schedcheck.tracefile import decode


def perform(job: Job, emit: Emit, *, blackbox: BlackBox | None = None) -> None:
    """Do a job and emit what comes of it.

    What the job was given wrongly (an unknown target, profile, pattern; a trace that cannot be
    read; a target that raises while it is opened or closed) becomes a Fault. KeyboardInterrupt
    passes, after Ended was emitted for a run.
    """
    try:
        match job:
            case RunJob():
                _run(job, emit, blackbox)
            case ReplayJob():
                trace = decode(job.trace.encode(), name=job.name)
                target = resolve(job.target, job.options)
                told = replay(
                    target,
                    job.target,
                    trace,
                    blackbox=blackbox,
                    known=covering(job.known, target.name, target.version),
                    with_moments=job.with_moments,
                    with_scenes=job.with_scenes,
                )
                emit(told)
            case ShrinkJob():
                _shrink(job, emit, blackbox)
            case DoctorJob():
                _examine(job, emit, blackbox)
    except TargetError as error:
        emit(Fault(message=str(error)))
    except Exception as error:
        function = function_of_target(error)
        if function:
            message = f"{job.target} raises outside any call that is tested, in {function}: "
            message += f"{type(error).__name__}: {said_by(error)}"
            emit(Fault(message=message, traceback=traceback_of(error)))
        elif isinstance(error, ValueError):
            emit(Fault(message=str(error)))
        else:
            raise


def _run(job: RunJob, emit: Emit, blackbox: BlackBox | None) -> None:
    profile, invariants = get_profile(job.profile), select(job.invariants)
    target = resolve(job.target, job.options)
    dialect = Dialect(job.dialect) if job.dialect else None
    if dialect is not None and dialect not in target.dialects:
        spoken = ", ".join(target.dialects)
        raise TargetError(f"{job.target} does not speak the dialect {dialect}, only {spoken}")
    Campaign(
        target=target,
        target_text=job.target,
        options=job.options,
        profile=profile,
        invariants=invariants,
        seed=job.seed,
        emit=emit,
        seconds_max=job.seconds_max,
        dialect=dialect,
        known=covering(job.known, target.name, target.version),
        blackbox=blackbox,
    ).run()


def _examine(job: DoctorJob, emit: Emit, blackbox: BlackBox | None) -> None:
    for check in surface_of(job.target):
        emit(Checked(check=check))
    target = resolve(job.target, job.options)
    examination = Examination(
        target=target, target_text=job.target, options=job.options, blackbox=blackbox
    )
    for check in examination.checks():
        emit(Checked(check=check))
    emit(Examined(target=job.target, version=target.version))


def _shrink(job: ShrinkJob, emit: Emit, blackbox: BlackBox | None) -> None:
    trace = decode(job.trace.encode(), name=job.name)
    target = resolve(job.target, job.options)
    expect = trace.header.expect
    if expect is None:
        raise TargetError(f"{job.name} is not expected to violate anything, so it cannot be shrunk")
    invariants, start, began = every_invariant(), Start(trace), time.monotonic()
    if job.shapes is not None:
        # What else the replay shows on the way is not what the recording is about.
        invariants = (get(expect.signature.invariant),)
        shorter = [decode(one.encode(), name=job.name) for one in job.shorter]
        start = begin_with(target, trace, shorter, job.shapes, invariants[0], emit=emit)
    done = shrink_and_report(
        target,
        [start],
        expect.signature,
        invariants,
        emit=emit,
        budget_for=lambda: Budget(executions_max=100_000, seconds_max=_left(job, began)),
        blackbox=blackbox,
        known=signatures_of(covering(job.known, target.name, target.version)),
    )
    if not done:
        raise TargetError(
            f"{job.name} does not show {expect.signature} on {job.target}; "
            f"schedcheck replay says what it shows"
        )


def _left(job: ShrinkJob, began: float) -> float | None:
    """Return how many seconds a shrink has left: looking for its beginning took some."""
    spent = time.monotonic() - began
    return None if job.seconds_max is None else max(0.0, job.seconds_max - spent)
