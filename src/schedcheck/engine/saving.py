"""Keeping what was found: where a failing trace goes, and what its file is called."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from schedcheck.engine.events import Failure
from schedcheck.tracefile import SUFFIX, write_bytes

FOLDER: Final = Path(".schedcheck/traces")
"""Where failing traces are saved without being asked, below the current folder."""


def file_name(failure: Failure) -> str:
    """Return what a failure's trace file is called: ``REQ-001-7f3a.trace.jsonl``.

    The digits depend on target, version and signature alone, so that a smaller trace of the same
    failure replaces a larger one, and a second run does not pile up files.
    """
    made_of = " ".join((failure.target, failure.version, *failure.options))
    words = f"{made_of} {failure.complaint.signature}"
    digits = sha256(words.encode()).hexdigest()[:4]
    return f"{failure.complaint.invariant}-{digits}{SUFFIX}"


def save(failure: Failure, folder: Path = FOLDER) -> Path:
    """Save a failure's trace and return where. Raises TraceUnwritable."""
    path = folder / file_name(failure)
    write_bytes(path, failure.trace.encode())
    return path
