"""The catalogue: for each invariant a page and traces, in the folder ``invariants/``.

In a wheel the folder is ``schedcheck/_catalogue``; in a checkout it is the top-level one. Whether
it is what it says is checked by ``catalogue.check``; ``catalogue.new`` writes an entry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import frozen

from schedcheck.tracefile import SUFFIX

_IN_A_WHEEL: Final = "_catalogue"


class CatalogueMissing(FileNotFoundError):
    """The catalogue, or an entry of it, is not there."""


@frozen
class Entry:
    """One invariant's folder."""

    id: str
    folder: Path

    @property
    def page(self) -> Path:
        """What it promises, how it is checked and what it does not cover."""
        return self.folder / "invariant.md"

    @property
    def minimal(self) -> Path:
        """The smallest violating trace, on a named mutant."""
        return self.folder / f"minimal{SUFFIX}"

    @property
    def control(self) -> Path:
        """A trace on which the correct reference holds and the witness fires."""
        return self.folder / f"control{SUFFIX}"


def folder() -> Path:
    """Return the catalogue's folder. Raises CatalogueMissing."""
    package = Path(__file__).parents[1]
    for candidate in (package / _IN_A_WHEEL, package.parents[1] / "invariants"):
        if candidate.is_dir():
            return candidate
    raise CatalogueMissing(f"no catalogue beside {package}; install schedcheck again")


def is_installed() -> bool:
    """Return whether the catalogue belongs to an installed package: nobody edits it there."""
    return folder().name == _IN_A_WHEEL


def entries() -> tuple[Entry, ...]:
    """Return every entry, sorted by id."""
    found = [path for path in folder().iterdir() if (path / "invariant.md").is_file()]
    return tuple(Entry("-".join(path.name.split("-")[:2]), path) for path in sorted(found))


def entry(id_: str) -> Entry:
    """Return the entry of an invariant. Raises CatalogueMissing."""
    for candidate in entries():
        if candidate.id == id_:
            return candidate
    raise CatalogueMissing(f"the catalogue has no page for {id_}")
