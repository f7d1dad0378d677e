"""Faults in the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable

from schedcheck.model.output import FinishReason
from schedcheck.model.tokens import ROOT, extend, root_of
from schedcheck.reference.block_pool import BlockPool
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler


class HitAcrossAdapters(Scheduler):
    """The key of a block does not depend on the adapter."""

    def root_key(self, request: Request) -> int:
        """Leave the adapter out."""
        return ROOT if request.spec.salt is None else super().root_key(request)


class HitAcrossSalts(Scheduler):
    """The key of a block does not depend on the salt."""

    def root_key(self, request: Request) -> int:
        """Leave the salt out."""
        return ROOT if request.spec.adapter is None else root_of(request.spec)


class HitByLastBlockOnly(Scheduler):
    """The key of a block depends on its own tokens, not on those before it."""

    def keys_of(self, request: Request, tokens: int) -> list[int]:
        """Hash each block by itself."""
        size, keys = self.config.block_size, []
        known = request.all_token_ids
        for start in range(0, tokens - tokens % size, size):
            key = self.root_key(request)
            for token in known[start : start + size]:
                key = extend(key, token)
            keys.append(key)
        return keys


class FailedLoadCached(Scheduler):
    """Blocks that a load should have filled are registered before its end is known."""

    def load_finished(self, request: Request, bad_block: int | None) -> None:
        """Register all of them."""
        super().load_finished(request, bad_block)
        if not request.is_finished:
            keys = self.keys_of(request, request.tokens_loading)
            for block, key in zip(request.block_ids, keys, strict=False):
                self.pool.register(block, key)


class ResetKeepsHashes(Scheduler):
    """A reset of the prefix cache succeeds, and the blocks can be hit as before."""

    def reset_cache(self) -> bool:
        """Only say whether it could be done."""
        return not self.pool.refs


class _StealingPool(BlockPool):
    """Now and then hands out a block that is cached and in use."""

    def __init__(self, blocks_total: int) -> None:
        super().__init__(blocks_total)
        self.calls = 0

    def allocate(self, count: int) -> list[int]:
        in_use = [block for block in self.key_of if block in self.refs]
        blocks = super().allocate(count)
        self.calls += count > 0
        if blocks and in_use and self.calls % 4 == 0:
            self.free(blocks[:1])
            blocks[0] = in_use[0]
            self.refs[in_use[0]] += 1
        return blocks


class CachedBlockHandedOut(Scheduler):
    """A block that is cached and in use is handed out as if it were free."""

    pool_class = _StealingPool


class ReferenceNotTakenOnHit(Scheduler):
    """A block that is hit while another request holds it gets no reference of its own."""

    class _Pool(BlockPool):
        def refer(self, blocks: Iterable[int]) -> None:
            super().refer([block for block in blocks if block not in self.refs])

    pool_class = _Pool


class UsedBlockEvicted(Scheduler):
    """A cached block that is hit stays in the free list, and is handed out again."""

    class _Pool(BlockPool):
        def refer(self, blocks: Iterable[int]) -> None:
            for block in blocks:
                self.refs[block] = self.refs.get(block, 0) + 1

    pool_class = _Pool


class NegativeHitCount(Scheduler):
    """The count of hit tokens is taken after a preemption, and goes below zero."""

    def preempt(self, request: Request) -> None:
        """Take what was computed off what was hit."""
        computed = request.num_computed_tokens
        super().preempt(request)
        if request.cached_tokens is not None:
            hit, loaded = request.cached_tokens
            request.cached_tokens = (hit - computed, loaded)


class LeakOnPreemption(Scheduler):
    """A preemption keeps a reference to the last block of the request."""

    def preempt(self, request: Request) -> None:
        """Take one block out of the table before it is given back."""
        if len(request.block_ids) > 1:
            request.block_ids.pop()
        super().preempt(request)


class ReferenceLeftByAbort(Scheduler):
    """An abort leaves a reference to a block that others hold as well."""

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Count the first block once more."""
        if reason is FinishReason.ABORTED and request.block_ids:
            first = request.block_ids[0]
            if self.pool.refs.get(first, 0) > 1:
                self.pool.refs[first] += 1
        super().finish(request, reason)


class WindowTooShort(Scheduler):
    """A block is given back one block before the window has left it."""

    def blocks_behind_window(self, request: Request) -> int:
        """Count one block too many."""
        held = len(request.block_ids)
        return min(super().blocks_behind_window(request) + 1, held)
