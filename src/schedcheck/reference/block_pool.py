"""The pool of KV blocks: each is free, or belongs to exactly one request."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """Hands out blocks 1 to ``blocks_total``; the block freed first is handed out first."""

    def __init__(self, blocks_total: int) -> None:
        self.blocks_total = blocks_total
        self.free_blocks = deque(range(1, blocks_total + 1))
        self.fenced: list[tuple[int, list[int]]] = []
        """Blocks given back while a step in flight may still write them: (step id, blocks)."""

    @property
    def blocks_free(self) -> int:
        """How many blocks can be handed out now."""
        return len(self.free_blocks)

    def allocate(self, count: int) -> list[int]:
        """Return so many blocks. The caller has made sure that they are there."""
        return [self.free_blocks.popleft() for _ in range(count)]

    def free(self, blocks: Iterable[int], *, after_step: int | None = None) -> None:
        """Take blocks back, at once or when a step in flight has returned."""
        given_back = list(blocks)
        if after_step is None:
            self.free_blocks.extend(given_back)
        elif given_back:
            self.fenced.append((after_step, given_back))

    def step_returned(self, step_id: int) -> None:
        """Free the blocks that waited for this step or an earlier one."""
        for fence, blocks in self.fenced:
            if fence <= step_id:
                self.free_blocks.extend(blocks)
        self.fenced = [(fence, blocks) for fence, blocks in self.fenced if fence > step_id]
