"""The kill matrix, on hand-made rows."""

from __future__ import annotations

from attrs import evolve

from schedcheck.engine.hunt import Kills
from schedcheck.reference.mutants.registry import find
from schedcheck.report.matrix import matrix_lines, problem_line

MUTANT = evolve(
    find("lost-from-queues"),
    name="of-four-kinds",
    must_kill=("KV-001", "REQ-005"),
    may_kill=("KV-002", "KV-003"),
)
ROWS = (
    Kills(mutant=MUTANT, found=frozenset({"KV-001", "KV-002", "SCH-001"}), traces=500),
    Kills(mutant=evolve(MUTANT, name="unkilled"), found=frozenset(), traces=500),
    Kills(mutant=find("repair-by-set"), found=frozenset(), traces=200),
)
COLUMNS = ("ENG-002", "KV-001", "REQ-005")


def test_each_mutant_is_a_line_and_what_is_empty_is_said():
    assert [
        "x must kill it, and did · + may, and did · ! must, and did not · ? did, undeclared",
        "",
        "mutant         traces  killed by",
        "of-four-kinds     500  x KV-001  ! REQ-005  + KV-002  ? SCH-001",
        "unkilled          500  ! KV-001  ! REQ-005",
        "repair-by-set     200  nothing: a variant",
        "",
        "mutants killed by   ENG-002 0  KV-001 1  REQ-005 0",
        "empty rows          unkilled",
        "empty columns       ENG-002 (it hangs)  REQ-005",
    ] == list(matrix_lines(ROWS, COLUMNS, excused={"ENG-002": "it hangs"}))


def test_what_goes_wrong_is_painted_and_nothing_else():
    painted = [
        line
        for line in matrix_lines(
            ROWS, COLUMNS, excused={}, paint=lambda text, style: f"[{style}]{text}"
        )
        if line.startswith("[bold red]")
    ]
    assert ["of-four-kinds", "unkilled"] == [
        line.removeprefix("[bold red]").split()[0] for line in painted
    ]


def test_no_line_is_wider_than_100_columns_however_much_kills_a_mutant():
    ids = tuple(f"KV-{number:03}" for number in range(60))
    mutant = evolve(find("late-completion-promotes-reused-id"), must_kill=ids)
    row = Kills(mutant=mutant, found=frozenset(ids), traces=1)
    lines = list(matrix_lines((row,), ids, excused={}))
    assert [] == [line for line in lines if len(line) > 100]
    assert set(ids) <= {word for line in lines for word in line.split()}
    assert "empty columns       none" == lines[-1]


def test_a_problem_steers_no_terminal():
    assert "!  a?: b.  fix: c" == problem_line("a\x1b", "b", "c")
