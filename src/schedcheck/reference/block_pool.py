"""The pool of KV blocks: who refers to them, and which prefix their content belongs to.

Rules
-----
- A block is free when nobody refers to it. A request refers to each block of its table, a step
  in flight to the blocks that were given back while it still writes them.
- The block that became free first is handed out first.
- A full block whose content is known may be *registered* under a key that stands for its whole
  prefix. It keeps its key when it becomes free, can be hit until it is handed out again, and then
  loses it. Two blocks may have one key; the first is the one that is hit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from schedcheck.model.output import NO_BLOCK


class BlockPool:
    """Hands out blocks 1 to ``blocks_total``."""

    def __init__(self, blocks_total: int) -> None:
        self.blocks_total = blocks_total
        self.free_blocks = deque(range(1, blocks_total + 1))
        self.refs: dict[int, int] = {}
        """References to each block that is not free."""
        self.key_of: dict[int, int] = {}
        self.blocks_of: dict[int, list[int]] = {}
        """Blocks registered under each key, the one to be hit first."""
        self.fenced: list[tuple[int, list[int]]] = []
        """Blocks given back while a step in flight may still write them: (step id, blocks)."""

    @property
    def blocks_free(self) -> int:
        """How many blocks can be handed out now."""
        return len(self.free_blocks)

    def allocate(self, count: int) -> list[int]:
        """Return so many blocks. The caller has made sure that they are there."""
        blocks = [self.free_blocks.popleft() for _ in range(count)]
        for block in blocks:
            self.unregister(block)
            self.refs[block] = 1
        return blocks

    def free(self, blocks: Iterable[int], *, after_step: int | None = None) -> None:
        """Take references back, at once or when a step in flight has returned."""
        given_back = [block for block in blocks if block != NO_BLOCK]
        if after_step is None:
            for block in given_back:
                self._drop(block)
        elif given_back:
            self.fenced.append((after_step, given_back))

    def _drop(self, block: int) -> None:
        left = self.refs.pop(block, 0) - 1
        if left > 0:
            self.refs[block] = left
        else:
            self.free_blocks.append(block)

    def step_returned(self, step_id: int) -> None:
        """Take back the references that waited for this step or an earlier one."""
        due = [blocks for fence, blocks in self.fenced if fence <= step_id]
        self.fenced = [(fence, blocks) for fence, blocks in self.fenced if fence > step_id]
        for blocks in due:
            self.free(blocks)

    # The prefix cache.

    def find(self, keys: Sequence[int]) -> list[int]:
        """Return the blocks registered under the longest run of ``keys`` from the first on."""
        found: list[int] = []
        for key in keys:
            blocks = self.blocks_of.get(key)
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def free_among(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks nobody refers to."""
        return sum(block not in self.refs for block in blocks)

    def refer(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block, free or not."""
        for block in blocks:
            if block not in self.refs:
                self.free_blocks.remove(block)
            self.refs[block] = self.refs.get(block, 0) + 1

    def register(self, block: int, key: int) -> None:
        """Let a full block be hit under a key."""
        if block not in self.key_of:
            self.key_of[block] = key
            self.blocks_of.setdefault(key, []).append(block)

    def unregister(self, block: int) -> None:
        """Let a block be hit no more."""
        key = self.key_of.pop(block, None)
        if key is not None:
            self.blocks_of[key].remove(block)
            if not self.blocks_of[key]:
                del self.blocks_of[key]

    def unregister_all(self) -> bool:
        """Empty the prefix cache; False, and nothing happens, while a block is in use."""
        if self.refs:
            return False
        self.key_of.clear()
        self.blocks_of.clear()
        return True
