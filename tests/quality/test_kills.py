"""Every mutant is killed by what it declares, and by nothing that it does not."""

from __future__ import annotations

import pytest

from schedcheck.catalogue.check import of_columns, of_kills
from schedcheck.engine.hunt import hunt, kills_of
from schedcheck.engine.profiles import PROFILES
from schedcheck.reference.mutants.registry import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_is_killed_by_what_it_declares_and_a_variant_by_nothing(mutant):
    kills = kills_of(mutant)
    assert set(mutant.must_kill) <= kills.found
    assert kills.found <= {*mutant.must_kill, *mutant.may_kill}
    assert [] == list(of_kills(kills))


def test_every_invariant_kills_a_mutant():
    assert [] == list(of_columns())


@pytest.mark.parametrize("profile", ["pressure", "abort-storm", "transfers"])
def test_the_reference_raises_no_alarm(profile):
    """A false alarm is the worst defect there is."""
    played = list(hunt("reference", profile=PROFILES[profile], traces=100))
    assert (100, []) == (len(played), [one for one in played if one.findings])


def test_every_mutant_has_evidence_and_a_sentence():
    for mutant in MUTANTS:
        assert mutant.summary.endswith("."), mutant.name
        assert mutant.evidence, mutant.name
        assert all(link.startswith("https://github.com/") for link in mutant.evidence)
