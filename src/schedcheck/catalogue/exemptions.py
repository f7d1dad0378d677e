"""The known-issue ledger ``exemptions.toml``: which releases are known to show which signature.

Rules
-----
- The file is a list of tables ``[[known]]`` with the keys in KEYS, all of them strings except
  ``releases``: ``{ from = "0.9.2", to = "0.13.0" }``, both inclusive, no ``to`` as long as no
  release is free of it; or ``"all"``, which takes in versions that are not said.
- It is strict: the first thing wrong with it is an error that names the entry and the key. A
  misspelt exemption would exempt nothing, or the wrong thing.
- An engine that hangs or dies (ENG-002) takes its process along, so no search goes on past it.
- It is read where a job begins; a worker gets the issues as plain data, and the engine's version
  decides there which of them are covered.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Final

from schedcheck import catalogue
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.known import KnownIssue, release_of
from schedcheck.model.verdict import Signature
from schedcheck.tracefile import SUFFIX

FILE: Final = "exemptions.toml"
NONE: Final = "none"
"""Said in place of a file: nothing is known, every finding counts."""
KEYS: Final = ("engine", "releases", "signature", "reason", "link", "trace")
"""What an entry may have; all but the last are required."""
UNREPORTED: Final = "unreported"
"""The link of what nobody has reported yet."""
ALL: Final = "all"
"""The releases of what every version shows."""
_TABLE: Final = "known"
_TEXT_MAX: Final = 300
_BYTES_MAX: Final = 1 << 20
_VERSION: Final = re.compile(r"\d+(\.\d+)*")
_NEVER_PASSED: Final = "ENG-002"


class LedgerError(ValueError):
    """A known-issue ledger cannot be used; the message names the file, the entry and the key."""


def shipped() -> Path:
    """Return the file in the catalogue. Raises CatalogueMissing."""
    return catalogue.folder() / FILE


def known_issues(choice: str | Path | None = None) -> tuple[KnownIssue, ...]:
    """Return the issues of a ledger: a file, ``none``, or None for the one in the catalogue.

    Raises LedgerError for whatever is wrong with it, and CatalogueMissing.
    """
    if choice is None:
        return read_ledger(shipped())
    return () if str(choice) == NONE else read_ledger(Path(choice))


def read_ledger(path: Path) -> tuple[KnownIssue, ...]:
    """Read a ledger, in the order of the file. Raises LedgerError."""
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LedgerError(f"{path}: cannot read it: {reason}") from error
    if len(data) > _BYTES_MAX:
        raise LedgerError(f"{path}: it has more than {_BYTES_MAX:,} bytes")
    try:
        content = tomllib.loads(data.decode())
    except ValueError as error:  # also what is no UTF-8
        raise LedgerError(f"{path}: not TOML: {error}") from error
    return parse_ledger(content, name=str(path))


def parse_ledger(content: Mapping[str, object], *, name: str) -> tuple[KnownIssue, ...]:
    """Turn what a TOML file says into issues; ``name`` stands for it. Raises LedgerError."""
    for key in content:
        if key != _TABLE:
            raise LedgerError(f"{name}: unknown key {key!r}; entries are tables [[{_TABLE}]]")
    entries = content.get(_TABLE, [])
    if not isinstance(entries, list):
        raise LedgerError(f"{name}: {_TABLE!r} is one table; write [[{_TABLE}]] before each entry")
    issues: list[KnownIssue] = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise LedgerError(f"{name}: entry {number} is {entry!r}; write [[{_TABLE}]] before it")
        try:
            issue = _issue(entry)
            _look_for_overlap(issue, issues)
        except _Wrong as wrong:
            raise LedgerError(f"{name}: {_called(entry, number)}: {wrong}") from None
        issues.append(issue)
    return tuple(issues)


class _Wrong(Exception):
    """What is wrong with an entry: the key, the value and the fix."""


def _called(entry: Mapping[str, object], number: int) -> str:
    """Return how an entry is named to a person: by its place, and by what it says it is about."""
    words = [entry[key] for key in ("engine", "signature") if isinstance(entry.get(key), str)]
    about = " ".join(str(word) for word in words)
    return f"entry {number} ({about})" if about else f"entry {number}"


def _issue(entry: Mapping[str, object]) -> KnownIssue:
    for key in entry:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
            raise _Wrong(f"unknown key {key!r}; {hint}")
    for key in KEYS[:-1]:
        if key not in entry:
            raise _Wrong(f"lacks {key!r}; an entry has {', '.join(KEYS[:-1])}")
    first, last = _releases(entry["releases"])
    return KnownIssue(
        engine=_text(entry, "engine"),
        first=first,
        last=last,
        signature=_signature(_text(entry, "signature")),
        reason=_text(entry, "reason"),
        link=_link(_text(entry, "link")),
        trace=_trace(_text(entry, "trace")) if "trace" in entry else "",
    )


def _text(entry: Mapping[str, object], key: str) -> str:
    """Return a text that fits a report: one line, not empty, not endless."""
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(f"{key!r} is {value!r}; it is a text")
    if not value.isprintable():
        raise _Wrong(f"{key!r} is {value!r}; it is one line of printable text")
    if len(value) > _TEXT_MAX:
        raise _Wrong(f"{key!r} has {len(value)} characters; {_TEXT_MAX} are enough")
    return value.strip()


def _releases(value: object) -> tuple[str, str]:
    """Return the first and the last release, empty where there is none."""
    example = '{ from = "0.9.2", to = "0.13.0" }'
    if value == ALL:
        return "", ""
    if not isinstance(value, dict):
        raise _Wrong(f"'releases' is {value!r}; it looks like {example}, or is {ALL!r}")
    for key in value:
        if key not in ("from", "to"):
            raise _Wrong(f"unknown key 'releases.{key}'; there are from and to")
    if "from" not in value:
        raise _Wrong(f"lacks 'releases.from'; it looks like {example}")
    for key, version in value.items():
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise _Wrong(f"'releases.{key}' is {version!r}; a release looks like '0.13.0'")
    first, last = value["from"], value.get("to", "")
    if last and (release_of(first) or ()) > (release_of(last) or ()):
        raise _Wrong(f"'releases.to' is {last!r}, which is before {first!r}; exchange the two")
    return first, last


def _signature(text: str) -> str:
    try:
        signature = Signature.parse(text)
    except ValueError as error:
        raise _Wrong(f"'signature' is wrong: {error}") from None
    if " " in text:
        raise _Wrong(f"'signature' is {text!r}; a signature has no spaces")
    ids = [one.id for one in every_invariant()]
    if signature.invariant not in ids:
        near = get_close_matches(signature.invariant, ids, n=1)
        hint = f"did you mean {near[0]}?" if near else "schedcheck list invariants shows them all"
        raise _Wrong(f"'signature' names no invariant, {signature.invariant!r}; {hint}")
    if signature.invariant == _NEVER_PASSED:
        raise _Wrong(
            f"'signature' is {text!r}; an engine that hangs or dies ends the run, so nothing can "
            f"go on past it"
        )
    return text


def _link(text: str) -> str:
    if text != UNREPORTED and (not text.startswith("https://") or " " in text):
        raise _Wrong(f"'link' is {text!r}; it is an https:// address, or {UNREPORTED!r}")
    return text


def _trace(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not text.endswith(SUFFIX):
        raise _Wrong(f"'trace' is {text!r}; it is a file *{SUFFIX}, below the ledger's folder")
    return text


def _look_for_overlap(issue: KnownIssue, others: Iterable[KnownIssue]) -> None:
    """Raise _Wrong if another entry says the same: ending one of the two would end nothing."""
    for number, other in enumerate(others, 1):
        if (other.engine, other.signature) != (issue.engine, issue.signature):
            continue
        later, earlier = (issue, other) if _begin(issue) >= _begin(other) else (other, issue)
        ends = release_of(earlier.last) if earlier.last else None
        if ends is None or _begin(later) <= ends:
            raise _Wrong(f"'releases' overlap those of entry {number}; make one of the two")


def _begin(issue: KnownIssue) -> tuple[int, ...]:
    return (release_of(issue.first) or ()) if issue.first else ()
