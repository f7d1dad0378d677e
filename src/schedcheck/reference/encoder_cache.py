"""The cache of encoder outputs: media that running requests need, or may need again."""

from __future__ import annotations

from collections.abc import Iterable


class EncoderCache:
    """Keeps encoder outputs by medium; what nobody needs goes when room is needed, oldest first."""

    def __init__(self, tokens_max: int) -> None:
        self.tokens_max = tokens_max
        self.entries: dict[str, int] = {}
        """Encoder tokens of each medium, in the order in which they came."""
        self.users: dict[str, set[str]] = {}
        """Requests that still need a medium, by their ids."""
        self.dropped: list[str] = []
        """Media dropped that the workers have not been told of yet."""

    def has(self, key: str) -> bool:
        """Return whether a medium's encoder output is there."""
        return key in self.entries

    def room(self, keep: Iterable[str] = ()) -> int:
        """Return how many tokens could be put in, if all that nobody needs went but ``keep``."""
        needed = {key for key in self.entries if self.users.get(key)}.union(keep)
        return self.tokens_max - sum(self.entries.get(key, 0) for key in needed)

    def put(self, key: str, tokens: int) -> None:
        """Add a medium. The caller has made sure that there is room, and needs it."""
        for other in list(self.entries):
            if sum(self.entries.values()) + tokens <= self.tokens_max:
                break
            if not self.users.get(other):
                del self.entries[other]
                self.dropped.append(other)
        self.entries[key] = tokens

    def use(self, key: str, request_id: str) -> None:
        """Note that a request needs a medium until it says otherwise."""
        self.users.setdefault(key, set()).add(request_id)

    def release(self, key: str, request_id: str) -> None:
        """Note that a request needs a medium no more."""
        users = self.users.get(key)
        if users is not None:
            users.discard(request_id)
            if not users:
                del self.users[key]
