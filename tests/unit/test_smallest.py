"""The smallest traces of an invariant, and the entry they are written into."""

from __future__ import annotations

import shutil

import pytest
from attrs import evolve

from schedcheck import catalogue
from schedcheck.catalogue import check, new
from schedcheck.engine import smallest
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import get
from schedcheck.model.actions import Abort, Add, Drain, FinishTransfer, Step
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Header, Trace
from schedcheck.tracefile import TraceUnwritable, encode, read

SEED = (0,)


def silent(_text: str) -> None:
    """Tell nobody."""


def test_the_smallest_violation_is_minimal_and_the_same_every_time():
    first, second = (
        smallest.smallest_violation("REQ-005", seeds=SEED, tell=silent) for _ in range(2)
    )
    assert encode(first) == encode(second)
    assert ["add", "schedule", "preempt"] == [action.do for action in first.actions]
    assert ("r0",) == tuple(first.specs)
    assert [] == [*check.of_minimal(first, "REQ-005"), *check.of_removals(first, "REQ-005")]


def test_what_is_known_is_never_made_larger():
    """Otherwise another run of ``--new`` could undo what a longer search found."""
    known = read(catalogue.entry("REQ-005").minimal)
    found = smallest.smallest_violation("REQ-005", start=known, seeds=(), tell=silent)
    assert len(known.actions) == len(found.actions)
    assert known.header.expect == found.header.expect
    other = evolve(known, header=evolve(known.header, target="reference+budget-overrun"))
    assert None is smallest.smallest_violation("REQ-005", start=other, seeds=(), tell=silent)


def test_nothing_is_found_where_no_mutant_is_killed():
    assert () == smallest.mutants_for("ENG-002")
    assert None is smallest.smallest_violation("ENG-002", seeds=SEED, tell=silent)


def test_the_smallest_control_holds_and_exercises():
    said = []
    found = smallest.smallest_control("REQ-005", seeds=SEED, tell=said.append)
    assert ["reference, seed 0"] == said
    assert [] == list(check.of_control(found, "REQ-005"))
    assert isinstance(found.actions[-1], Drain)


def test_a_violating_trace_is_where_a_control_can_begin():
    minimal = read(catalogue.entry("REQ-003").minimal)
    found = smallest.smallest_control("REQ-003", starts=(minimal,), seeds=(), tell=silent)
    assert ("reference", "REQ-003", None) == (
        found.header.target,
        found.header.witness,
        found.header.expect,
    )
    assert [] == list(check.of_control(found, "REQ-003"))


def test_requests_are_renamed_everywhere():
    spec = RequestSpec(prompt=(("own", 1),), remote_tokens=1)
    later = RequestSpec(prompt=(("output:r7", 1), ("s0", 2)), engine_id_of="r7")
    actions = (Add("r7", spec), Step(("r7",)), FinishTransfer("r7"), Add("r9", later), Abort("r9"))
    trace = smallest._renamed(Trace(header=Header(target="reference"), actions=actions))
    renamed = evolve(later, prompt=(("output:r0", 1), ("s0", 2)), engine_id_of="r0")
    assert (
        Add("r0", spec),
        Step(("r0",)),
        FinishTransfer("r0"),
        Add("r1", renamed),
        Abort("r1"),
    ) == trace.actions


def test_the_quiet_tail_is_bounded_by_the_work_that_is_left():
    spec = RequestSpec(prompt=(("own", 1),))
    trace = Trace(header=Header(target="reference"), actions=(Add("r0", spec), Drain()))
    bounded = smallest._with_tail_bounded(trace)
    assert (Add("r0", spec), Drain(20 + 4 + 3 * 2)) == bounded.actions
    assert () == smallest.plays(resolve("reference"), bounded).findings


# The entry.


@pytest.fixture
def top(tmp_path, monkeypatch):
    """A catalogue without REQ-005, in which only one seed is tried."""
    there = tmp_path / "invariants"
    there.mkdir()
    monkeypatch.setattr(catalogue, "folder", lambda: there)
    for name in ("smallest_violation", "smallest_control"):
        real = getattr(smallest, name)
        monkeypatch.setattr(new, name, lambda id_, real=real, **more: real(id_, **more, seeds=SEED))
    return there


def test_an_entry_is_written_and_only_its_page_is_left_to_do(top):
    written = new.write_entry(get("REQ-005"), silent)
    entry = catalogue.entry("REQ-005")
    assert (entry, True) == (written.entry, written.has_new_page)
    assert "REQ-005-unfinished-request-tracked-stands-exactly" == entry.folder.name
    assert (written.minimal, written.control) == (read(entry.minimal), read(entry.control))
    assert [
        "'Why it matters' is unfinished",
        "'How it is checked' is unfinished",
        "'Upstream evidence' is unfinished",
        "'Not covered' is unfinished",
    ] == [one.what for one in check.of_invariant(get("REQ-005"))]
    lines = entry.page.read_text("utf-8").splitlines()
    assert "Every unfinished request is tracked and stands in exactly one queue." == lines[4]


def test_a_folder_and_a_page_that_are_there_are_kept(top):
    folder = top / "REQ-005-of-my-own"
    folder.mkdir()
    (folder / "invariant.md").write_text("mine\n")
    written = new.write_entry(get("REQ-005"), silent)
    assert (folder, False) == (written.entry.folder, written.has_new_page)
    assert "mine\n" == written.entry.page.read_text()
    assert written.entry.minimal.is_file()


def test_what_is_there_already_is_where_the_search_begins(top, monkeypatch):
    known = read(new.write_entry(get("REQ-005"), silent).entry.minimal)
    starts = []
    monkeypatch.setattr(
        new, "smallest_violation", lambda _id, *, start, **_more: starts.append(start) or start
    )
    new.write_entry(get("REQ-005"), silent)
    assert [known] == starts


def test_no_mutant_no_entry(top):
    with pytest.raises(new.CannotAdd, match=r"^no mutant names ENG-002 in must_kill; add one"):
        new.write_entry(get("ENG-002"), silent)


def test_an_installed_catalogue_is_not_written_to(top, monkeypatch):
    monkeypatch.setattr(catalogue, "folder", lambda: top.parent / "_catalogue")
    with pytest.raises(new.CannotAdd, match="is an installed catalogue; work in a checkout"):
        new.write_entry(get("REQ-005"), silent)


def test_nothing_killed_nothing_written(top, monkeypatch):
    monkeypatch.setattr(new, "smallest_violation", lambda _id, **_more: None)
    with pytest.raises(new.NothingKilled, match=r"^REQ-005 kills none of lost-from-queues within"):
        new.write_entry(get("REQ-005"), silent)
    assert [] == list(top.iterdir())


def test_a_folder_that_cannot_be_written(top):
    shutil.rmtree(top)
    top.write_text("a file")
    with pytest.raises(TraceUnwritable):
        new.write_entry(get("REQ-005"), silent)


def test_an_unreadable_trace_is_found_anew(top):
    entry = new.write_entry(get("REQ-005"), silent).entry
    known = read(entry.minimal)
    entry.minimal.write_text("nothing")
    new.write_entry(get("REQ-005"), silent)
    assert known == read(entry.minimal)


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        (
            "a preempted request comes back as resumed, never as new",
            "preempted-request-comes-back-resumed",
        ),
        ("the engine's steps", "engine-steps"),
        ("it is", "it-is"),
        ("—", "entry"),
    ],
)
def test_a_folder_is_named_after_the_title(title, slug):
    assert slug == new.slug(evolve(get("REQ-005"), title=title))
