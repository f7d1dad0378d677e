"""Known issues: what releases of an engine are known to show, so that a search goes on past it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from attrs import frozen

_NUMBERS: Final = re.compile(r"v?(\d+(?:\.\d+)*)")


@frozen(kw_only=True)
class KnownIssue:
    """One entry of the known-issue ledger: an engine, some of its releases and a signature."""

    engine: str
    """As the target calls itself: ``vllm``, ``reference+MUTANT``."""
    first: str = ""
    """The first release that shows it; empty: every version does, also one that is not said."""
    last: str = ""
    """The last one that does; empty: none is known to be free of it."""
    signature: str
    """``REQ-001/new-after-preemption``."""
    reason: str
    """What is wrong, in one sentence."""
    link: str
    """Where it was reported, or ``unreported``."""
    trace: str = ""
    """A trace that shows it, relative to the ledger's folder; empty: none is kept."""

    def covers(self, engine: str, version: str) -> bool:
        """Return whether this version of an engine is known to show it.

        A pre-release and a local build count as the release whose numbers they carry.
        """
        if engine != self.engine:
            return False
        if not self.first:
            return True
        number = release_of(version)
        if number is None or number < (release_of(self.first) or ()):
            return False
        return not self.last or number <= (release_of(self.last) or ())


def covering(issues: Iterable[KnownIssue], engine: str, version: str) -> tuple[KnownIssue, ...]:
    """Return the issues that this version of an engine is known to show."""
    return tuple(issue for issue in issues if issue.covers(engine, version))


def release_of(version: str) -> tuple[int, ...] | None:
    """Return a version's numbers without zeros at their end; None if it begins with none."""
    found = _NUMBERS.match(version)
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
