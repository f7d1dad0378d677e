"""The prefix cache: which blocks can be hit, and what of a request others may hit."""

from __future__ import annotations

from schedcheck.model.output import NO_BLOCK
from schedcheck.model.tokens import extend, root_of
from schedcheck.reference.request import Request
from schedcheck.reference.state import State


class PrefixCache(State):
    """Hits and registers full blocks (rules 10 to 12)."""

    def blocks_hit(self, request: Request) -> list[int]:
        """Return the blocks that a request without any can share (rule 10)."""
        if not self.config.prefix_caching or request.block_ids:
            return []
        return self.pool.find(self.keys_of(request, self.tokens_to_hit(request)))

    def tokens_to_hit(self, request: Request) -> int:
        """Return how many tokens may be hit at most: one is always left to compute."""
        return request.num_tokens - 1

    def keys_of(self, request: Request, tokens: int) -> list[int]:
        """Return the keys of the full blocks among a request's first tokens."""
        size = self.config.block_size
        count = tokens // size
        known = request.all_token_ids
        while len(request.block_keys) < count:
            start = len(request.block_keys) * size
            key = request.block_keys[-1] if request.block_keys else self.root_key(request)
            for token in known[start : start + size]:
                key = extend(key, token)
            request.block_keys.append(key)
        return request.block_keys[:count]

    def root_key(self, request: Request) -> int:
        """Return the key of no block at all: adapters and salts share nothing (rule 11)."""
        return root_of(request.spec)

    def register_blocks(self, request: Request) -> None:
        """Let others hit the full blocks that are computed, or will be in this step (rule 12)."""
        if not self.config.prefix_caching or request.loads_in_step:
            return
        keys = self.keys_of(request, min(request.num_computed_tokens, request.num_tokens))
        for block, key in zip(request.block_ids, keys, strict=False):
            if block != NO_BLOCK:
                self.pool.register(block, key)

    def reset_cache(self) -> bool:
        """Empty the prefix cache (rule 13); False while blocks are in use."""
        return self.pool.unregister_all()
