"""What test_vllm_pieces.py asks of the vLLM adapter about a user's own pieces.

Answers with one JSON object on standard output and nothing else.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from random import Random
from typing import Any

from attrs import evolve

from schedcheck.adapters.vllm import vllm_surface, vllm_target
from schedcheck.engine.executor import Executor
from schedcheck.engine.profiles import draw_load, get_profile
from schedcheck.invariants.registry import select
from schedcheck.judge import Judge
from schedcheck.model.actions import Abort, Action, Add, Drain, Schedule, Step
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.options import options_of
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Completed, Crashed, Scheduled
from schedcheck.sut import TargetError

TINY = SchedulerConfig(
    blocks_total=8, block_size=1, max_num_batched_tokens=8, max_num_seqs=2, max_model_len=16
)


def target(*config: str, **more: str) -> Any:
    return vllm_target(options_of(config=config, **more))


def refusal(*config: str, **more: str) -> str:
    """What is said of options that cannot be had; empty if they can."""
    try:
        made = target(*config, **more)
        made.open(made.honours(TINY))
    except TargetError as error:
        return str(error)
    return ""


def play(made: Any, *actions: Action) -> list[Any]:
    config = made.honours(TINY)
    events: list[Any] = []
    executor = Executor(made.open(config), Judge(config, made.capabilities, ()), events.append)
    for action in actions:
        executor.apply(action)
    return events


def request(prompt: int, **more: Any) -> Add:
    return Add("r0", RequestSpec(prompt=(("own", prompt),), **more))


def counts(*config: str) -> list[int]:
    """How many tokens of two prompts the first step computes."""
    other = Add("r1", RequestSpec(prompt=(("own", 3),)))
    events = play(target(*config), request(5), other, Schedule())
    return [row.count for one in events if isinstance(one, Scheduled) for row in one.output.rows]


def pins(*config: str) -> list[list[Any]]:
    """What is drawn for the traces of a run: every different value of what was pinned."""
    made, rng = target(*config), Random(1)
    drawn = [draw_load(made, get_profile("quick"), rng).config for _ in range(60)]
    assert all(made.honours(one) == one for one in drawn)
    for one in drawn[:10]:
        made.open(one).close()
    fields = ("max_num_batched_tokens", "max_num_seqs", "policy", "blocks_total")
    return [sorted({getattr(one, field) for one in drawn}) for field in fields]


def life(scheduler: str) -> dict[str, Any]:
    """How a request fares with a user's scheduler."""
    made = target(scheduler=f"user_pieces:{scheduler}")
    events = play(made, request(5, max_tokens=3), Step(), Drain(steps_max=20))
    finished = [event.output.finished for event in events if isinstance(event, Completed)]
    return {
        "class": type(made.open(made.honours(TINY)).scheduler).__name__,
        "ahead": made.honours(evolve(TINY, async_scheduling=True)).async_scheduling,
        "claims": Capability.ASYNC_SCHEDULING in made.capabilities,
        "finished": [reason for one in finished for reason in one.values()],
        "crashes": [one.message for one in events if isinstance(one, Crashed)],
    }


def shared(number: int, prompt: int, **more: Any) -> Add:
    return Add(f"r{number}", RequestSpec(prompt=(("s0", prompt),), **more))


JUDGED = select("*,!PRG-002")
"""Some releases sleep while a send is open."""
STORED = (shared(0, 5, send_kv=True), Drain(steps_max=20))
"""A request whose tokens the store keeps, and sends."""


def connector(name: str, *actions: Action, **extra: object) -> dict[str, Any]:
    """What a user's connector does to a trace: loads, sends, and what is wrong."""
    config = (f"kv_connector_extra_config.{key}={value}" for key, value in extra.items())
    made = target(*config, connector=f"user_pieces:{name}")
    config = made.honours(TINY)
    sut, findings, events = made.open(config), [], []
    executor = Executor(sut, Judge(config, made.capabilities, JUDGED), events.append)
    for action in actions:
        findings += executor.apply(action).findings
        if findings:
            break
    outputs = [event.output for event in events if isinstance(event, Scheduled)]
    done = [event.output for event in events if isinstance(event, Completed)]
    return {
        "loads": [
            [one.name, one.start, one.count, one.is_async] for out in outputs for one in out.loads
        ],
        "sends": [name for out in done for name in out.sends],
        "told": [sorted(one) for one in sut.scheduler.connector.told if one],
        "finished": sorted(name for out in done for name in out.finished),
        "findings": [[str(one.signature), one.mismatch.found] for one in findings],
    }


def claims() -> list[list[str]]:
    """What is claimed with a user's connector only, and without it only."""
    mine, plain = target(connector="user_pieces:Store").capabilities, target().capabilities
    return [sorted(mine - plain), sorted(plain - mine)]


def surface() -> list[list[str]]:
    """What the doctor says of what the adapter relies on, and of a checkout that lost some of it.

    The scheduler itself is left as it is: only the names by which it is looked up are changed.
    """
    plain = [[one.what, one.state] for one in vllm_surface()]
    vllm = import_module("vllm")
    real, module = vllm.__version__, import_module("vllm.v1.core.sched.output")
    whole = module.NewRequestData
    try:
        vllm.__version__ = "99.0.dev1+g0123abc"
        as_last = refusal()
        module.NewRequestData = type("NewRequestData", (), {"__dataclass_fields__": ("req_id",)})
        lost = [[one.what, one.state, one.detail] for one in vllm_surface() if one.fix]
        return [plain, lost, [as_last, refusal()]]
    finally:
        vllm.__version__, module.NewRequestData = real, whole


AGAIN = (shared(1, 6), Step(), Drain(steps_max=20))
LOADED = (*STORED, *AGAIN)
CONNECTORS = {
    "a load": connector("Store", *LOADED),
    "a load within the step": connector(
        "Store", *STORED, shared(1, 6, load_async=False), Drain(steps_max=20)
    ),
    "too few held": connector("Store", *LOADED, least=7),
    "undecided": connector("Undecided", *AGAIN),
    "raises": connector("Raises", *AGAIN),
    "no pair": connector("OneNumber", *AGAIN),
    "negative": connector("Answers", *AGAIN, count=-3),
    "beyond the prompt": connector("Answers", *AGAIN, count=7, is_async="true"),
    "wrong type": connector("Answers", *AGAIN, count=1.5),
    "no bool": connector("Answers", *AGAIN, is_async=2),
    "async without tokens": connector("Answers", *AGAIN, is_async="true"),
    "nothing left": connector("Answers", *AGAIN, count=6),
    "no metadata": connector("NoMetadata", *AGAIN),
    "no end": connector("EndsWithout", *AGAIN),
    "loading and sending": connector(
        "Store", *STORED, shared(1, 6, send_kv=True), Step(), Abort("r1")
    ),
    "strangers": connector("FinishesStrangers", *LOADED),
}

json.dump(
    {
        "version": target().version,
        "refusals": {
            "no module": refusal(scheduler="no_such.module:X"),
            "no class": refusal(scheduler="user_pieces:Sane"),
            "no scheduler": refusal(scheduler="user_pieces:Stranger"),
            "cannot be made": refusal(scheduler="user_pieces:CannotBeMade"),
            "not ahead": refusal("async_scheduling=true", scheduler="user_pieces:Same"),
            "unknown": refusal("max_num_seq=3"),
            "wrong type": refusal("long_prefill_token_threshold=few"),
            "wrong kind": refusal("max_num_seqs=few"),
            "too small": refusal("max_num_seqs=0"),
            "no connector": refusal(connector="user_pieces:Stranger"),
            "incomplete": refusal(connector="user_pieces:Incomplete"),
            "unmakeable": refusal(connector="user_pieces:Unmakeable"),
            "not its option": refusal("kv_connector_extra_config.least=7"),
            "no policy": refusal("policy=lifo"),
            "another way": refusal("scheduler_cls=a.b"),
            "no room": refusal("max_num_batched_tokens=2", "max_num_seqs=3"),
        },
        "connectors": CONNECTORS,
        "surface": surface(),
        "claims": claims(),
        "counts": [counts(), counts("long_prefill_token_threshold=2")],
        "pins": pins(
            *("max_num_batched_tokens=3", "policy=priority"),
            *("enable_chunked_prefill=false", "num_gpu_blocks_override=5"),
        ),
        "Same": life("Same"),
        "Ahead": life("Ahead"),
        "Chokes": life("Chokes"),
    },
    sys.stdout,
)
