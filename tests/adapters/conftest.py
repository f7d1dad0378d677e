"""The command line as its users start it: a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def schedcheck(tmp_path: Path) -> Run:
    """Return what runs ``schedcheck`` with arguments, in an empty folder."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "schedcheck", *map(str, arguments)],
            cwd=tmp_path,
            env={**plain, "NO_COLOR": "1", **environment},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )

    return run
