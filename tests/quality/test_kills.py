"""Every mutant is killed by what it declares, and by nothing that it does not."""

from __future__ import annotations

from contextlib import suppress

import pytest
from attrs import evolve

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Ended, Found
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.verdict import Verdict
from schedcheck.reference.mutants.registry import MUTANTS

EVERYTHING = every_invariant()
TRACES = PROFILES["quick"].traces


class Enough(Exception):
    """What had to be found has been found."""


def violated(target: str, *, profile: str = "quick", traces: int, until: frozenset[str]) -> set:
    """Return the invariants that a run without shrinking finds violated."""
    found: set[str] = set()

    def emit(event):
        if isinstance(event, Found):
            complaints = (event.failure.complaint, *event.failure.others)
            found.update(one.invariant for one in complaints)
            if until and until <= found:
                raise Enough
        if isinstance(event, Ended):
            found.update(one.id for one in event.results if one.verdict is Verdict.VIOLATED)

    campaign = Campaign(
        target=resolve(target),
        target_text=target,
        profile=evolve(PROFILES[profile], traces=traces),
        invariants=EVERYTHING,
        seed=0,
        emit=emit,
        executions_max=0,
    )
    with suppress(Enough):
        campaign.run()
    return found


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if not one.is_variant], ids=lambda one: one.name
)
def test_a_mutant_is_killed_by_what_it_declares(mutant):
    must = frozenset(mutant.must_kill)
    found = violated(f"reference+{mutant.name}", traces=TRACES, until=must)
    assert must <= found
    assert found <= must | set(mutant.may_kill)


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.is_variant], ids=lambda one: one.name
)
def test_a_variant_is_killed_by_nothing(mutant):
    assert set() == violated(f"reference+{mutant.name}", traces=200, until=frozenset())


@pytest.mark.parametrize("profile", ["pressure", "abort-storm", "transfers"])
def test_the_reference_raises_no_alarm(profile):
    """A false alarm is the worst defect there is."""
    found = violated("reference", profile=profile, traces=100, until=frozenset())
    assert set() == found


def test_every_mutant_has_evidence_and_a_sentence():
    for mutant in MUTANTS:
        assert mutant.summary.endswith("."), mutant.name
        assert mutant.evidence, mutant.name
        assert all(link.startswith("https://github.com/") for link in mutant.evidence)
