"""A folder with schedcheck alone, for interpreters that do not have it installed.

Such a folder is named after the content of the code, so that a worker runs exactly what its
parent runs, and nothing else of the parent's environment reaches it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import schedcheck


def package_folder() -> Path:
    """Return where the running schedcheck's code is."""
    return Path(schedcheck.__file__).parent


@cache
def code_hash() -> str:
    """Return 16 hex digits that stand for the content of every Python file of the package."""
    digest = hashlib.sha256()
    root = package_folder()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def code_folder(cache_folder: Path) -> Path:
    """Return a folder that holds a copy of schedcheck and nothing else, made if need be.

    Raises OSError if it cannot be written.
    """
    final = cache_folder / "code" / code_hash()
    if (final / "schedcheck").is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=final.parent, prefix=".building-"))
    try:
        shutil.copytree(
            package_folder(),
            beside / "schedcheck",
            ignore=shutil.ignore_patterns("__pycache__", "_catalogue"),
        )
        beside.chmod(0o755)
        os.replace(beside, final)  # noqa: PTH105  Path.replace says the same
    except OSError:
        # Another process may have been quicker: then its copy is as good.
        if not (final / "schedcheck").is_dir():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return final
