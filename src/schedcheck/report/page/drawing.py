"""A still picture of a trace, for an issue or a page: SVG, without scripts, fonts or links."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from attrs import define, field

from schedcheck.engine.events import StoryLine
from schedcheck.report.page.view import View, letter_of
from schedcheck.report.words import clean, shortened

_CELL: Final = 22
_ROW: Final = 18
_BRACKET: Final = 15
_LEFT: Final = 130
_MARGIN: Final = 12
_ACTION_WIDTH: Final = 110
"""Characters of the list of actions below the lanes."""
_LISTED_MAX: Final = 60
"""More actions than that are drawn and not listed."""

_STATUS: Final = {
    "W": "#fff3c4", "L": "#cfe8ff", "G": "#eadcff", "C": "#eadcff",
    "R": "#c9f0d3", "P": "#ffd8c2", "E": "#e4e7eb",
}  # fmt: skip
_OWNERS: Final = (
    "#c9e4ff", "#ffe0b3", "#d3f0cf", "#f5d0e6", "#e2dcff", "#fff0a8", "#c8f0ee", "#ffd0cc",
)  # fmt: skip


def drawing_svg(view: View) -> bytes:
    """Return the picture; dark ink on white paper, so that it can be read anywhere."""
    return _Drawing(view).draw()


@define
class _Drawing:
    """Draws row after row, from the top."""

    view: View
    root: ET.Element = field(init=False)
    y: int = field(init=False, default=_MARGIN)

    def draw(self) -> bytes:
        view, count = self.view, len(self.view.story)
        self.root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
        ET.SubElement(self.root, "title").text = view.title
        paper = ET.SubElement(self.root, "rect", fill="#ffffff")
        self._line(view.title, size=15, more="bold")
        self._line(shortened(" · ".join(view.facts), _ACTION_WIDTH), fill="#656d76")
        self.y += 6
        self._numbers()
        for place in range(len(view.requests)):
            self._request(place)
        for block in view.blocks:
            self._block(block)
        self.y += 10
        if count <= _LISTED_MAX:
            for line in view.story:
                self._told(line)
        self._complaint()
        self._legend()
        width = max(_LEFT + count * _CELL + 2 * _MARGIN, 820)
        height = self.y + _MARGIN
        for element in (self.root, paper):
            element.set("width", str(width))
            element.set("height", str(height))
        self.root.set("viewBox", f"0 0 {width} {height}")
        return bytes(ET.tostring(self.root, encoding="utf-8", xml_declaration=True)) + b"\n"

    def _x(self, number: int) -> int:
        """Return where the column of an action begins; actions are counted from 1."""
        return _LEFT + (number - 1) * _CELL

    def _text(
        self, x: float, text: str, *, size: int = 11, fill: str = "#1b1f24", more: str = ""
    ) -> None:
        """Write text; ``more`` is ``middle`` (of x) or ``bold``."""
        font = "monospace" if size < 15 else "sans-serif"
        place = {"x": str(x), "y": str(self.y + 13), "font-size": str(size), "fill": fill}
        if more == "middle":
            place["text-anchor"] = "middle"
        if more == "bold":
            place["font-weight"] = "600"
        element = ET.SubElement(self.root, "text", {**place, "font-family": font})
        element.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
        element.text = clean(text)

    def _line(self, text: str, *, size: int = 11, fill: str = "#1b1f24", more: str = "") -> None:
        self._text(_MARGIN, text, size=size, fill=fill, more=more)
        self.y += _ROW + (4 if size > 11 else 0)

    def _cell(self, number: int, text: str, fill: str, says: str) -> None:
        x = self._x(number)
        place = {"x": str(x), "y": str(self.y), "width": str(_CELL - 1), "height": str(_ROW - 1)}
        rect = ET.SubElement(self.root, "rect", {**place, "fill": fill})
        ET.SubElement(rect, "title").text = clean(says)
        self._text(x + (_CELL - 1) / 2, text, more="middle")

    def _numbers(self) -> None:
        for line in self.view.story:
            fill = "#b3261e" if line.is_violation else "#656d76"
            middle = self._x(line.number) + (_CELL - 1) / 2
            self._text(middle, str(line.number), size=9, fill=fill, more="middle")
            if line.is_violation:
                self._frame(line.number)
        self.y += _ROW

    def _frame(self, number: int) -> None:
        """Draw a frame around the column of an action."""
        requests, blocks = len(self.view.requests), len(self.view.blocks)
        brackets = sum(len(self.view.slots(place)) for place in range(requests))
        height = _ROW * (1 + requests + blocks) + _BRACKET * brackets
        place = {"x": self._x(number) - 1, "y": self.y, "width": _CELL + 1, "height": height}
        where = {key: str(value) for key, value in place.items()}
        ET.SubElement(self.root, "rect", {**where, "fill": "none", "stroke": "#b3261e"})

    def _request(self, place: int) -> None:
        name = self.view.requests[place]
        self._text(_MARGIN, shortened(name, 16), more="bold")
        for line, state in zip(self.view.story, self.view.states, strict=False):
            if place in state:
                status = state[place].status
                letter = letter_of(status)
                self._cell(line.number, letter, _STATUS.get(letter, "#ffffff"), f"{name} {status}")
        self.y += _ROW
        for row in self.view.slots(place):
            for span in row:
                self._bracket(span.first, span.last, f"+{span.tokens[place]}", is_open=span.is_open)
            self.y += _BRACKET

    def _bracket(self, first: int, last: int, text: str, *, is_open: bool) -> None:
        left, right, top = self._x(first) + 2, self._x(last) + _CELL - 3, self.y
        path = f"M{left} {top} v11 H{right}" + ("" if is_open else " v-11")
        ET.SubElement(self.root, "path", d=path, fill="none", stroke="#1b1f24")
        self.y -= 5
        self._text((left + right) / 2, text, size=8, fill="#656d76", more="middle")
        self.y += 5

    def _block(self, block: int) -> None:
        self._text(_MARGIN, f"block {block}", fill="#656d76")
        for index, line in enumerate(self.view.story[: len(self.view.states)]):
            owners = self.view.owners(index).get(block, [])
            if owners:
                names = [self.view.requests[place] for place in owners]
                text = shortened(names[0], 3) if len(owners) == 1 else f"{len(owners)}x"
                fill = _OWNERS[owners[0] % len(_OWNERS)]
                self._cell(line.number, text, fill, f"block {block}: {' '.join(names)}")
        self.y += _ROW

    def _told(self, line: StoryLine) -> None:
        text = f"{line.number:>3}  {line.action}" + (f"  ·  {line.note}" if line.note else "")
        fill = "#b3261e" if line.is_violation else "#1b1f24"
        self._line(shortened(text, _ACTION_WIDTH), fill=fill)

    def _complaint(self) -> None:
        complaint = self.view.complaint
        if complaint is None:
            return
        self.y += 6
        for label, text in (
            ("about", f"{complaint.subject} · {complaint.signature}"),
            ("expected", complaint.expected),
            ("found", complaint.found),
        ):
            self._line(shortened(f"{label:<9} {clean(text)}", _ACTION_WIDTH), fill="#b3261e")

    def _legend(self) -> None:
        self.y += 6
        words = "W waits · L loads · G waits for its grammar · C for a chunk · R runs · P preempted"
        self._line(f"{words} · E ended · +1 tokens of a step in flight", fill="#656d76", size=9)
