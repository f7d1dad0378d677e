"""Shadow KV memory: what every slot of every block really holds.

Rules
-----
- A slot holds the toy model's state after the token whose KV was written there: equal to another
  slot's exactly when the whole prefix is equal. It does for KV caches what an address sanitizer
  does for heaps.
- Steps write and read in execution order, when they complete, never when they are planned.
- Within a step: synchronous loads write, then all rows write, then all rows read: a request may
  lawfully hit blocks that another writes in the same step.
- An asynchronous load writes its blocks when it ends. It owns them from its start until then, and
  a send owns its blocks for reading: a step that writes into either is a conflict at once.
- A write stamp on each block keeps reading cheap: what was right is read again only after a write.

- A step reads what its tokens look at: all before, or what lies within the sliding window. Where a
  table has no block for it, that is a finding; writing there is not.
- A request reads blocks that it hit (shared from the prefix cache) and others. Which it hit, the
  Ledger says; what is wrong with them is told apart.

Blind spots: blocks copied on write, and groups that attend differently within one model, are not
modelled.
"""

from __future__ import annotations

from typing import Final

from attrs import Factory, define

from schedcheck.model.output import NO_BLOCK, Load, Row
from schedcheck.oracles.facts import InFlight, Problem
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.worker import Place, SimulatedWorker

_GARBAGE: Final = -1
"""What a slot holds after a write of nonsense."""
_REFUSED: Final = -2
"""What a slot holds after the KV of a refused draft was written."""


def _not_there(name: str, position: int) -> Problem:
    return Problem(
        "read-no-block",
        name,
        f"the KV of {name} at position {position} is in a block",
        "its table has none there, as if that were outside the sliding window",
    )


@define
class _Block:
    slots: list[int | None]
    stamp: int = 0
    writer: str = ""
    resets: int = 0
    """How often the prefix cache had been emptied when it was written last."""


@define
class ShadowMemory:
    """The content of the KV pool. The Judge alone makes it change."""

    ledger: Ledger
    worker: SimulatedWorker
    problems: list[Problem] = Factory(list)
    """What was wrong with the event taken in last."""
    _blocks: dict[Place, _Block] = Factory(dict)

    def execute(self, step: InFlight) -> None:
        """Let a step that the worker has just executed write, then read."""
        self.problems.clear()
        for load in step.output.loads:
            if not load.is_async and load.name in self.ledger.lives:
                self._write_load(load, step.bad_blocks.get(load.name))
        rows = [row for row in step.output.rows if row.name in self.worker.requests]
        for row in rows:
            self._write_row(row, step)
        for row in rows:
            # This result or an earlier one says that the load failed: what it read is discarded.
            if not step.computes_nonsense(row.name):
                self._read_row(row)

    def end_load(self, load: Load, bad_block: int | None) -> None:
        """Let an asynchronous load write its blocks."""
        self.problems.clear()
        self._write_load(load, bad_block)

    def contents(self) -> tuple[tuple[Place, tuple[int | None, ...]], ...]:
        """Return what every block ever written holds, in order of group and id."""
        return tuple((place, tuple(self._blocks[place].slots)) for place in sorted(self._blocks))

    def _write_load(self, load: Load, bad_block: int | None) -> None:
        life, size = self.ledger.lives[load.name], self.ledger.config.block_size
        first = load.start // size
        for group, blocks in enumerate(load.block_ids or ()):
            for position in range(load.start, load.start + load.count):
                ordinal = position // size - first
                if ordinal >= len(blocks):
                    break
                if blocks[ordinal] == NO_BLOCK:
                    continue
                bad = bad_block is not None and ordinal >= bad_block
                content = _GARBAGE if bad else life.state_at(position + 1)
                self._write((group, blocks[ordinal]), position % size, content, load.name)

    def _write_row(self, row: Row, step: InFlight) -> None:
        request = self.worker.requests[row.name]
        nonsense = step.computes_nonsense(row.name)
        size = self.ledger.config.block_size
        known = min(request.computed, len(request.tokens))
        owned = self._owned_by_transfers(row.name, step)
        for group, table in enumerate(request.tables):
            end = min(request.last_end, len(table) * size)
            for position in range(request.last_start, end):
                place = (group, table[position // size])
                if place[1] == NO_BLOCK:
                    continue
                if place[1] in owned:
                    self._conflict(row.name, place, owned[place[1]])
                content = request.states[position + 1] if position < known else _REFUSED
                self._write(place, position % size, _GARBAGE if nonsense else content, row.name)

    def _owned_by_transfers(self, writer: str, step: InFlight) -> dict[int, str]:
        """Return the blocks that a transfer open while ``step`` runs owns, with what to call it."""
        owned: dict[int, str] = {}
        for life in self.ledger.lives.values():
            if life.load is not None and not life.load.ended:
                for group in life.load.load.block_ids or ():
                    owned.update(dict.fromkeys(group, f"the load of {life.name}"))
            # Steps planned before a send began run before it: with prefix caching another request
            # may lawfully write a block in them that the sender shares.
            send = life.send
            if send is None or send.ended or life.name == writer:
                continue
            if send.after_step < step.output.step_id:
                owned.update(dict.fromkeys(send.blocks, f"the send of {life.name}"))
        return owned

    def _conflict(self, name: str, place: Place, owner: str) -> None:
        self.problems.append(
            Problem(
                "write-into-transfer",
                name,
                f"block {place[1]} is written by nobody else until {owner} has ended",
                f"a step wrote KV of {name} into it",
            )
        )

    def _write(self, place: Place, slot: int, content: int | None, writer: str) -> None:
        block = self._blocks.get(place)
        if block is None:
            block = self._blocks[place] = _Block([None] * self.ledger.config.block_size)
        old = block.slots[slot]
        if old != content:
            if old is not None and old > 0:
                self._look_for_sharers(place, slot, old, writer)
            block.slots[slot] = content
            block.stamp += 1
        block.writer = writer
        block.resets = self.ledger.cache_resets

    def _look_for_sharers(self, place: Place, slot: int, old: int, writer: str) -> None:
        """Report a request that still holds a block in which its KV is being overwritten."""
        group, size = place[0], self.ledger.config.block_size
        for name, request in self.worker.requests.items():
            if name == writer or place[1] not in self.ledger.before.blocks_of(name):
                continue
            table = request.tables[group] if group < len(request.tables) else []
            at = table.index(place[1]) * size + slot if place[1] in table else -1
            if 0 <= at < request.computed and request.states[at + 1] == old:
                self.problems.append(
                    Problem(
                        "overwrites-shared",
                        writer,
                        f"block {place[1]}, which {name} holds as well, keeps the KV of {name}",
                        f"a step wrote other KV of {writer} into slot {slot}",
                    )
                )
                return

    def _read_row(self, row: Row) -> None:
        request = self.worker.requests[row.name]
        config = self.ledger.config
        size = config.block_size
        end = min(request.computed, len(request.tokens))
        begin = config.first_attended(request.last_start)
        for group, table in enumerate(request.tables):
            for index in range(begin // size, min(len(table), -(-end // size))):
                place = (group, table[index])
                first, last = max(begin, index * size), min(end, (index + 1) * size)
                if place[1] == NO_BLOCK:
                    self.problems.append(_not_there(row.name, first))
                    return
                block = self._blocks.get(place)
                is_hit = (index + 1) * size <= request.hit
                resets = request.hit_epoch if is_hit else -1
                mark = (-1 if block is None else block.stamp, request.states[last], resets)
                if request.verified.get(place) == mark:
                    continue
                expected = request.states[first + 1 : last + 1]
                problem = self._problem_with(block, first % size, expected, resets)
                if problem:
                    kind, found = problem
                    self.problems.append(
                        Problem(
                            f"{'hit' if is_hit else 'read'}-{kind}",
                            row.name,
                            f"the KV of {row.name} in block {place[1]}",
                            found,
                        )
                    )
                    return
                request.verified[place] = mark

    def _problem_with(
        self, block: _Block | None, slot: int, expected: list[int], resets: int
    ) -> tuple[str, str] | None:
        """Return what is wrong with the KV in a block from ``slot`` on; None if nothing is."""
        if block is None:
            return "unwritten", "nothing was ever written there"
        for number, state in enumerate(expected, slot):
            held = block.slots[number]
            if held == state:
                continue
            if held is None:
                return "unwritten", f"nothing was ever written into its slot {number}"
            if held == _GARBAGE:
                return "failed-load", "a load that failed should have filled it"
            if held == _REFUSED:
                return "refused-draft", "the draft that was computed there was refused"
            return "foreign", f"slot {number} holds other KV, written last for {block.writer}"
        if block.resets < resets:
            return "stale", "it was written before the prefix cache was emptied"
        return None
