"""The two forms of the Hypothesis machine and the campaign, side by side: how soon the seed fault?

    python benchmarks/machine_forms.py [SEEDS]

Actions and CPU seconds until REQ-001 is first seen on the reference with the seed fault, for ten
seeds of each, or as many as SEEDS says, within one run; shrinking is left out. Compare columns, not
runs. In one long run Hypothesis makes most traces by repeating parts of the one before; ``verify``
asks for ten at a time, which end before that begins.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from attrs import evolve
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Found, JobEvent
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import select
from schedcheck.stateful.driver import Tally
from schedcheck.stateful.machine import Form, machine, machine_of
from schedcheck.stateful.verify import rounds_of, settings_of

TARGET = "reference+resumed-as-new"
SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
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


def by_machine(form: Form, *, in_rounds: bool) -> Callable[[int], int]:
    """Return what counts the actions that a form of the machine took."""

    def search(seed: int) -> int:
        tally = Tally(seed=seed)
        plain = machine(TARGET, invariants="REQ-001", form=form)
        kind = machine_of(plain.plan, plain, tally)
        whole = settings_of(plain.plan, TRACES_MAX)
        with suppress(Exception):  # the violation, or what Hypothesis makes of it
            for number, how in enumerate(rounds_of(whole) if in_rounds else (whole,)):
                kind.salt = f"{seed}/{number}"
                run_state_machine_as_test(seeded(kind.salt)(kind), settings=how)
        return tally.coverage.actions_total if tally.failing else 0

    return search


def main() -> None:
    """Print the table."""
    forms = {
        "dispatcher, one long run": by_machine("dispatcher", in_rounds=False),
        "dispatcher, rounds of ten": by_machine("dispatcher", in_rounds=True),
        "named rules, one long run": by_machine("named", in_rounds=False),
        "named rules, rounds of ten": by_machine("named", in_rounds=True),
        "campaign": by_campaign,
    }
    print(f"{'':<26}  found  actions (median, worst)  CPU seconds (median, worst)  µs per action")
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
        print(f"{name:<26}  {len(actions):>2}/{SEEDS}  {middle:>24}  {spent:>27}  {cost:>13,.0f}")


if __name__ == "__main__":
    main()
