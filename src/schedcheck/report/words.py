"""What all reports share: width, paint, and what becomes of a stranger's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

WIDTH: Final = 100

Paint = Callable[[str, str], str]
"""Colours a text: (text, one of the styles below)."""
BAD: Final = "bold red"
GOOD: Final = "green"
WARN: Final = "yellow"
FAINT: Final = "dim"


def plain(text: str, _style: str) -> str:
    """Paint nothing."""
    return text


def clean(text: str) -> str:
    """Return a stranger's text without anything that could move a cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def shortened(text: str, width: int) -> str:
    """Return a text that fits, with an ellipsis where it was cut."""
    text = clean(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def fact_lines(facts: Iterable[str], width: int = WIDTH) -> list[str]:
    """Return short facts side by side; none is cut, since a seed may be among them."""
    return filled([clean(fact) for fact in facts if fact], width, between=" · ")


def filled(cells: list[str], width: int, *, between: str = "  ") -> list[str]:
    """Return lines of whole cells; only a cell wider than a line makes a wider line."""
    lines: list[str] = []
    for cell in cells:
        if lines and len(lines[-1]) + len(between) + len(cell) <= width:
            lines[-1] += between + cell
        else:
            lines.append(cell)
    return lines
