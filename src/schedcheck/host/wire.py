"""Jobs and job events as single lines of JSON, between a supervisor and its worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from attrs import fields

from schedcheck.engine.events import JOB_EVENTS, JobEvent
from schedcheck.engine.jobs import JOBS, Job

VERSION: Final = 1
"""Version of what is said on the wire; both ends must be equal."""

BEGINNING: Final = b'{"word":'
"""How every line begins."""

_EVENTS: Final[Mapping[str, type[JobEvent]]] = {kind.word: kind for kind in JOB_EVENTS}
_JOBS: Final[Mapping[str, type[Job]]] = {kind.word: kind for kind in JOBS}

T = TypeVar("T")


class WireError(ValueError):
    """A line is not of the protocol between supervisor and worker."""


def encode(thing: JobEvent | Job) -> bytes:
    """Return one line, newline included."""
    body = {one.name: getattr(thing, one.name) for one in fields(type(thing))}
    return msgspec.json.encode({"word": thing.word, "body": body}) + b"\n"


def decode_event(line: bytes) -> JobEvent:
    """Read a line that a worker wrote. Raises WireError."""
    return _decode(line, _EVENTS)


def decode_job(line: bytes) -> Job:
    """Read a line that a supervisor wrote. Raises WireError."""
    return _decode(line, _JOBS)


def _decode(line: bytes, kinds: Mapping[str, type[T]]) -> T:
    try:
        message = msgspec.json.decode(line, type=dict[str, Any])
        kind = kinds[message["word"]]
        return msgspec.convert(message["body"], kind)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"not a line of ours: {type(error).__name__}: {error}") from error
