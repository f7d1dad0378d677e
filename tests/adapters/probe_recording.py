"""What test_recording.py asks of the recorder, run by an interpreter that has vLLM.

Records into the folder that it is given, and answers with one JSON object on standard output.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from random import Random
from typing import Any

from attrs import evolve

import schedcheck
from schedcheck.adapters.vllm import engine, vllm_target
from schedcheck.engine.executor import Executor
from schedcheck.engine.moves import decode
from schedcheck.engine.profiles import draw_load, get_profile
from schedcheck.judge import Judge
from schedcheck.model.actions import Abort, Add, FinishTransfer, ResetPrefixCache, Step
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.request import RequestSpec
from schedcheck.recording import vllm as recording

TARGET = vllm_target()
FOLDER = Path(sys.argv[1])
TINY = SchedulerConfig(
    blocks_total=4, block_size=1, max_num_batched_tokens=4, max_num_seqs=1, max_model_len=8
)


def spec(prompt: int, **more: Any) -> RequestSpec:
    return RequestSpec(prompt=(("own", prompt),), **more)


SEED_PATH = (
    Add("r0", spec(2, max_tokens=3, remote_tokens=1)),
    *(Step(), FinishTransfer("r0"), Step(), Step()),
    *(ResetPrefixCache(running=True), Step(), FinishTransfer("r0"), Step(), Step()),
)


def wrapped(name: str, config: SchedulerConfig = TINY, **options: Any) -> Any:
    """Open a system whose scheduler is wrapped by ``schedcheck.record``."""
    sut: Any = TARGET.open(config)
    sut.scheduler = schedcheck.record(sut.scheduler, folder=FOLDER, name=name, **options)
    return sut


def named(config: SchedulerConfig = TINY) -> Any:
    """Open a system whose scheduler is of the class that vLLM's own setting names."""
    made = engine._vllm_config(config, engine.AS_IT_IS).scheduler_config
    object.__setattr__(made, "scheduler_cls", "schedcheck.recording.vllm.RecordingScheduler")
    kind = made.get_scheduler_cls() if hasattr(made, "get_scheduler_cls") else None
    before = engine.Scheduler
    engine.Scheduler = kind or recording.RecordingScheduler
    try:
        return TARGET.open(config)
    finally:
        engine.Scheduler = before


def play(sut: Any, actions: Any, config: SchedulerConfig = TINY) -> None:
    executor = Executor(sut, Judge(config, TARGET.capabilities, ()))
    for action in actions:
        executor.apply(action)


def close(sut: Any) -> None:
    sut.scheduler.shutdown()


def search(name: str, *, seed: int, actions: int, **options: Any) -> dict[str, Any]:
    """Record one long search; what the recorder sees must be what the adapter sees."""
    rng = Random(seed)
    load = evolve(draw_load(TARGET, get_profile("transfers"), rng), requests_max=10**6)
    load = evolve(load, features=frozenset(), reuse_percent=0)
    sut = wrapped(name, load.config, **options)
    executor = Executor(sut, Judge(load.config, TARGET.capabilities))
    seen: set[str] = set()
    for _ in range(actions):
        record = executor.apply(decode(rng.getrandbits(64), executor.judge.ledger, load))
        seen |= {str(finding.signature) for finding in record.findings}
        if any(type(event).__name__ in ("Crashed", "Malformed") for event in record.events):
            break
    hooks = sut.scheduler._schedcheck
    close(sut)
    return {
        "faults": hooks.faults,
        "requests": len(executor.judge.ledger.lives),
        "seen": sorted(seen),
    }


def seed_paths() -> dict[str, Any]:
    for name, sut in (("wrapped", wrapped("wrapped")), ("named", named())):
        play(sut, SEED_PATH)
        assert sut.scheduler._schedcheck.faults == 0, name
        close(sut)
    return {"class": f"{recording.RecordingScheduler.__module__}.RecordingScheduler"}


def asynchronous() -> dict[str, Any]:
    config = TARGET.honours(evolve(TINY, async_scheduling=True, max_steps_in_flight=2))
    scheduler = recording.RecordingScheduler
    engine_place, engine.place_of = (
        engine.place_of,
        lambda name: scheduler if name == "AsyncScheduler" else engine_place(name),
    )
    try:
        sut = TARGET.open(config)
    finally:
        engine.place_of = engine_place
    play(sut, [Add("r0", spec(2, max_tokens=3)), *[Step()] * 6], config)
    answer = {
        "is_async": isinstance(sut.scheduler, recording.AsyncRecordingScheduler),
        "mro": [one.__name__ for one in type(sut.scheduler).__mro__],
        "faults": sut.scheduler._schedcheck.faults,
    }
    close(sut)
    return answer


def attached() -> dict[str, Any]:
    """Recording begins while a request runs."""
    sut: Any = TARGET.open(TINY)
    executor = Executor(sut, Judge(TINY, TARGET.capabilities, ()))
    for action in (Add("r0", spec(2, max_tokens=6)), Step()):
        executor.apply(action)
    sut.scheduler = schedcheck.record(sut.scheduler, folder=FOLDER, name="attached")
    for action in (Step(), Add("r1", spec(2, max_tokens=2)), Step(), Abort("r0"), Step(), Step()):
        executor.apply(action)
    faults = sut.scheduler._schedcheck.faults
    close(sut)
    return {"faults": faults}


class _Broken:
    """A request about which nothing can be asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def broken() -> dict[str, Any]:
    """A recorder that fails: the engine goes on, and it is told once."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("schedcheck.recording").addHandler(handler)
    sut = wrapped("broken")
    hooks = sut.scheduler._schedcheck
    hooks._record("added", _Broken())
    after_one = hooks.recorder is not None
    play(sut, SEED_PATH)
    for _ in range(10):
        hooks._record("added", _Broken())
    play(sut, [Add("r1", spec(2)), Step()])
    return {
        "after one": after_one,
        "at last": hooks.recorder is None,
        "told": told,
        "delivered": sut.scheduler.has_requests(),
    }


def raising() -> dict[str, Any]:
    """What the engine raises is raised as it was, and is in the recording."""
    sut = wrapped("raising")
    try:
        sut.scheduler.update_from_output(None, None)
    except Exception as error:  # noqa: BLE001  whatever vLLM says to None
        raised = type(error).__name__
    close(sut)
    return {"raised": raised}


def online() -> dict[str, Any]:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("schedcheck.recording").addHandler(handler)
    sut = wrapped("online", check=True)
    play(sut, SEED_PATH)
    close(sut)
    return {"told": told}


def with_ids() -> dict[str, Any]:
    sut = wrapped("ids", tokens=True)
    play(sut, SEED_PATH)
    close(sut)
    return {}


ANSWER = {
    "seed": seed_paths(),
    "asynchronous": asynchronous(),
    "attached": attached(),
    "broken": broken(),
    "raising": raising(),
    "online": online(),
    "ids": with_ids(),
    "long": [search(f"long{seed}", seed=seed, actions=600) for seed in range(6)],
    "rotated": search("rotated", seed=3, actions=2_000, bytes_max=30_000, files_max=4),
}
sys.stdout.write(json.dumps(ANSWER))
