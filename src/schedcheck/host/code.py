"""A folder with schedcheck alone, for interpreters that do not have it installed.

Such a folder is named after the content of the code, so that a worker runs exactly what its
parent runs, and nothing else of the parent's environment reaches it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import schedcheck
from schedcheck.sut import TargetError

_UNUSED_SECONDS_MAX: Final = 30 * 24 * 3600.0


def package_folder() -> Path:
    """Return where the running schedcheck's code is."""
    return Path(schedcheck.__file__).parent


@cache
def code_hash() -> str:
    """Return 16 hex digits that stand for the content of every Python file of the package."""
    return _hash_of(package_folder())


def _hash_of(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def code_folder(cache_folder: Path) -> Path:
    """Return a folder that holds a copy of schedcheck and nothing else, made if need be.

    Raises OSError if it cannot be written, and TargetError if the files are no longer those that
    this process was started from.
    """
    final = cache_folder / "code" / code_hash()
    if (final / "schedcheck").is_dir():
        with suppress(OSError):
            os.utime(final)  # it is in use, which _forget heeds
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    _forget(final.parent)
    beside = Path(tempfile.mkdtemp(dir=final.parent, prefix=".building-"))
    try:
        shutil.copytree(
            package_folder(),
            beside / "schedcheck",
            ignore=shutil.ignore_patterns("__pycache__", "_catalogue"),
        )
        if _hash_of(beside / "schedcheck") != final.name:
            raise TargetError("schedcheck's own files changed while it was running: start it again")
        beside.chmod(0o755)
        os.replace(beside, final)  # noqa: PTH105  Path.replace says the same
    except OSError:
        # Another process may have been quicker: then its copy is as good.
        if not (final / "schedcheck").is_dir():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return final


def _forget(folder: Path) -> None:
    """Remove copies that nobody used for a month: whoever edits schedcheck makes many."""
    for copy in folder.iterdir():
        with suppress(OSError):
            if time.time() - copy.stat().st_mtime > _UNUSED_SECONDS_MAX:
                shutil.rmtree(copy, ignore_errors=True)
