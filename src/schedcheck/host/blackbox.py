"""The black box: the trace so far, in a file that outlives the process that writes it.

The file is mapped into memory, so noting an action costs a copy, not a system call, and whatever
was noted is there when the process is killed. Layout: a counter of notes (8 bytes, also counted up
at the end of a trace), the length of the trace (8 bytes, 0 when none is in progress), the trace.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from attrs import evolve

from schedcheck.model.actions import Action
from schedcheck.model.trace import Header
from schedcheck.tracefile import encode_action, encode_header

SIZE: Final = 4 * 2**20
"""Bytes of the file. A trace that outgrows it is kept up to the action that does not fit."""
_HEAD: Final = struct.Struct("<QQ")


class MappedBlackBox:
    """The end that writes."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._count = 0
        self._length = 0
        self._is_full = False

    def begin(self, header: Header) -> None:
        """Start a trace."""
        self._length = 0
        self._is_full = False
        # What a whole trace is expected to show says nothing about the part that was played.
        self._append(encode_header(evolve(header, expect=None)))

    def note(self, action: Action) -> None:
        """Keep an action that is going to be carried out now."""
        self._append(encode_action(action))

    def end(self) -> None:
        """Forget the trace: it is over."""
        self._length = 0
        self._stamp()

    def let_go(self) -> None:
        """Write into the file no more: in a process that was forked from the worker."""
        self._map = mmap.mmap(-1, SIZE)

    def _append(self, line: bytes) -> None:
        start = _HEAD.size + self._length
        self._is_full = self._is_full or start + len(line) > SIZE
        if not self._is_full:
            self._map[start : start + len(line)] = line
            self._length += len(line)
        self._stamp()

    def _stamp(self) -> None:
        self._count += 1
        self._map[: _HEAD.size] = _HEAD.pack(self._count, self._length)


def create(path: Path) -> None:
    """Make an empty black box."""
    with path.open("wb") as file:
        file.truncate(SIZE)


def look(path: Path) -> tuple[int, bytes]:
    """Return the counter and the trace in progress; an empty one when there is none."""
    with path.open("rb") as file:
        count, length = _HEAD.unpack(file.read(_HEAD.size))
        return count, file.read(min(length, SIZE))
