"""The simulated worker and the shadow memory: why a violation is no matter of taste."""

from __future__ import annotations

import pytest
from making import Bench, new, resumed, running

from schedcheck.model.actions import AddChunk
from schedcheck.model.output import NO_BLOCK, FinishReason, Load
from schedcheck.model.snapshot import RequestView, Status


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.add("r0", prompt=3, max_tokens=4)
    made.look(r0=Status.RUNNING)
    return made


def test_a_chunk_of_a_prompt_samples_nothing(bench):
    bench.schedule(new("r0", 2))
    assert {} == bench.judge.worker.answer().sampled


def test_the_last_prompt_token_samples_the_first_output_token(bench):
    bench.schedule(new("r0", 3))
    expected = bench.ledger.lives["r0"].token_at(3)
    assert {"r0": (expected,)} == bench.judge.worker.answer().sampled


def test_a_step_in_flight_is_executed_as_issued_although_its_request_was_preempted_since(bench):
    bench.schedule(new("r0", 3))
    bench.look(r0=Status.PREEMPTED)
    bench.schedule(preempted=("r0",))
    assert ["r0"] == list(bench.judge.worker.answer().sampled)


def test_a_resumed_row_teaches_the_worker_its_tokens(bench):
    bench.schedule(new("r0", 3))
    bench.complete()
    life = bench.ledger.lives["r0"]
    known = (*life.prompt, life.token_at(3))
    bench.look(r0=Status.PREEMPTED)
    bench.glance()
    bench.complete()
    bench.look(r0=Status.RUNNING)
    bench.schedule(resumed("r0", 4, known=known))
    assert {"r0": (life.token_at(4),)} == bench.judge.worker.answer().sampled


def test_a_request_sent_as_new_again_has_lost_its_output(bench):
    """What makes the seed fault a fault: the worker goes on from the prompt alone."""
    bench.schedule(new("r0", 3))
    bench.complete()
    bench.look(r0=Status.PREEMPTED)
    bench.glance()
    bench.complete()
    bench.look(r0=Status.RUNNING)
    assert ["REQ-001/new-after-preemption"] == bench.schedule(new("r0", 3))
    shown = ["TOK-001/token-repeated", "TOK-003/delivered-unsampled"]
    assert shown == bench.complete()


def test_a_worker_cannot_compute_for_a_request_it_never_got(bench):
    bench.schedule(running("r0", 0, 1))
    assert ["KV-005/table-too-short"] != bench.complete(delivered={})
    assert ["unknown-request"] == [one.kind for one in bench.ledger.worker_problems]


def test_a_worker_cannot_compute_tokens_it_does_not_know(bench):
    bench.schedule(new("r0", 4))
    assert "SCH-004/tokens-unknown" in bench.complete()


def test_a_table_must_have_room(bench):
    bench.schedule(new("r0", 3, blocks=(1,)))
    assert ["KV-005/table-too-short"] == bench.complete()


def test_reading_what_nobody_wrote_is_found(bench):
    bench.schedule(new("r0", 1, start=2))
    assert ["KV-004/read-unwritten"] == bench.complete()


def test_reading_what_another_request_wrote_is_found(bench):
    bench.add("r1", prompt=3, max_tokens=2)
    bench.look(r0=Status.RUNNING, r1=Status.RUNNING)
    bench.schedule(new("r0", 3, blocks=(1, 2)))
    bench.complete()
    bench.schedule(new("r1", 3, blocks=(1, 3)))
    bench.complete()
    bench.schedule(running("r0", 3))
    assert ["KV-004/read-foreign"] == bench.complete()


def test_equal_prefixes_may_share_blocks():
    """An equal rewrite of a shared slot is lawful: it is what a prefix cache is for."""
    bench = Bench()
    for name in ("r0", "r1"):
        bench.add(name, prompt=2, max_tokens=2)
    bench.ledger.lives["r1"].prompt = bench.ledger.lives["r0"].prompt
    bench.look(r0=Status.RUNNING, r1=Status.RUNNING)
    bench.schedule(new("r0", 2, blocks=(1, 2)), new("r1", 2, blocks=(1, 3)))
    assert [] == bench.complete()


def load(name: str, *blocks: int, count: int = 2, is_async: bool = True) -> Load:
    return Load(name=name, start=0, count=count, is_async=is_async, block_ids=(blocks,))


def test_a_load_fills_its_blocks_when_it_ends(bench):
    bench.look(r0=Status.WAITING_FOR_REMOTE_KVS)
    bench.schedule(loads=(load("r0", 1),))
    bench.end_load("r0")
    bench.complete()
    bench.look(r0=Status.RUNNING)
    bench.schedule(new("r0", 1, start=2, blocks=(1, 2)))
    assert [] == bench.complete()


def test_what_a_failed_load_should_have_filled_must_not_be_read(bench):
    bench.look(r0=Status.WAITING_FOR_REMOTE_KVS)
    bench.schedule(loads=(load("r0", 1),))
    bench.end_load("r0", bad_block=0)
    assert {"r0": 0} == bench.judge.worker.answer().loads_failed
    bench.complete()
    bench.look(r0=Status.RUNNING)
    bench.schedule(new("r0", 1, start=2, blocks=(1, 2)))
    assert ["KV-004/read-failed-load"] == bench.complete()


def test_a_step_whose_own_load_fails_samples_nonsense_and_is_forgiven_its_reads(bench):
    bench.schedule(new("r0", 1, start=2, blocks=(1, 2)), loads=(load("r0", 1, is_async=False),))
    bench.end_load("r0", bad_block=0)
    wrong = bench.judge.worker.answer().sampled["r0"][0]
    assert wrong != bench.ledger.lives["r0"].token_at(3)
    assert [] == bench.complete(delivered={})


def test_a_step_planned_before_the_failure_was_known_samples_nonsense_too(bench):
    failing = load("r0", 1, is_async=False)
    bench.schedule(new("r0", 1, start=2, blocks=(1, 2)), loads=(failing,))
    bench.schedule(running("r0", 3))
    bench.end_load("r0", bad_block=0)
    assert [] == bench.complete(delivered={})
    wrong = bench.judge.worker.answer().sampled["r0"][0]
    assert wrong != bench.ledger.lives["r0"].token_at(3)
    assert ["SCH-004/tokens-unknown"] == bench.complete(delivered={}), "it goes on from nonsense"
    assert {} == bench.ledger.sampled, "neither token counts"


def test_a_step_of_another_life_is_not_the_failures(bench):
    """Preempted in between, it was planned anew, from what it has computed since."""
    failing = load("r0", 1, is_async=False)
    bench.schedule(new("r0", 1, start=2, blocks=(1, 2)), loads=(failing,))
    bench.look(r0=Status.PREEMPTED)
    bench.glance()
    bench.look(r0=Status.RUNNING)
    bench.schedule(resumed("r0", 3, blocks=(3, 4)))
    bench.end_load("r0", bad_block=0)
    bench.complete(delivered={})
    assert [set(), set()] == [step.after_failure for step in bench.ledger.in_flight]


def test_nobody_writes_into_a_load_that_is_open(bench):
    bench.add("r1", prompt=2, max_tokens=4)
    bench.look(r0=Status.WAITING_FOR_REMOTE_KVS, r1=Status.RUNNING)
    bench.schedule(new("r1", 2, blocks=(1,)), loads=(load("r0", 1),))
    assert ["KV-002/write-into-transfer"] == bench.complete()


def test_a_send_owns_its_blocks_until_it_has_ended(bench):
    bench.look(r0=RequestView(status=Status.RUNNING, block_ids=((1, 2),)))
    bench.schedule(new("r0", 3, blocks=(1, 2)))
    bench.look(r0=RequestView(status=Status.FINISHED_STOPPED, block_ids=((1, 2),)))
    bench.complete(finished={"r0": FinishReason.STOPPED}, sends=("r0",))
    bench.add("r1", prompt=2, max_tokens=4)
    bench.schedule(new("r1", 2, blocks=(2,)), finished=("r0",))
    assert ["KV-002/write-into-transfer"] == bench.complete()


def test_a_block_shared_with_a_sender_may_be_written_by_a_step_planned_before_the_send(bench):
    """With prefix caching a request may hit a block that another row of the same step writes."""
    bench.add("r1", prompt=3)
    both = {name: RequestView(status=Status.RUNNING, block_ids=((1, 2),)) for name in ("r0", "r1")}
    bench.look(**both)
    bench.schedule(new("r0", 3, blocks=(1, 2)), new("r1", 3, blocks=(1, 3)))
    bench.look(**(both | {"r1": RequestView(status=Status.FINISHED_STOPPED, block_ids=((1, 3),))}))
    found = bench.complete(finished={"r1": FinishReason.STOPPED}, sends=("r1",))
    assert "KV-002/write-into-transfer" not in found


def test_what_a_step_of_the_last_answer_samples_need_not_be_delivered_in_the_next():
    bench = Bench()
    bench.add("r0", max_tokens=2, stop_at=0, chunks=(1,))
    bench.look(r0=Status.RUNNING)
    bench.schedule(new("r0", 2))
    bench.control(AddChunk("r0"))
    bench.schedule(running("r0", 2))
    bench.look(r0=Status.WAITING)
    bench.complete()
    assert [] == bench.complete({})


def test_a_send_reads_what_has_not_left_the_window():
    bench = Bench(sliding_window=2)
    bench.add("r0", prompt=4, max_tokens=1)
    bench.look(r0=RequestView(status=Status.RUNNING, block_ids=((1, 2),)))
    bench.schedule(new("r0", 4, blocks=(1, 2)))
    bench.look(r0=RequestView(status=Status.FINISHED_LENGTH_CAPPED, block_ids=((2,),)))
    bench.complete(finished={"r0": FinishReason.LENGTH}, sends=("r0",))
    assert frozenset({2}) == bench.ledger.lives["r0"].send.blocks


def test_who_shares_a_block_of_a_load_that_fails_within_the_step_computes_nonsense_too(bench):
    bench.add("r1")
    bench.look(r0=_holds(1, 2), r1=_holds(2))
    load = Load(name="r0", start=2, count=1, is_async=False, block_ids=((2,),))
    bench.schedule(new("r0", 1, start=2), new("r1", 1, start=1, blocks=(2,)), loads=(load,))
    bench.end_load("r0", bad_block=0)
    step = bench.ledger.in_flight[0]
    assert (True, True) == (step.computes_nonsense("r0"), step.computes_nonsense("r1"))
    assert "TOK-004/sampled-not-delivered" not in bench.complete({})


def _holds(*blocks: int) -> RequestView:
    return RequestView(status=Status.RUNNING, block_ids=(blocks,))


def test_a_table_without_a_block_where_the_window_reaches_is_a_finding():
    bench = Bench(sliding_window=2)
    bench.add("r0", prompt=3, remote_tokens=2)
    bench.look(r0=Status.RUNNING)
    bench.schedule(new("r0", 1, start=2, blocks=(NO_BLOCK, 4)))
    assert "KV-004/read-no-block" in bench.complete()
