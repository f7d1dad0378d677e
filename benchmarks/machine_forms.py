"""The two forms of the Hypothesis machine and the campaign, side by side: how soon the seed fault?

    python benchmarks/machine_forms.py

Actions and CPU seconds until REQ-001 is first seen on the reference with the seed fault, for ten
seeds of each, within one run; shrinking is left out. Compare columns, not runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress

from attrs import evolve
from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Found, JobEvent
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import select
from schedcheck.stateful.driver import Tally
from schedcheck.stateful.machine import machine, machine_of
from schedcheck.stateful.verify import settings_of

TARGET = "reference+resumed-as-new"
SEEDS = 10
TRACES_MAX = 3_000


class Seen(Exception):
    """The fault has been found."""


def by_campaign(seed: int) -> int:
    """Return the actions a campaign took."""

    def emit(event: JobEvent) -> None:
        if isinstance(event, Found):
            raise Seen

    campaign = Campaign(
        target=resolve(TARGET),
        target_text=TARGET,
        profile=evolve(PROFILES["quick"], traces=TRACES_MAX),
        invariants=select("REQ-001"),
        seed=seed,
        emit=emit,
    )
    with suppress(Seen):
        campaign.run()
        return 0
    return campaign.coverage.actions_total


def by_machine(form: str) -> Callable[[int], int]:
    """Return what counts the actions that a form of the machine took."""

    def search(seed: int) -> int:
        tally = Tally(seed=seed)
        plain = machine(TARGET, invariants="REQ-001", form=form)  # type: ignore[arg-type]
        kind = machine_of(plain.plan, plain, tally)
        how = settings(settings_of(plain.plan), max_examples=TRACES_MAX)
        with suppress(Exception):  # the violation, or what Hypothesis makes of it
            run_state_machine_as_test(seeded(seed)(kind), settings=how)
        return tally.coverage.actions_total if tally.failing else 0

    return search


def main() -> None:
    """Print the table."""
    forms = {
        "dispatcher": by_machine("dispatcher"),
        "named rules": by_machine("named"),
        "campaign": by_campaign,
    }
    print(f"{'':<12}  found  actions (median, worst)  CPU seconds (median, worst)  µs per action")
    for name, search in forms.items():
        actions: list[int] = []
        seconds: list[float] = []
        for seed in range(SEEDS):
            began = time.process_time()
            taken = search(seed)
            seconds.append(time.process_time() - began)
            if taken:
                actions.append(taken)
        cost = 1e6 * sum(seconds) / sum(actions) if len(actions) == SEEDS else float("nan")
        middle = f"{statistics.median(actions):>10,.0f} {max(actions):>10,}" if actions else "-"
        spent = f"{statistics.median(seconds):>14.2f} {max(seconds):>12.2f}"
        print(f"{name:<12}  {len(actions):>2}/{SEEDS}  {middle:>24}  {spent:>27}  {cost:>13,.0f}")


if __name__ == "__main__":
    main()
