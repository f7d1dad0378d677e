"""How soon the seed fault is found, and how small it gets: ten seeds, one run, one table.

    python benchmarks/seed_fault.py [TARGET]

TARGET is ``reference+resumed-as-new`` or, under the interpreter that ``schedcheck env
vllm==0.13.0`` prints, ``vllm``. Seconds are CPU seconds of this process, import and construction
apart: compare them within one run. Actions per second stand beside them, over all ten seeds.
"""

from __future__ import annotations

import statistics
import sys
import time

from attrs import evolve

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Found, JobEvent, Progress, Shrunk
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import select
from schedcheck.model.config import SchedulerConfig

SEEDS = 10
TRACES_MAX = 5_000


class Done(Exception):
    """The fault has been found and shrunk."""


def search(target_text: str, seed: int) -> tuple[int, float, int, float, int]:
    """Return actions and seconds to the fault, then its length, seconds and candidates shrunk."""
    target = resolve(target_text)
    found: list[tuple[int, float, int, float, int]] = []
    began = time.process_time()

    def emit(event: JobEvent) -> None:
        nonlocal began
        now = time.process_time()
        if isinstance(event, Found):
            found.append((campaign.coverage.actions_total, now - began, 0, 0.0, 0))
            began = now
        elif isinstance(event, Shrunk):
            actions, seconds, *_ = found.pop()
            found.append((actions, seconds, event.failure.actions, now - began, event.executions))
            raise Done
        elif isinstance(event, Progress):
            return

    campaign = Campaign(
        target=target,
        target_text=target_text,
        profile=evolve(PROFILES["quick"], traces=TRACES_MAX),
        invariants=select("REQ-001"),
        seed=seed,
        emit=emit,
    )
    try:
        campaign.run()
    except Done:
        return found[0]
    raise SystemExit(f"seed {seed}: not found in {TRACES_MAX} traces")


def main() -> None:
    """Print the table."""
    target_text = sys.argv[1] if len(sys.argv) > 1 else "reference+resumed-as-new"
    target = resolve(target_text)
    target.open(target.honours(SchedulerConfig())).close()  # type: ignore[arg-type]  once slow
    rows = [search(target_text, seed) for seed in range(SEEDS)]
    print(f"{target_text} {target.version}".strip())
    print("seed  actions  seconds  shrunk to  seconds  candidates")
    for seed, (actions, seconds, length, shrinking, tried) in enumerate(rows):
        print(_line(str(seed), actions, seconds, length, shrinking, tried))
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    print(_line("med.", *medians))
    rate = sum(row[0] for row in rows) / sum(row[1] for row in rows)
    print(f"{rate:,.0f} actions per second while searching")


def _line(seed: str, *numbers: float) -> str:
    actions, seconds, length, shrinking, tried = numbers
    found = f"{seed:>4}  {actions:>7,.0f}  {seconds:>7.2f}"
    return f"{found}  {length:>9.0f}  {shrinking:>7.2f}  {tried:>10,.0f}"


if __name__ == "__main__":
    main()
