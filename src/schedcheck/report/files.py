"""Where traces of failures are kept, and under which names."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from schedcheck.engine.events import Failure
from schedcheck.tracefile import SUFFIX, write_bytes

TRACES_FOLDER: Final = Path(".schedcheck") / "traces"
"""Where failures are saved without being asked, below the current folder."""


def path_for(failure: Failure, folder: Path = TRACES_FOLDER) -> Path:
    """Return the file of a failure: ``REQ-001-7f3a.trace.jsonl``.

    It depends on target, version and signature alone, so that a smaller trace of the same failure
    replaces a larger one, and a second run does not pile up files.
    """
    words = f"{failure.target} {failure.version} {failure.complaint.signature}"
    mark = hashlib.sha256(words.encode(errors="replace")).hexdigest()[:4]
    invariant = re.sub(r"[^A-Za-z0-9-]", "_", failure.complaint.invariant)
    return folder / f"{invariant}-{mark}{SUFFIX}"


def save(failure: Failure, folder: Path = TRACES_FOLDER) -> Path:
    """Write a failure's trace and return its file. Raises TraceUnwritable."""
    path = path_for(failure, folder)
    write_bytes(path, failure.trace.encode())
    return path
