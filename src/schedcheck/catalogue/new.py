"""Writing the entry of an invariant: its two traces, and a page to begin with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from attrs import frozen

from schedcheck import catalogue
from schedcheck.catalogue import Entry
from schedcheck.catalogue.check import HEADINGS, UNFINISHED
from schedcheck.engine.smallest import Tell, mutants_for, smallest_control, smallest_violation
from schedcheck.invariants.registry import Invariant
from schedcheck.model.trace import Trace
from schedcheck.tracefile import TraceError, read, write, write_bytes

_WORDS_MAX: Final = 5
_SMALL_WORDS: Final = re.compile(
    r"\b(a|all|an|and|are|as|at|be|by|every|from|in|is|it|its|of|on|one|or|s|than|that|the|"
    r"them|they|this|to|was|what|when|while|with)\b"
)
"""Left out of a folder's name."""


class CannotAdd(ValueError):
    """There is nothing to write an entry from; the message says what is missing and the fix."""


class NothingKilled(Exception):
    """No trace was found; the message says of what, where, and the fix."""


@frozen(kw_only=True)
class Written:
    """What was written into a folder of the catalogue."""

    entry: Entry
    minimal: Trace
    control: Trace | None
    """None: no trace of the reference puts the invariant to the test."""
    has_new_page: bool
    """Whether the page is a skeleton, to be written."""


def write_entry(invariant: Invariant, tell: Tell) -> Written:
    """Find the smallest traces of an invariant and write them into its folder, and a page if none.

    Traces that are there already are taken as a start, so that they never get larger. Raises
    CannotAdd if no mutant must be killed by it or the catalogue is an installed one, NothingKilled
    if no trace violates it, TraceUnwritable.
    """
    id_ = invariant.id
    mutants = ", ".join(mutant.name for mutant in mutants_for(id_))
    if not mutants:
        raise CannotAdd(
            f"no mutant names {id_} in must_kill; add one that breaks it in "
            f"src/schedcheck/reference/mutants/"
        )
    if catalogue.is_installed():
        raise CannotAdd(f"{catalogue.folder()} is an installed catalogue; work in a checkout")
    entry = entry_for(invariant)
    minimal = smallest_violation(id_, start=_known(entry.minimal), tell=tell)
    if minimal is None:
        raise NothingKilled(
            f"{id_} kills none of {mutants} within the quick profile; mend the checker, or make "
            f"the fault likelier"
        )
    write(entry.minimal, minimal)
    starts = [trace for trace in (_known(entry.control), minimal) if trace is not None]
    control = smallest_control(id_, starts=starts, tell=tell)
    if control is not None:
        write(entry.control, control)
    has_new_page = not entry.page.exists()
    if has_new_page:
        write_bytes(entry.page, skeleton(invariant).encode())
    return Written(entry=entry, minimal=minimal, control=control, has_new_page=has_new_page)


def entry_for(invariant: Invariant) -> Entry:
    """Return the entry of an invariant: the folder that is there, or the one to be made."""
    top = catalogue.folder()
    there = sorted(path for path in top.glob(f"{invariant.id}-*") if path.is_dir())
    return Entry(invariant.id, there[0] if there else top / f"{invariant.id}-{slug(invariant)}")


def slug(invariant: Invariant) -> str:
    """Return a short name made of the words of the title that carry it."""
    title = invariant.title.lower()
    words = re.findall(r"[a-z0-9]+", _SMALL_WORDS.sub(" ", title)) or re.findall("[a-z0-9]+", title)
    return "-".join(words[:_WORDS_MAX]) or "entry"


def skeleton(invariant: Invariant) -> str:
    """Return a page with the statement, the evidence, and what is to be written marked as such."""
    statement = f"{invariant.title[:1].upper()}{invariant.title[1:]}."
    evidence = "".join(f"- <{link}>\n" for link in invariant.evidence)
    texts = (
        statement,
        f"{UNFINISHED}: what goes wrong for whom when a scheduler breaks it.",
        f"{UNFINISHED}: what is compared with what. Witness: {invariant.witnessed_by}.",
        f"{evidence}{UNFINISHED}: what happened there, in which release it began and ended.",
        f"{UNFINISHED}: what it does not see, and what it takes for lawful.",
    )
    parts = (f"{heading}\n\n{text}\n" for heading, text in zip(HEADINGS, texts, strict=True))
    return "\n".join((f"# {invariant.id} {invariant.title}\n", *parts))


def _known(path: Path) -> Trace | None:
    """Return the trace that stands in a file, if one does."""
    try:
        return read(path)
    except TraceError:
        return None
