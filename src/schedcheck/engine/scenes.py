"""A played trace in pictures: each request after each action, and the steps in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve

from schedcheck.engine.events import Flight, Lane, Scenes
from schedcheck.model.snapshot import EMPTY_SNAPSHOT, RequestView
from schedcheck.model.trace import Completed, Scheduled, StepRecord


def scenes_of(records: Sequence[StepRecord]) -> Scenes:
    """Return what a page shows of a trace, one entry for each action carried out."""
    lanes = []
    for record in records:
        after = record.events[-1].snapshot if record.events else EMPTY_SNAPSHOT
        lanes.append({name: _lane(view) for name, view in sorted(after.requests.items())})
    return Scenes(lanes=tuple(lanes), flights=_flights(records))


def _lane(view: RequestView) -> Lane:
    blocks = view.block_ids
    return Lane(
        status=view.status.value if view.status is not None else "",
        tokens_computed=view.num_computed_tokens,
        tokens_known=view.num_tokens,
        blocks=None if blocks is None else tuple(block for group in blocks for block in group),
    )


def _flights(records: Iterable[StepRecord]) -> tuple[Flight, ...]:
    flights: dict[int, Flight] = {}
    for record in records:
        for event in record.events:
            if isinstance(event, Scheduled):
                output = event.output
                flights[output.step_id] = Flight(
                    step_id=output.step_id,
                    planned=record.number,
                    tokens=output.num_scheduled_tokens,
                )
            elif isinstance(event, Completed) and event.step_id in flights:
                flight = flights[event.step_id]
                flights[event.step_id] = evolve(flight, completed=record.number)
    return tuple(flights.values())
