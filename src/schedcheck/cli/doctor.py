"""``schedcheck doctor``: is a target what it says it is, and its adapter up to date?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import wrap

import click
from attrs import define, field

from schedcheck.cli.console import (
    OK,
    VIOLATION,
    Ticker,
    fault_code,
    painter,
    preparing,
    put,
)
from schedcheck.cli.pieces import pieces, takes_pieces
from schedcheck.engine.events import Checked, Examined, Fault, JobEvent
from schedcheck.engine.jobs import DoctorJob
from schedcheck.host.supervisor import perform, place_for
from schedcheck.model.check import Check, State
from schedcheck.report.words import BAD, GOOD, WARN, WIDTH, clean

_STYLES = {State.OK: GOOD, State.CHANGED: WARN, State.MISSING: BAD}
_INDENT = " " * 9


@click.command(short_help="Is a target what it says it is?")
@click.argument("target", default="reference")
@click.option("--python", type=click.Path(path_type=Path), help="Run it under this interpreter.")
@click.option("--in-process", is_flag=True, help="Run the target in this process.")
@takes_pieces
def doctor(
    target: str,
    python: Path | None,
    in_process: bool,  # noqa: FBT001  click passes options by name
    scheduler: str | None,
    connector: str | None,
    config: tuple[str, ...],
) -> None:
    """Examine TARGET: one line for each check, ok, changed or missing, and what to do about it.

    What of the engine its adapter relies on, whether it answers within the protocol and the same
    twice, and whether each capability that it claims is seen in a short search. Exit code 0 if all
    is ok, 1 if not, 2 for a target that cannot be loaded.
    """
    options = pieces(scheduler=scheduler, connector=connector, config=config)
    ticker = Ticker()
    try:
        name, place = place_for(
            target, python=python, in_process=in_process, progress=preparing(ticker)
        )
    finally:
        ticker.clear()
    patient = _Patient()
    perform(DoctorJob(target=name, options=options), patient.hear, place=place)
    raise click.exceptions.Exit(patient.code)


@define
class _Patient:
    """Turns the events of an examination into text and an exit code."""

    code: int = field(init=False, default=OK)
    counts: Counter[State] = field(init=False, factory=Counter)

    def hear(self, event: JobEvent) -> None:
        match event:
            case Checked(check=check):
                self._tell(check)
            case Examined(target=target, version=version):
                counted = [f"{self.counts[one]} {one}" for one in State if self.counts[one]]
                put(clean(" · ".join((f"{target} {version}".strip(), *counted))))
            case Fault():
                self.code = fault_code(event)
            case _:
                pass

    def _tell(self, check: Check) -> None:
        self.counts[check.state] += 1
        if check.state is not State.OK:
            self.code = VIOLATION
        word = painter()(f"{check.state:<7}", _STYLES[check.state])
        text = clean(f"{check.what}: {check.detail}")
        first, *rest = wrap(text, WIDTH - len(_INDENT), break_on_hyphens=False)
        put(f"{word}  {first}")
        fix = clean(f"fix: {check.fix}") if check.fix else ""
        for line in (*rest, *wrap(fix, WIDTH - len(_INDENT), break_on_hyphens=False)):
            put(f"{_INDENT}{line}")
