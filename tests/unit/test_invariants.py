"""Each invariant by hand: every kind of mismatch once, and its lawful neighbours."""

from __future__ import annotations

import pytest
from attrs import evolve
from making import EVERYTHING, Bench, new, resumed, running

from schedcheck.invariants import registry
from schedcheck.judge import Judge
from schedcheck.model.actions import IDLE_ROUNDS_MAX, Pause
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, LoadFailurePolicy, SchedulerConfig
from schedcheck.model.output import FinishReason, Load
from schedcheck.model.snapshot import RequestView, Snapshot, Status
from schedcheck.model.trace import Crashed, Hung, Malformed


@pytest.fixture
def bench() -> Bench:
    """Return a judge that has seen r0 compute its prompt of 2 and deliver one token of 4."""
    return started(Bench())


def started(bench: Bench) -> Bench:
    bench.add("r0", max_tokens=4)
    bench.look(r0=Status.RUNNING)
    assert [] == bench.schedule(new("r0", 2))
    assert [] == bench.complete()
    return bench


def preempt(bench: Bench, *, tell: bool = True) -> None:
    bench.look(r0=Status.PREEMPTED)
    assert [] == bench.schedule(preempted=("r0",) if tell else ())
    assert [] == bench.complete()


def known(bench: Bench) -> tuple[int, ...]:
    life = bench.ledger.lives["r0"]
    return (*life.prompt, *life.delivered)


class TestREQ001:
    def test_new_after_preemption(self, bench):
        preempt(bench)
        bench.look(r0=Status.RUNNING)
        assert ["REQ-001/new-after-preemption"] == bench.schedule(new("r0", 3))

    def test_running_after_preemption(self, bench):
        preempt(bench)
        bench.look(r0=Status.RUNNING)
        assert ["REQ-001/running-after-preemption"] == bench.schedule(running("r0", 0, 3))

    def test_resumed_is_lawful(self, bench):
        preempt(bench)
        bench.look(r0=Status.RUNNING)
        assert [] == bench.schedule(resumed("r0", 3, known=known(bench)))

    def test_a_running_request_that_was_skipped_is_lawfully_running(self, bench):
        bench.schedule()
        assert [] == bench.complete()
        assert [] == bench.schedule(running("r0", 2))

    def test_new_in_v2_needs_every_token_known(self):
        bench = started(Bench(dialect=Dialect.V2))
        preempt(bench)
        bench.look(r0=Status.RUNNING)
        row = evolve(new("r0", 2), known_tokens=known(bench)[:2])
        assert ["REQ-001/new-without-its-tokens"] == bench.schedule(row)

    def test_new_in_v2_needs_the_workers_to_be_told(self):
        bench = started(Bench(dialect=Dialect.V2))
        preempt(bench, tell=False)
        bench.look(r0=Status.RUNNING)
        row = evolve(new("r0", 3), known_tokens=known(bench))
        assert ["REQ-001/new-before-forgotten"] == bench.schedule(row)

    def test_new_in_v2_is_lawful_once_they_were_told(self):
        bench = started(Bench(dialect=Dialect.V2))
        preempt(bench)
        bench.look(r0=Status.RUNNING)
        row = evolve(new("r0", 3), known_tokens=known(bench))
        assert [] == bench.schedule(row)


class TestREQ002And003:
    def test_new_twice(self, bench):
        assert ["REQ-002/new-twice"] == bench.schedule(new("r0", 3))

    @pytest.mark.parametrize("row", [running("r1", 0, 2), resumed("r1", 2)])
    def test_cached_before_new(self, bench, row):
        bench.add("r1")
        bench.look(r0=Status.RUNNING, r1=Status.RUNNING)
        assert ["REQ-002/cached-before-new"] == bench.schedule(row)

    def test_resumed_without_preemption(self, bench):
        assert ["REQ-003/resumed-without-preemption"] == bench.schedule(
            resumed("r0", 3, known=known(bench))
        )


class TestREQ004:
    def test_not_announced(self, bench):
        bench.abort("r0")
        bench.look()
        assert ["REQ-004/not-announced"] == bench.schedule()

    def test_announced_twice(self, bench):
        bench.abort("r0")
        bench.look()
        assert [] == bench.schedule(finished=("r0",))
        assert ["REQ-004/announced-twice"] == bench.schedule(finished=("r0",))

    def test_announced_alive(self, bench):
        assert ["REQ-004/announced-alive"] == bench.schedule(finished=("r0",))

    def test_a_request_that_never_ran_may_be_announced_or_not(self, bench):
        for name in ("r1", "r2"):
            bench.add(name)
            bench.abort(name)
        bench.look(r0=Status.RUNNING)
        assert [] == bench.schedule(finished=("r1",))


class TestREQ005:
    def test_in_no_queue(self, bench):
        bench.snapshot = evolve(bench.snapshot, queues={"waiting": (), "running": ()})
        assert ["REQ-005/in-no-queue"] == bench.glance()

    def test_in_two_queues(self, bench):
        bench.snapshot = evolve(bench.snapshot, queues={"waiting": ("r0",), "running": ("r0",)})
        assert ["REQ-005/in-two-queues"] == bench.glance()

    def test_forgotten(self, bench):
        bench.look()
        assert ["REQ-005/forgotten"] == bench.glance()

    def test_ended_but_queued(self, bench):
        assert ["REQ-005/ended-but-queued"] == bench.abort("r0")

    def test_a_finished_request_with_a_delayed_free_stays_tracked_in_no_queue(self, bench):
        bench.look(r0=Status.FINISHED_ABORTED)
        assert [] == bench.abort("r0", sends=("r0",))


class TestREQ006And007:
    def test_unlawful_transition(self, bench):
        bench.look(r0=Status.WAITING)
        assert ["REQ-006/running-to-waiting"] == bench.glance()

    def test_ended_but_scheduled(self, bench):
        bench.look()
        bench.abort("r0")
        shown = bench.schedule(running("r0", 2), finished=("r0",))
        assert ["REQ-007/ended-but-scheduled"] == shown


class TestSCH:
    def test_scheduled_twice(self, bench):
        assert ["SCH-001/scheduled-twice"] == bench.schedule(running("r0", 2), running("r0", 2))

    def test_no_tokens(self, bench):
        assert ["SCH-001/no-tokens"] == bench.schedule(running("r0", 2, 0))

    def test_over_the_token_budget(self, bench):
        assert ["SCH-002/over-token-budget"] == bench.schedule(running("r0", 2, 9))

    def test_over_the_running_limit(self, bench):
        names = [f"r{n}" for n in range(5)]
        for name in names[1:]:
            bench.add(name)
        bench.look(**dict.fromkeys(names, Status.RUNNING))
        assert ["SCH-003/over-running-limit"] == bench.schedule(
            *(new(name, 1) for name in names[1:])
        )

    def test_tokens_unknown(self, bench):
        bench.schedule(running("r0", 2, 2))
        assert ["SCH-004/tokens-unknown"] == bench.complete()


class TestPause:
    def test_admitted_while_admission_is_paused(self, bench):
        bench.add("r1")
        bench.control(Pause(admission_only=True))
        assert ["SCH-007/admitted-while-paused"] == bench.schedule(new("r1", 2))

    def test_what_holds_blocks_may_go_on_while_admission_is_paused(self, bench):
        bench.add("r1")
        bench.look(r0=Status.RUNNING, r1=holding(Status.WAITING, 1, 2, 3))
        bench.control(Pause(admission_only=True))
        assert [] == bench.schedule(new("r1", 2))


def a_load(name: str) -> Load:
    return Load(name=name, start=0, count=1, is_async=True, block_ids=((1,),))


class TestLoadsInAPause:
    def test_no_load_begins_while_admission_is_paused(self, bench):
        bench.add("r1")
        bench.control(Pause(admission_only=True))
        bench.look(r0=Status.RUNNING, r1=holding(Status.WAITING_FOR_REMOTE_KVS, 1))
        assert ["SCH-007/loads-while-paused"] == bench.schedule(loads=(a_load("r1"),))

    def test_what_holds_blocks_may_load_again_while_admission_is_paused(self, bench):
        bench.add("r1")
        bench.look(r0=Status.RUNNING, r1=holding(Status.WAITING_FOR_REMOTE_KVS, 1))
        bench.control(Pause(admission_only=True))
        assert [] == bench.schedule(loads=(a_load("r1"),))


class TestFailurePolicy:
    def test_what_was_preempted_since_need_not_end_with_its_load(self):
        bench = Bench(load_failure_policy=LoadFailurePolicy.FAIL)
        bench.add("r0", prompt=2)
        bench.look(r0=holding(Status.RUNNING, 1))
        load = Load(name="r0", start=0, count=1, is_async=False, block_ids=((1,),))
        bench.schedule(new("r0", 1, start=1), loads=(load,))
        bench.end_load("r0", bad_block=0)
        bench.look(r0=Status.PREEMPTED)
        bench.schedule(preempted=("r0",))
        assert [] == bench.complete({})

    def test_what_runs_ends_with_its_load(self):
        bench = Bench(load_failure_policy=LoadFailurePolicy.FAIL)
        bench.add("r0", prompt=2)
        bench.look(r0=holding(Status.RUNNING, 1))
        load = Load(name="r0", start=0, count=1, is_async=False, block_ids=((1,),))
        bench.schedule(new("r0", 1, start=1), loads=(load,))
        bench.end_load("r0", bad_block=0)
        assert ["XFER-006/goes-on-after-failure"] == bench.complete({})


def holding(status: Status, *blocks: int) -> RequestView:
    return RequestView(status=status, block_ids=(blocks,))


class TestKV:
    def test_blocks_not_returned(self, bench):
        bench.look()
        bench.abort("r0")
        bench.snapshot = Snapshot(blocks_free=7, blocks_total=8)
        assert ["KV-001/blocks-not-returned"] == bench.drained()

    def test_left_behind(self, bench):
        bench.look(r0=Status.FINISHED_ABORTED)
        bench.abort("r0")
        assert ["KV-001/left-behind"] == bench.drained()

    def test_freed_while_loading(self, bench):
        bench.add("r1")
        bench.look(r0=Status.RUNNING, r1=Status.WAITING_FOR_REMOTE_KVS)
        loading = Load(name="r1", start=0, count=2, is_async=True, block_ids=((5,),))
        bench.snapshot = evolve(bench.snapshot, free_block_ids=(5,))
        assert ["KV-002/freed-while-loading"] == bench.schedule(loads=(loading,))

    def test_reused_while_loading(self, bench):
        bench.add("r1")
        bench.look(r0=holding(Status.RUNNING, 5), r1=holding(Status.WAITING_FOR_REMOTE_KVS, 5))
        loading = Load(name="r1", start=0, count=2, is_async=True, block_ids=((5,),))
        assert ["KV-002/reused-while-loading", "KV-006/two-owners"] == bench.schedule(
            loads=(loading,)
        )

    def test_blocks_of_a_load_that_has_ended_may_be_freed_before_it_is_reported(self, bench):
        bench.add("r1")
        bench.look(r0=Status.RUNNING, r1=Status.WAITING_FOR_REMOTE_KVS)
        loading = Load(name="r1", start=0, count=2, is_async=True, block_ids=((5,),))
        bench.schedule(loads=(loading,))
        bench.end_load("r1")
        bench.look(r0=Status.RUNNING)
        bench.snapshot = evolve(bench.snapshot, free_block_ids=(5,))
        assert [] == bench.abort("r1")

    def test_freed_while_sending(self, bench):
        bench.look(r0=holding(Status.RUNNING, 1, 2))
        bench.glance()
        bench.snapshot = Snapshot(free_block_ids=(1, 2))
        assert ["KV-002/freed-while-sending"] == bench.abort("r0", sends=("r0",))

    def test_free_twice(self, bench):
        bench.snapshot = evolve(bench.snapshot, free_block_ids=(3, 4, 4))
        assert ["KV-003/free-twice"] == bench.glance()

    def test_free_and_held(self, bench):
        bench.look(r0=holding(Status.RUNNING, 4))
        bench.snapshot = evolve(bench.snapshot, free_block_ids=(3, 4))
        assert ["KV-003/free-and-held"] == bench.glance()


class TestTOK:
    def test_token_repeated(self, bench):
        bench.schedule(running("r0", 2))
        again = bench.ledger.lives["r0"].token_at(2)
        assert ["TOK-001/token-repeated"] == bench.complete({"r0": (again,)})

    def test_token_lost(self, bench):
        bench.schedule(running("r0", 2))
        skipped = bench.ledger.lives["r0"].token_at(4)
        assert ["TOK-001/token-lost"] == bench.complete({"r0": (skipped,)})

    def test_token_wrong(self, bench):
        bench.schedule(running("r0", 2))
        assert ["TOK-001/token-wrong"] == bench.complete({"r0": (5,)})

    def test_finished_short(self, bench):
        bench.schedule(running("r0", 2))
        bench.look()
        assert ["TOK-001/finished-short"] == bench.complete(finished={"r0": FinishReason.LENGTH})

    def test_delivered_after_its_end(self, bench):
        bench.schedule(running("r0", 2))
        bench.look()
        bench.abort("r0")
        assert ["TOK-002/delivered-after-end"] == bench.complete()

    def test_output_of_a_step_in_flight_may_be_ignored_after_an_abort(self, bench):
        bench.schedule(running("r0", 2))
        bench.look()
        bench.abort("r0")
        assert [] == bench.complete({})

    def test_beyond_its_end(self):
        bench = Bench()
        bench.add("r0", max_tokens=1)
        bench.look(r0=Status.RUNNING)
        bench.schedule(new("r0", 2))
        bench.complete()
        bench.schedule(running("r0", 2))
        assert ["TOK-002/beyond-its-end", "TOK-005/not-ended"] == bench.complete()

    def test_output_of_a_step_issued_before_a_preemption_may_be_delivered_after_it(self, bench):
        bench.schedule(running("r0", 2))
        bench.look(r0=Status.PREEMPTED)
        bench.schedule(preempted=("r0",))
        assert [] == bench.complete()


class TestXFER:
    def test_scheduled_while_loading(self, bench):
        bench.add("r1")
        bench.look(r0=Status.RUNNING, r1=Status.WAITING_FOR_REMOTE_KVS)
        bench.schedule(loads=(Load(name="r1", start=0, count=1, is_async=True),))
        bench.look(r0=Status.RUNNING, r1=Status.RUNNING)
        assert [
            "XFER-001/left-loading-early",
            "XFER-001/scheduled-while-loading",
        ] == bench.schedule(new("r1", 1, start=1))


class TestPRG:
    def test_stalled(self, bench):
        assert ["PRG-001/stalled"] == bench.drained("r0", idle_rounds=IDLE_ROUNDS_MAX)

    def test_not_finished_in_time(self, bench):
        assert ["PRG-001/not-finished-in-time"] == bench.drained("r0")

    def test_asleep_with_unfinished(self, bench):
        bench.has_work = False
        assert ["PRG-002/asleep-with-unfinished"] == bench.glance()

    def test_sleeping_through_a_pause_is_lawful(self, bench):
        bench.control(Pause())
        bench.has_work = False
        assert [] == bench.glance()

    def test_asleep_though_admission_alone_is_paused(self, bench):
        bench.look(r0=holding(Status.RUNNING, 1))
        bench.control(Pause(admission_only=True))
        bench.has_work = False
        assert ["PRG-002/asleep-with-unfinished"] == bench.glance()

    def test_asleep_with_send(self, bench):
        bench.look(r0=Status.FINISHED_ABORTED)
        bench.has_work = False
        shown = ["PRG-002/asleep-with-send", "PRG-004/asleep-with-news"]
        assert shown == bench.abort("r0", sends=("r0",))

    def test_an_empty_schedule_with_work_queued_is_lawful_before_the_quiet_tail(self, bench):
        bench.add("r1")
        bench.look(r0=Status.RUNNING, r1=Status.WAITING)
        for _ in range(2 * IDLE_ROUNDS_MAX):
            assert [] == bench.schedule()
            assert [] == bench.complete()


class TestENG:
    def test_raised(self, bench):
        crash = Crashed(call="schedule", error="KeyError", message="'r0'", function="pick")
        assert ["ENG-001/KeyError-in-pick"] == bench.show(crash)

    def test_did_not_return(self, bench):
        hung = Hung(call="schedule", how="hung", detail="no answer for 10 s")
        assert ["ENG-002/hung-in-schedule"] == bench.show(hung)

    def test_answered_outside_the_protocol(self, bench):
        malformed = Malformed(call="schedule", problem="it returned None, not SchedulerOutput")
        assert ["ENG-003/malformed-schedule"] == bench.show(malformed)


def test_every_invariant_says_how_it_is_witnessed_and_where_it_was_broken():
    for one in registry.every_invariant():
        assert one.title, one.id
        assert one.witnessed_by, one.id
        assert all(link.startswith("https://") for link in one.evidence), one.id


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("REQ-001", {"REQ-001"}),
        ("TOK-00[12],PRG-001", {"TOK-001", "TOK-002", "PRG-001"}),
        ("TOK-00[12],!TOK-002", {"TOK-001"}),
    ],
)
def test_patterns_choose_invariants(patterns, expected):
    assert expected == {one.id for one in registry.select(patterns)}


def test_a_pattern_with_an_exclamation_mark_first_takes_away_from_all():
    everything = {one.id for one in registry.every_invariant()}
    assert everything - {"REQ-001"} == {one.id for one in registry.select("!REQ-001")}
    assert everything == {one.id for one in registry.select("")}


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(registry.UnknownInvariant, match="'NOPE-\\*'"):
        registry.select("REQ-*,NOPE-*")


def test_an_id_is_never_given_twice():
    taken = registry.get("REQ-001")
    again = registry.invariant(
        "REQ-001",
        "another",
        severity=taken.severity,
        on=taken.on,
        witness=taken.witness,
        witnessed_by="x",
    )
    with pytest.raises(ValueError, match="REQ-001 is taken"):
        again(taken.check)


def test_a_checker_that_fails_is_unknown_and_never_a_pass():
    def broken(*_args):
        raise RuntimeError("checker")

    invariant = evolve(registry.get("REQ-005"), check=broken)
    judge = Judge(SchedulerConfig(), EVERYTHING, [invariant])
    bench = Bench()
    bench.judge = judge
    bench.add("r0")
    assert ({"REQ-005": "RuntimeError: checker"}, set()) == (judge.unknown, judge.witnessed)


def test_an_invariant_whose_capabilities_are_missing_is_not_asked():
    judge = Judge(SchedulerConfig(), EVERYTHING - {Capability.SHOWS_QUEUES})
    assert "REQ-005" not in {one.id for one in judge.applicable()}
