"""What a picture of a trace shows: lanes of requests and blocks over actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from schedcheck.engine.events import Complaint, Lane, Replayed, StoryLine
from schedcheck.report.words import clean


@frozen(kw_only=True)
class Span:
    """A step in flight, over actions (both ends belong to it)."""

    step_id: int
    first: int
    last: int
    is_open: bool
    """It was in flight at the end."""
    tokens: Mapping[int, int]
    """By the request's place among the lanes."""


@frozen(kw_only=True)
class View:
    """A replayed trace, ready to be drawn."""

    title: str
    facts: tuple[str, ...]
    requests: tuple[str, ...]
    """Names, in the order in which they appear; a request is meant by its place here."""
    blocks: tuple[int, ...]
    """Every block that was ever held, sorted."""
    story: tuple[StoryLine, ...]
    states: tuple[Mapping[int, Lane], ...]
    """The requests after each action, by place."""
    spans: tuple[Span, ...]
    complaint: Complaint | None
    page: str
    """The page of the violated invariant."""

    def owners(self, step: int) -> dict[int, list[int]]:
        """Return who holds each block after an action (from 0): places of requests."""
        held: dict[int, list[int]] = {}
        for place, lane in sorted(self.states[step].items()):
            for block in dict.fromkeys(lane.blocks or ()):
                held.setdefault(block, []).append(place)
        return held

    def slots(self, place: int) -> list[list[Span]]:
        """Return the steps that compute for a request, in as many rows as overlap."""
        rows: list[list[Span]] = []
        for span in self.spans:
            if place not in span.tokens:
                continue
            row = next((row for row in rows if row[-1].last < span.first), None)
            if row is None:
                rows.append([span])
            else:
                row.append(span)
        return rows


def view_of(told: Replayed, *, config: Sequence[str] = (), page: str = "") -> View:
    """Return what to draw of a replay that was asked for its scenes.

    ``config`` is the configuration in words, ``page`` the violated invariant's own.
    """
    lanes = told.scenes.lanes if told.scenes else ()
    flights = told.scenes.flights if told.scenes else ()
    names = dict.fromkeys(name for state in lanes for name in state)
    for flight in flights:
        names.update(dict.fromkeys(flight.tokens))
    places = {name: place for place, name in enumerate(names)}
    failure = told.failure
    target = f"{told.target} {told.version}".strip()
    last = told.story[-1].number if told.story else 0
    return View(
        title=clean(f"{failure.complaint.invariant}: {failure.title}" if failure else told.reason),
        facts=tuple(map(clean, (target, *config))),
        requests=tuple(map(clean, names)),
        blocks=tuple(
            sorted(
                {block for state in lanes for lane in state.values() for block in lane.blocks or ()}
            )
        ),
        story=told.story,
        states=tuple({places[name]: lane for name, lane in state.items()} for state in lanes),
        spans=tuple(
            Span(
                step_id=flight.step_id,
                first=flight.planned,
                last=last if flight.completed is None else flight.completed,
                is_open=flight.completed is None,
                tokens={places[name]: count for name, count in flight.tokens.items()},
            )
            for flight in flights
        ),
        complaint=failure.complaint if failure else None,
        page=page,
    )


def _blocks(lanes: Sequence[Mapping[str, Lane]]) -> tuple[int, ...]:
    held = [lane.blocks or () for state in lanes for lane in state.values()]
    return tuple(sorted({block for blocks in held for block in blocks}))


LETTERS: Mapping[str, str] = {
    "WAITING": "W",
    "WAITING_FOR_REMOTE_KVS": "L",
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "G",
    "WAITING_FOR_STREAMING_REQ": "C",
    "RUNNING": "R",
    "PREEMPTED": "P",
}
"""What stands in a cell besides its colour; whatever else has ended."""


def letter_of(status: str) -> str:
    """Return one letter for a status: colour alone does not tell everybody."""
    return LETTERS.get(status, "E" if status else "?")
