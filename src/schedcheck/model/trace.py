"""Traces: a header and actions, enough to replay; and what happened when they were played.

One action leads to one or more events: a Step to a Scheduled and a Completed, a Drain to many.
Each event carries the snapshot after it, so that everything is judged where it happens.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from attrs import evolve, field, frozen

from schedcheck.model.actions import Action, Add
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.model.output import Accepted, EngineOutput, Rejected, SchedulerOutput, WorkerResult
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import EMPTY_SNAPSHOT, Snapshot
from schedcheck.model.verdict import Finding, Signature

FORMAT: Final = "1.0"
"""Version of the trace format. A minor version adds optional keys; a major one is refused."""
RECORDED_FORMAT: Final = "1.1"
"""The newest version known, which adds what is recorded beside actions; plain traces need none of
it and are written as FORMAT."""


@frozen(kw_only=True)
class Expectation:
    """What a trace is expected to show when it is replayed on its own target."""

    signature: Signature
    step: int
    """Number of the action that shows it, from 1."""


@frozen(kw_only=True)
class Header:
    """What must be known to replay a trace."""

    target: str
    """As typed on a command line: ``reference``, ``reference+MUTANT``, ``vllm``."""
    version: str = ""
    """The engine's own version, empty for the reference."""
    options: Options = NO_OPTIONS
    """What the target was made with. Whoever replays the trace has to say it again."""
    config: SchedulerConfig = field(factory=SchedulerConfig)
    capabilities: frozenset[Capability] = frozenset()
    """What the target could do when the trace was made."""
    seed: str = ""
    """The seed and the number of the trace in its run, empty when written by hand."""
    schedcheck: str = ""
    """The version that wrote the trace."""
    expect: Expectation | None = None
    """None: the trace is expected to hold."""
    witness: str = ""
    """The invariant that a control exercises, empty in a failing trace."""


@frozen(kw_only=True)
class Trace:
    """A header and actions."""

    header: Header
    actions: tuple[Action, ...]

    @property
    def specs(self) -> dict[str, RequestSpec]:
        """Every request the trace adds, by name, in order."""
        return {action.request: action.spec for action in self.actions if isinstance(action, Add)}

    def with_expectation(self, finding: Finding) -> Trace:
        """Return the same trace, expected to show ``finding``."""
        expectation = Expectation(signature=finding.signature, step=finding.step)
        return evolve(self, header=evolve(self.header, expect=expectation))


class Transfer(StrEnum):
    """What moves KV between an engine and the outside."""

    LOAD = "load"
    SEND = "send"


@frozen(kw_only=True)
class Event:
    """Something that happened, and the scheduler after it."""

    snapshot: Snapshot = EMPTY_SNAPSHOT
    has_work: bool = True
    """Whether the engine would go on stepping by itself."""


@frozen(kw_only=True)
class Added(Event):
    """A request was handed to the scheduler."""

    name: str
    spec: RequestSpec
    tokens: tuple[int, ...]
    answer: Accepted | Rejected


@frozen(kw_only=True)
class Scheduled(Event):
    """A step was planned."""

    output: SchedulerOutput


@frozen(kw_only=True)
class Completed(Event):
    """The oldest step in flight was executed and its result processed."""

    step_id: int
    result: WorkerResult
    output: EngineOutput


@frozen(kw_only=True)
class Controlled(Event):
    """The scheduler was told something other than a request or a result."""

    action: Action
    answer: Accepted | Rejected


@frozen(kw_only=True)
class TransferEnded(Event):
    """A transfer ended physically; the scheduler does not know yet."""

    name: str
    transfer: Transfer
    bad_block: int | None = None
    """Ordinal of the first block of the load that holds nothing; None: all of it arrived."""


@frozen(kw_only=True)
class Drained(Event):
    """The quiet tail is over."""

    rounds: int
    """How many rounds of completing, ending transfers and stepping it took."""
    idle_rounds: int
    """How many of the last ones in a row scheduled nothing although nothing was open."""
    unfinished: tuple[str, ...]
    """Requests that were still not finished."""


@frozen(kw_only=True)
class Crashed(Event):
    """A call into the engine raised."""

    call: str
    error: str
    """Type of the exception."""
    message: str
    function: str
    """Innermost function of the engine that the traceback names."""
    traceback: str = ""
    piece: str = ""
    """The user's own piece that raised, ``connector``, ``function`` being its method; empty: the
    engine did."""


@frozen(kw_only=True)
class Hung(Event):
    """A call into the engine did not return, or its process ended in it."""

    call: str
    how: str
    """``hung`` or ``died``."""
    detail: str


@frozen(kw_only=True)
class Malformed(Event):
    """A call into the engine returned something outside the protocol."""

    call: str
    problem: str
    piece: str = ""
    """The user's own piece that broke its contract; empty: it was the engine, or its adapter."""
    clause: str = ""
    """Which clause of it, in a word or two with dashes."""


@frozen(kw_only=True)
class Repeated(Event):
    """The trace was played once more from its beginning, and looked at twice as often."""

    difference: str
    """The first thing that came out otherwise, in words; empty: nothing did."""
    impurity: str
    """What differed between two looks at the same state, in words; empty: nothing did."""


AnyEvent = (
    Added
    | Scheduled
    | Completed
    | Controlled
    | TransferEnded
    | Drained
    | Crashed
    | Hung
    | Malformed
    | Repeated
)


@frozen(kw_only=True)
class StepRecord:
    """One action, what it led to, and what was wrong with that."""

    number: int
    """Position of the action in the trace, from 1."""
    action: Action
    events: tuple[AnyEvent, ...] = ()
    findings: tuple[Finding, ...] = ()
