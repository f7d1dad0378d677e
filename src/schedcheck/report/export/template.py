"""Templates of tests: parts that are chosen, and lines that are put in.

A line ``#if one|two`` begins a part that is kept if one of these is wanted, ``#endif`` ends it;
parts do not nest. ``#insert NAME`` is replaced. Everything else stands in the test as it is here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.resources import files


class CannotExport(ValueError):
    """A trace cannot be handed over in the form that was asked for; the message says why."""


def template(name: str) -> str:
    """Return the template ``name`` of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def filled_in(
    text: str, *, wanted: Collection[str], inserts: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the lines of a template, its parts chosen. Raises KeyError for an unknown insert."""
    is_kept = True
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "#if":
            is_kept = any(one in wanted for one in rest.split("|"))
        elif word == "#endif":
            is_kept = True
        elif not is_kept:
            continue
        elif word == "#insert":
            yield from inserts[rest]
        else:
            yield line


def literal(value: object) -> str:
    """Return a value as Python source: printable, on one line, and nothing but a literal.

    ``ascii`` rather than ``repr``, so that no letter in the source looks like another one.
    """
    return ascii(value)
