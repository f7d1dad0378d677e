"""Recorded steps: what stands beside an action in a recording, and how it is kept small.

The form
--------
``recorded`` is a list with one object for each event that an action led to; ``is`` says which
kind of event it is. A value that is what it usually is, is left out, and what can be told from the
line before is told from there, since a busy engine says nearly the same at each step:

- of the snapshot after the event only what changed: ``views`` (null: no longer tracked),
  ``queues``, ``refs`` (0: none any more), ``free``, ``free_ids``, ``total``;
- ``names`` of a step, if they are those of the step before;
- ``counts`` of a step, if each is 1; ``starts``, if ``names`` is left out and each row begins where
  the one before it ended;
- ``rows``, for the rows that say more than that: ``at`` is the row's place in ``names``;
- ``sampled`` as a list of numbers, in the order of the step's rows, where token values are not
  kept; left out, it is one token for each row. ``delivered``, if it is what was sampled.

A recording that goes on from another file opens with a ``checkpoint``: what is known of every
request that is still of interest, and the steps in flight.
"""

from __future__ import annotations

from enum import StrEnum
from operator import add, sub
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from schedcheck.model.output import FinishReason, Role, TableUpdate
from schedcheck.model.snapshot import Status
from schedcheck.model.trace import Transfer

LINE_BYTES_MAX: Final = 16 * 2**20
"""The longest line of a recording."""
KEY: Final = "recorded"


class Tokens(StrEnum):
    """What a recording says about tokens."""

    TOY = "toy"
    """All of them, and they are the toy model's: everything can be judged."""
    COUNTS = "counts"
    """How many there were."""
    IDS = "ids"
    """All of them, of a real model: somebody asked for it."""


Count = Annotated[int, Meta(ge=-(10**6), le=10**6)]
Number = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=20_000)]
BlockLists = list[list[Number]]
Sampled = list[Count] | dict[Name, list[Number]]


class _Form(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all forms have in common."""


class ViewForm(_Form, kw_only=True):
    """One request in a snapshot."""

    status: Status | None = None
    computed: Number | None = None
    tokens: Number | None = None
    preemptions: Number | None = None
    blocks: BlockLists | None = None


class EventForm(_Form, kw_only=True, tag_field="is"):
    """What every event says: how the snapshot changed."""

    views: dict[Name, ViewForm | None] = {}
    queues: dict[Name, list[Name]] = {}
    free: Number | None = None
    free_ids: list[Number] | None = None
    refs: dict[int, Count] = {}
    total: Number | None = None
    idle: bool = False
    """The engine would not go on stepping by itself."""


class AddedForm(EventForm, kw_only=True, tag="added"):
    """A request was handed in; what it is like stands in the action."""

    refused: Text | None = None
    tokens: list[Number] | None = None
    """Its prompt, where somebody asked for token ids."""


class RowForm(_Form, kw_only=True):
    """What a row says beyond its name, start and count."""

    at: Count
    role: Role = Role.RUNNING
    inferred: bool = False
    blocks: BlockLists | None = None
    table: TableUpdate | None = None
    """None: running rows append to the table, all others replace it."""
    known: list[Number] | Count | None = None
    """Every token of the request, or how many there are."""


class LoadForm(_Form, kw_only=True):
    """A load that begins."""

    name: Name
    start: Count
    count: Count
    sync: bool = False
    blocks: BlockLists | None = None


class ScheduledForm(EventForm, kw_only=True, tag="scheduled"):
    """A step was planned."""

    step: Number
    names: list[Name] | UnsetType = UNSET
    counts: list[Count] | UnsetType = UNSET
    starts: list[Count | None] | UnsetType = UNSET
    rows: list[RowForm] = []
    preempted: list[Name] | None = []
    finished: list[Name] = []
    loads: list[LoadForm] = []
    drafts: dict[Name, list[Number] | Count] = {}
    encodes: dict[Name, list[Count]] = {}
    freed: list[Name] = []


class CompletedForm(EventForm, kw_only=True, tag="completed"):
    """The oldest step in flight was executed."""

    step: Number
    sampled: Sampled | UnsetType = UNSET
    delivered: Sampled | UnsetType = UNSET
    drafts: dict[Name, list[Number] | Count] = {}
    loads_finished: list[Name] = []
    loads_failed: dict[Name, Count] = {}
    sends_finished: list[Name] = []
    finished: dict[Name, FinishReason] = {}
    sends: list[Name] = []
    cached: dict[Name, tuple[Count, Count]] = {}


class ControlledForm(EventForm, kw_only=True, tag="controlled"):
    """Something else was said to the scheduler."""

    action: dict[str, Any] | None = None
    """None: the action of this line."""
    refused: Text | None = None
    sends: list[Name] = []


class TransferForm(EventForm, kw_only=True, tag="transfer"):
    """A transfer ended physically."""

    name: Name
    of: Transfer = Transfer.LOAD
    bad: Count | None = None


class DrainedForm(EventForm, kw_only=True, tag="drained"):
    """The quiet tail is over."""

    rounds: Number
    idle_rounds: Number = 0
    unfinished: list[Name] = []


class CrashedForm(EventForm, kw_only=True, tag="crashed"):
    """A call into the engine raised."""

    call: Text
    error: Text
    message: Text = ""
    function: Text = ""


class HungForm(EventForm, kw_only=True, tag="hung"):
    """A call into the engine did not return."""

    call: Text
    how: Text
    detail: Text = ""


class MalformedForm(EventForm, kw_only=True, tag="malformed"):
    """A call into the engine answered outside the protocol."""

    call: Text
    problem: Text


class RepeatedForm(EventForm, kw_only=True, tag="repeated"):
    """The trace was played once more."""

    difference: Text = ""
    impurity: Text = ""


AnyForm = (
    AddedForm
    | ScheduledForm
    | CompletedForm
    | ControlledForm
    | TransferForm
    | DrainedForm
    | CrashedForm
    | HungForm
    | MalformedForm
    | RepeatedForm
)


class LifeForm(_Form, kw_only=True):
    """What is known of one request where a file begins."""

    name: Name
    spec: dict[str, Any] = {}
    unknown: bool = False
    """It was first seen running: nothing can be said about what it did before."""
    news: Count = 0
    resumes: Count = 0
    preemptions: Count = 0
    preempted: bool = False
    """Since it was last scheduled."""
    forgot: bool = False
    """The workers were told to forget it since it was last scheduled."""
    path: list[Status] = []
    delivered: Count = 0
    finished: FinishReason | None = None
    announced: Count = 0
    load: LoadForm | None = None
    send: list[Number] | None = None


class CheckpointForm(_Form, kw_only=True):
    """Where a file goes on."""

    lives: list[LifeForm] = []
    in_flight: list[ScheduledForm] = []
    """Steps planned before the file begins and not completed yet."""
    now: DrainedForm | None = None
    """The snapshot in full; that of no event."""


class RecordingForm(_Form, kw_only=True):
    """What the header says about a recording."""

    tokens: Tokens = Tokens.COUNTS
    part: Count = 1
    """Which file of the recording this is, from 1."""


class LineForm(_Form, kw_only=True):
    """One line: an action's own keys, and what is recorded beside it."""

    do: str
    recorded: list[AnyForm] = []
    request: msgspec.Raw | UnsetType = UNSET
    spec: msgspec.Raw | UnsetType = UNSET
    finish_loads: msgspec.Raw | UnsetType = UNSET
    bad_block: msgspec.Raw | UnsetType = UNSET
    running: msgspec.Raw | UnsetType = UNSET
    admission_only: msgspec.Raw | UnsetType = UNSET
    steps_max: msgspec.Raw | UnsetType = UNSET


ACTION_KEYS: Final = tuple(one for one in LineForm.__struct_fields__ if one not in ("do", KEY))
"""Keys of a line that are an action's own."""


class LastStep:
    """The rows said last, from which the next ones are told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.counts: list[int] = []
        self.starts: list[int | None] = []
        self._ones: list[int] = []

    def shorten(
        self, form: ScheduledForm, names: list[str], counts: list[int], starts: list[int | None]
    ) -> None:
        """Write the rows of a step into its form, as far as they must be said."""
        is_same = names is self.names or names == self.names
        if not is_same:
            form.names = names
        ones = self.ones(len(counts))
        if counts != ones:
            form.counts = counts
        if not is_same or not self._goes_on(starts):
            form.starts = starts
        self.names, self.counts, self.starts = names, counts, starts

    def _goes_on(self, starts: list[int | None]) -> bool:
        """Return whether each row begins where the one before ended: mostly one further on."""
        try:
            return list(map(sub, starts, self.starts)) == self.counts
        except TypeError:  # one of them is not shown
            return starts == self._expected()

    def lengthen(self, form: ScheduledForm) -> None:
        """Take the rows of a step from its form. Raises ValueError if they do not fit."""
        names = self.names if form.names is UNSET else form.names
        counts = self.ones(len(names)) if form.counts is UNSET else form.counts
        if form.starts is not UNSET:
            starts = form.starts
        elif form.names is UNSET:
            starts = self._expected()
        else:
            starts = [None] * len(names)
        if not len(names) == len(counts) == len(starts):
            raise ValueError(
                f"{len(names)} names, {len(counts)} counts and {len(starts)} starts do not fit"
            )
        self.names, self.counts, self.starts = names, counts, starts

    def ones(self, length: int) -> list[int]:
        """Return a list of so many ones, which nobody may change."""
        if len(self._ones) != length:
            self._ones = [1] * length
        return self._ones

    def _expected(self) -> list[int | None]:
        if None in self.starts:
            return [
                None if a is None else a + b for a, b in zip(self.starts, self.counts, strict=True)
            ]
        return list(map(add, self.starts, self.counts))
