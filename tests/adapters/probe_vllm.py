"""What test_vllm.py asks of the vLLM adapter, run by an interpreter that has vLLM.

Answers with one JSON object on standard output and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from attrs import evolve

from schedcheck.adapters.vllm import vllm_target
from schedcheck.engine.campaign import Campaign
from schedcheck.engine.executor import Executor
from schedcheck.engine.profiles import draw_load, get_profile
from schedcheck.invariants.registry import select
from schedcheck.judge import Judge
from schedcheck.model.actions import (
    Abort,
    Action,
    Add,
    AddChunk,
    AnswerLookup,
    Drain,
    FailTransfer,
    FinishSend,
    FinishTransfer,
    GrammarReady,
    Pause,
    ResetPrefixCache,
    Resume,
    Schedule,
    Step,
)
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.output import Load, SchedulerOutput, WorkerResult
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Completed, Controlled, Scheduled

TARGET = vllm_target()
TINY = SchedulerConfig(
    blocks_total=4, block_size=1, max_num_batched_tokens=4, max_num_seqs=2, max_model_len=8
)


def spec(prompt: int, **more: Any) -> RequestSpec:
    return RequestSpec(prompt=(("own", prompt),), **more)


def play(actions: Sequence[Action], config: SchedulerConfig = TINY) -> tuple[list[Any], Any]:
    """Return every event of a trace, findings or not, and the system in its last state."""
    assert TARGET.honours(config) == config
    sut = TARGET.open(config)
    events: list[Any] = []
    executor = Executor(sut, Judge(config, TARGET.capabilities, ()), events.append)
    for action in actions:
        executor.apply(action)
    return events, sut


def outputs(events: Sequence[Any]) -> list[SchedulerOutput]:
    return [event.output for event in events if isinstance(event, Scheduled)]


def rows(output: SchedulerOutput) -> list[Any]:
    return [
        [
            *(row.name, row.role, row.start, row.count, row.block_ids, row.table_update),
            None if row.known_tokens is None else len(row.known_tokens),
        ]
        for row in output.rows
    ]


def loads(output: SchedulerOutput) -> list[Any]:
    return [[one.name, one.start, one.count, one.is_async, one.block_ids] for one in output.loads]


def delivered_to(name: str, events: Sequence[Any]) -> list[int]:
    """How many tokens each completed step delivered to a request."""
    done = [event for event in events if isinstance(event, Completed)]
    return [len(event.output.delivered.get(name, ())) for event in done]


def configurations() -> dict[str, Any]:
    """What is honoured is honoured unchanged, opens, and gives a step room enough."""
    rng, unstable, cramped = Random(1), 0, 0
    for number in range(200):
        config = draw_load(TARGET, get_profile("quick"), rng).config
        again = TARGET.honours(config)
        unstable += again != config
        cramped += config.max_num_batched_tokens < config.max_num_seqs
        cramped += (
            not config.chunked_prefill and config.max_num_batched_tokens < config.max_model_len
        )
        if number % 20 == 0:
            TARGET.open(config).close()
    v2 = TARGET.honours(evolve(TINY, dialect=Dialect.V2))
    return {"unstable": unstable, "cramped": cramped, "v2 becomes": v2.dialect}


SEED = (
    Add("r0", spec(2, max_tokens=3, remote_tokens=1)),
    *(Step(), FinishTransfer("r0"), Step(), Step()),
    *(ResetPrefixCache(running=True), Step(), FinishTransfer("r0"), Step(), Schedule()),
)


def seed_path(dialect: Dialect) -> dict[str, Any]:
    """A preempted request comes back through a load: as what, and with how many tokens."""
    events, _ = play(SEED, evolve(TINY, max_num_seqs=1, dialect=dialect))
    last = outputs(events)[-1]
    told = [output.preempted for output in outputs(events)]
    return {"rows": rows(last), "preempted": told}


def plain_life() -> dict[str, Any]:
    """New with a whole table, running with an addition or none, ended, announced."""
    events, sut = play(
        (Add("r0", spec(3, max_tokens=2)), Step(), Step(), Schedule()), evolve(TINY, block_size=2)
    )
    ended = [event.output.finished for event in events if isinstance(event, Completed)]
    snapshot = sut.snapshot()
    return {
        "rows": [rows(output) for output in outputs(events)],
        "finished": [dict(one) for one in ended],
        "announced": [output.finished for output in outputs(events)],
        "queues": sorted(snapshot.queues),
        "free": [snapshot.blocks_free, snapshot.blocks_total, snapshot.free_block_ids],
        "has_work": sut.has_work(),
    }


def reused_id() -> dict[str, Any]:
    """One output may name an id as ended and as new: each is another request of ours."""
    events, _ = play(
        (
            Add("r0", spec(1, max_tokens=4)),
            *(Step(), Abort("r0")),
            *(Add("r1", spec(1, engine_id_of="r0")), Step(), Schedule()),
        )
    )
    _, second, third = outputs(events)
    return {
        "second": [second.finished, [row.name for row in second.rows]],
        "third": [third.finished, [row.name for row in third.rows]],
        "ended": [list(event.output.finished) for event in events if isinstance(event, Completed)],
    }


def id_in_use() -> str:
    """Adding a tracked id is the caller's error, which no engine is to be asked for."""
    _, sut = play((Add("r0", spec(1)),))
    return type(sut.add("r1", spec(1, engine_id_of="r0"), (5,))).__name__


def aborted_load() -> dict[str, Any]:
    """Exactly one end of the load is reported after an abort, and every block comes back."""
    actions = (Add("r0", spec(3, remote_tokens=2)), Step(), Abort("r0"), Step())
    events, sut = play((*actions, FinishTransfer("r0"), Step(), Step()))
    waits = play(actions)[1].snapshot()
    return {
        "loads": [loads(output) for output in outputs(events)][:1],
        "reported": [
            list(event.result.loads_finished) for event in events if isinstance(event, Completed)
        ],
        "free after the abort": waits.blocks_free,
        "free at the end": sut.snapshot().blocks_free,
        "crashes": [event.error for event in events if hasattr(event, "traceback")],
    }


def failed_load() -> dict[str, Any]:
    """What was loaded before the bad block counts; the rest is computed or loaded again."""
    config = evolve(TINY, block_size=2, max_model_len=8)
    request = Add("r0", spec(6, remote_tokens=4))
    events, _ = play((request, Step(), FailTransfer("r0", 1), Step(), Schedule()), config)
    drained, sut = play((request, Step(), FailTransfer("r0", 1), Drain(steps_max=50)), config)
    return {
        "rows": rows(outputs(events)[-1]),
        "left": drained[-1].unfinished,
        "free": sut.snapshot().blocks_free,
    }


def failed_first_of_two_loads() -> list[list[int]]:
    """A step's failed load is about the blocks of that step, though the request loads again."""
    config = evolve(TINY, max_steps_in_flight=2)
    _, sut = play((Add("r0", spec(3, remote_tokens=2, load_async=False)), Schedule()), config)
    inside: Any = sut
    step = inside.in_flight[0]
    first = step.sync_loads["r0"]
    inside.in_flight.append(type(step)(step.raw, {"r0": ((7, 8),)}))
    said = inside._transfers(step, WorkerResult(loads_failed={"r0": 1}))
    return [sorted(first[0][1:]), sorted(said.bad_blocks)]


def delayed_send() -> dict[str, Any]:
    """A send begins at the end or at an abort, holds the blocks, and ends once."""
    request = Add("r0", spec(2, max_tokens=2, send_kv=True))
    events, sut = play((request, Step(), Step(), Step(), FinishSend("r0"), Step()))
    aborted, _ = play((request, Step(), Abort("r0")))
    unstarted, _ = play((request, Abort("r0")))
    answers = [
        [event.answer.sends for event in some if isinstance(event, Controlled)]
        for some in (aborted, unstarted)
    ]
    held, _ = play((request, Step(), Step(), Step()))
    return {
        "sends": [event.output.sends for event in events if isinstance(event, Completed)],
        "at aborts": answers,
        "held": held[-1].snapshot.blocks_free,
        "free": sut.snapshot().blocks_free,
        "tracked": sorted(sut.snapshot().requests),
    }


def resets() -> list[str]:
    """A reset while blocks are used is refused; a forced one preempts whatever runs."""
    events, _ = play(
        (
            Add("r0", spec(1, max_tokens=3)),
            Step(),
            ResetPrefixCache(),
            ResetPrefixCache(running=True),
        )
    )
    answers = [event for event in events if isinstance(event, Controlled)]
    return [type(one.answer).__name__ for one in answers] + [
        answers[-1].snapshot.requests["r0"].status
    ]


def repeated() -> bool:
    """Return whether the same seed shows the same events twice."""

    def run() -> list[Any]:
        said: list[Any] = []
        Campaign(
            target=TARGET,
            target_text="vllm",
            profile=evolve(get_profile("quick"), traces=15),
            invariants=select("REQ-*"),
            seed=3,
            emit=said.append,
        ).run()
        ended = said[-1]
        return [ended.actions, ended.results, ended.seen]

    return run() == run()


def first_load() -> list[Any]:
    """The shape of a load, with a prefix that is there already."""
    config = evolve(TINY, block_size=2, blocks_total=6, max_model_len=12, prefix_caching=True)
    shared = RequestSpec(prompt=(("s0", 5),), max_tokens=1)
    later = RequestSpec(prompt=(("s0", 4), ("own", 4)), max_tokens=1, remote_tokens=7)
    events, sut = play((Add("r0", shared), Step(), Step(), Add("r1", later), Step()), config)
    load: Load = outputs(events)[-1].loads[0]
    table = sut.snapshot().requests["r1"].block_ids
    return [load.start, load.count, load.block_ids == (table[0][2:],), len(table[0])]


def drafts(*, ahead: bool) -> list[Any]:
    """Each step's drafts and what was delivered; one of two drafts is right each time."""
    config = evolve(
        TINY, blocks_total=16, max_model_len=16, num_speculative_tokens=2, max_num_batched_tokens=6
    )
    config = evolve(config, async_scheduling=ahead, max_steps_in_flight=2 if ahead else 1)
    request = Add("r0", spec(2, max_tokens=5, drafts=((2, 1),)))
    events, _ = play((request, Drain(steps_max=20)), config)
    told = [list(one.scheduled_spec_decode_tokens.get("r0", ())) for one in outputs(events)]
    return [[len(one) for one in told], delivered_to("r0", events)]


def session() -> list[Any]:
    """Two inputs, each answered in full, the second with what the session holds by then."""
    request = Add("r0", spec(2, max_tokens=2, chunks=(2,)))
    actions = (request, Step(), Step(), AddChunk("r0"), Step(), Step(), Step())
    events, sut = play(actions, evolve(TINY, blocks_total=8))
    told = [rows(one)[0][1:4] for one in outputs(events) if one.rows]
    return [delivered_to("r0", events), told, sut.has_work()]


def held_back() -> dict[str, list[list[str]]]:
    """Who is in each step's rows where a grammar, an answer or a resume must come first."""

    def who(*actions: Action) -> list[list[str]]:
        needed = {need for action in actions for need in action.needs}
        if not needed <= TARGET.capabilities:
            return []
        return [[row.name for row in one.rows] for one in outputs(play(actions)[0])]

    return {
        "grammar": who(Add("r0", spec(1, grammar=True)), Step(), GrammarReady("r0"), Step()),
        "lookup": who(
            Add("r0", spec(2, remote_tokens=1, load_async=False, lookup_undecided=True)),
            *(Step(), AnswerLookup("r0"), Step()),
        ),
        "pause": who(Pause(), Add("r0", spec(1)), Step(), Resume(), Step()),
    }


def adapters() -> list[list[str]]:
    """Two adapters and room for one: who is in each step's rows."""
    requests = [Add(f"r{n}", spec(1, max_tokens=2, adapter=f"a{n}")) for n in range(2)]
    events, _ = play((*requests, Step(), Step(), Step()), evolve(TINY, max_loras=1))
    return [[row.name for row in one.rows] for one in outputs(events)]


def window() -> list[int]:
    """How many blocks a request holds after each step, with a window of two tokens."""
    config = evolve(TINY, blocks_total=9, max_model_len=9, sliding_window=2)
    events, _ = play((Add("r0", spec(2, max_tokens=6)), *(Step(),) * 4), config)
    return [
        sum(block != 0 for block in one.snapshot.requests["r0"].block_ids[0])
        for one in events
        if isinstance(one, Completed)
    ]


json.dump(
    {
        "version": TARGET.version,
        "capabilities": sorted(TARGET.capabilities),
        "dialects": list(TARGET.dialects),
        "configurations": configurations(),
        "seed path": {one: seed_path(one) for one in TARGET.dialects},
        "plain life": plain_life(),
        "reused id": reused_id(),
        "id in use": id_in_use(),
        "aborted load": aborted_load(),
        "failed load": failed_load(),
        "failed first of two loads": failed_first_of_two_loads(),
        "delayed send": delayed_send(),
        "resets": resets(),
        "repeated": repeated(),
        "first load": first_load(),
        "drafts": drafts(ahead=False),
        "drafts ahead": drafts(ahead=True),
        "session": session() if Capability.STREAMING_INPUT in TARGET.capabilities else None,
        "held back": held_back(),
        "adapters": adapters(),
        "window": window(),
    },
    sys.stdout,
)
