"""``catalogue``: is everything in it what it says, and what does a new invariant need?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from schedcheck.catalogue.check import (
    WITHOUT_MUTANT,
    Checked,
    Problem,
    check_everything,
    of_invariant,
    shown,
)
from schedcheck.catalogue.new import CannotAdd, NothingKilled, Written, write_entry
from schedcheck.cli.console import OK, USAGE, VIOLATION, Ticker, complain, painter, put
from schedcheck.invariants.registry import every_invariant, get
from schedcheck.report.matrix import matrix_lines, problem_line
from schedcheck.report.words import BAD, GOOD, WARN, fact_lines


@click.command(short_help="Check the catalogue, or add an invariant's traces.")
@click.option("--check", is_flag=True, help="Replay all of it and hunt every mutant.")
@click.option("--new", metavar="ID", help="Find and write the traces of an invariant.")
def catalogue(check: bool, new: str | None) -> None:  # noqa: FBT001  click passes options by name
    """Check the catalogue in invariants/, or write the traces of an invariant into it.

    --check prints the kill matrix and every problem with its fix; exit code 1 if there is one. The
    known-issue ledger, exemptions.toml, is read strictly, and the traces it names must be in order.

    --new ID takes an invariant that is registered and that a mutant names in must_kill. It shrinks
    what several seeds find, keeps the smallest, finds the smallest control on the reference, and
    begins a page if there is none. Exit code 2 if no mutant names it, 1 if none is killed.
    """
    if check == (new is not None):
        raise click.UsageError("say either --check or --new ID")
    ticker = Ticker()
    try:
        code = _check(ticker) if new is None else _new(new.upper(), ticker)
    finally:
        ticker.clear()
    raise click.exceptions.Exit(code)


def _check(ticker: Ticker) -> int:
    checked = check_everything(ticker.tell)
    ticker.clear()
    paint = painter()
    columns = [one.id for one in every_invariant()]
    for line in matrix_lines(checked.kills, columns, excused=WITHOUT_MUTANT, paint=paint):
        put(line)
    put()
    _tell_of(checked.problems)
    for line in fact_lines(_summary(checked)):
        put(paint(line, BAD if checked.problems else GOOD))
    return VIOLATION if checked.problems else OK


def _summary(checked: Checked) -> Iterator[str]:
    mutants = [row for row in checked.kills if not row.mutant.is_variant]
    variants = [row for row in checked.kills if row.mutant.is_variant]
    killed = sum(bool(row.found) and not row.missing for row in mutants)
    problems = len(checked.problems)
    yield f"{problems} problem{'' if problems == 1 else 's'}"
    yield f"{killed} of {len(mutants)} mutants killed"
    yield f"{sum(not row.found for row in variants)} of {len(variants)} variants hold"
    yield f"{checked.minimal} minimal"
    yield f"{checked.controls} controls"
    yield f"{checked.lawful} lawful"
    yield f"{checked.known} known"


def _new(id_: str, ticker: Ticker) -> int:
    invariant = get(id_)
    try:
        written = write_entry(invariant, ticker.tell)
    except CannotAdd as error:
        ticker.clear()
        complain(error)
        return USAGE
    except NothingKilled as error:
        ticker.clear()
        complain(error)
        return VIOLATION
    ticker.clear()
    for kind, text in _written(written):
        put(f"{kind:<9}{text}")
    put()
    _tell_of(of_invariant(invariant))
    return OK if written.control is not None else VIOLATION


def _written(written: Written) -> Iterator[tuple[str, str]]:
    """Yield what was written, and where."""
    entry, expect = written.entry, written.minimal.header.expect
    if expect is not None:
        where = f"at action {expect.step} on {written.minimal.header.target}"
        yield "minimal", f"{expect.signature} {where}"
        yield "", shown(entry.minimal)
    if written.control is not None:
        yield (
            "control",
            f"{len(written.control.actions)} actions on {written.control.header.target}",
        )
        yield "", shown(entry.control)
    else:
        yield "control", "none: no random trace of the reference puts it to the test"
    yield "page", shown(entry.page) + (" begun" if written.has_new_page else "")


def _tell_of(problems: Iterable[Problem]) -> None:
    paint = painter()
    for one in problems:
        put(paint(problem_line(one.where, one.what, one.fix), WARN))
