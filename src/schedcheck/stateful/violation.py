"""What a test raises when a scheduler breaks an invariant.

Each signature has an exception class of its own: Hypothesis tells failures apart by class and
line, and would merge two faults that one line raises with one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from schedcheck.engine.events import Failure, StoryLine


class Render(Protocol):
    """Makes the text of a failure, line by line, without colour."""

    def __call__(self, failure: Failure, *, path: str) -> Iterator[str]:
        """Tell a failure whose trace was saved at ``path``; empty: it was not saved."""
        ...


class Violation(AssertionError):
    """A scheduler broke an invariant. The text is the table that the command line prints."""

    failure: Failure
    """The violation with everything needed to tell, replay and save it."""
    saved: Path | None
    """Where its trace was saved; None: it was not."""

    def __init__(self, failure: Failure, saved: Path | None = None) -> None:
        super().__init__(failure, saved)
        self.failure, self.saved = failure, saved

    def __str__(self) -> str:
        return "\n".join(_render(self.failure, path=str(self.saved or "")))

    def __reduce__(self) -> tuple[Callable[..., Violation], tuple[Failure, Path | None]]:
        return violation, (self.failure, self.saved)


_CLASSES: Final[dict[str, type[Violation]]] = {}


def class_of(signature: str) -> type[Violation]:
    """Return the exception class of a signature: always the same one, and only its own."""
    if signature not in _CLASSES:
        members = {"__module__": "schedcheck", "__doc__": f"{signature} was violated."}
        _CLASSES[signature] = type(f"Violation[{signature}]", (Violation,), members)
    return _CLASSES[signature]


def violation(failure: Failure, saved: Path | None = None) -> Violation:
    """Return the exception of a failure, of its signature's own class."""
    return class_of(failure.complaint.signature)(failure, saved)


def plain_lines(failure: Failure, *, path: str) -> Iterator[str]:
    """Tell a failure in a few plain lines, for whoever has no report at hand."""
    complaint = failure.complaint
    target = f"{failure.target} {failure.version}".strip()
    where = [target, failure.origin, f"{failure.actions_found} -> {failure.actions} actions"]
    yield f"VIOLATED  {complaint.invariant}  {failure.title}"
    yield "  " + " · ".join(word for word in where if word)
    yield f"  {failure.config}"
    yield from map(_story_line, failure.story)
    yield f"  expected  {complaint.subject}: {complaint.expected}"
    yield f"  found     {complaint.found}"
    if path:
        on = f" --on {failure.target}" if ":" in failure.target else ""
        yield f"  replay    schedcheck replay {path}{on}"


def _story_line(line: StoryLine) -> str:
    note = f"  {line.note}" if line.note else ""
    return f"  {line.number:>4}  {line.action}{note}{'  <- here' if line.is_violation else ''}"


_render: Render = plain_lines


def render_with(render: Render) -> None:
    """Choose how violations are told. The report is above this layer, so it is handed in."""
    global _render  # noqa: PLW0603  set once, by whoever puts the package together
    _render = render
