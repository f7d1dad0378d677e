"""Whatever can be wrong in the catalogue is found, and said with its fix."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attrs import evolve

from schedcheck import catalogue
from schedcheck.catalogue import Entry, check
from schedcheck.engine.hunt import Kills, kills_of
from schedcheck.invariants.registry import get
from schedcheck.model.actions import Complete, Drain, Step
from schedcheck.model.trace import Expectation
from schedcheck.model.verdict import Signature
from schedcheck.reference.mutants.registry import find
from schedcheck.tracefile import read, write

NEW = "schedcheck catalogue --new REQ-005"


@pytest.fixture
def entry(tmp_path, monkeypatch) -> Entry:
    """A catalogue of one entry, free to be spoilt."""
    there = catalogue.entry("REQ-005").folder
    top = tmp_path / "invariants"
    shutil.copytree(there, top / there.name)
    (top / "exemptions.toml").write_text("")
    monkeypatch.setattr(catalogue, "folder", lambda: top)
    monkeypatch.setattr(check, "MUTANTS", (find("lost-from-queues"), find("repair-by-set")))
    monkeypatch.setattr(check, "every_invariant", lambda: (get("REQ-005"),))
    return catalogue.entry("REQ-005")


def found() -> list[tuple[str, str, str]]:
    return [(one.where, one.what, one.fix) for one in check.of_invariant(get("REQ-005"))]


def test_a_catalogue_in_order_has_no_problem(entry, monkeypatch):
    said = []
    monkeypatch.setattr("schedcheck.engine.hunt.VARIANT_TRACES", 3)
    checked = check.check_everything(said.append)
    assert () == checked.problems
    assert (1, 1, 0, 0) == (
        checked.minimal,
        checked.controls,
        checked.lawful,
        checked.known,
    )
    assert ["lost-from-queues", "repair-by-set"] == [row.mutant.name for row in checked.kills]
    assert ["replaying REQ-005", "hunting lost-from-queues", "hunting repair-by-set"] == said


def test_an_invariant_without_a_page(entry):
    entry.page.unlink()
    assert [("REQ-005", "has no page", NEW)] == found()


def test_a_folder_without_an_invariant_and_one_too_many(entry):
    for name in ("REQ-005-the-same", "REQ-905-nobody"):
        shutil.copytree(entry.folder, entry.folder.parent / name)
    assert [
        ("invariants/REQ-005-the-same", "REQ-005 has a folder already"),
        ("invariants/REQ-905-nobody", "no invariant REQ-905 is registered"),
    ] == [(one.where, one.what) for one in check.of_folder()]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# REQ-005", "# REQ-006", "its first line is not the title"),
        ("## Not covered", "## Covered", "its headings are others"),
        ("https://github.com/", "https://example.com/", "lacks the evidence https://github.com/"),
        (
            "## Not covered\n\n",
            "## Not covered\n\nTODO: all of it\n",
            "'Not covered' is unfinished",
        ),
    ],
)
def test_a_page_that_lacks_something(entry, old, new, said):
    page = entry.page.read_text("utf-8")
    assert old in page
    entry.page.write_text(page.replace(old, new), "utf-8")
    told = [(where, what) for where, what, _ in found()]
    assert told
    assert [("REQ-005 page", True)] * len(told) == [
        (place, what.startswith(said)) for place, what in told
    ]


@pytest.mark.parametrize("file", ["minimal", "control"])
def test_a_trace_that_is_missing_or_cannot_be_read(entry, file):
    path: Path = getattr(entry, file)
    path.unlink()
    where = f"REQ-005 {file}"
    assert [(where, "is missing", NEW)] == found()
    path.write_text("nothing\n")
    ((place, what, fix),) = found()
    assert (where, NEW) == (place, fix)
    assert what != "is missing"


def header(**changes):
    return lambda trace: evolve(trace, header=evolve(trace.header, **changes))


def expecting(text: str, step: int):
    return header(expect=Expectation(signature=Signature.parse(text), step=step))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (header(target="reference"), "reference is no mutant that REQ-005 must kill"),
        (header(target="os:system"), "os:system is no mutant that REQ-005 must kill"),
        (header(expect=None), "it expects nothing"),
        (expecting("REQ-006/other", 3), "it expects REQ-006/other"),
        (expecting("REQ-005/another", 3), "OTHER: REQ-005/"),
        (lambda trace: evolve(trace, actions=(*trace.actions[:-1], Complete())), "FIXED: "),
        (
            lambda trace: evolve(trace, actions=(*trace.actions, Step())),
            "expected at action 3, shown at 3 of 4",
        ),
        (
            lambda trace: evolve(trace, actions=(Step(), *trace.actions)),
            "expected at action 3, shown at 4 of 4",
        ),
    ],
)
def test_a_minimal_trace_that_shows_something_else(entry, spoil, said):
    write(entry.minimal, spoil(read(entry.minimal)))
    where, what, fix = found()[0]
    assert ("REQ-005 minimal", NEW) == (where, fix)
    assert what.startswith(said)


def test_a_minimal_trace_on_which_something_undeclared_fires(monkeypatch):
    trace = read(catalogue.entry("REQ-006").minimal)
    assert [] == list(check.of_minimal(trace, "REQ-006"))
    mutant = evolve(find("late-completion-revives"), may_kill=())
    monkeypatch.setattr(check, "MUTANTS", (mutant,))
    (told,) = check.of_minimal(trace, "REQ-006")
    assert "REQ-005 fires too, which late-completion-revives does not declare" == told.what
    assert "schedcheck catalogue --new REQ-006, or add REQ-005 to may_kill" == told.fix


def test_an_action_that_can_be_removed_is_named(entry):
    trace = read(entry.minimal)
    write(entry.minimal, evolve(trace, actions=(Step(), *trace.actions)))
    told = [what for _, what, _ in found()]
    assert "action 1 (step) can be removed" in told


def test_a_reference_that_is_wrong_itself_is_told(entry, monkeypatch):
    monkeypatch.setattr(check, "REFERENCE", "reference+lost-from-queues")
    (told,) = check.of_silence(read(entry.minimal), "REQ-005")
    assert told.what.startswith("the reference itself shows REQ-005/")
    assert "mend the checker or the reference" == told.fix


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (header(witness="REQ-006"), "it exercises REQ-006 on reference"),
        (header(witness=""), "it exercises nothing on reference"),
        (header(target="reference+lost-from-queues"), "it exercises REQ-005 on reference+lost-"),
        (lambda trace: evolve(trace, actions=(Drain(),)), "DRIFTED: every action was elig"),
        (expecting("REQ-005/another", 1), "FIXED: "),
    ],
)
def test_a_control_that_is_none(entry, spoil, said):
    write(entry.control, spoil(read(entry.control)))
    ((where, what, fix),) = found()
    assert ("REQ-005 control", NEW, said) == (where, fix, what[: len(said)])


def test_lawful_behaviours_are_replayed_on_the_reference_and_its_variants(entry):
    control = header(witness="")(read(entry.control))
    folder = entry.folder.parent / "controls"
    assert () == check.lawful_traces()
    write(folder / "b.trace.jsonl", control)
    write(folder / "a.trace.jsonl", header(target="reference+repair-by-set")(control))
    assert ["a.trace.jsonl", "b.trace.jsonl"] == [one.name for one in check.lawful_traces()]
    for path in check.lawful_traces():
        assert [] == list(check.of_lawful(read(path), path.name))


@pytest.mark.parametrize("target", ["vllm", "os:system", "reference+nobody"])
def test_a_lawful_behaviour_runs_nothing_else(entry, target):
    (told,) = check.of_lawful(header(target=target)(read(entry.control)), "a")
    assert ("controls/a", f"its target is {target}") == (told.where, told.what)


def test_something_that_fires_on_a_lawful_behaviour(entry, monkeypatch):
    mutant = evolve(find("lost-from-queues"), must_kill=())
    monkeypatch.setattr(check, "MUTANTS", (mutant,))
    (told,) = check.of_lawful(read(entry.minimal), "a")
    assert told.what.startswith("FAILED: REQ-005/")
    assert "mend the checker" in told.fix


def test_what_must_kill_and_does_not_and_what_does_undeclared():
    mutant = evolve(find("lost-from-queues"), must_kill=("KV-001", "REQ-005"), may_kill=("KV-002",))
    kills = Kills(mutant=mutant, found=frozenset({"KV-001", "KV-002", "SCH-001"}), traces=500)
    assert [
        "REQ-005 must kill it and did not, in 500 traces of the quick profile",
        "SCH-001 is violated but not declared",
    ] == [one.what for one in check.of_kills(kills)]
    assert ["lost-from-queues"] * 2 == [one.where for one in check.of_kills(kills)]


def test_something_that_fires_on_a_variant_is_wrong_itself():
    kills = Kills(mutant=find("repair-by-set"), found=frozenset({"SCH-001"}), traces=9)
    assert ["mend the checker"] == [one.fix for one in check.of_kills(kills)]


def test_empty_columns_wrong_ids_and_excuses_that_are_none(monkeypatch):
    mutant = evolve(find("lost-from-queues"), must_kill=("ENG-002", "REQ-905"))
    monkeypatch.setattr(check, "MUTANTS", (mutant,))
    monkeypatch.setattr(check, "every_invariant", lambda: (get("ENG-002"), get("KV-001")))
    assert [
        ("KV-001", "must kill no mutant"),
        ("ENG-002", "is excused, yet a mutant breaks it"),
        ("REQ-905", "must kill a mutant, yet is no invariant"),
    ] == [(one.where, one.what) for one in check.of_columns()]


def test_a_hunt_ends_when_all_that_must_kill_has_done_so():
    kills = kills_of(find("lost-from-queues"))
    assert (frozenset({"REQ-005"}), True) == (kills.found, kills.traces < 10)
    assert ((), ()) == (kills.missing, kills.undeclared)


LEDGER = """
[[known]]
engine = "reference+lost-from-queues"
releases = "all"
signature = "REQ-005/in-no-queue"
reason = "It is a mutant."
link = "unreported"
"""


@pytest.fixture
def ledger(entry):
    """Return what writes a ledger into the catalogue."""

    def write(text: str):
        (entry.folder.parent / "exemptions.toml").write_text(text)

    return write


NAMES_A_TRACE = f"{LEDGER}trace = 'REQ-005-in-one-queue/minimal.trace.jsonl'"


def test_a_ledger_in_order_is_counted(ledger):
    ledger(NAMES_A_TRACE)
    issues, problems = check.of_ledger()
    assert (["REQ-005/in-no-queue"], ()) == ([one.signature for one in issues], problems)


def test_a_ledger_that_is_missing_or_wrong_is_a_problem(ledger, entry):
    (entry.folder.parent / "exemptions.toml").unlink()
    ((missing,), (wrong,)) = check.of_ledger()[1], _problems_of(ledger, f"{LEDGER}reson = 1")
    assert ("invariants/exemptions.toml", "cannot read it: No such file or directory") == (
        missing.where,
        missing.what,
    )
    assert "entry 1 (reference+lost-from-queues REQ-005/in-no-queue): unknown key" in wrong.what


def _problems_of(ledger, text):
    ledger(text)
    return check.of_ledger()[1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("minimal.trace", "known/a.trace", "is missing"),
        ("minimal.trace", "control.trace", "control.trace.jsonl expects nothing"),
        ("REQ-005/in", "REQ-005/found-in", "minimal.trace.jsonl expects REQ-005/in-no-queue"),
        ('"all"', '{ from = "1.0" }', "reference+lost-from-queues, which the entry does not cover"),
        ('+lost-from-queues"', '"', "reference+lost-from-queues, which the entry does not cover"),
    ],
)
def test_a_trace_that_does_not_show_what_the_ledger_says(ledger, old, new, said):
    told = _problems_of(ledger, NAMES_A_TRACE.replace(old, new))
    assert 1 <= len(told)
    assert said in told[0].what
    assert told[-1].where.startswith("exemptions.toml reference")


def test_a_trace_of_the_ledger_that_cannot_be_read_or_goes_on(ledger, entry):
    path = entry.folder / "known" / "a.trace.jsonl"
    trace = read(entry.minimal)
    write(path, evolve(trace, actions=(*trace.actions, Drain())))
    (longer,) = _problems_of(ledger, NAMES_A_TRACE.replace("minimal", "known/a"))
    length = len(trace.actions)
    assert f"expects it at action {length} of {length + 1}" in longer.what
    path.write_text("{")
    (broken,) = _problems_of(ledger, NAMES_A_TRACE.replace("minimal", "known/a"))
    assert broken.what.startswith("line 1: ")
