"""The catalogue: pages that say what they must, and traces that show what they say and no more."""

from __future__ import annotations

import pytest
from attrs import evolve

from schedcheck import catalogue
from schedcheck.engine.events import Outcome
from schedcheck.engine.explore import Scope, explore
from schedcheck.engine.play import play_actions
from schedcheck.engine.replay import replay
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant, get
from schedcheck.model.actions import Add, Drain
from schedcheck.reference.mutants.registry import MUTANTS
from schedcheck.tracefile import read

ENTRIES = {entry.id: entry for entry in catalogue.entries()}
EVERYTHING = every_invariant()
WITHOUT_TRACES = {"ENG-002": "a scheduler that hangs cannot be replayed in this process"}
WITH_TRACES = sorted(set(ENTRIES) - set(WITHOUT_TRACES))
HEADINGS = (
    "## Statement",
    "## Why it matters",
    "## How it is checked",
    "## Upstream evidence",
    "## Not covered",
)


def test_every_invariant_has_a_page_and_every_page_an_invariant():
    assert sorted(ENTRIES) == [one.id for one in EVERYTHING]


@pytest.mark.parametrize("id_", sorted(ENTRIES))
def test_a_page_says_what_it_must(id_):
    lines = ENTRIES[id_].page.read_text("utf-8").splitlines()
    assert f"# {id_} {get(id_).title}" == lines[0]
    assert list(HEADINGS) == [line for line in lines if line.startswith("## ")]
    for link in get(id_).evidence:
        assert any(link in line for line in lines), link


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_the_minimal_trace_shows_its_signature_at_its_step(id_):
    trace = read(ENTRIES[id_].minimal)
    target = resolve(trace.header.target)
    told = replay(target, trace.header.target, trace)
    assert Outcome.FAILED is told.outcome, told.reason
    assert id_ == trace.header.expect.signature.invariant
    assert trace.header.expect.step == told.failure.complaint.step == len(trace.actions)
    mutant = next(m for m in MUTANTS if trace.header.target == f"reference+{m.name}")
    assert id_ in mutant.must_kill
    shown = {told.failure.complaint.invariant, *(one.invariant for one in told.failure.others)}
    assert shown <= {*mutant.must_kill, *mutant.may_kill}


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_no_action_of_the_minimal_trace_can_be_removed(id_):
    trace = read(ENTRIES[id_].minimal)
    target = resolve(trace.header.target)
    for index in range(len(trace.actions)):
        actions = trace.actions[:index] + trace.actions[index + 1 :]
        played = play_actions(target, trace.header, actions, EVERYTHING, lenient=True)
        signatures = {finding.signature for finding in played.findings}
        assert trace.header.expect.signature not in signatures, f"without action {index + 1}"


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_the_minimal_trace_does_not_fail_on_the_correct_reference(id_):
    trace = read(ENTRIES[id_].minimal)
    played = play_actions(
        resolve("reference"), trace.header, trace.actions, EVERYTHING, lenient=True
    )
    assert () == played.findings


@pytest.mark.parametrize("id_", WITH_TRACES)
def test_the_control_holds_and_is_not_vacuous(id_):
    trace = read(ENTRIES[id_].control)
    assert ("reference", id_) == (trace.header.target, trace.header.witness)
    told = replay(resolve("reference"), "reference", trace)
    assert Outcome.HOLDS is told.outcome, told.reason


def test_every_invariant_kills_a_mutant():
    killed = {id_ for mutant in MUTANTS for id_ in mutant.must_kill}
    assert set(ENTRIES) - set(WITHOUT_TRACES) == killed


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
