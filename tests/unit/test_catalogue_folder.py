"""Finding the catalogue; what must stand in it is in ``tests/quality/test_catalogue.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedcheck import catalogue
from schedcheck.catalogue import CatalogueMissing


def test_a_checkout_has_it_at_its_top():
    assert Path(__file__).parents[2] / "invariants" == catalogue.folder()


def test_entries_are_sorted_and_named_after_their_folders():
    entries = catalogue.entries()
    assert sorted(one.id for one in entries) == [one.id for one in entries]
    assert len({one.id for one in entries}) == len(entries)
    assert all(one.folder.name.startswith(f"{one.id}-") for one in entries)


def test_an_entry_has_its_files():
    entry = catalogue.entry("REQ-001")
    assert [True] * 3 == [path.is_file() for path in (entry.page, entry.minimal, entry.control)]


def test_what_is_not_there_is_named():
    with pytest.raises(CatalogueMissing, match=r"^the catalogue has no page for REQ-999$"):
        catalogue.entry("REQ-999")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package installed somewhere else: ``site-packages/schedcheck``."""
    folder = tmp_path / "lib" / "site-packages" / "schedcheck"
    folder.mkdir(parents=True)
    monkeypatch.setattr(catalogue, "__file__", str(folder / "catalogue" / "__init__.py"))
    return folder


def test_a_wheel_has_it_inside_and_looks_nowhere_else(package):
    """Otherwise an ``invariants`` folder of somebody else's two levels up would be taken for it."""
    page = package / "_catalogue" / "REQ-001-resumed-not-new" / "invariant.md"
    page.parent.mkdir(parents=True)
    page.write_text("# REQ-001\n")
    (package.parents[1] / "invariants" / "REQ-002-not-ours").mkdir(parents=True)
    assert package / "_catalogue" == catalogue.folder()
    assert [("REQ-001", page)] == [(one.id, one.page) for one in catalogue.entries()]


def test_what_is_no_entry_is_passed_over(package):
    for name in ("REQ-002-a-b", "REQ-001-a", "notes"):
        (package / "_catalogue" / name).mkdir(parents=True)
    for name in ("REQ-002-a-b/invariant.md", "REQ-001-a/invariant.md", "exemptions.toml"):
        (package / "_catalogue" / name).write_text("")
    assert ["REQ-001", "REQ-002"] == [one.id for one in catalogue.entries()]


def test_an_installation_without_it_says_what_to_do(package):
    with pytest.raises(CatalogueMissing, match="install schedcheck again"):
        catalogue.folder()
