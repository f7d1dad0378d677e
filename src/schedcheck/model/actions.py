"""Actions: every input a scheduler can get, as data.

A trace is a list of these. Each class names itself in ``do``, the word that stands in a trace
file; its fields are the other keys on that line. Whatever a real engine waits for is an explicit
action, never "after n calls", since the number of calls differs from release to release.
"""

from __future__ import annotations

from typing import ClassVar, Final

from attrs import field, frozen
from attrs.validators import ge

from schedcheck.model.capability import Capability
from schedcheck.model.request import RequestSpec


@frozen
class Add:
    """A client sends a request."""

    do: ClassVar[str] = "add"
    needs: ClassVar[frozenset[Capability]] = frozenset()
    request: str
    spec: RequestSpec


@frozen
class Schedule:
    """The scheduler plans one step, which is then in flight."""

    do: ClassVar[str] = "schedule"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SPLIT_STEP})


@frozen
class Complete:
    """The oldest step in flight is executed and its result goes back to the scheduler.

    ``finish_loads`` are loads that end just before, so that this very result reports them.
    """

    do: ClassVar[str] = "complete"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SPLIT_STEP})
    finish_loads: tuple[str, ...] = ()


@frozen
class Step:
    """Schedule, then Complete the oldest step in flight."""

    do: ClassVar[str] = "step"
    needs: ClassVar[frozenset[Capability]] = frozenset()
    finish_loads: tuple[str, ...] = ()


@frozen
class FinishTransfer:
    """A KV load ends physically; the next completed step reports it."""

    do: ClassVar[str] = "finish_transfer"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ASYNC_LOADS})
    request: str


@frozen
class FailTransfer:
    """A KV load ends with an error; blocks of it from ordinal ``bad_block`` on hold nothing."""

    do: ClassVar[str] = "fail_transfer"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.TRANSFER_FAULTS})
    request: str
    bad_block: int = field(default=0, validator=ge(0))


@frozen
class FinishSend:
    """The KV of a finished request has been sent; the next completed step reports it."""

    do: ClassVar[str] = "finish_send"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.DELAYED_FREE})
    request: str


@frozen
class Abort:
    """A client gives a request up."""

    do: ClassVar[str] = "abort"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ABORT})
    request: str


@frozen
class Preempt:
    """One running request is preempted by force."""

    do: ClassVar[str] = "preempt"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.FORCE_PREEMPT_ONE})
    request: str


@frozen
class ResetPrefixCache:
    """The prefix cache is emptied; with ``running`` everything that runs is preempted first."""

    do: ClassVar[str] = "reset_prefix_cache"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.RESET_PREFIX_CACHE})
    running: bool = False


@frozen
class AnswerLookup:
    """The KV store outside now knows how much of a request's prompt it holds."""

    do: ClassVar[str] = "answer_lookup"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.UNDECIDED_LOOKUPS})
    request: str


@frozen
class GrammarReady:
    """The grammar of a request with structured output is compiled."""

    do: ClassVar[str] = "grammar_ready"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.STRUCTURED_OUTPUT})
    request: str


@frozen
class AddChunk:
    """A client sends the next chunk of a streaming session."""

    do: ClassVar[str] = "add_chunk"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.STREAMING_INPUT})
    request: str


@frozen
class Pause:
    """Scheduling stops; with ``admission_only`` what runs goes on and nothing else is admitted."""

    do: ClassVar[str] = "pause"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PAUSE})
    admission_only: bool = False


@frozen
class Resume:
    """Scheduling goes on after a Pause."""

    do: ClassVar[str] = "resume"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PAUSE})


@frozen
class Drain:
    """The quiet tail: faults stop, transfers end, steps go on until all is done.

    In each round whatever is in flight completes, every transfer ends, whatever a request waits
    for comes (its grammar, its chunk, an answer from outside, the end of a pause), and one more
    step is planned and executed. It ends when nothing is left, after ``steps_max`` rounds, or after
    IDLE_ROUNDS_MAX rounds in a row that scheduled nothing although nothing was open.
    """

    do: ClassVar[str] = "drain"
    needs: ClassVar[frozenset[Capability]] = frozenset()
    steps_max: int = field(default=1000, validator=ge(1))


IDLE_ROUNDS_MAX: Final = 6
"""How many quiet rounds in a row may schedule nothing before a drain calls it a stall."""

Action = (
    Add
    | Schedule
    | Complete
    | Step
    | FinishTransfer
    | FailTransfer
    | FinishSend
    | Abort
    | Preempt
    | ResetPrefixCache
    | AnswerLookup
    | GrammarReady
    | AddChunk
    | Pause
    | Resume
    | Drain
)

ACTIONS: Final[tuple[type[Action], ...]] = (
    Add,
    Schedule,
    Complete,
    Step,
    FinishTransfer,
    FailTransfer,
    FinishSend,
    Abort,
    Preempt,
    ResetPrefixCache,
    AnswerLookup,
    GrammarReady,
    AddChunk,
    Pause,
    Resume,
    Drain,
)
"""Every kind of action, in the order in which reports list them."""


def requests_of(action: Action) -> tuple[str, ...]:
    """Return the names of the requests an action is about."""
    match action:
        case Complete(finish_loads=names) | Step(finish_loads=names):
            return names
        case Schedule() | ResetPrefixCache() | Pause() | Resume() | Drain():
            return ()
        case _:
            return (action.request,)
