"""A long recording of a real engine, shrunk: how long it takes and how small it gets.

    python benchmarks/foreign.py FOLDER            under the interpreter of vllm==0.13.0: records
    schedcheck shrink FOLDER/recording.0001.trace.jsonl --budget 120s

5,000 steps of a busy engine with a pool that is too small. In the middle a few requests come whose
KV is held outside; the seed fault is among what follows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import schedcheck
from schedcheck.adapters.vllm import vllm_target
from schedcheck.engine.executor import Executor
from schedcheck.invariants.registry import select
from schedcheck.judge import Judge
from schedcheck.model.actions import Abort, Add, FinishTransfer, Step
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.request import RequestSpec

STEPS = 5_000
CONFIG = SchedulerConfig(
    blocks_total=64,
    block_size=16,
    max_num_batched_tokens=256,
    max_num_seqs=16,
    max_model_len=512,
    prefix_caching=True,
)


def a_request(rng: Random, *, remote: bool) -> RequestSpec:
    """Return a request of an ordinary size; some share a system prompt."""
    own = rng.randint(20, 150)
    prompt = (("system", 48), ("own", own)) if rng.random() < 0.4 else (("own", own),)
    total = sum(length for _, length in prompt)
    return RequestSpec(
        prompt=prompt,
        max_tokens=rng.randint(10, 120),
        remote_tokens=total if remote else 0,
    )


def main() -> None:
    """Record, and say on which step the fault was."""
    target, rng = vllm_target(), Random(1)
    recorded = schedcheck.record
    sut = target.open(CONFIG)
    sut.scheduler = recorded(sut.scheduler, folder=Path(sys.argv[1]))  # type: ignore[attr-defined]
    judge = Judge(CONFIG, target.capabilities, select("REQ-001"))
    executor, faults, step = Executor(sut, judge), [], 0
    while step < STEPS:
        ledger = judge.ledger
        live = ledger.live()
        if len(live) < 20 and rng.random() < 0.5:
            remote = step >= STEPS // 2 and not faults and rng.random() < 0.3
            name = f"r{len(ledger.lives)}"
            executor.apply(Add(name, a_request(rng, remote=remote)))
        elif live and rng.random() < 0.02:
            executor.apply(Abort(rng.choice(live).name))
        for life in ledger.open_loads():
            if rng.random() < 0.4:
                executor.apply(FinishTransfer(life.name))
        step += 1
        if executor.apply(Step()).findings:
            faults.append(step)
    sut.scheduler.shutdown()  # type: ignore[attr-defined]
    preempted = sum(life.times_preempted for life in judge.ledger.lives.values())
    print(
        f"{STEPS:,} steps, {len(judge.ledger.lives):,} requests, {preempted:,} preemptions, "
        f"the fault on steps {' '.join(map(str, faults)) or 'none'}"
    )


if __name__ == "__main__":
    main()
