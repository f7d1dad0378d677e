"""What recording costs beside the scheduler's own step, at 256 and at 4 running requests.

    python benchmarks/recording.py          under the interpreter of a prepared vLLM

Paired within one run: two schedulers with the same requests, in turn for 50 decode steps each. The
workers answer one token for each row; their answer is made outside the clock. A step is
``schedule`` and ``update_from_output`` together. Time is that of the thread, so that others on the
machine count less; medians of 12 blocks' medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from schedcheck.adapters.vllm import vllm_target
from schedcheck.adapters.vllm.results import Transfers, result_of
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.request import RequestSpec
from schedcheck.recording.vllm import recorded
from schedcheck.recording.writing import Options

BLOCK = 50
BLOCKS = 12
PROMPT = 64
NOTHING = Transfers(received=set(), sent=set(), bad_blocks=set())


def config_for(running: int) -> SchedulerConfig:
    """Return a configuration in which so many requests run undisturbed."""
    tokens = PROMPT + 2 * BLOCK * BLOCKS + 500
    return SchedulerConfig(
        blocks_total=running * (tokens // 16 + 2),
        block_size=16,
        max_num_batched_tokens=8192,
        max_num_seqs=running,
        max_model_len=tokens + 16,
        prefix_caching=True,
    )


def step(scheduler: Any, *, as_arrays: bool) -> float:
    """Do one step and return how long the scheduler took, in seconds."""
    began = time.thread_time()
    output = scheduler.schedule()
    planned = time.thread_time() - began
    ids = list(output.num_scheduled_tokens)
    answer = result_of(
        ids=ids,
        sampled={one: [5000] for one in ids},
        drafts=None,
        transfers=NOTHING,
        as_arrays=as_arrays,
    )
    began = time.thread_time()
    scheduler.update_from_output(output, answer)
    return planned + time.thread_time() - began


def filled(target: Any, config: SchedulerConfig) -> Any:
    """Return a scheduler in which as many requests run as may."""
    sut: Any = target.open(config)
    spec = RequestSpec(prompt=(("own", PROMPT),), max_tokens=config.max_model_len - PROMPT)
    for number in range(config.max_num_seqs):
        sut.add(f"r{number}", spec, tuple(range(number * 1000, number * 1000 + PROMPT)))
    return sut.scheduler


def measure(target: Any, running: int, folder: str, **options: Any) -> tuple[float, float]:
    """Return the median time of a step without and with recording, in microseconds."""
    config = target.honours(config_for(running))
    plain, wrapped = filled(target, config), filled(target, config)
    wrapped = recorded(wrapped, Options(folder=Path(folder), name=f"r{running}", **options))
    as_arrays = target.traits.samples_are_arrays
    times: dict[bool, list[float]] = {False: [], True: []}
    for block in range(-2, 2 * BLOCKS):
        scheduler = wrapped if block % 2 else plain
        took = [step(scheduler, as_arrays=as_arrays) for _ in range(BLOCK)]
        if block >= 0:  # the first blocks hold the prompts
            times[bool(block % 2)].append(statistics.median(took) * 1e6)
    assert wrapped._schedcheck.faults == 0
    wrapped._schedcheck.close()
    return statistics.median(times[False]), statistics.median(times[True])


def main() -> None:
    """Print the table."""
    target = vllm_target()
    print(f"vllm {target.version}, Python {sys.version.split()[0]}")
    print("running  options  plain (µs)  recorded (µs)  cost (µs)  cost / plain")
    with tempfile.TemporaryDirectory() as folder:
        for running in (4, 16, 64, 256):
            for options in ({}, {"tokens": True}, {"check": True}):
                if options and running != 4:
                    continue
                plain, with_it = measure(target, running, folder, **options)
                word = " ".join(options) or "default"
                cost = with_it - plain
                print(
                    f"{running:>7}  {word:<7}  {plain:>10.1f}  {with_it:>13.1f}  {cost:>9.1f}  "
                    f"{cost / plain:>11.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
