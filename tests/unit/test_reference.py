"""The reference scheduler: each rule at the top of ``scheduler.py``, driven by hand.

The loop below is the smallest thing that can stand for workers and clients. It knows none of the
invariants, so that what they say about the reference and what these tests say stay apart.
"""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from schedcheck.model.actions import Abort, Preempt, ResetPrefixCache
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, LoadFailurePolicy, Policy, SchedulerConfig
from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    FinishReason,
    Rejected,
    Role,
    SchedulerOutput,
    TableUpdate,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.model.tokens import next_token, prompt_tokens, state_of
from schedcheck.reference.mutants.registry import MUTANTS
from schedcheck.reference.target import CAPABILITIES, ReferenceTarget, reference_target
from schedcheck.sut import Refused, Target, TargetError

STEPS_MAX = 400
"""More than any quiet tail here needs."""


class Loop:
    """Workers, a KV store and clients around one scheduler."""

    def __init__(self, target: ReferenceTarget | None = None, **config: object) -> None:
        target = target or ReferenceTarget()
        honoured = target.honours(SchedulerConfig(**config))
        assert not isinstance(honoured, Refused)
        self.config = honoured
        self.sut = target.open(honoured)
        self.scheduler = self.sut.scheduler
        self.specs: dict[str, RequestSpec] = {}
        self.in_flight: deque[SchedulerOutput] = deque()
        self.known: dict[str, list[int]] = {}
        """What the workers know of each request."""
        self.loading: list[str] = []
        self.sending: list[str] = []
        self.outputs: list[SchedulerOutput] = []
        self.delivered: dict[str, list[int]] = {}
        self.finished: dict[str, FinishReason] = {}

    def add(self, name: str, prompt: int = 2, **spec: object) -> Accepted | Rejected:
        made = RequestSpec(prompt=(("own", prompt),), **spec)
        self.specs[name] = made
        answer = self.sut.add(name, made, prompt_tokens(name, self.specs))
        if isinstance(answer, Accepted):
            self.delivered[name] = []
        return answer

    def schedule(self) -> SchedulerOutput:
        output = self.sut.schedule()
        self.outputs.append(output)
        self.in_flight.append(output)
        self.loading += [load.name for load in output.loads if load.is_async]
        return output

    def complete(
        self,
        *,
        loads: tuple[str, ...] = (),
        sends: tuple[str, ...] = (),
        failed: dict[str, int] | None = None,
    ) -> EngineOutput:
        step = self.in_flight.popleft()
        sampled = {row.name: token for row in step.rows for token in self._execute(row)}
        self.loading = [name for name in self.loading if name not in loads]
        self.sending = [name for name in self.sending if name not in sends]
        result = WorkerResult(
            sampled=sampled, loads_finished=loads, sends_finished=sends, loads_failed=failed or {}
        )
        output = self.sut.complete(step.step_id, result)
        for name in failed or {}:
            self._forget_sampled(name, sampled)
        for name, tokens in output.delivered.items():
            self.delivered[name] += tokens
        self.finished |= output.finished
        self.sending += output.sends
        return output

    def _execute(self, row: object) -> list[tuple[int, ...]]:
        if row.known_tokens is not None:
            self.known[row.name] = list(row.known_tokens)
        tokens = self.known[row.name]
        if row.start + row.count < len(tokens):
            return []
        spec = self.specs[row.name]
        index = len(tokens) - spec.prompt_tokens_count
        token = next_token(spec, state=state_of(tokens), output_index=index)
        tokens.append(token)
        return [(token,)]

    def _forget_sampled(self, name: str, sampled: dict[str, tuple[int, ...]]) -> None:
        if name in sampled:
            del self.known[name][-1]

    def step(self, **ends: object) -> SchedulerOutput:
        output = self.schedule()
        self.complete(**ends)
        return output

    def abort(self, name: str) -> Accepted | Rejected:
        answer = self.sut.control(Abort(name))
        if name in self.sut.snapshot().requests and self.view(name).status.is_finished:
            self.finished.setdefault(name, FinishReason.ABORTED)
        if isinstance(answer, Accepted):
            self.sending += answer.sends
        return answer

    def preempt(self, name: str) -> Accepted | Rejected:
        return self.sut.control(Preempt(name))

    def drain(self) -> None:
        """Let everything that is open end, and step on until there is no work left."""
        for _ in range(STEPS_MAX):
            while self.in_flight:
                self.complete()
            if not self.sut.has_work():
                return
            self.step(loads=tuple(self.loading), sends=tuple(self.sending))
        pytest.fail(f"still at work after {STEPS_MAX} steps: {self.sut.snapshot()}")

    def view(self, name: str):
        return self.sut.snapshot().requests[name]

    def status(self, name: str) -> Status:
        return self.view(name).status

    def blocks(self, name: str) -> int:
        return len(self.view(name).block_ids[0])

    @property
    def free(self) -> int:
        return self.sut.snapshot().blocks_free

    @property
    def waiting(self) -> tuple[str, ...]:
        return self.sut.snapshot().queues["waiting"]

    @property
    def running(self) -> tuple[str, ...]:
        return self.sut.snapshot().queues["running"]

    def continuation(self, name: str) -> list[int]:
        """What a request delivers when it runs to its own end."""
        spec = self.specs[name]
        tokens = list(prompt_tokens(name, self.specs))
        for index in range(spec.max_tokens):
            tokens.append(next_token(spec, state=state_of(tokens), output_index=index))
            if index == spec.stop_at:
                break
        return tokens[spec.prompt_tokens_count :]


def rows(output: SchedulerOutput) -> list[tuple[str, Role, int, int]]:
    return [(row.name, row.role, row.start, row.count) for row in output.rows]


# The plain life.


def test_a_request_is_sent_as_new_and_then_as_running() -> None:
    loop = Loop()
    loop.add("r0", prompt=3, max_tokens=2)
    first, second = loop.step(), loop.step()
    assert rows(first) == [("r0", Role.NEW, 0, 3)]
    assert rows(second) == [("r0", Role.RUNNING, 3, 1)]
    assert loop.finished == {"r0": FinishReason.LENGTH}
    assert loop.continuation("r0") == loop.delivered["r0"]


def test_a_new_row_carries_the_prompt_and_the_whole_table() -> None:
    # The workers know nothing of the request yet.
    loop = Loop(block_size=2)
    loop.add("r0", prompt=3)
    (row,) = loop.schedule().rows
    assert prompt_tokens("r0", loop.specs) == row.known_tokens
    assert (row.table_update, row.block_ids) == (TableUpdate.REPLACE, ((1, 2),))


def test_a_running_row_carries_only_what_is_new() -> None:
    loop = Loop(block_size=2)
    loop.add("r0", prompt=3, max_tokens=4)
    loop.step()
    (inside,) = loop.step().rows
    (beyond,) = loop.step().rows
    assert (inside.block_ids, inside.known_tokens) == (None, None)
    assert (beyond.table_update, beyond.block_ids) == (TableUpdate.APPEND, ((3,),))


def test_a_stop_token_ends_a_request() -> None:
    loop = Loop()
    loop.add("r0", max_tokens=5, stop_at=1)
    loop.drain()
    assert loop.finished == {"r0": FinishReason.STOPPED}
    assert len(loop.delivered["r0"]) == 2


def test_a_request_that_never_fits_is_refused() -> None:
    # Queued, it would stall everything behind it for ever.
    loop = Loop(blocks_total=2, block_size=2, max_model_len=64)
    assert isinstance(loop.add("r0", prompt=4, max_tokens=1), Rejected)
    assert isinstance(loop.add("r1", prompt=3, max_tokens=1), Accepted)
    assert isinstance(Loop(max_model_len=4).add("r0", prompt=4, max_tokens=1), Rejected)


def test_work_is_over_only_when_the_last_end_is_announced() -> None:
    # An engine that sleeps with an end unannounced leaves its workers the request's state.
    loop = Loop()
    loop.add("r0")
    loop.step()
    assert loop.finished == {"r0": FinishReason.LENGTH}
    assert loop.sut.has_work()
    assert loop.step().finished == ("r0",)
    assert not loop.sut.has_work()


# Budgets and order.


def test_a_step_spends_no_more_than_the_token_budget() -> None:
    loop = Loop(max_num_batched_tokens=4)
    loop.add("r0", prompt=3, max_tokens=2)
    loop.add("r1", prompt=3, max_tokens=2)
    assert rows(loop.step()) == [("r0", Role.NEW, 0, 3), ("r1", Role.NEW, 0, 1)]
    assert rows(loop.step()) == [("r0", Role.RUNNING, 3, 1), ("r1", Role.RUNNING, 1, 2)]


def test_no_more_run_at_once_than_max_num_seqs() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("r0", max_tokens=2)
    loop.add("r1")
    loop.step()
    assert (loop.waiting, loop.running) == (("r1",), ("r0",))
    loop.step()
    assert [row.name for row in loop.step().rows] == ["r1"]


def test_without_chunks_a_prompt_is_computed_in_one_step() -> None:
    loop = Loop(chunked_prefill=False, max_num_batched_tokens=2, max_model_len=6, block_size=2)
    assert loop.config.max_num_batched_tokens == 6
    loop.add("r0", prompt=4, max_tokens=2)
    loop.add("r1", prompt=4, max_tokens=2)
    assert rows(loop.step()) == [("r0", Role.NEW, 0, 4)]
    assert rows(loop.step()) == [("r0", Role.RUNNING, 4, 1), ("r1", Role.NEW, 0, 4)]


def test_priority_admits_the_more_urgent_first_and_equals_as_they_came() -> None:
    loop = Loop(policy=Policy.PRIORITY, max_num_seqs=1)
    for name, priority in (("r0", 1), ("r1", 0), ("r2", 1), ("r3", 0)):
        loop.add(name, priority=priority)
    loop.drain()
    assert [row.name for one in loop.outputs for row in one.rows] == ["r1", "r3", "r0", "r2"]


def test_fcfs_ignores_priority() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("r0", priority=5)
    loop.add("r1", priority=0)
    assert [row.name for row in loop.step().rows] == ["r0"]


# Preemption.


def under_pressure(**config: object) -> Loop:
    """Two requests that fill a pool of four; the first needs a fifth block next."""
    loop = Loop(**{"blocks_total": 4, "block_size": 1, "max_model_len": 4} | config)
    loop.add("r0", prompt=2, max_tokens=2)
    loop.add("r1", prompt=2, max_tokens=2, priority=1)
    loop.step()
    assert loop.free == 0
    return loop


def test_pressure_preempts_the_last_running_request() -> None:
    loop = under_pressure()
    output = loop.step()
    assert rows(output) == [("r0", Role.RUNNING, 2, 1)]
    assert output.preempted == ("r1",)
    view = loop.view("r1")
    assert (
        view.status,
        view.num_computed_tokens,
        view.num_preemptions,
        view.block_ids,
    ) == (Status.PREEMPTED, 0, 1, ((),))


def test_a_preempted_request_comes_back_as_resumed_with_every_token() -> None:
    loop = under_pressure()
    loop.step()
    (row,) = loop.step().rows
    assert (row.name, row.role, row.start, row.count) == ("r1", Role.RESUMED, 0, 3)
    assert TableUpdate.REPLACE is row.table_update
    assert (*prompt_tokens("r1", loop.specs), loop.delivered["r1"][0]) == row.known_tokens
    assert loop.continuation("r1") == loop.delivered["r1"]


def test_in_the_second_dialect_it_comes_back_as_new_after_the_workers_were_told() -> None:
    loop = under_pressure(dialect=Dialect.V2)
    assert loop.step().preempted == ("r1",)
    (row,) = loop.step().rows
    assert (row.role, len(row.known_tokens)) == (Role.NEW, 3)


def test_a_step_that_preempted_admits_nobody() -> None:
    loop = under_pressure()
    loop.add("r2", prompt=1)
    assert [row.name for row in loop.step().rows] == ["r0"]
    assert loop.waiting == ("r1", "r2")


def test_priority_preempts_the_least_urgent_wherever_it_stands() -> None:
    # The running queue is in the order of admission, not of priority.
    loop = Loop(policy=Policy.PRIORITY, blocks_total=5, block_size=1)
    loop.add("r0", prompt=1, max_tokens=3, priority=0)
    loop.add("r1", prompt=1, max_tokens=3, priority=2)
    loop.step()
    loop.add("r2", prompt=1, max_tokens=3, priority=1)
    loop.step()
    assert (loop.running, loop.free) == (("r0", "r1", "r2"), 0)
    assert loop.step().preempted == ("r1",)


def test_a_request_that_is_in_the_step_already_is_no_victim() -> None:
    # Its row would stay although its blocks are gone.
    loop = Loop(policy=Policy.PRIORITY, blocks_total=3, block_size=2)
    loop.add("r0", prompt=2, max_tokens=4, priority=1)
    loop.step()
    loop.add("r1", prompt=2, max_tokens=2, priority=0)
    loop.step()
    output = loop.step()
    assert ([row.name for row in output.rows], output.preempted) == (["r0"], ("r1",))


def test_a_request_preempts_itself_when_it_is_the_last() -> None:
    # Such a step may schedule nothing for it, and that is lawful.
    loop = Loop(blocks_total=3, block_size=1, max_model_len=3)
    loop.add("r0", prompt=1, max_tokens=2)
    loop.add("r1", prompt=1, max_tokens=2)
    loop.step()
    assert loop.free == 1
    output = loop.step()
    assert rows(output) == [("r0", Role.RUNNING, 1, 1)]
    assert output.preempted == ("r1",)


def test_a_preempted_request_waits_before_those_that_never_ran() -> None:
    loop = under_pressure()
    loop.add("r2", prompt=1)
    loop.preempt("r1")
    loop.preempt("r0")
    assert loop.waiting == ("r0", "r1", "r2")


def test_only_what_runs_can_be_preempted_by_force() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("r0", max_tokens=3)
    loop.add("r1")
    loop.step()
    assert isinstance(loop.preempt("r1"), Rejected)
    assert isinstance(loop.preempt("r0"), Accepted)
    assert isinstance(loop.preempt("r0"), Rejected)


def test_a_forced_reset_preempts_everything_that_runs() -> None:
    loop = Loop()
    loop.add("r0", max_tokens=3)
    loop.add("r1", max_tokens=3)
    loop.step()
    assert isinstance(loop.sut.control(ResetPrefixCache(running=True)), Accepted)
    assert (loop.waiting, loop.running) == (("r0", "r1"), ())
    output = loop.step()
    assert {"r0", "r1"} == set(output.preempted)
    assert {Role.RESUMED} == {row.role for row in output.rows}
    loop.drain()
    assert [loop.continuation(one) for one in ("r0", "r1")] == list(loop.delivered.values())


def test_a_plain_reset_is_refused_while_something_runs() -> None:
    loop = Loop()
    loop.add("r0", max_tokens=3)
    loop.step()
    assert isinstance(loop.sut.control(ResetPrefixCache()), Rejected)
    loop.drain()
    assert isinstance(loop.sut.control(ResetPrefixCache()), Accepted)


# Several steps in flight.


def test_a_request_whose_tokens_are_all_in_flight_is_skipped_and_not_resumed() -> None:
    loop = Loop(max_steps_in_flight=2)
    loop.add("r0", max_tokens=2)
    loop.schedule()
    assert loop.schedule().rows == ()
    loop.complete()
    assert rows(loop.schedule()) == [("r0", Role.RUNNING, 2, 1)]


def test_the_chunks_of_a_prompt_may_be_in_flight_together() -> None:
    loop = Loop(max_steps_in_flight=2, max_num_batched_tokens=2)
    loop.add("r0", prompt=4, max_tokens=2)
    assert rows(loop.schedule()) == [("r0", Role.NEW, 0, 2)]
    assert rows(loop.schedule()) == [("r0", Role.RUNNING, 2, 2)]
    assert dict(loop.complete().delivered) == {}
    assert list(loop.complete().delivered) == ["r0"]


def test_a_token_in_flight_when_its_request_is_preempted_is_kept() -> None:
    # Sampling it again would be lawful too, delivering it twice would not.
    loop = Loop(max_steps_in_flight=2)
    loop.add("r0", max_tokens=3)
    loop.schedule()
    loop.preempt("r0")
    assert loop.schedule().rows == (), "it is not admitted before its step has returned"
    loop.complete()
    assert Status.PREEMPTED is loop.status("r0")
    assert len(loop.delivered["r0"]) == 1
    loop.complete()
    assert rows(loop.schedule()) == [("r0", Role.RESUMED, 0, 3)]
    loop.drain()
    assert loop.continuation("r0") == loop.delivered["r0"]


def test_a_token_in_flight_may_finish_a_preempted_request() -> None:
    loop = Loop(max_steps_in_flight=2)
    loop.add("r0", max_tokens=1)
    loop.schedule()
    loop.preempt("r0")
    loop.complete()
    assert loop.finished == {"r0": FinishReason.LENGTH}
    assert loop.schedule().finished == ("r0",)
    assert loop.waiting == ()


@pytest.mark.parametrize("how", ["abort", "preempt"])
def test_blocks_that_a_step_in_flight_writes_are_not_free_before_it_returns(how: str) -> None:
    # A load that was given them would write out of stream order.
    loop = Loop(max_steps_in_flight=2)
    loop.add("r0", prompt=4, max_tokens=3)
    loop.schedule()
    held = loop.config.blocks_total - loop.free
    getattr(loop, how)("r0")
    assert held == loop.config.blocks_total - loop.free
    loop.complete()
    assert loop.config.blocks_total == loop.free


def test_pressure_takes_no_blocks_from_a_request_with_a_step_in_flight() -> None:
    # Its blocks would come back only when that step returns, so nothing would be gained.
    loop = Loop(blocks_total=4, block_size=1, max_num_batched_tokens=2, max_steps_in_flight=2)
    loop.add("r0", prompt=2, max_tokens=2)
    loop.add("r1", prompt=2, max_tokens=2)
    assert [row.name for row in loop.schedule().rows] == ["r0"]
    assert [row.name for row in loop.schedule().rows] == ["r1"]
    loop.complete()
    assert loop.schedule().preempted == ("r0",), "not r1, although it is the last"
    loop.drain()
    assert [loop.continuation(one) for one in ("r0", "r1")] == list(loop.delivered.values())


def test_what_a_step_brings_an_aborted_request_is_ignored() -> None:
    loop = Loop(max_steps_in_flight=2)
    loop.add("r0", max_tokens=3)
    loop.schedule()
    loop.abort("r0")
    output = loop.complete()
    assert (dict(output.delivered), dict(output.finished)) == ({}, {})


# Loading KV from outside.


def test_an_asynchronous_load_holds_its_blocks_and_no_seat() -> None:
    loop = Loop(max_num_seqs=1, block_size=2)
    loop.add("r0", prompt=4, remote_tokens=3)
    loop.add("r1", prompt=2)
    output = loop.step()
    (load,) = output.loads
    assert (
        load.name,
        load.start,
        load.count,
        load.is_async,
        load.block_ids,
    ) == ("r0", 0, 3, True, ((1, 2),))
    assert [row.name for row in output.rows] == ["r1"]
    assert (loop.status("r0"), loop.blocks("r0")) == (Status.WAITING_FOR_REMOTE_KVS, 2)
    assert loop.waiting == ("r0",)


def test_a_loaded_request_goes_on_behind_its_load_as_new() -> None:
    loop = Loop(block_size=2)
    loop.add("r0", prompt=4, remote_tokens=3)
    loop.step()
    assert loop.step(loads=("r0",)).rows == (), "nothing is scheduled while it loads"
    (row,) = loop.step().rows
    assert (row.role, row.start, row.count, row.block_ids) == (Role.NEW, 3, 1, ((1, 2),))
    assert loop.continuation("r0") == loop.delivered["r0"]


def test_a_preempted_request_that_loads_comes_back_as_resumed() -> None:
    # The seed of this project: it came back as new, and the workers lost its output.
    loop = Loop()
    loop.add("r0", prompt=3, max_tokens=3, remote_tokens=2)
    loop.step(loads=("r0",))
    loop.step()
    loop.preempt("r0")
    assert len(loop.step(loads=("r0",)).loads) == 1, "it loads once more"
    (row,) = loop.step().rows
    assert (row.role, row.start, row.count) == (Role.RESUMED, 2, 2)
    assert len(row.known_tokens) == 4
    loop.drain()
    assert loop.continuation("r0") == loop.delivered["r0"]


def test_at_least_one_token_is_computed_however_much_is_held_outside() -> None:
    # Without it nothing would be sampled.
    for load_async in (True, False):
        loop = Loop()
        loop.add("r0", prompt=3, remote_tokens=9, load_async=load_async)
        loop.drain()
        assert [one for out in loop.outputs for one in rows(out)] == [("r0", Role.NEW, 2, 1)]
        loop = Loop()
        loop.add("r0", prompt=1, remote_tokens=1, load_async=load_async)
        loop.drain()
        assert loop.continuation("r0") == loop.delivered["r0"]


def test_a_synchronous_load_is_part_of_the_step_that_admits() -> None:
    loop = Loop(block_size=2)
    loop.add("r0", prompt=4, remote_tokens=3, load_async=False)
    output = loop.step()
    assert rows(output) == [("r0", Role.NEW, 3, 1)]
    (load,) = output.loads
    assert (load.start, load.count, load.is_async, load.block_ids) == (0, 3, False, ((1, 2),))
    assert loop.continuation("r0") == loop.delivered["r0"]


def test_loads_begin_only_if_all_that_hold_kv_could_finish_side_by_side() -> None:
    # Two loads that fill the pool could never go on, and nothing runs that could be preempted.
    loop = Loop(blocks_total=4, block_size=1, max_num_batched_tokens=4)
    loop.add("r0", prompt=3, max_tokens=1, remote_tokens=2)
    loop.add("r1", prompt=3, max_tokens=1, remote_tokens=2)
    assert [load.name for load in loop.step(loads=("r0",)).loads] == ["r0"]
    loop.drain()
    assert {"r0", "r1"} == set(loop.finished)


def test_a_request_that_holds_loaded_kv_is_served_before_one_that_holds_none() -> None:
    # Behind a head of line that cannot be admitted it would hold the blocks that one waits for.
    loop = Loop(blocks_total=4, block_size=1, policy=Policy.PRIORITY, max_model_len=4)
    loop.add("r0", prompt=3, max_tokens=1, remote_tokens=2, priority=1)
    loop.step(loads=("r0",))
    loop.add("r1", prompt=3, max_tokens=1, priority=0)
    assert [row.name for row in loop.step().rows] == ["r0"]


@pytest.mark.parametrize(("bad_block", "start"), [(0, 0), (1, 2)])
def test_a_failed_load_counts_up_to_its_bad_block(bad_block: int, start: int) -> None:
    loop = Loop(block_size=2)
    loop.add("r0", prompt=5, remote_tokens=4)
    loop.step(loads=("r0",), failed={"r0": bad_block})
    output = loop.step()
    assert [("r0", Role.NEW, start, 5 - start)] == rows(output)
    assert output.loads == (), "the store is not asked again, which might fail for ever"
    assert loop.continuation("r0") == loop.delivered["r0"]


def test_what_a_step_sampled_from_a_failed_load_is_discarded() -> None:
    loop = Loop(block_size=2)
    loop.add("r0", prompt=4, max_tokens=2, remote_tokens=3, load_async=False)
    loop.schedule()
    output = loop.complete(failed={"r0": 1})
    assert dict(output.delivered) == {}
    assert rows(loop.step()) == [("r0", Role.RUNNING, 2, 2)]
    loop.drain()
    assert loop.continuation("r0") == loop.delivered["r0"]


def test_a_request_preempted_before_its_load_failed_computes_everything_again() -> None:
    loop = Loop(max_steps_in_flight=2)
    loop.add("r0", prompt=4, max_tokens=2, remote_tokens=3, load_async=False)
    loop.schedule()
    loop.preempt("r0")
    assert dict(loop.complete(failed={"r0": 0}).delivered) == {}
    assert rows(loop.step()) == [("r0", Role.RESUMED, 0, 4)]
    loop.drain()
    assert loop.continuation("r0") == loop.delivered["r0"]


@pytest.mark.parametrize("load_async", [True, False])
def test_a_failed_load_ends_the_request_where_the_policy_says_so(load_async: bool) -> None:  # noqa: FBT001
    loop = Loop(load_failure_policy=LoadFailurePolicy.FAIL)
    loop.add("r0", prompt=4, remote_tokens=3, load_async=load_async)
    loop.step(loads=("r0",) if load_async else (), failed={"r0": 0})
    assert loop.finished == {"r0": FinishReason.ERROR}
    assert loop.step().finished == ("r0",)
    loop.drain()
    assert loop.config.blocks_total == loop.free


# Aborts in every state, delayed frees, ids used again.


def in_state(state: Status) -> Loop:
    """A loop whose r0 is in a state."""
    loop = Loop(max_num_seqs=1)
    match state:
        case Status.WAITING:
            loop.add("r1", max_tokens=9)
            loop.add("r0", max_tokens=3)
            loop.step()
        case Status.WAITING_FOR_REMOTE_KVS:
            loop.add("r0", prompt=4, remote_tokens=3)
            loop.step()
        case Status.RUNNING:
            loop.add("r0", max_tokens=3)
            loop.step()
        case _:
            loop.add("r0", max_tokens=3)
            loop.step()
            loop.preempt("r0")
    assert state is loop.status("r0")
    return loop


STATES = [Status.WAITING, Status.WAITING_FOR_REMOTE_KVS, Status.RUNNING, Status.PREEMPTED]


@pytest.mark.parametrize("state", STATES)
def test_an_abort_in_any_state_is_announced_once_and_frees_everything(state: Status) -> None:
    loop = in_state(state)
    loop.abort("r0")
    assert "r0" not in loop.waiting + loop.running
    loop.drain()
    assert sum(output.finished.count("r0") for output in loop.outputs) == 1
    assert (loop.config.blocks_total, {}) == (loop.free, dict(loop.sut.snapshot().requests))


@pytest.mark.parametrize("state", STATES)
def test_a_second_abort_changes_nothing(state: Status) -> None:
    loop = in_state(state)
    loop.abort("r0")
    assert Accepted() == loop.abort("r0")
    loop.drain()
    assert Accepted() == loop.abort("r0")
    assert sum(output.finished.count("r0") for output in loop.outputs) == 1


def test_the_blocks_of_a_load_stay_until_it_has_ended_also_after_an_abort() -> None:
    # The transfer still writes them.
    loop = in_state(Status.WAITING_FOR_REMOTE_KVS)
    held = loop.config.blocks_total - loop.free
    assert held > 0
    loop.abort("r0")
    assert Status.FINISHED_ABORTED is loop.status("r0")
    loop.step()
    assert held == loop.config.blocks_total - loop.free
    loop.step(loads=("r0",))
    assert loop.config.blocks_total == loop.free


def test_the_blocks_of_a_finished_request_stay_until_its_kv_is_sent() -> None:
    loop = Loop()
    loop.add("r0", send_kv=True)
    loop.schedule()
    assert loop.complete().sends == ("r0",)
    assert (loop.status("r0"), loop.blocks("r0")) == (Status.FINISHED_LENGTH_CAPPED, 1)
    assert loop.step().finished == ("r0",), "the end is announced at once"
    assert loop.sut.has_work(), "the end of the send is still to come"
    assert loop.step(sends=("r0",)).finished == ()
    assert (loop.config.blocks_total, False) == (loop.free, loop.sut.has_work())


def test_an_abort_says_that_it_begins_a_send() -> None:
    loop = Loop()
    loop.add("r0", max_tokens=3, send_kv=True)
    loop.step()
    assert Accepted(sends=("r0",)) == loop.abort("r0")


@pytest.mark.parametrize("state", [Status.WAITING, Status.PREEMPTED])
def test_nothing_is_sent_that_was_never_computed(state: Status) -> None:
    loop = Loop(max_num_seqs=1)
    if state is Status.WAITING:
        loop.add("r1", max_tokens=4)
    loop.add("r0", max_tokens=3, send_kv=True)
    loop.step()
    loop.preempt("r0")
    assert Accepted() == loop.abort("r0")


def test_a_send_and_a_step_in_flight_free_exactly_once() -> None:
    loop = Loop(max_steps_in_flight=2, max_num_batched_tokens=2)
    loop.add("r0", prompt=4, max_tokens=3, send_kv=True)
    loop.schedule()
    loop.schedule()
    assert Accepted(sends=("r0",)) == loop.abort("r0")
    loop.complete(sends=("r0",))
    assert loop.free < loop.config.blocks_total, "the younger step still writes them"
    loop.complete()
    assert tuple(range(1, loop.config.blocks_total + 1)) == loop.sut.snapshot().free_block_ids


def test_an_id_is_used_again_only_when_its_owner_is_forgotten() -> None:
    loop = Loop()
    loop.add("r0", send_kv=True)
    assert isinstance(loop.add("r1", engine_id_of="r0"), Rejected)
    loop.step()
    assert isinstance(loop.add("r2", engine_id_of="r0"), Rejected), "its free is outstanding"
    loop.step(sends=("r0",))
    assert isinstance(loop.add("r3", engine_id_of="r0"), Accepted)
    assert rows(loop.step()) == [("r3", Role.NEW, 0, 2)]


def test_one_step_may_name_an_id_as_finished_and_as_new() -> None:
    loop = Loop()
    loop.add("r0")
    loop.step()
    loop.add("r1", engine_id_of="r0")
    output = loop.step()
    assert (output.finished, [row.name for row in output.rows]) == (("r0",), ["r1"])


def test_the_failed_load_of_a_former_owner_is_not_that_of_the_next() -> None:
    # Their symbolic names differ, their engine id does not.
    loop = Loop(max_steps_in_flight=2, load_failure_policy=LoadFailurePolicy.FAIL)
    loop.add("r0", prompt=4, remote_tokens=3, load_async=False)
    loop.schedule()
    loop.abort("r0")
    loop.add("r1", prompt=4, remote_tokens=3, engine_id_of="r0")
    assert [load.name for load in loop.schedule().loads] == ["r1"]
    loop.complete(failed={"r0": 0}, loads=("r1",))
    assert "r1" not in loop.finished
    loop.drain()
    assert loop.finished["r1"] is FinishReason.LENGTH


def test_a_former_owner_of_an_id_cannot_be_preempted_in_its_place() -> None:
    loop = Loop()
    loop.add("r0")
    loop.step()
    loop.add("r1", max_tokens=3, engine_id_of="r0")
    loop.step()
    assert isinstance(loop.preempt("r0"), Rejected)
    assert isinstance(loop.abort("r0"), Accepted)
    assert loop.running == ("r1",)


def test_the_id_of_a_request_that_was_refused_is_refused_too() -> None:
    # It never got one, and the reference must not raise.
    loop = Loop(max_model_len=4)
    assert isinstance(loop.add("r0", prompt=9), Rejected)
    assert isinstance(loop.add("r1", engine_id_of="r0"), Rejected)


# The target.


def test_the_target_keeps_the_protocol() -> None:
    target = reference_target()
    assert isinstance(target, Target)
    lacks = {Capability.ASYNC_SCHEDULING, Capability.OWN_STORE}
    assert lacks == frozenset(Capability) - CAPABILITIES
    assert target.dialects == (Dialect.V1, Dialect.V2)


def test_what_it_honours_it_honours_unchanged() -> None:
    # Replay asks for exactly the configuration that a trace was made with.
    wish = SchedulerConfig(chunked_prefill=False, max_num_batched_tokens=1)
    honoured = ReferenceTarget().honours(wish)
    assert honoured == ReferenceTarget().honours(honoured)
    assert honoured.max_num_batched_tokens == honoured.max_model_len


# Any order of events.


def play_at_random(target: ReferenceTarget, seed: int) -> Loop:
    """Play one random trace and its quiet tail, looking at every block after every action."""
    rng = Random(seed)
    loop = Loop(
        target,
        blocks_total=rng.randint(3, 9),
        block_size=rng.choice((1, 2, 3)),
        max_num_batched_tokens=rng.choice((1, 2, 4, 8)),
        max_num_seqs=rng.randint(1, 4),
        max_model_len=rng.choice((6, 64)),
        max_steps_in_flight=rng.randint(1, 3),
        policy=rng.choice(list(Policy)),
        chunked_prefill=rng.random() < 0.8,
        load_failure_policy=rng.choice(list(LoadFailurePolicy)),
        dialect=rng.choice(list(Dialect)),
    )
    for _ in range(40):
        act_at_random(loop, rng)
        look_at_blocks(loop)
    loop.drain()
    look_at_blocks(loop)
    return loop


def act_at_random(loop: Loop, rng: Random) -> None:
    names = list(loop.delivered)
    tracked = list(loop.sut.snapshot().requests)
    chance = rng.random()
    if chance < 0.25 and len(names) < 10:
        add_at_random(loop, rng, names)
    elif chance < 0.35 and tracked:
        loop.abort(rng.choice(tracked))
    elif chance < 0.42 and tracked:
        loop.preempt(rng.choice(tracked))
    elif chance < 0.44 and not loop.loading:
        loop.sut.control(ResetPrefixCache(running=True))
    elif len(loop.in_flight) < loop.config.max_steps_in_flight and chance < 0.75:
        loop.schedule()
    elif loop.in_flight:
        complete_at_random(loop, rng)


def add_at_random(loop: Loop, rng: Random, names: list[str]) -> None:
    prompt = rng.randint(1, 6)
    held = rng.random() < 0.5
    loop.add(
        f"r{len(loop.specs)}",
        prompt=prompt,
        max_tokens=rng.randint(1, 5),
        stop_at=rng.choice((None, None, 1)),
        priority=rng.randint(0, 1),
        remote_tokens=rng.randint(1, prompt) if held else 0,
        load_async=rng.random() < 0.7,
        send_kv=rng.random() < 0.3,
        engine_id_of=rng.choice(names) if names and rng.random() < 0.3 else None,
    )


def complete_at_random(loop: Loop, rng: Random) -> None:
    step = loop.in_flight[0]
    loads = tuple(name for name in loop.loading if rng.random() < 0.4)
    within_step = tuple(load.name for load in step.loads if not load.is_async)
    loop.complete(
        loads=loads,
        sends=tuple(name for name in loop.sending if rng.random() < 0.4),
        failed={name: rng.randint(0, 1) for name in loads + within_step if rng.random() < 0.3},
    )


def look_at_blocks(loop: Loop) -> None:
    """Each block is free, or held by one request, or fenced: once, whatever happened."""
    snapshot = loop.sut.snapshot()
    held = [one for view in snapshot.requests.values() for one in view.block_ids[0]]
    fenced = [one for _, blocks in loop.scheduler.pool.fenced for one in blocks]
    everywhere = sorted([*snapshot.free_block_ids, *held, *fenced])
    assert list(range(1, loop.config.blocks_total + 1)) == everywhere


RIGHT = [one.name for one in MUTANTS if one.is_variant]


@pytest.mark.parametrize("variant", ["", *RIGHT])
def test_nothing_leaks_stalls_or_raises_in_random_traces(variant: str) -> None:
    target = reference_target(variant)
    ended = preempted = loaded = 0
    for seed in range(300 if not variant else 100):
        loop = play_at_random(target, seed)
        assert loop.config.blocks_total == loop.free, f"seed {seed}"
        for name, reason in loop.finished.items():
            tokens = loop.continuation(name)
            whole = reason in (FinishReason.LENGTH, FinishReason.STOPPED)
            due = len(tokens) if whole else len(loop.delivered[name])
            assert tokens[:due] == loop.delivered[name], f"seed {seed}, {name}"
            ended += whole
        preempted += sum(len(one.preempted) for one in loop.outputs)
        loaded += sum(len(one.loads) for one in loop.outputs)
    assert min(ended, preempted, loaded) > 50, "the traces reach what they are meant to reach"


# The registry.


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_every_mutant_says_what_it_is(mutant) -> None:
    assert mutant.summary.endswith(".")
    assert all(url.startswith("https://github.com/") for url in mutant.evidence)
    assert mutant.evidence
    assert not set(mutant.must_kill) & set(mutant.may_kill)
    assert f"reference+{mutant.name}" == reference_target(mutant.name).name


def test_names_of_mutants_are_unique() -> None:
    names = [one.name for one in MUTANTS]
    assert sorted(set(names)) == sorted(names)
    assert RIGHT == ["repair-by-status", "drafts-by-number", "repair-by-set"]


def test_an_unknown_mutant_is_named_with_the_nearest() -> None:
    with pytest.raises(TargetError, match="did you mean resumed-as-new"):
        reference_target("resumed-as-knew")
