"""One way to read recordings, whatever their format and however they are packed."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import BinaryIO, Final, Protocol, cast

from schedcheck.recording.dumps import DumpReader, is_dump
from schedcheck.tracefile import Beginning, RecordedStep, RecordingReader, TraceError
from schedcheck.tracefile.form import COMPRESSED, printable

_LOOKED_AT: Final = 64 * 2**10
"""How much of a file is looked at to tell its format, in bytes."""


class Reader(Protocol):
    """Reads one recording. Whatever is wrong with it raises TraceError, in one line."""

    @property
    def beginning(self) -> Beginning:
        """What is known before the first step."""
        ...

    def steps(self) -> Iterator[RecordedStep]:
        """Yield what was recorded, in order, in constant memory."""
        ...


def open_recording(
    stream: BinaryIO, name: str, *, on_ignored: Callable[[str], None] | None = None
) -> Reader:
    """Return what reads a recording: our own, or a dump of vLLM's SchedulerOutput.

    Packed with gzip or zstd it is unpacked on the way. ``name`` stands for it in messages. Raises
    TraceError.
    """
    unpacked = unpack(stream, name)
    try:
        begins = unpacked.peek(_LOOKED_AT)
    except (OSError, EOFError, ValueError) as error:
        raise TraceError(name, 0, f"cannot read it: {printable(str(error))}") from None
    if is_dump(begins.partition(b"\n")[0]):
        return DumpReader(unpacked, name)
    return RecordingReader(unpacked, name, on_ignored)


def unpack(stream: BinaryIO, name: str) -> io.BufferedReader:
    """Return a stream of what a file holds, unpacked if it is packed. Raises TraceError.

    ``stream`` is best not buffered: then a line is seen as soon as it is written.
    """
    packed = _buffered(stream)
    begins = packed.peek(4)
    how = next((how for start, how in COMPRESSED.items() if begins.startswith(start)), None)
    match how:
        case None:
            return packed
        case "gzip":
            return _buffered(gzip.GzipFile(fileobj=packed))
        case "zstd":
            return _buffered(_zstd(packed, name))
        case _:
            raise TraceError(name, 0, f"it is compressed ({how}): unpack it first")


def _buffered(stream: object) -> io.BufferedReader:
    return io.BufferedReader(cast("io.RawIOBase", stream), _LOOKED_AT)


def _zstd(stream: io.BufferedReader, name: str) -> io.RawIOBase:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise TraceError(
            name,
            0,
            "it is compressed with zstd, which needs the package zstandard: "
            "pip install 'schedcheck[zstd]', or zstd -dc FILE | schedcheck check -",
        ) from None
    reader = zstandard.ZstdDecompressor().stream_reader(stream)
    return _Translated(reader, zstandard.ZstdError)


class _Translated(io.RawIOBase):
    """A stream whose own kind of error is an OSError, as everybody expects."""

    def __init__(self, stream: BinaryIO, error: type[Exception]) -> None:
        self._stream, self._error = stream, error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            read = self._stream.read(len(buffer))
        except self._error as error:
            raise OSError(str(error)) from None
        buffer[: len(read)] = read
        return len(read)
