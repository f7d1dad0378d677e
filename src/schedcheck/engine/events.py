"""What a job says while it works: the only thing that reaches reports, in this process or another.

Every class here is plain data (text, numbers, tuples and mappings of them), so that it crosses
from a worker process as one line of JSON and a report needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

from attrs import field, frozen

from schedcheck.model.check import Check
from schedcheck.model.verdict import Severity, Verdict


class Outcome(StrEnum):
    """What replaying a trace shows."""

    FAILED = "FAILED"
    """The signature that the trace is expected to show."""
    OTHER = "OTHER"
    """A violation, but another one."""
    FIXED = "FIXED"
    """Every action was eligible, the witness fired, and nothing was violated up to the end."""
    HOLDS = "HOLDS"
    """The same, for a trace that is not expected to show anything."""
    DRIFTED = "DRIFTED"
    """An action was not eligible, or the witness was silent."""
    ERROR = "ERROR"
    """The target could not be opened with the trace's configuration."""


@frozen(kw_only=True)
class StoryLine:
    """One line of the table that tells a trace: an action and the scheduler after it."""

    number: int
    """The action's position in the trace, from 1."""
    action: str
    """``add r0 prompt=5 max=3 remote=4``, ``step``, ``drain``."""
    waiting: tuple[str, ...] = ()
    loading: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    blocks_free: int | None = None
    blocks_total: int | None = None
    note: str = ""
    """What happened: ``r0 resumed 5``, ``r1 finished``, ``r0 preempted``."""
    is_violation: bool = False


@frozen
class Fact:
    """One thing that was to be seen, in words that every engine shares."""

    topic: str
    """``sent as``, ``status``, ``free blocks``."""
    subject: str
    """The request it is about, empty for none."""
    value: str | None
    """Empty: nothing; None: the scheduler does not show it."""


@frozen(kw_only=True)
class Moment:
    """One event of an action, and what was to be seen of it and after it."""

    number: int
    """The action's position in the trace, from 1."""
    action: str
    event: str
    """``schedule``, ``complete``; an action may lead to several."""
    facts: tuple[Fact, ...]


@frozen(kw_only=True)
class Lane:
    """One request at one moment, as far as the scheduler shows it."""

    status: str = ""
    tokens_computed: int | None = None
    tokens_known: int | None = None
    blocks: tuple[int, ...] | None = None
    """Of all KV cache groups, null blocks left out."""


@frozen(kw_only=True)
class Flight:
    """One step, from the action that planned it to the action that executed it."""

    step_id: int
    planned: int
    completed: int | None = None
    """None: it was in flight at the end."""
    tokens: Mapping[str, int] = field(factory=dict)
    """Tokens to compute, by request."""


@frozen(kw_only=True)
class Scenes:
    """A trace in pictures: what a page needs beyond a story."""

    lanes: tuple[Mapping[str, Lane], ...]
    """The requests after each action."""
    flights: tuple[Flight, ...]


@frozen(kw_only=True)
class Complaint:
    """One finding, as text."""

    invariant: str
    kind: str
    subject: str
    expected: str
    found: str
    step: int

    @property
    def signature(self) -> str:
        """Invariant and kind: what the same fault shows elsewhere too."""
        return f"{self.invariant}/{self.kind}"


class Lack(StrEnum):
    """What one request lacks as long as another one has it."""

    BLOCKS = "BLOCKS"
    """Free blocks."""
    SEAT = "SEAT"
    """One of the ``max_num_seqs`` places among the running requests."""
    TURN = "TURN"
    """The head of its queue: nobody ahead of it may be overtaken."""


@frozen(kw_only=True)
class StalledRequest:
    """One request in a stall: where it is, what it holds and what it needs.

    A count that the scheduler does not show, or that follows from such a one, is None.
    """

    name: str
    status: str = ""
    """Empty: not shown."""
    has_ended: bool = False
    """It has finished and still holds blocks."""
    is_tracked: bool = True
    """False: the scheduler shows its requests, and this one is not among them."""
    queue: str = ""
    """The engine's name of the queue it stands in; empty: in none, or queues are not shown."""
    place: int = 0
    """Its place in that queue, from 1."""
    queue_length: int = 0
    is_in_no_queue: bool = False
    """Queues are shown, and it stands in none of them."""
    tokens_computed: int | None = None
    tokens_known: int | None = None
    blocks_held: int | None = None
    """Distinct ones."""
    blocks_to_go_on: int | None = None
    """Further blocks for what its next step may compute or load."""
    purpose: str = ""
    """What it needs these for, unless a single token needs as many: ``to load 4 tokens``."""
    blocks_to_finish: int | None = None
    """Further blocks it needs until its end."""
    is_at_most: bool = False
    """It may need fewer: part of its prompt may be in the prefix cache."""
    has_nothing_left: bool = False
    """All its known tokens count as computed, and no step of it is in flight to bring another."""
    never_fits: bool = False
    """The pool has fewer blocks than it needs to go on."""
    lacks: tuple[Lack, ...] = ()
    behind: str = ""
    """Who stands ahead of it in its queue and may not be overtaken."""
    awaits: tuple[str, ...] = ()
    """What is still open for it, in words: ``the end of its load``."""
    overdue: str = ""
    """What its status says it waits for although that is over: ``its load``."""
    unseen: tuple[str, ...] = ()
    """What it also needs and is not shown, in words: ``the encoder cache``."""
    is_moving: bool = False
    """The step planned last computes something for it."""


@frozen(kw_only=True)
class Link:
    """One step of a chain of waiting: ``waiter`` lacks what ``on`` has."""

    waiter: str
    lacks: Lack
    on: str
    others: int = 0
    """How many further requests have it as well."""


@frozen(kw_only=True)
class Stall:
    """Who waits, holds and needs what, and who waits for whom."""

    requests: tuple[StalledRequest, ...]
    """Unfinished ones, and ended ones that hold blocks; those of the chain are always here."""
    more: int = 0
    """How many further ones are not told about."""
    blocks_free: int | None = None
    blocks_total: int | None = None
    blocks_unaccounted: int | None = None
    """Blocks that are neither free nor held by a request that is shown; None: cannot be said."""
    running: tuple[str, ...] | None = None
    """The running requests, the first few; None: not shown."""
    is_quiet: bool = False
    """No step is in flight and nothing is awaited from outside."""
    has_work: bool = True
    """What the engine says about itself."""
    is_paused: bool = False
    chain: tuple[Link, ...] = ()
    """Who waits for whom, each on the next one's waiter."""
    is_cycle: bool = False
    """Whether the chain ends where it begins, and nobody outside of it can help."""
    root: str = ""
    """The request that the chain leads to, or the only one worth a word; empty for a cycle."""


@frozen(kw_only=True)
class Failure:
    """A violation with everything needed to tell, replay and save it."""

    complaint: Complaint
    """The finding it is named after: the one with the smallest invariant id."""
    others: tuple[Complaint, ...] = ()
    """Further findings of the same step."""
    title: str
    """The invariant in one sentence."""
    severity: Severity
    target: str
    version: str
    origin: str
    """``profile quick · seed 1 · trace 3``; empty for a replay."""
    trace: str
    """The trace file's content, to be written where it belongs."""
    options: tuple[str, ...] = ()
    """What the target was made with, as the words of a command line."""
    story: tuple[StoryLine, ...]
    config: str
    """The configuration's fields that differ from the defaults, in words."""
    holdings: tuple[str, ...] = ()
    """One for each live request: ``r0  RUNNING  holds 2 blocks (1 2), 5 of 9 tokens computed``."""
    stall: Stall | None = None
    """Who waits for whom, if progress is what was violated."""
    evidence: tuple[str, ...] = ()
    """Upstream issues about faults of this kind."""
    known_before: tuple[str, ...] = ()
    """Known signatures that its trace shows before: a replay has to look past them."""
    traceback: str = ""
    """The engine's own traceback, if it raised."""
    actions_found: int
    """Actions of the trace as it was found."""
    actions: int
    """Actions of the trace as it is now."""
    is_minimal: bool = False
    """Whether no single action can be removed without losing the signature."""


@frozen(kw_only=True)
class Started:
    """A run begins."""

    word: ClassVar[str] = "started"
    target: str
    version: str
    profile: str
    seed: int
    traces_max: int
    invariants: int
    """How many are going to be checked."""
    note: str = ""
    """What a person should know of the target."""


@frozen(kw_only=True)
class Progress:
    """Where a run is: for people who watch, never part of a result."""

    word: ClassVar[str] = "progress"
    doing: str
    """``searching`` or ``shrinking REQ-001/new-after-preemption``."""
    traces: int
    actions: int


@frozen(kw_only=True)
class Found:
    """A violation with a new signature, not shrunk yet."""

    word: ClassVar[str] = "found"
    failure: Failure


@frozen(kw_only=True)
class Smaller:
    """A smaller trace with the same signature, so that an interrupted shrink loses nothing."""

    word: ClassVar[str] = "smaller"
    signature: str
    trace: str
    """The trace file's content."""
    actions: int


@frozen(kw_only=True)
class Shrunk:
    """The same violation, made as small as the budget allowed."""

    word: ClassVar[str] = "shrunk"
    failure: Failure
    executions: int
    """How many candidate traces were tried."""
    budget_spent: bool
    """Whether the budget ended the shrinking, so that it may still get smaller."""


@frozen(kw_only=True)
class InvariantResult:
    """What a run says about one invariant."""

    id: str
    verdict: Verdict
    witnessed: int
    """In how many traces it was really put to the test."""
    reason: str = ""
    """For NOT_APPLICABLE the missing capabilities, for VACUOUS the witness that never fired,
    for UNKNOWN the failure of the checker."""


@frozen(kw_only=True)
class KnownResult:
    """What a run says about one entry of the known-issue ledger that covers its target."""

    signature: str
    reason: str
    link: str
    traces: int
    """In how many traces it was seen."""
    is_missed: bool = False
    """It was expected and not seen, in a run that was long and wide enough to expect it."""
    trace: str = ""
    """A trace that shows it, relative to the ledger's folder; empty: none is kept."""


@frozen(kw_only=True)
class Known:
    """What known issues did to a run."""

    results: tuple[KnownResult, ...] = ()
    """One for each covering entry about an invariant that was chosen, in the ledger's order."""
    traces: int = 0
    """Traces in which any of them was seen."""
    traces_cut: int = 0
    """Of these, the ones that could not go on."""
    dropped: Mapping[str, int] = field(factory=dict)
    """Consequences of known findings, which are none of their own: traces, by signature."""


@frozen(kw_only=True)
class Seen:
    """What a run reached, in counts."""

    actions: Mapping[str, int]
    """By word, zero included for what the target is capable of."""
    actions_missing: Mapping[str, str] = field(factory=dict)
    """Actions that this target cannot be asked for, with the capabilities it lacks."""
    transitions: Mapping[str, int] = field(factory=dict)
    """Lifecycle edges by ``BEFORE -> AFTER``, zero included for what should be reachable."""
    journeys: Mapping[str, int] = field(factory=dict)
    """``PREEMPTED -> WAITING_FOR_REMOTE_KVS -> resumed`` and its like: how requests came back."""
    signatures: Mapping[str, int] = field(factory=dict)
    """Traces that ended with each signature; known ones end none."""


@frozen(kw_only=True)
class Ended:
    """A run is over."""

    word: ClassVar[str] = "ended"
    target: str
    version: str
    profile: str
    seed: int
    traces: int
    actions: int
    results: tuple[InvariantResult, ...]
    seen: Seen
    known: Known = field(factory=Known)
    crashes_ignored: int = 0
    """Traces that ended because the engine raised while ENG-001 was not among the invariants."""
    stopped_early: str = ""
    """Why not all traces of the profile were run: ``--max-time 60s``, ``interrupted``; empty."""
    seconds: float = 0.0
    """For standard error only: never part of a result."""


@frozen(kw_only=True)
class Replayed:
    """A trace was replayed."""

    word: ClassVar[str] = "replayed"
    outcome: Outcome
    target: str
    version: str
    reason: str
    """One sentence: what was seen, or why it drifted."""
    expected: str
    """The signature the trace is expected to show, empty for none."""
    story: tuple[StoryLine, ...]
    holdings: tuple[str, ...] = ()
    """What each request holds after the last action, as in a Failure."""
    failure: Failure | None = None
    """What was violated, for FAILED and OTHER."""
    moments: tuple[Moment, ...] = ()
    """Everything that was to be seen, if the job asked for it."""
    unseen: tuple[str, ...] = ()
    """Topics of facts that the target does not show at all."""
    scenes: Scenes | None = None
    """Every request after every action, if that was asked for."""


@frozen(kw_only=True)
class Compared:
    """A recording was replayed beside what was recorded."""

    word: ClassVar[str] = "compared"
    steps: int
    """How many steps were recorded."""
    same: int
    """How many of them, from the first, were replayed exactly."""
    recorded: str = ""
    """What the step after these planned when it was recorded; empty if all were the same."""
    replayed: str = ""
    """What it planned in the replay; empty: nothing, or there was no such step."""
    skipped: str = ""
    """The first action that could not be replayed, and why; empty: none."""


@frozen(kw_only=True)
class Fault:
    """A job could not be done; nothing is known about the scheduler."""

    word: ClassVar[str] = "fault"
    message: str
    """One line that names the thing, the value and the way out."""
    is_ours: bool = False
    """Whether schedcheck itself is broken (exit code 70) rather than what it was given (2)."""
    traceback: str = ""


@frozen(kw_only=True)
class Checked:
    """One thing about a target was looked at."""

    word: ClassVar[str] = "checked"
    check: Check


@frozen(kw_only=True)
class Examined:
    """An examination is over."""

    word: ClassVar[str] = "examined"
    target: str
    version: str


JobEvent = (
    Started
    | Progress
    | Found
    | Smaller
    | Shrunk
    | Ended
    | Replayed
    | Compared
    | Fault
    | Checked
    | Examined
)

JOB_EVENTS: Final[tuple[type[JobEvent], ...]] = (
    Started,
    Progress,
    Found,
    Smaller,
    Shrunk,
    Ended,
    Replayed,
    Compared,
    Fault,
    Checked,
    Examined,
)
