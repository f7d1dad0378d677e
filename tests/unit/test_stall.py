"""The stall report: who waits, holds and needs what, and who waits for whom."""

from __future__ import annotations

from random import Random

import pytest
from attrs import evolve
from making import EVERYTHING, Bench, new

from schedcheck.engine.events import Found, Lack, Link, Stall, StalledRequest
from schedcheck.engine.failures import failure_of
from schedcheck.engine.play import play
from schedcheck.engine.stall import ROWS_MAX, stall_of
from schedcheck.host.wire import decode_event, encode
from schedcheck.invariants.registry import select
from schedcheck.model.actions import Add, AnswerLookup, Drain, GrammarReady, Pause, Preempt, Step
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import Accepted, FinishReason, Load
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import RequestView, Snapshot, Status
from schedcheck.model.trace import Controlled, Header, Scheduled, Trace
from schedcheck.reference.target import reference_target
from schedcheck.report.stall import stall_sentence, stall_state, stall_table
from schedcheck.report.text import failure_lines
from telling import FAILURE, HOSTILE

LOADING = Status.WAITING_FOR_REMOTE_KVS


def view(held: int | None = 0, computed: int | None = 0, status: Status | None = Status.WAITING):
    """Return a view that holds so many blocks; ``scene`` gives them ids."""
    table = None if held is None else (tuple(range(held)),)
    known = max(4, (computed or 0) + 1)
    return RequestView(
        status=status, num_computed_tokens=computed, num_tokens=known, block_ids=table
    )


def scene(
    *, free: int | None = 0, total: int | None = 8, queues=None, specs=None, **views: RequestView
) -> Bench:
    """Return a bench of requests that show this: 4 prompt tokens, one a block and a step."""
    bench = Bench(block_size=1)
    bench.ledger.config = evolve(bench.config, max_num_batched_tokens=1)
    for name in views:
        bench.add(name, prompt=4, **{"remote_tokens": 0, **(specs or {}).get(name, {})})
    shown, first = {}, 1
    for name, one in views.items():
        held = len(one.block_ids[0]) if one.block_ids else 0
        table = None if one.block_ids is None else (tuple(range(first, first + held)),)
        shown[name], first = evolve(one, block_ids=table), first + held
    running = tuple(n for n, v in views.items() if v.status is Status.RUNNING)
    waiting = tuple(n for n in views if n not in running)
    bench.snapshot = Snapshot(
        requests=shown,
        queues={"waiting": waiting, "running": running} if queues is None else queues,
        blocks_free=free,
        blocks_total=total,
    )
    return bench


def stall_in(bench: Bench, *unfinished: str, shows=EVERYTHING, events=()) -> Stall:
    bench.drained(*unfinished, idle_rounds=6)
    return stall_of(bench.ledger, capabilities=shows, events=events)


def told(stall: Stall) -> str:
    return stall_sentence(stall)


def row(stall: Stall, name: str) -> StalledRequest:
    return next(one for one in stall.requests if one.name == name)


def played(target: str, config: SchedulerConfig, *actions, invariants: str = "PRG-*"):
    """Return the failure that actions on a mutant show."""
    trace = Trace(header=Header(target=f"reference+{target}", config=config), actions=actions)
    playback = play(reference_target(target), trace, select(invariants))
    return failure_of(trace, playback, playback.findings[0], origin="", actions_found=len(actions))


def loads(name: str, prompt: int, remote: int) -> Add:
    return Add(name, RequestSpec(prompt=(("own", prompt),), remote_tokens=remote))


# Of mutants.

TIGHT = SchedulerConfig(
    blocks_total=7, block_size=1, max_num_batched_tokens=2, max_num_seqs=2, max_model_len=6
)


def test_two_loads_that_fill_the_pool_are_a_cycle():
    """The stall of vllm#44560; without the cycle a maintainer has to find it in the table."""
    failure = played("loads-deadlock", TIGHT, loads("r0", 5, 4), loads("r1", 4, 3), Drain())
    stall = failure.stall
    assert stall is not None
    assert (
        Link(waiter="r0", lacks=Lack.BLOCKS, on="r1"),
        Link(waiter="r1", lacks=Lack.BLOCKS, on="r0"),
    ) == stall.chain
    assert (
        "a cycle: r0 needs 1 block, held by r1, which needs 1 block, held by r0; "
        "nothing runs, so nothing can be preempted"
    ) == told(stall)
    assert "0 of 7 blocks free · nothing runs · nothing is open" == stall_state(stall)
    r0 = row(stall, "r0")
    assert ("waiting", 1, 2, 4, 5) == (
        r0.queue,
        r0.place,
        r0.queue_length,
        r0.tokens_computed,
        r0.tokens_known,
    )
    assert (4, 1, 1) == (r0.blocks_held, r0.blocks_to_go_on, r0.blocks_to_finish)


def test_a_request_lost_from_the_queues_is_named():
    """It holds nothing and nobody waits for it, so that only its absence tells."""
    roomy = evolve(TIGHT, blocks_total=12, max_model_len=12)
    added = Add("r0", RequestSpec(prompt=(("own", 2),), max_tokens=3))
    failure = played("lost-from-queues", roomy, added, Step(), Preempt("r0"), Drain())
    assert "r0 stands in no queue, so nothing can schedule it" == told(failure.stall)
    text = "\n".join(failure_lines(failure))
    assert "(no queue)" in text
    assert "lost: it is in no queue" in text


def test_only_faults_of_progress_have_a_stall():
    failure = played(
        "lost-from-queues",
        evolve(TIGHT, blocks_total=12, max_model_len=12),
        Add("r0", RequestSpec(prompt=(("own", 2),), max_tokens=3)),
        Step(),
        Preempt("r0"),
        invariants="REQ-005",
    )
    assert failure.stall is None


def test_a_chunk_needs_room_as_a_whole():
    """No part of a chunk is admitted: were a token the need, r0 would seem to lack nothing."""
    config = SchedulerConfig(
        blocks_total=9, block_size=4, max_num_batched_tokens=4, max_num_seqs=1, max_model_len=31
    )
    stall = played("loads-deadlock", config, loads("r0", 5, 1), loads("r1", 30, 29), Drain()).stall
    assert (
        "a cycle: r0 needs 1 block for its next 4 tokens, held by r1, which stands behind r0; "
        "nothing runs, so nothing can be preempted"
    ) == told(stall)


# Of snapshots made by hand.


def test_a_forgotten_wake_up_is_told_as_what_it_is():
    stall = stall_in(scene(free=3, r0=view(held=4, computed=4), r1=view()), "r0", "r1")
    assert (
        "nothing is open, 3 blocks are free and r0 needs 1 block: nothing visible keeps it waiting"
    ) == told(stall)
    assert not stall.is_cycle
    assert Lack.TURN in row(stall, "r1").lacks, "r1 stands behind r0"


def test_who_stands_behind_a_request_leads_to_it():
    bench = scene(free=0, total=5, r0=view(held=0), r1=view(held=5, computed=5))
    stall = stall_in(bench, "r0", "r1")
    assert row(stall, "r1").never_fits
    assert (
        "r0 needs 1 block, held by r1; r1 needs 1 block beside the 5 it holds, and the pool has 5: "
        "it never fits"
    ) == told(stall)


def test_a_load_that_is_over_though_its_request_still_waits_for_it():
    """The stall of vllm#57841: the head of the queue lacks the blocks of the one behind it."""
    bench = scene(free=1, total=5, r0=view(), r1=view(held=4, status=LOADING))
    bench.ledger.lives["r0"].spec = evolve(bench.ledger.lives["r0"].spec, remote_tokens=3)
    stall = stall_in(bench, "r0", "r1")
    assert "its load" == row(stall, "r1").overdue
    assert (
        "a cycle: r0 needs 3 blocks to load 3 tokens (1 free), held by r1, which stands behind r0; "
        "nothing runs, so nothing can be preempted"
    ) == told(stall)
    alone = stall_in(scene(free=3, r1=view(held=4, status=LOADING)), "r1")
    assert (
        "nothing is open, its load is over although r1 is WAITING_FOR_REMOTE_KVS, 3 blocks are "
        "free and r1 needs none: nothing visible keeps it waiting"
    ) == told(alone)


def test_a_seat_can_be_part_of_a_cycle():
    bench = scene(
        free=0,
        r0=view(held=4, computed=4, status=Status.RUNNING),
        r1=view(held=4, computed=4),
        queues={"waiting": ("r1",), "running": ("r0",)},
    )
    bench.ledger.config = evolve(bench.ledger.config, max_num_seqs=1)
    stall = stall_in(bench, "r0", "r1")
    assert (Lack.BLOCKS, Lack.SEAT) == row(stall, "r1").lacks
    assert (
        "a cycle: r0 needs 1 block, held by r1, which needs 1 block, held by r0; "
        "r0 runs, and preempting it would break the cycle"
    ) == told(stall)


def test_a_request_that_lacks_nothing_but_a_seat_closes_a_cycle_too():
    """Two cache groups: r0 needs a block in each, and r1 has taken blocks ahead."""
    bench = scene(
        r0=view(status=Status.RUNNING),
        r1=view(),
        queues={"waiting": ("r1",), "running": ("r0",)},
    )
    bench.ledger.config = evolve(bench.ledger.config, max_num_seqs=1)
    r0, r1 = bench.snapshot.requests.values()
    bench.snapshot = evolve(
        bench.snapshot,
        requests={
            "r0": evolve(r0, num_computed_tokens=2, block_ids=((1, 2), (3, 4))),
            "r1": evolve(r1, num_computed_tokens=1, block_ids=((5, 6), (7, 8))),
        },
        blocks_free=1,
        blocks_total=9,
    )
    assert (
        "a cycle: r0 needs 2 blocks (1 free), held by r1, which needs a seat, taken by r0; "
        "r0 runs, and preempting it would break the cycle"
    ) == told(stall_in(bench, "r0", "r1"))


def test_whoever_can_give_keeps_a_cycle_from_being_one():
    """Otherwise requests that only have to wait a while would be called deadlocked."""
    bench = scene(
        free=0,
        r0=view(held=3, computed=3),
        r1=view(held=3, computed=3),
        r2=view(held=2, computed=1, status=Status.RUNNING),
    )
    stall = stall_in(bench, "r0", "r1", "r2")
    assert not stall.is_cycle
    assert (
        "r0 needs 1 block, held by r2 and 1 more; nothing is open, 0 blocks are free and r2 needs "
        "none: nothing visible keeps it waiting"
    ) == told(stall)


def test_what_is_open_is_told_first():
    bench = scene(free=0, r0=view(), r1=view(held=4, status=LOADING))
    bench.schedule(loads=(Load(name="r1", start=0, count=4, is_async=True),))
    stall = stall_in(bench, "r0", "r1")
    assert ("its load",) != row(stall, "r1").awaits
    assert ("the end of its load",) == row(stall, "r1").awaits
    assert "r0 needs 1 block, held by r1; r1 waits for the end of its load" == told(stall)
    assert "something is open" in stall_state(stall)
    bench.end_load("r1")
    assert ("the report of its load",) == row(stall_in(bench, "r0", "r1"), "r1").awaits


def test_what_moves_is_no_riddle():
    bench = scene(free=2, r0=view(held=1, computed=1, status=Status.RUNNING))
    bench.schedule(new("r0", 1))
    bench.complete()
    last = Scheduled(output=bench.ledger.executed.output)
    stall = stall_in(bench, "r0", events=(last,))
    assert "r0 still moves: the step planned last has it" == told(stall)


def test_while_others_move_a_wait_is_no_riddle():
    """PRG-003 ends in a step that preempted somebody: that it does not run yet means nothing."""
    bench = scene(free=3, r0=view(), r1=view(held=1, computed=1, status=Status.RUNNING))
    bench.schedule(new("r1", 1))
    last = Scheduled(output=bench.ledger.in_flight[-1].output)
    stall = stall_in(bench, "r0", "r1", events=(last,))
    assert () == row(stall, "r1").awaits, "that it moves says it"
    assert "3 blocks are free and r0 needs 1 block: it may go on with the next step" == told(stall)


def test_a_wait_while_something_else_is_open_is_told_with_that():
    bench = scene(free=3, r0=view(), r1=view(held=4, status=LOADING))
    bench.schedule(loads=(Load(name="r1", start=0, count=4, is_async=True),))
    bench.complete()
    assert told(stall_in(bench, "r0", "r1")).endswith(", though something is open")


def test_a_request_whose_tokens_are_all_computed_waits_for_a_token():
    """Refused drafts that were counted leave this behind: no step would take such a request."""
    one = evolve(view(held=6, computed=6, status=Status.RUNNING), num_tokens=4)
    stall = stall_in(scene(free=0, r0=one), "r0")
    assert (
        "r0 has nothing to compute (6 of 4 tokens computed), and no step of it is in flight"
    ) == told(stall)


def test_an_ended_request_that_keeps_blocks_is_listed():
    bench = scene(free=0, total=4, r0=view(), r1=view(held=4, status=Status.FINISHED_STOPPED))
    bench.schedule()
    bench.complete(finished={"r1": FinishReason.STOPPED}, sends=("r1",))
    stall = stall_in(bench, "r0")
    assert (
        "r0 needs 1 block, held by r1; r1 has ended and still holds 4 blocks, until the end of "
        "its send"
    ) == told(stall)


def test_blocks_that_nobody_holds_are_counted():
    stall = stall_in(scene(free=0, total=6, r0=view(held=4, computed=4)), "r0")
    assert 2 == stall.blocks_unaccounted
    assert (
        "r0 needs 1 block, 0 blocks are free and 2 are held by no request that is shown"
    ) == told(stall)


def test_a_request_that_the_scheduler_forgot():
    bench = scene(free=8, r0=view())
    bench.snapshot = Snapshot(queues={"waiting": (), "running": ()}, blocks_free=8, blocks_total=8)
    stall = stall_in(bench, "r0")
    assert "r0 has not finished, but the scheduler does not track it" == told(stall)


@pytest.mark.parametrize(
    ("chunked", "held", "computed", "to_go_on", "purpose"),
    [
        (True, 0, 0, 3, "for its next 3 tokens"),
        (False, 0, 0, 4, "for all its tokens at once"),
        (False, 2, 2, 2, "for all its tokens at once"),
        (True, 2, 2, 2, "for its next 2 tokens"),
        (True, 4, 4, 1, ""),
        (True, 6, 2, 0, ""),  # it took blocks ahead
        (True, 1, 3, 1, ""),  # the others are behind its window
    ],
)
def test_what_a_request_needs_to_go_on(chunked, held, computed, to_go_on, purpose):
    bench = scene(free=8, total=99, r0=view(held=held, computed=computed))
    bench.ledger.config = evolve(
        bench.ledger.config, chunked_prefill=chunked, max_num_batched_tokens=3 if chunked else 64
    )
    r0 = row(stall_in(bench, "r0"), "r0")
    assert (to_go_on, purpose) == (r0.blocks_to_go_on, r0.purpose)


def test_a_need_is_a_bound_where_a_prefix_may_be_cached():
    bench = scene(free=0, r0=view(), r1=view(held=8, computed=8))
    bench.ledger.config = evolve(bench.ledger.config, prefix_caching=True, chunked_prefill=False)
    stall = stall_in(bench, "r0", "r1")
    assert (True, False) == (row(stall, "r0").is_at_most, row(stall, "r1").is_at_most)
    assert "up to 4 blocks" in "\n".join(stall_table(stall, width=98))


def test_the_last_token_is_never_read_so_it_needs_no_room():
    specs = {"r0": {"max_tokens": 9, "stop_at": 2}}
    stall = stall_in(scene(free=8, total=99, specs=specs, r0=view(held=4, computed=4)), "r0")
    assert 2 == row(stall, "r0").blocks_to_finish


@pytest.mark.parametrize("huge", [-1, 10**400])
def test_counts_beyond_reason_are_not_shown(huge):
    one = RequestView(status=Status.WAITING, num_computed_tokens=huge, num_tokens=huge)
    stall = stall_in(scene(free=huge, total=huge, r0=one), "r0")
    assert (None, None) == (stall.blocks_free, row(stall, "r0").tokens_computed)
    assert Found(failure=evolve(FAILURE, stall=stall)) == decode_event(
        encode(Found(failure=evolve(FAILURE, stall=stall)))
    )


def test_an_engine_that_shows_little_gets_a_short_report_and_no_cycle():
    hidden = view(held=None, computed=None, status=None)
    bench = scene(free=None, total=None, queues={}, r0=hidden, r1=hidden)
    shows = EVERYTHING - {c for c in Capability if c.startswith("SHOWS")}
    stall = stall_in(bench, "r0", "r1", shows=shows)
    assert (
        "nothing is open and what r0 needs is not shown: nothing visible keeps it waiting"
    ) == told(stall)
    assert "nothing is open" == stall_state(stall)
    assert (None, None) == (stall.running, stall.blocks_unaccounted)
    assert [
        "request  status  place  computed  holds  to go on  to end  waits for",
        "r0       –       –             –      –         –       –  nothing visible",
        "r1       –       –             –      –         –       –  nothing visible",
    ] == list(stall_table(stall, width=98))


def test_an_engine_without_tables_says_whom_a_request_stands_behind():
    hidden = view(held=None)
    bench = scene(free=3, r0=hidden, r1=hidden)
    stall = stall_in(bench, "r0", "r1")
    assert "r0" == row(stall, "r1").behind
    assert (
        "nothing is open, 3 blocks are free and what r0 needs is not shown: nothing visible keeps "
        "it waiting"
    ) == told(stall)


def test_an_engine_that_shows_nothing_at_all_has_lost_nothing():
    bench = scene(free=None, total=None, r0=view())
    bench.snapshot = Snapshot()
    stall = stall_in(bench, "r0", shows=frozenset())
    assert row(stall, "r0").is_tracked
    assert not row(stall, "r0").is_in_no_queue


def test_of_many_requests_some_are_told_and_those_of_the_cycle_among_them():
    names = [f"r{number}" for number in range(40)]
    views = {name: view() for name in names} | {
        name: view(held=4, computed=4) for name in names[-2:]
    }
    stall = stall_in(scene(free=0, **views), *names)
    assert (ROWS_MAX, 40 - ROWS_MAX) == (len(stall.requests), stall.more)
    assert {"r38", "r39"} <= {one.name for one in stall.requests}
    assert {"r38", "r39"} == {link.waiter for link in stall.chain}
    assert "and 28 more" == list(stall_table(stall, width=98))[-1]


def test_a_crowd_is_counted_and_nothing_is_made_up_about_it():
    names = [f"r{number}" for number in range(300)]
    stall = stall_in(scene(free=0, **dict.fromkeys(names, view())), *names)
    assert "300 requests are too many to say who waits for whom" == told(stall)


def test_a_long_chain_is_told_from_both_ends():
    links = tuple(Link(waiter=f"r{n}", lacks=Lack.TURN, on=f"r{n + 1}") for n in range(30))
    stall = Stall(requests=(StalledRequest(name="r30"),), chain=links, root="r30", is_quiet=True)
    assert told(stall).startswith("r0 stands behind r1, which stands behind r2, which")
    assert ", and so on over 24 more to r29, which stands behind r30; nothing is open" in told(
        stall
    )


def test_what_a_status_says_is_in_words_also_where_it_is_unknown(monkeypatch):
    """Statuses grow in number; one without words would tell that nothing is waited for."""
    from schedcheck.engine.stall import _awaited

    assert "its grammar" == _awaited("WAITING_FOR_FSM").what
    assert "tea and cake" == _awaited("WAITING_FOR_TEA_AND_CAKE").what
    assert all(_awaited(word) is None for word in ("WAITING", "RUNNING", "PREEMPTED", ""))
    monkeypatch.setattr("schedcheck.engine.stall._status", lambda _view: "WAITING_FOR_TEA")
    stall = stall_in(scene(free=8, r0=view()), "r0")
    assert "r0 waits for tea" == told(stall)


@pytest.mark.parametrize(
    ("spec", "status", "awaited", "given"),
    [
        (
            {"grammar": True},
            Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
            "its grammar",
            GrammarReady("r0"),
        ),
        (
            {"lookup_undecided": True},
            Status.WAITING,
            "the answer how much of its prompt is held outside",
            AnswerLookup("r0"),
        ),
    ],
)
def test_what_comes_from_outside_is_awaited_until_it_came(spec, status, awaited, given):
    """A status that outlives what it waits for is a forgotten wake-up and must not look a wait."""
    bench = scene(free=8, specs={"r0": spec}, r0=view(status=status))
    stall = stall_in(bench, "r0")
    assert (awaited,) == row(stall, "r0").awaits
    assert f"r0 waits for {awaited}" == told(stall)
    bench.show(Controlled(action=given, answer=Accepted(), snapshot=bench.snapshot))
    stall = stall_in(bench, "r0")
    assert () == row(stall, "r0").awaits
    assert "nothing visible keeps it waiting" in told(stall)
    assert (awaited if status is not Status.WAITING else "") == row(stall, "r0").overdue


def test_a_session_between_chunks_waits_for_the_next():
    between = view(status=Status.WAITING_FOR_STREAMING_REQ)
    bench = scene(free=8, specs={"r0": {"chunks": (2,)}}, r0=between)
    bench.ledger.lives["r0"].delivered = [1]
    assert "r0 waits for the next chunk of its session" == told(stall_in(bench, "r0"))


def test_a_pause_is_what_all_wait_for():
    bench = scene(free=8, r0=view())
    bench.show(Controlled(action=Pause(), answer=Accepted(), snapshot=bench.snapshot))
    stall = stall_in(bench, "r0")
    assert "scheduling is paused, and r0 waits for its end" == told(stall)
    assert "something is open · scheduling is paused" in stall_state(stall)


def test_what_cannot_be_seen_is_admitted():
    """Otherwise a full encoder cache would be told as a forgotten wake-up."""
    bench = scene(free=8, specs={"r0": {"adapter": "lora"}}, r0=view())
    bench.ledger.config = evolve(bench.ledger.config, max_loras=1)
    spec = bench.ledger.lives["r0"].spec
    bench.ledger.lives["r0"].spec = evolve(spec, prompt=(("media:cat", 4),))
    assert told(stall_in(bench, "r0")).endswith(
        "keeps it waiting (the encoder cache and places for adapters cannot be seen)"
    )


def test_a_load_that_failed_comes_first_no_more():
    bench = scene(free=0, specs={"r0": {"remote_tokens": 3}}, r0=view())
    assert "to load 3 tokens" == row(stall_in(bench, "r0"), "r0").purpose
    bench.ledger.lives["r0"].loaded_to = 0
    assert "" == row(stall_in(bench, "r0"), "r0").purpose


# Whatever is shown.


def test_a_hostile_name_stays_a_word():
    bench = scene(free=0, **{HOSTILE: view(held=4, computed=4), "a; b, held": view(4, 4)})
    stall = stall_in(bench, HOSTILE, "a; b, held")
    text = [told(stall), *stall_table(stall, width=98), stall_state(stall)]
    assert all(line.isprintable() for line in text)
    assert "held by 'a; b, held', which" in text[0]


def any_stall(rng: Random) -> tuple[Bench, list[str]]:
    """Return a snapshot as odd as they come."""
    names = [rng.choice("abcdefgh") * rng.choice((1, 2, 150)) + str(n) for n in range(20)]
    names = names[: rng.randint(0, 20)]
    statuses = [*Status, None]
    views = {
        name: RequestView(
            status=rng.choice(statuses),
            num_computed_tokens=rng.choice((None, 0, 3, -5, 10**9)),
            num_tokens=rng.choice((None, 0, 4)),
            block_ids=rng.choice((None, (), ((1, 2),), ((3,), (4, 4)))),
        )
        for name in names
    }
    queues = {
        queue: tuple(rng.choices([*names, "stranger"], k=rng.randint(0, 6)))
        for queue in rng.sample(["waiting", "running", "skipped" * 9], rng.randint(0, 3))
    }
    bench = Bench(block_size=rng.choice((1, 3)))
    for name in names:
        bench.add(name, prompt=rng.randint(1, 9), remote_tokens=rng.choice((0, 4)))
    bench.snapshot = Snapshot(
        requests={k: v for k, v in views.items() if rng.random() < 0.8},
        queues=queues,
        blocks_free=rng.choice((None, 0, 2, -3)),
        blocks_total=rng.choice((None, 8, 1)),
    )
    return bench, names


@pytest.mark.parametrize("seed", range(120))
def test_no_snapshot_is_too_odd_for_a_report(seed):
    """A report that raises, or does not cross the wire, hides the violation it is about."""
    rng = Random(seed)
    bench, names = any_stall(rng)
    bench.drained(*names)
    shows = frozenset(c for c in Capability if rng.random() < 0.7)
    stall = stall_of(bench.ledger, capabilities=shows)
    failure = evolve(FAILURE, stall=stall)
    lines = list(failure_lines(failure))
    assert [] == [line for line in lines if len(line) > 100 or not line.isprintable()]
    assert failure == decode_event(encode(Found(failure=failure))).failure
    assert len(stall.requests) <= ROWS_MAX
    if stall.is_cycle:
        ends = [link.on for link in stall.chain]
        assert [link.waiter for link in stall.chain] == [ends[-1], *ends[:-1]]
