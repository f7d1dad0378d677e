"""Search a target until it shows one of the signatures asked for, and shrink it: one JSON line.

    python benchmarks/search_until.py TARGET SEED CPU_SECONDS_MAX INVARIANTS PATTERN...

To be run under the interpreter of the release (`schedcheck env` prints it). INVARIANTS is what
``schedcheck run --invariants`` takes, empty for all of them. Seconds are CPU seconds of this
process; import and the first construction of the engine stand apart.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import sys
import time
from collections.abc import Sequence

from attrs import evolve

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Failure, Found, JobEvent, Shrunk
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import select
from schedcheck.model.config import SchedulerConfig

TRACES_MAX = 1_000_000


class Done(Exception):
    """It was found and shrunk, or the time is up."""


def search(
    target_text: str, seed: int, seconds_max: float, invariants: str, patterns: Sequence[str]
) -> dict:
    """Return what was found, and how long it took."""
    target = resolve(target_text)
    target.open(target.honours(SchedulerConfig())).close()  # type: ignore[arg-type]  once slow
    told: dict[str, object] = {"found": "", "also_found": 0}
    began = time.process_time()

    def emit(event: JobEvent) -> None:
        spent = time.process_time() - began
        if isinstance(event, Found | Shrunk):
            wanted = _wanted(event.failure, patterns)
            if wanted and isinstance(event, Found):
                told.setdefault("first_seen", spent)
            elif wanted:
                told.update(
                    found=wanted,
                    seconds=spent,
                    actions=event.failure.actions,
                    actions_searched=campaign.coverage.actions_total,
                    trace=event.failure.trace,
                )
                raise Done
            elif isinstance(event, Found):
                told["also_found"] = int(str(told["also_found"])) + 1
        if spent > seconds_max:
            told["seconds"] = spent
            raise Done

    campaign = Campaign(
        target=target,
        target_text=target_text,
        profile=evolve(PROFILES["quick"], traces=TRACES_MAX),
        invariants=select(invariants),
        seed=seed,
        emit=emit,
    )
    with contextlib.suppress(Done):
        campaign.run()
    return told


def _wanted(failure: Failure, patterns: Sequence[str]) -> str:
    for complaint in (failure.complaint, *failure.others):
        if any(fnmatch.fnmatchcase(complaint.signature, one) for one in patterns):
            return complaint.signature
    return ""


if __name__ == "__main__":
    where, number, most, chosen, *wanted = sys.argv[1:]
    print(json.dumps(search(where, int(number), float(most), chosen, wanted)))
