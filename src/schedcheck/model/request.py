"""What a request asks for, as data."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from attrs import field, frozen
from attrs.validators import ge, optional

OWN: Final = "own"
"""The prompt stream that belongs to one request alone."""
OUTPUT_OF: Final = "output:"
"""Prefix of a prompt stream made of another request's output: ``output:r2``."""
MEDIA: Final = "media:"
"""Prefix of a prompt stream that is a medium, an image say: ``media:cat``."""


@frozen
class MediaItem:
    """One medium in a prompt: its encoder output is needed when its tokens are computed."""

    key: str
    """What it is: equal in every request that shows the same."""
    offset: int
    """Position of its first token in the prompt."""
    tokens: int

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.offset + self.tokens

    def is_within(self, start: int, end: int) -> bool:
        """Return whether some of its tokens are among those from ``start`` up to ``end``."""
        return self.end > start and self.offset < end


@frozen(kw_only=True)
class RequestSpec:
    """One request, described without any token: tokens follow from it by the toy model.

    ``prompt`` is a list of segments ``(stream, length in tokens)``. A stream is a shared name
    (equal in every request that uses it), ``own``, ``output:r2`` for a later turn of the
    conversation that ``r2`` began, or ``media:cat`` for a medium.
    """

    prompt: tuple[tuple[str, int], ...]
    max_tokens: int = field(default=1, validator=ge(1))
    """At most so many output tokens; the request then finishes as length-capped."""
    stop_at: int | None = field(default=None, validator=optional(ge(0)))
    """Index of the output token that is a stop token, from 0; None: it never stops by itself."""
    priority: int = 0
    """Smaller is more urgent, as in vLLM; only the priority policy reads it."""
    remote_tokens: int = field(default=0, validator=ge(0))
    """How many of the first prompt tokens a KV store outside holds (absolute, not beyond local)."""
    load_async: bool = True
    """Whether these load while others run (True) or within the step that admits the request."""
    send_kv: bool = False
    """Whether its KV is sent elsewhere at its end, so that its blocks stay until the send ends."""
    engine_id_of: str | None = None
    """The earlier request whose engine id this one reuses; None: an id of its own."""
    lookup_undecided: bool = False
    """Whether the KV store outside says at first that it does not know yet what it holds."""
    grammar: bool = False
    """Whether its output is structured, so that it waits until its grammar is compiled."""
    adapter: str | None = None
    """The adapter (LoRA) it uses: equal tokens mean other KV under another adapter."""
    salt: str | None = None
    """Its cache salt: equal tokens are not shared across salts."""
    drafts: tuple[tuple[int, int], ...] = ()
    """Speculative decoding: each time it samples, the next ``(proposed, accepted)`` of this list,
    which is gone through again and again, says how many drafts the workers propose for it and how
    many of these are right."""
    chunks: tuple[int, ...] = ()
    """Lengths in tokens of the further inputs of a streaming session. Each is answered with up to
    ``max_tokens`` tokens. The last token of an answer is not part of the session."""
    chunk_max_tokens: tuple[int, ...] = ()
    """``max_tokens`` of the answers to the first of these inputs, where it is another one."""

    @property
    def prompt_tokens_count(self) -> int:
        """How many tokens the prompt has."""
        return sum(length for _, length in self.prompt)

    @property
    def total_tokens_max(self) -> int:
        """Prompt, later chunks and the most it may generate, in tokens."""
        answers = sum(self.max_tokens_in(turn) for turn in range(1 + len(self.chunks)))
        return self.prompt_tokens_count + sum(self.chunks) + answers

    def max_tokens_in(self, turn: int) -> int:
        """Return ``max_tokens`` of a turn: 0 is the answer to the prompt, 1 to the first chunk."""
        if 1 <= turn <= len(self.chunk_max_tokens):
            return self.chunk_max_tokens[turn - 1]
        return self.max_tokens

    def output_tokens_in(self, turn: int) -> int:
        """Return how many tokens a turn ends with at the latest, its stop token included."""
        limit = self.max_tokens_in(turn)
        return limit if self.stop_at is None else min(limit, self.stop_at + 1)

    @property
    def media(self) -> tuple[MediaItem, ...]:
        """The media in its prompt, in order."""
        return media_in(self.prompt)


@lru_cache(maxsize=1024)
def media_in(prompt: tuple[tuple[str, int], ...]) -> tuple[MediaItem, ...]:
    """Return the media in a prompt, in order."""
    found: list[MediaItem] = []
    offset = 0
    for stream, length in prompt:
        if stream.startswith(MEDIA) and length:
            found.append(MediaItem(stream.removeprefix(MEDIA), offset, length))
        offset += length
    return tuple(found)
