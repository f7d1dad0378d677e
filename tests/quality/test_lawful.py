"""Nothing fires on lawful behaviour: one small trace for each, and many random ones."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from attrs import evolve
from lookout import BEHAVIOURS, Lookout

from schedcheck import catalogue
from schedcheck.engine.executor import Executor
from schedcheck.engine.moves import INTEGER_BITS, decode, drain_for, why_not
from schedcheck.engine.profiles import PROFILES, draw_load
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.judge import Judge
from schedcheck.model.actions import Drain
from schedcheck.tracefile import SUFFIX, read

EVERYTHING = every_invariant()
FOLDER = catalogue.folder() / "controls"
TRACES = 120


def watched(trace):
    """Play a trace as far as it is eligible; return what it showed, and whether it is a control."""
    target = resolve(trace.header.target)
    judge, lookout, seen = (
        Judge(trace.header.config, target.capabilities, EVERYTHING),
        Lookout(),
        set(),
    )
    executor = Executor(
        target.open(trace.header.config),
        judge,
        lambda event: seen.update(lookout.see(event, judge.ledger)),
    )
    played = []
    for action in trace.actions:
        if why_not(action, judge.ledger, target.capabilities) is None:
            played.append(action)
            if executor.apply(action).findings:
                return seen, False
    return seen, bool(played) and isinstance(played[-1], Drain) and not judge.ledger.live()


def test_every_lawful_behaviour_has_its_control_and_every_control_its_behaviour():
    assert sorted(BEHAVIOURS) == sorted(
        path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}")
    )


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_the_control_shows_its_behaviour_and_nothing_fires(name):
    seen, is_control = watched(read(FOLDER / f"{name}{SUFFIX}"))
    assert is_control
    assert name in seen


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_no_action_of_the_control_can_be_removed(name):
    trace = read(FOLDER / f"{name}{SUFFIX}")
    for index in range(len(trace.actions)):
        fewer = evolve(trace, actions=trace.actions[:index] + trace.actions[index + 1 :])
        seen, is_control = watched(fewer)
        assert not (is_control and name in seen), f"without action {index + 1}"


@pytest.fixture(scope="module")
def seen() -> Counter:
    """Play random traces, on which nothing may fire, and count the behaviours they show."""
    counter: Counter = Counter()
    profiles = [PROFILES[name] for name in ("quick", "pressure", "abort-storm", "transfers")]
    for number in range(TRACES):
        rng = Random(f"lawful/{number}")
        target = resolve("reference+drafts-by-number" if number % 4 == 0 else "reference")
        load = draw_load(target, profiles[number % 4], rng)
        judge, lookout = Judge(load.config, target.capabilities, EVERYTHING), Lookout()
        executor = Executor(target.open(load.config), judge)
        executor.watch = lambda event, look=lookout, judge=judge: counter.update(
            set(look.see(event, judge.ledger))
        )
        for _ in range(60):
            action = decode(rng.getrandbits(INTEGER_BITS), judge.ledger, load)
            assert () == executor.apply(action).findings, f"trace {number}"
        assert () == executor.apply(drain_for(judge.ledger)).findings, f"trace {number}"
    return counter


def test_random_traces_reach_nearly_all_of_them(seen):
    """Otherwise an over-strict checker would go unnoticed for as long as nothing took its path."""
    missing = [name for name in BEHAVIOURS if not seen[name]]
    assert len(missing) <= 3, missing
