"""What a request asks for, as data."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen
from attrs.validators import ge, optional

OWN: Final = "own"
"""The prompt stream that belongs to one request alone."""
OUTPUT_OF: Final = "output:"
"""Prefix of a prompt stream made of another request's output: ``output:r2``."""


@frozen(kw_only=True)
class RequestSpec:
    """One request, described without any token: tokens follow from it by the toy model.

    ``prompt`` is a list of segments ``(stream, length in tokens)``. A stream is a shared name
    (equal in every request that uses it), ``own``, or ``output:r2`` for a later turn of the
    conversation that ``r2`` began.
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

    @property
    def prompt_tokens_count(self) -> int:
        """How many tokens the prompt has."""
        return sum(length for _, length in self.prompt)

    @property
    def total_tokens_max(self) -> int:
        """Prompt plus the most it may generate, in tokens."""
        return self.prompt_tokens_count + self.max_tokens
