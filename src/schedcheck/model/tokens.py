"""The toy language model: a pure function from the tokens before to the next one.

Rules
-----
- The state after a prefix is a 64-bit value, mixed from the state before and the token. Two
  prefixes have equal states exactly when (up to 2**-64) they are equal token for token.
- The next token is a function of the state alone. Equal prefixes therefore continue equally,
  prefix sharing is real, and a token that is lost, repeated, swapped or invented shows.
- Nothing here uses Python's ``hash``: a trace means the same in every process and for ever.
- Values below FIRST_TOKEN are reserved: a stop token, and drafts that must be refused.
- The state before any token depends on adapter and salt, under which equal tokens are other KV.

Blind spot: tokens dropped and sampled again look like tokens kept, since the function is pure.
The Ledger therefore counts positions sampled and positions delivered besides comparing values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from schedcheck.model.request import OUTPUT_OF, OWN, RequestSpec

STOP_TOKEN: Final = 7
"""The token at a request's ``stop_at``."""
WRONG_DRAFT: Final = 8
"""A draft that no prefix continues with, so that it is always refused."""
UNKNOWN_DRAFT: Final = -1
"""Stands in a step for a draft that only the workers know."""
FIRST_TOKEN: Final = 1000
"""The smallest token that is not reserved."""
LAST_TOKEN: Final = 2**31 - 1
"""The largest token: engines keep tokens in 32 bits."""

_MASK: Final = 2**64 - 1
ROOT: Final = 0x5C4EDC4EC0FFEE01
"""The state before any token."""


class UnknownStream(ValueError):
    """A prompt names the output of a request that was never added."""


def mix(value: int) -> int:
    """Scatter 64 bits so that neighbours have nothing in common (the splitmix64 finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def extend(state: int, token: int) -> int:
    """Return the state after one more token."""
    return mix(state ^ ((token * 0xD6E8FEB86659FD93) & _MASK))


def state_of(tokens: Iterable[int], *, root: int = ROOT) -> int:
    """Return the state after all of ``tokens``."""
    state = root
    for token in tokens:
        state = extend(state, token)
    return state


def root_of(spec: RequestSpec) -> int:
    """Return the state of a request before any token: it differs by adapter and salt."""
    if spec.adapter is None and spec.salt is None:
        return ROOT
    return _root_of(spec.adapter, spec.salt)


@lru_cache(maxsize=1024)
def _root_of(adapter: str | None, salt: str | None) -> int:
    return _text_state(f"adapter {adapter or ''} salt {salt or ''}")


def token_in(state: int) -> int:
    """Return the token that follows a prefix with this state."""
    return FIRST_TOKEN + mix(state ^ 0x7F4A7C15) % (LAST_TOKEN - FIRST_TOKEN)


def next_token(spec: RequestSpec, *, state: int, output_index: int) -> int:
    """Return the output token number ``output_index`` (from 0) of a request."""
    return STOP_TOKEN if output_index == spec.stop_at else token_in(state)


def prompt_tokens(name: str, specs: Mapping[str, RequestSpec]) -> tuple[int, ...]:
    """Return the prompt of request ``name``.

    ``specs`` holds every request added so far, ``name`` among them. Raises UnknownStream when a
    segment is the output of a request that is not there, or of ``name`` itself.
    """
    return _prompt_of(name, specs, frozenset())


def chunk_tokens(name: str, spec: RequestSpec, number: int) -> tuple[int, ...]:
    """Return chunk ``number`` (from 0) of a streaming session, in tokens."""
    root = _text_state(f"chunk {number} of {name}")
    return tuple(token_in(root ^ mix(index)) for index in range(spec.chunks[number]))


def _prompt_of(
    name: str, specs: Mapping[str, RequestSpec], within: frozenset[str]
) -> tuple[int, ...]:
    tokens: list[int] = []
    for stream, length in specs[name].prompt:
        if stream.startswith(OUTPUT_OF):
            tokens += _output_of(stream.removeprefix(OUTPUT_OF), length, specs, within | {name})
        else:
            root = _text_state(f"own {name}" if stream == OWN else f"shared {stream}")
            tokens += [token_in(root ^ mix(index)) for index in range(length)]
    return tuple(tokens)


def _output_of(
    name: str, length: int, specs: Mapping[str, RequestSpec], within: frozenset[str]
) -> list[int]:
    if name not in specs or name in within:
        raise UnknownStream(f"the prompt of a request continues {name!r}, which is not added yet")
    state = state_of(_prompt_of(name, specs, within), root=root_of(specs[name]))
    tokens: list[int] = []
    for index in range(length):
        token = next_token(specs[name], state=state, output_index=index)
        tokens.append(token)
        state = extend(state, token)
    return tokens


def _text_state(text: str) -> int:
    return state_of(text.encode())
