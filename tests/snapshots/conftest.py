"""Comparing what people see with text files; ``SCHEDCHECK_SNAPSHOTS=write`` writes them anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture
def same_as() -> Callable[[str, Iterable[str]], None]:
    """Return what compares lines with the file of that name in this folder."""

    def compare(name: str, lines: Iterable[str]) -> None:
        file, shown = FOLDER / name, "".join(f"{line}\n" for line in lines)
        if os.environ.get("SCHEDCHECK_SNAPSHOTS") == "write":
            file.write_text(shown, "utf-8")
        assert file.read_text("utf-8") == shown, f"{file}: SCHEDCHECK_SNAPSHOTS=write, then read it"
        assert [] == [line for line in shown.splitlines() if len(line) > 100]
        assert all(line.isprintable() for line in shown.splitlines())

    return compare
