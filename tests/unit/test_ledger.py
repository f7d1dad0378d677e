"""The Ledger counts for itself: without it an engine's own wrong counters would be believed."""

from __future__ import annotations

import pytest
from making import Bench, new, resumed, running

from schedcheck.model.config import Dialect
from schedcheck.model.output import FinishReason, Load, Role
from schedcheck.model.snapshot import Status


@pytest.fixture
def bench() -> Bench:
    return Bench()


def run_once(bench: Bench, name: str = "r0") -> None:
    """Add a request and let it compute its prompt."""
    bench.add(name, max_tokens=4)
    bench.look(**{name: Status.RUNNING})
    bench.schedule(new(name, 2))
    bench.complete()


def test_a_preemption_is_a_change_of_status_from_running(bench):
    run_once(bench)
    bench.look(r0=Status.PREEMPTED)
    bench.glance()
    life = bench.ledger.lives["r0"]
    assert (1, True) == (life.times_preempted, life.preempted_since_scheduled)


def test_a_preemption_both_seen_and_announced_counts_once(bench):
    run_once(bench)
    bench.look(r0=Status.PREEMPTED)
    bench.schedule(preempted=("r0",))
    bench.schedule(preempted=("r0",))
    assert 1 == bench.ledger.lives["r0"].times_preempted


def test_promotion_after_a_load_is_not_another_preemption(bench):
    run_once(bench)
    bench.look(r0=Status.PREEMPTED)
    bench.glance()
    bench.look(r0=Status.WAITING_FOR_REMOTE_KVS)
    bench.schedule(loads=(Load(name="r0", start=0, count=2, is_async=True),))
    bench.look(r0=Status.PREEMPTED)
    bench.glance()
    assert 1 == bench.ledger.lives["r0"].times_preempted


@pytest.mark.parametrize("promoted", [Status.PREEMPTED, Status.WAITING, None])
def test_the_journey_is_the_same_whenever_the_engine_promotes(bench, promoted):
    run_once(bench)
    bench.look(r0=Status.PREEMPTED)
    bench.glance()
    bench.look(r0=Status.WAITING_FOR_REMOTE_KVS)
    bench.schedule(loads=(Load(name="r0", start=0, count=2, is_async=True),))
    bench.end_load("r0")
    if promoted is not None:
        bench.look(r0=promoted)
    while bench.ledger.in_flight:
        bench.complete()
    bench.look(r0=Status.RUNNING)
    bench.schedule(resumed("r0", 1, start=2))
    fact = bench.ledger.facts[0]
    assert "PREEMPTED -> WAITING_FOR_REMOTE_KVS -> resumed" == fact.journey


def test_facts_are_what_was_true_before_the_step(bench):
    run_once(bench)
    bench.schedule(running("r0", 2))
    fact = bench.ledger.facts[0]
    assert (True, 1, False) == (fact.known, fact.times_sent, fact.preempted)


def test_in_the_v2_dialect_workers_forget_what_they_are_told_was_preempted():
    bench = Bench(dialect=Dialect.V2)
    run_once(bench)
    bench.look(r0=Status.PREEMPTED)
    bench.schedule(preempted=("r0",))
    bench.look(r0=Status.RUNNING)
    bench.schedule(new("r0", 3))
    fact = bench.ledger.facts[0]
    assert (fact.known, fact.told_to_forget, fact.row.role) == (False, True, Role.NEW)


def test_a_load_is_open_until_its_end_is_reported(bench):
    bench.add("r0")
    bench.look(r0=Status.WAITING_FOR_REMOTE_KVS)
    bench.schedule(loads=(Load(name="r0", start=0, count=2, is_async=True),))
    assert ["r0"] == [life.name for life in bench.ledger.open_loads()]
    bench.end_load("r0")
    assert [] == bench.ledger.open_loads()
    assert not bench.ledger.is_quiet(), "ended, but the engine does not know yet"
    bench.complete()
    assert None is bench.ledger.lives["r0"].load


def test_an_end_must_be_announced_by_the_next_step_planned(bench):
    run_once(bench)
    bench.abort("r0")
    assert frozenset() == bench.ledger.unannounced
    bench.look()
    bench.schedule(finished=("r0",))
    assert frozenset({"r0"}) == bench.ledger.unannounced
    bench.schedule()
    assert frozenset() == bench.ledger.unannounced


def test_the_first_reason_to_finish_stands(bench):
    run_once(bench)
    bench.schedule(running("r0", 2))
    bench.abort("r0")
    bench.complete(finished={"r0": FinishReason.LENGTH})
    assert FinishReason.ABORTED is bench.ledger.lives["r0"].finished


def test_tokens_are_a_pure_function_of_the_prompt(bench):
    run_once(bench)
    life = bench.ledger.lives["r0"]
    assert life.delivered == [life.token_at(2)]
    assert life.state_at(3) != life.state_at(2)


@pytest.mark.parametrize("own", [True, False])
def test_a_load_from_a_users_store_is_what_the_request_had_asked_for(own):
    """What our own store holds stands in the request, and a load beyond it is a violation."""
    bench = Bench(own_store=own)
    bench.add("r0", remote_tokens=0, send_kv=False)
    bench.schedule(loads=(Load(name="r0", start=1, count=2, is_async=False),))
    spec = bench.ledger.lives["r0"].spec
    assert ((3, False) if own else (0, True)) == (spec.remote_tokens, spec.load_async)
    bench.schedule(new("r0", 2))
    bench.complete(sends=("r0",))
    assert own == bench.ledger.lives["r0"].spec.send_kv
