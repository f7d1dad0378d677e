"""Who waits for whom: a cycle, or a chain to the request that keeps the others waiting.

A request is stuck if, for one thing it lacks, everybody who has it is stuck as well. So whoever
can still give something keeps a cycle from being called one. Among stuck requests each waits for
a stuck one, which is why there is always a cycle among them, and the shortest is told. Without
any, the chain leads to a request that waits for none of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from schedcheck.engine.events import Lack, Link, StalledRequest

_STARTS_MAX: Final = 12
"""From how many requests a chain to the root is looked for."""

Rows = Mapping[str, StalledRequest]


def who_waits_for_whom(rows: Rows, running: Sequence[str]) -> tuple[tuple[Link, ...], bool, str]:
    """Return a chain, whether it is a cycle, and for one that is not the request it leads to."""
    waits = _Waits(rows, running)
    stuck = waits.stuck()
    # A place in a queue is no possession: a cycle that does without it says more.
    for kinds in ((Lack.BLOCKS, Lack.SEAT), tuple(Lack)):
        cycle = waits.shortest_cycle(stuck, kinds)
        if cycle:
            return cycle, True, ""
    root = min(
        (row for row in rows.values() if not waits.has_any(row.name)), key=_innocence, default=None
    )
    if root is None:
        return (), False, next(iter(rows), "")
    for start in [name for name in rows if waits.has_any(name)][:_STARTS_MAX]:
        chain = waits.path(start, root.name, dict.fromkeys(rows, tuple(Lack)))
        if chain:
            # That others queue up behind says nothing about what keeps the first of them.
            return tuple(dropwhile(_is_queueing, chain)), False, root.name
    return (), False, root.name


def _is_queueing(link: Link) -> bool:
    return link.lacks is Lack.TURN


def _innocence(row: StalledRequest) -> int:
    """Return how little it tells that this request does not go on; the least comes first."""
    reasons = (
        not row.is_tracked,
        row.is_in_no_queue,
        row.has_nothing_left,
        row.never_fits,
        bool(row.lacks),  # and nobody who is shown has any
        bool(row.overdue),
        not (row.has_ended or row.awaits or row.is_moving),  # nothing visible keeps it waiting
        row.has_ended,
        bool(row.awaits),
    )
    return reasons.index(True) if True in reasons else len(reasons)


class _Waits:
    """The graph: for each request and each thing it lacks, who has that."""

    def __init__(self, rows: Rows, running: Sequence[str]) -> None:
        self.rows = rows
        self.holders = tuple(name for name, row in rows.items() if row.blocks_held)
        self.seated = tuple(name for name in running if name in rows)

    def having(self, name: str, lack: Lack) -> tuple[str, ...]:
        """Return who has what a request lacks."""
        row = self.rows[name]
        if lack not in row.lacks:
            return ()
        if lack is Lack.TURN:
            return (row.behind,)
        who = self.holders if lack is Lack.BLOCKS else self.seated
        return tuple(one for one in who if one != name)

    def has_any(self, name: str) -> bool:
        """Return whether a request waits for any other one."""
        return any(self.having(name, lack) for lack in Lack)

    def stuck(self) -> frozenset[str]:
        """Return the requests to whom nobody can give what they lack."""
        stuck = frozenset(name for name in self.rows if self.has_any(name))
        for _ in range(len(stuck)):
            free = {name for name in stuck if not any(self._hopeless(name, stuck, tuple(Lack)))}
            if not free:
                break
            stuck -= free
        return stuck

    def _hopeless(self, name: str, stuck: frozenset[str], kinds: Sequence[Lack]) -> Iterator[Lack]:
        """Yield what a request lacks that only stuck ones have."""
        for lack in kinds:
            having = self.having(name, lack)
            if having and stuck.issuperset(having):
                yield lack

    def shortest_cycle(self, stuck: frozenset[str], kinds: Sequence[Lack]) -> tuple[Link, ...]:
        """Return the shortest cycle among stuck requests; empty if there is none."""
        along = {name: tuple(self._hopeless(name, stuck, kinds)) for name in stuck}
        cycles = (self.path(name, name, along) for name in self.rows if name in stuck)
        return min(filter(None, cycles), key=len, default=())

    def path(self, start: str, goal: str, along: Mapping[str, Iterable[Lack]]) -> tuple[Link, ...]:
        """Return the shortest chain from ``start`` to ``goal``, at least one link long.

        ``along`` says for each request which of the things that it lacks to follow.
        """
        came: dict[str, Link] = {}
        layer = [start]
        for _ in self.rows:
            layer = [link.on for waiter in layer for link in self._new_links(waiter, along, came)]
            if goal in came or not layer:
                break
        chain: list[Link] = []
        while goal in came and len(chain) < len(self.rows):
            chain.insert(0, came[goal])
            goal = came[goal].waiter
            if goal == start:
                break
        return tuple(chain)

    def _new_links(
        self, waiter: str, along: Mapping[str, Iterable[Lack]], came: dict[str, Link]
    ) -> Iterator[Link]:
        """Yield the links to requests that no link led to yet, and note them."""
        for lack in along.get(waiter, ()):
            having = self.having(waiter, lack)
            for one in having:
                if one not in came:
                    came[one] = Link(waiter=waiter, lacks=lack, on=one, others=len(having) - 1)
                    yield came[one]
