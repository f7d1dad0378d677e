"""What known issues do to a run: which were seen, which were missed, what they cut short.

Rules
-----
- An entry that was not seen is missed only where it could be expected: the run was not ended early,
  it was free to draw either dialect, it had at least TRACES_EXPECTED traces, and the invariant was
  put to the test. So ``quick`` and the narrow profiles never complain of an entry; ``ci`` and
  ``nightly`` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from attrs import Factory, define

from schedcheck.engine.events import Known, KnownResult
from schedcheck.judge import Judge
from schedcheck.model.known import KnownIssue
from schedcheck.model.verdict import Signature

TRACES_EXPECTED: Final = 4_000
"""Fewer traces (a whole ``ci`` run has so many) may miss a fault that is there: what one trace in
a thousand shows is then missed in less than two runs of a hundred."""


def signatures_of(issues: Sequence[KnownIssue]) -> frozenset[Signature]:
    """Return what known issues show."""
    return frozenset(Signature.parse(issue.signature) for issue in issues)


@define
class KnownTally:
    """Counts what known issues did to the traces of a run."""

    seen: Counter[str] = Factory(Counter)
    """Traces in which a known signature was seen."""
    dropped: Counter[str] = Factory(Counter)
    """Traces in which a signature was a consequence of known ones."""
    traces: int = 0
    traces_cut: int = 0

    def take(self, judge: Judge) -> None:
        """Count one trace."""
        self.seen.update(map(str, judge.known_seen))
        self.dropped.update(map(str, judge.dropped))
        self.traces += bool(judge.known_seen)
        self.traces_cut += judge.is_cut_short

    def invariants(self) -> set[str]:
        """Return the invariants that were violated as is known, or as a consequence of that."""
        return {Signature.parse(one).invariant for one in (*self.seen, *self.dropped)}

    def told(
        self, issues: Sequence[KnownIssue], *, tested: Collection[str], is_full: bool
    ) -> Known:
        """Return the account. ``tested`` are the invariants chosen that were put to the test.

        ``is_full`` says whether the run was long and wide enough to expect every entry of them.
        """
        return Known(
            results=tuple(
                KnownResult(
                    signature=issue.signature,
                    reason=issue.reason,
                    link=issue.link,
                    traces=self.seen[issue.signature],
                    is_missed=is_full
                    and not self.seen[issue.signature]
                    and Signature.parse(issue.signature).invariant in tested,
                    trace=issue.trace,
                )
                for issue in issues
            ),
            traces=self.traces,
            traces_cut=self.traces_cut,
            dropped=dict(sorted(self.dropped.items())),
        )
