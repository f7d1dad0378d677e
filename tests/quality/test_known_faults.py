"""Going on after a known fault: whatever a mutant does to a scheduler, nothing of ours breaks."""

from __future__ import annotations

import pytest
from attrs import evolve

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Ended
from schedcheck.engine.hunt import target_text_of
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.known import KnownIssue
from schedcheck.model.verdict import Verdict
from schedcheck.reference.mutants.registry import MUTANTS, Mutant

TRACES = 12
FAULTY = [mutant for mutant in MUTANTS if not mutant.is_variant]


def run(target: str, known: tuple[str, ...]) -> Ended:
    """Run a few traces, in which every signature of those given is known."""
    events: list = []
    Campaign(
        target=resolve(target),
        target_text=target,
        profile=evolve(PROFILES["quick"], traces=TRACES),
        invariants=every_invariant(),
        seed=5,
        emit=events.append,
        known=tuple(
            KnownIssue(engine=target, signature=one, reason="A mutant.", link="unreported")
            for one in known
        ),
        executions_max=0,
    ).run()
    ended = events[-1]
    assert isinstance(ended, Ended)
    return ended


@pytest.mark.parametrize("mutant", FAULTY, ids=lambda mutant: mutant.name)
def test_a_trace_goes_on_after_whatever_a_mutant_does(mutant: Mutant):
    """Otherwise a run of a release with a known fault would end in a fault of our own."""
    target = target_text_of(mutant)
    first = run(target, ())
    shown = tuple(first.seen.signatures)
    ended = run(target, shown)
    assert (bool(shown), TRACES) == (ended.known.traces > 0, ended.traces)
    assert not set(shown) & set(ended.seen.signatures)
    assert [] == [one.id for one in ended.results if one.verdict is Verdict.UNKNOWN]
    if not ended.known.traces_cut and not ended.seen.signatures:
        assert ended.actions >= first.actions
