"""Jobs: what can be asked of a worker, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from attrs import frozen

from schedcheck.engine.events import JobEvent
from schedcheck.model.known import KnownIssue
from schedcheck.model.options import NO_OPTIONS, Options

Emit = Callable[[JobEvent], None]
"""Takes what a job says, in the order in which it says it."""


@frozen(kw_only=True)
class RunJob:
    """Search for violations."""

    word: ClassVar[str] = "run"
    target: str
    """As ``engine.targets.resolve`` reads it."""
    profile: str = "quick"
    invariants: str = ""
    """Patterns as ``invariants.registry.select`` reads them; empty: all."""
    seed: int = 0
    seconds_max: float | None = None
    """Wall time after which no further trace is begun; None: the profile's traces alone decide."""
    dialect: str = ""
    """``v1`` or ``v2``; empty: each trace draws one that the target speaks."""
    known: tuple[KnownIssue, ...] = ()
    """The known-issue ledger; the version of the target decides which entries are covered."""
    options: Options = NO_OPTIONS
    """What the target is made with."""


@frozen(kw_only=True)
class ReplayJob:
    """Replay one trace."""

    word: ClassVar[str] = "replay"
    target: str
    trace: str
    """The trace file's content."""
    name: str
    """What to call it in messages."""
    with_moments: bool = False
    """Whether to tell everything that was to be seen, so that it can be compared."""
    known: tuple[KnownIssue, ...] = ()
    """As in a RunJob. What the trace itself is expected to show is never looked past."""
    options: Options = NO_OPTIONS
    with_scenes: bool = False
    """Whether to tell every request after every action."""


@frozen(kw_only=True)
class ShrinkJob:
    """Shrink one failing trace."""

    word: ClassVar[str] = "shrink"
    target: str
    trace: str
    name: str
    seconds_max: float | None = None
    known: tuple[KnownIssue, ...] = ()
    """The same."""
    options: Options = NO_OPTIONS
    shorter: tuple[str, ...] = ()
    """Parts of a recording that may show the same, tried in this order before all of it."""
    shapes: tuple[str, ...] | None = None
    """For a recording: what each step planned there, to say where the replay goes other ways."""


@frozen(kw_only=True)
class DoctorJob:
    """Examine a target."""

    word: ClassVar[str] = "doctor"
    target: str
    options: Options = NO_OPTIONS


Job = RunJob | ReplayJob | ShrinkJob | DoctorJob

JOBS: Final[tuple[type[Job], ...]] = (RunJob, ReplayJob, ShrinkJob, DoctorJob)
