"""What a recording says of a prompt: which parts it shares with others, and none of its tokens."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from schedcheck.model.request import OWN

_BLOCKS_MAX: Final = 256
"""How many blocks of a prompt are told apart from those of others."""


class PromptHasher:
    """Names the blocks of prompts, so that equal beginnings have equal names.

    A name is a keyed hash of all tokens up to the end of its block. The key is made anew for each
    recording and written nowhere: nobody can find out a prompt by trying.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._key = secrets.token_bytes(32)

    def segments(self, tokens: Sequence[int]) -> list[tuple[str, int]]:
        """Return a prompt as a RequestSpec has it; what is left after the last block is its own."""
        names = [(name, self.block_size) for name in self._names(tokens)]
        rest = len(tokens) - len(names) * self.block_size
        return [*names, (OWN, rest)] if rest or not names else names

    def _names(self, tokens: Sequence[int]) -> Iterator[str]:
        size = self.block_size
        hasher = hashlib.blake2b(key=self._key, digest_size=8)
        for begin in range(0, min(len(tokens) // size, _BLOCKS_MAX) * size, size):
            hasher.update(array("q", tokens[begin : begin + size]).tobytes())
            yield f"h{hasher.hexdigest()}"
