"""The catalogue: pages that say what they must, and traces that show what they say and no more."""

from __future__ import annotations

import pytest
from attrs import evolve

from schedcheck import catalogue
from schedcheck.catalogue import check
from schedcheck.engine.explore import Scope, explore
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant, get
from schedcheck.model.actions import Add, Drain
from schedcheck.tracefile import read

ENTRIES = {entry.id: entry for entry in catalogue.entries()}
EVERYTHING = every_invariant()
WITH_TRACES = sorted(set(ENTRIES) - set(check.WITHOUT_MUTANT))


def test_every_invariant_has_a_page_and_every_page_an_invariant():
    assert sorted(ENTRIES) == [one.id for one in EVERYTHING]
    assert [] == list(check.of_folder())


@pytest.mark.parametrize("id_", sorted(ENTRIES))
def test_a_page_says_what_it_must(id_):
    assert [] == list(check.of_page(get(id_), ENTRIES[id_]))


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_the_minimal_trace_shows_its_signature_at_its_step(id_):
    assert [] == list(check.of_minimal(read(ENTRIES[id_].minimal), id_))


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_no_action_of_the_minimal_trace_can_be_removed(id_):
    assert [] == list(check.of_removals(read(ENTRIES[id_].minimal), id_))


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_the_minimal_trace_does_not_fail_on_the_correct_reference(id_):
    assert [] == list(check.of_silence(read(ENTRIES[id_].minimal), id_))


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_the_control_holds_and_is_not_vacuous(id_):
    assert [] == list(check.of_control(read(ENTRIES[id_].control), id_))


SHORTEST = [
    "REQ-001",
    "REQ-004",
    "REQ-005",
    "SCH-002",
    "SCH-003",
    "KV-001",
    "KV-002",
    "KV-005",
    "TOK-001",
    "TOK-002",
    "PRG-001",
]


def renamed(trace):
    """Name the requests r0, r1, ... in order, as exploration does."""
    names = {name: f"r{number}" for number, name in enumerate(trace.specs)}
    for action in trace.actions:
        if isinstance(action, Add):
            former = action.spec.engine_id_of
            yield evolve(action.spec, engine_id_of=names.get(former) if former else None)


@pytest.mark.parametrize("id_", SHORTEST)
def test_the_minimal_trace_is_as_short_as_the_shortest_there_is(id_):
    """Breadth-first search of the same configuration, with the same requests to choose from."""
    trace = read(ENTRIES[id_].minimal)
    scope = Scope(
        config=trace.header.config,
        menu=tuple(dict.fromkeys(renamed(trace))),
        adds_max=len(trace.specs),
        depth_max=len(trace.actions),
        drains=isinstance(trace.actions[-1], Drain),
    )
    found = explore(
        resolve(trace.header.target), scope, EVERYTHING, looking_for=trace.header.expect.signature
    )
    assert found.shortest is not None
    assert len(found.shortest.actions) == len(trace.actions)
