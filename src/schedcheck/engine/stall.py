"""Why nothing moves: what each request waits for, holds and needs.

Rules
-----
- Only what is seen is said. An engine that shows no block tables, queues or counts gets a shorter
  report, and a count beyond reason is one that is not shown.
- What a request needs to go on is room for all that its next step may compute, which engines
  allocate as a whole: a chunk as large as the budget, every token where prompts are not computed
  in parts, or the load that comes first. With prefix caching it is an upper bound.
- Who waits for whom follows from these rows in ``engine/waits``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from attrs import evolve, frozen

from schedcheck.engine.contract import COUNT_MAX
from schedcheck.engine.events import Lack, Stall, StalledRequest
from schedcheck.engine.waits import who_waits_for_whom
from schedcheck.model.capability import Capability
from schedcheck.model.snapshot import RequestView, Snapshot, Status
from schedcheck.model.trace import AnyEvent, Scheduled
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life

ROWS_MAX: Final = 12
"""Requests that a report lists."""
_REQUESTS_MAX: Final = 100
"""Of more requests it is not said who waits for whom; a trace that stalls has a handful."""
_RUNNING: Final = "running"


@frozen
class _Awaited:
    """What a status says that a request waits for."""

    what: str
    is_over: Callable[[Life], bool] | None = None
    """Whether the Ledger says that it came, in which case ``_open_for`` tells what did not.
    None: the Ledger cannot know, and the status is believed."""


_AWAITED: Final[Mapping[str, _Awaited]] = {
    "WAITING_FOR_REMOTE_KVS": _Awaited("its load", lambda life: life.load is None),
    "WAITING_FOR_FSM": _Awaited("its grammar", lambda life: not life.awaits_grammar),
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": _Awaited(
        "its grammar", lambda life: not life.awaits_grammar
    ),
    "WAITING_FOR_STREAMING_REQ": _Awaited(
        "the next chunk of its session", lambda life: not life.awaits_chunk
    ),
}
"""By status. One that is not here and begins with WAITING_FOR is told by its name."""


_BLOCKED: Final[Mapping[str, str]] = {
    "grammar": "its grammar",
    "lookup": "the answer how much of its prompt is held outside",
    "chunk": "the next chunk of its session",
}
"""By what the Ledger says that a request is blocked by."""


def _awaited(status: str) -> _Awaited | None:
    if status in _AWAITED:
        return _AWAITED[status]
    prefix, _, what = status.partition("WAITING_FOR_")
    return _Awaited(what.lower().replace("_", " ")) if what and not prefix else None


def stall_of(
    ledger: Ledger, *, capabilities: Collection[Capability], events: Sequence[AnyEvent] = ()
) -> Stall:
    """Return who waits for whom. ``events`` are those of the last action."""
    scene = _Scene(ledger, frozenset(capabilities), _scheduled_last(events))
    rows = {row.name: row for row in _with_lacks(ledger, scene, tuple(scene.rows()))}
    count, running = scene.requests_count(), scene.running()
    links, is_cycle, root = who_waits_for_whom(
        rows if count <= _REQUESTS_MAX else {}, running or ()
    )
    first = dict.fromkeys([*(link.waiter for link in links), *((root,) if root else ()), *rows])
    told = set(islice(first, ROWS_MAX))
    return Stall(
        requests=tuple(row for row in rows.values() if row.name in told),
        more=count - len(told),
        blocks_free=scene.blocks_free,
        blocks_total=_count(ledger.snapshot.blocks_total),
        blocks_unaccounted=scene.blocks_unaccounted(),
        running=None if running is None else running[:ROWS_MAX],
        is_quiet=ledger.is_quiet(),
        has_work=ledger.has_work,
        is_paused=ledger.paused is not None,
        chain=links,
        is_cycle=is_cycle,
        root=root,
    )


def _scheduled_last(events: Sequence[AnyEvent]) -> frozenset[str]:
    for event in reversed(events):
        if isinstance(event, Scheduled):
            return frozenset(row.name for row in event.output.rows)
    return frozenset()


def _count(value: int | None) -> int | None:
    """Return a count, None if it is none that can be reasoned about."""
    return value if value is not None and 0 <= value <= COUNT_MAX else None


def _blocks_in(view: RequestView) -> frozenset[int]:
    return frozenset(block for group in view.block_ids or () for block in group)


class _Scene:
    """What the last snapshot shows, read once."""

    def __init__(
        self, ledger: Ledger, capabilities: frozenset[Capability], scheduled: frozenset[str]
    ) -> None:
        self.ledger, self.scheduled = ledger, scheduled
        self.snapshot: Snapshot = ledger.snapshot
        self.places = _places(self.snapshot)
        self.shows_queues = Capability.SHOWS_QUEUES in capabilities and bool(self.snapshot.queues)
        self.shows_requests = Capability.SHOWS_STATUS in capabilities
        self.blocks_free = _count(self.snapshot.blocks_free)
        tables = [view.block_ids or () for view in self.snapshot.requests.values()]
        self.groups = max(map(len, tables), default=0) or 1
        """KV cache groups: each needs a block of its own for the same tokens."""

    def rows(self) -> Iterator[StalledRequest]:
        """Yield a row for each unfinished request, then for those that ended and hold blocks."""
        for life in islice(self.ledger.live(), _REQUESTS_MAX):
            yield self._row(life)
        for name in islice(self._ended_with_blocks(), _REQUESTS_MAX):
            view, ended = self.snapshot.requests[name], self.ledger.lives.get(name)
            yield StalledRequest(
                name=name,
                status=_status(view),
                has_ended=True,
                blocks_held=len(_blocks_in(view)),
                awaits=tuple(_open_for(ended)) if ended is not None else (),
            )

    def requests_count(self) -> int:
        """Return how many rows there would be if all were made."""
        return len(self.ledger.live()) + sum(1 for _ in self._ended_with_blocks())

    def _ended_with_blocks(self) -> Iterator[str]:
        for name, view in self.snapshot.requests.items():
            life = self.ledger.lives.get(name)
            if (life is None or not life.is_live) and _blocks_in(view):
                yield name

    def _row(self, life: Life) -> StalledRequest:
        view = self.snapshot.requests.get(life.name)
        queue, place = self.places.get(life.name, ("", 0))
        status = "" if view is None else _status(view)
        is_seated = status == Status.RUNNING and _RUNNING not in self.snapshot.queues
        in_a_queue = bool(place) or is_seated
        named = _awaited(status)
        is_moving = life.name in self.scheduled
        awaits, overdue = [*_open_for(life, is_moving=is_moving)], ""
        if named is not None:
            if named.is_over is None:
                awaits.append(named.what)
            elif named.is_over(life):
                overdue = named.what
        row = StalledRequest(
            name=life.name,
            status=status,
            is_tracked=not (view is None and self.shows_requests and not in_a_queue),
            queue=queue,
            place=place,
            queue_length=len(self.snapshot.queues.get(queue, ())),
            is_in_no_queue=self.shows_queues and not in_a_queue,
            awaits=tuple(awaits),
            overdue=overdue,
            is_moving=is_moving,
            unseen=tuple(_unseen(self.ledger, life)),
        )
        return row if view is None else self._with_counts(row, life, view)

    def _with_counts(self, row: StalledRequest, life: Life, view: RequestView) -> StalledRequest:
        """Add what the request holds and needs, as far as that is shown."""
        computed = _count(view.num_computed_tokens)
        known = _count(view.num_tokens)
        row = evolve(row, tokens_computed=computed, tokens_known=known)
        if view.block_ids is None:
            return row
        row = evolve(row, blocks_held=len(_blocks_in(view)))
        if computed is None:
            return row
        if known is None:
            known = len(life.prompt) + len(life.delivered)
        if life.load is not None:
            computed = max(computed, life.load.load.start + life.load.load.count)
        end, purpose = self._next_end(row, life, computed, known)
        if self._missing(view, computed, end) == self._missing(view, computed, computed + 1):
            purpose = ""  # a single token needs as many
        last = len(life.prompt) + life.tokens_due - 1  # the last token's KV is never read
        return evolve(
            row,
            blocks_to_go_on=self._missing(view, computed, end),
            purpose=purpose,
            blocks_to_finish=self._missing(view, computed, max(last, end)),
            is_at_most=self.ledger.config.prefix_caching and not row.blocks_held,
        )

    def _next_end(
        self, row: StalledRequest, life: Life, computed: int, known: int
    ) -> tuple[int, str]:
        """Return how many tokens must have room before it goes on, and what that is for."""
        if row.status != Status.RUNNING and not computed and not row.blocks_held:
            loaded = min(life.spec.remote_tokens, known - 1)
            if loaded > 0 and life.loaded_to is None:  # a load that failed is not tried again
                first = loaded if life.spec.load_async else loaded + 1
                return first, f"to load {loaded} tokens"
        config, left = self.ledger.config, max(1, known - computed)
        if row.status != Status.RUNNING and not config.chunked_prefill:
            return computed + left, "for all its tokens at once" if left > 1 else ""
        chunk = min(left, config.max_num_batched_tokens)
        return computed + chunk, f"for its next {chunk} tokens" if chunk > 1 else ""

    def _missing(self, view: RequestView, computed: int, end: int) -> int:
        """Return the blocks missing for tokens up to ``end``.

        Blocks behind a sliding window are gone and needed no more, so what is computed has room.
        """
        blocks_for = self.ledger.config.blocks_for
        tables = [*(view.block_ids or ()), *[()] * self.groups][: self.groups]
        has_room = [max(len(one), blocks_for(computed) if one else 0) for one in tables]
        return sum(max(0, blocks_for(end) - room) for room in has_room)

    def running(self) -> tuple[str, ...] | None:
        """Return who runs; None if that is not shown."""
        views = self.snapshot.requests
        if self.shows_requests and any(view.status is not None for view in views.values()):
            return tuple(n for n, view in views.items() if view.status is Status.RUNNING)
        return self.snapshot.queues.get(_RUNNING) if self.shows_queues else None

    def blocks_unaccounted(self) -> int | None:
        """Return how many blocks are neither free nor held by a request that is shown."""
        total, views = _count(self.snapshot.blocks_total), self.snapshot.requests.values()
        if self.blocks_free is None or total is None or not self.shows_requests:
            return None
        if any(view.block_ids is None for view in views):
            return None
        held = frozenset(block for view in views for block in _blocks_in(view))
        return max(0, total - self.blocks_free - len(held))


def _places(snapshot: Snapshot) -> dict[str, tuple[str, int]]:
    """Return for each queued name its queue and its place there; the first one counts."""
    places: dict[str, tuple[str, int]] = {}
    for queue, names in snapshot.queues.items():
        for place, name in enumerate(names, 1):
            places.setdefault(name, (queue, place))
    return places


def _status(view: RequestView) -> str:
    return view.status.value if view.status else ""


def _open_for(life: Life, *, is_moving: bool = False) -> Iterator[str]:
    """Yield what the Ledger knows to be open for a request, whatever its status says.

    That the step planned last is in flight is no news of a request that moves with it.
    """
    if life.in_flight > is_moving:
        yield "its step in flight" if life.in_flight == 1 else f"{life.in_flight} steps in flight"
    for word, transfer in (("load", life.load), ("send", life.send)):
        if transfer is not None:
            yield f"the {'report' if transfer.ended else 'end'} of its {word}"
    if life.is_live and life.blocked_by:
        yield _BLOCKED.get(life.blocked_by, life.blocked_by)


def _unseen(ledger: Ledger, life: Life) -> Iterator[str]:
    """Yield what a request needs besides blocks of which no snapshot says how much is left."""
    if life.spec.media:
        yield "the encoder cache"
    if life.spec.adapter is not None and ledger.config.max_loras:
        yield "places for adapters"


def _with_lacks(
    ledger: Ledger, scene: _Scene, rows: Sequence[StalledRequest]
) -> Iterator[StalledRequest]:
    """Yield the rows with what each lacks that others have.

    Whoever moves, waits for something open, is lost or never fits lacks nothing of the kind.
    """
    running, total = scene.running(), _count(ledger.snapshot.blocks_total)
    is_full = running is not None and len(running) >= ledger.config.max_num_seqs
    ahead = _ahead(ledger, rows)
    for row in rows:
        if row.has_ended or not row.is_tracked or row.is_in_no_queue or row.awaits or row.is_moving:
            yield row
            continue
        computed, known = row.tokens_computed, row.tokens_known
        if computed is not None and known is not None and computed >= known > 0:
            yield evolve(row, has_nothing_left=True)
            continue
        most = (row.blocks_to_go_on or 0) + (row.blocks_held or 0)
        if total is not None and most > total and not row.is_at_most and not row.purpose:
            yield evolve(row, never_fits=True)
            continue
        lacks: list[Lack] = []
        if scene.blocks_free is not None and (row.blocks_to_go_on or 0) > scene.blocks_free:
            lacks.append(Lack.BLOCKS)
        if is_full and row.status != Status.RUNNING and row.name not in (running or ()):
            lacks.append(Lack.SEAT)
        if row.name in ahead:
            lacks.append(Lack.TURN)
        yield evolve(row, lacks=tuple(lacks), behind=ahead.get(row.name, ""))


def _ahead(ledger: Ledger, rows: Iterable[StalledRequest]) -> dict[str, str]:
    """Return, by name, who stands next ahead of a request and is not passed over."""
    by_name = {row.name: row for row in rows}
    ahead: dict[str, str] = {}
    for queue, names in ledger.snapshot.queues.items():
        last = ""
        for name in names if queue != _RUNNING else ():
            row = by_name.get(name)
            if row is None or row.has_ended or row.awaits:
                continue
            if last and last != name:
                ahead.setdefault(name, last)
            last = name
    return ahead
