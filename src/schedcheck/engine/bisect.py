"""Which releases a trace fails on, asking as few of them as can be.

Rules
-----
- A release decides something if the trace FAILED there, with its own signature, or was FIXED.
  With any other outcome it is passed over: it says nothing about itself or its neighbours.
- From a release that fails the search goes outward, in each direction to the far end first and
  then to the middle of what lies between a failing and a fixed release, until nothing does.
- Where few releases are asked about, or none is known to fail, every one of them is tried.
- A fault may come and go: what was tried is told as it was, and what was not is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, field, frozen

from schedcheck.engine.events import Outcome

FEW: Final = 6
"""So many releases are all tried: halving would hardly save one."""


@frozen(kw_only=True)
class Tried:
    """What a trace showed on one release."""

    release: str
    """Its version."""
    outcome: Outcome
    """ERROR also stands for a release that cannot be prepared or loaded."""
    reason: str = ""
    """One sentence: what was seen, why it drifted or could not be loaded."""

    @property
    def fails(self) -> bool | None:
        """Whether the trace shows its own signature here; None: this release does not tell."""
        return {Outcome.FAILED: True, Outcome.FIXED: False}.get(self.outcome)


Attempt = Callable[[str], Tried]
"""Replays the trace on the release of that version."""


@define
class Bisection:
    """A search for the releases on which a trace fails; what is known can be read at any time."""

    releases: Sequence[str]
    """Those asked about, oldest first."""
    attempt: Attempt
    _tried: dict[str, Tried] = field(init=False, factory=dict)

    def run(self, known_to_fail: str, *, every: bool = False) -> None:
        """Search outward from a release on which the trace should fail, or try ``every`` one.

        What ``attempt`` raises passes. A release that is not among those asked about, or on which
        the trace does not fail after all, is nothing to search from: then every one is tried.
        """
        is_few = every or len(self.releases) <= FEW
        if is_few or known_to_fail not in self.releases or not self._ask(known_to_fail):
            for release in self.releases:
                self._ask(release)
            return
        start = self.releases.index(known_to_fail)
        self._outward(self.releases[start + 1 :])
        self._outward(self.releases[:start][::-1])

    def _ask(self, release: str) -> bool | None:
        if release not in self._tried:
            self._tried[release] = self.attempt(release)
        return self._tried[release].fails

    def _outward(self, ahead: Sequence[str]) -> None:
        """Find where a fault ends among the releases ahead of a failing one, nearest first."""
        left = list(ahead)
        place = len(left) - 1
        while left:
            fails = self._ask(left[place])
            if fails is None:
                del left[place]
            else:
                left = left[place + 1 :] if fails else left[:place]
            place = len(left) // 2

    @property
    def tried(self) -> tuple[Tried, ...]:
        """What was tried, oldest release first."""
        return tuple(self._tried[one] for one in self.releases if one in self._tried)

    @property
    def failing(self) -> tuple[str, ...]:
        """The releases on which the trace fails, oldest first."""
        return tuple(one.release for one in self.tried if one.fails)

    @property
    def fixed(self) -> tuple[str, ...]:
        """The releases on which it was carried out whole and did not fail, oldest first."""
        return tuple(one.release for one in self.tried if one.fails is False)
