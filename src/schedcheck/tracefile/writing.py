"""Writing traces."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import msgspec

from schedcheck.model.actions import Action, Add
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import FORMAT, Header, Trace
from schedcheck.tracefile.form import ALWAYS_WRITTEN, KEYS, TraceUnwritable, printable, reason

_to_json: Final = msgspec.json.Encoder().encode


def encode(trace: Trace) -> bytes:
    """Return a trace as the content of a file."""
    return encode_header(trace.header) + b"".join(map(encode_action, trace.actions))


def encode_header(header: Header) -> bytes:
    """Return the first line, newline included."""
    config, expect = header.config, header.expect
    line = {
        "capabilities": sorted(header.capabilities),
        "config": {
            key: value
            for key, default in KEYS[SchedulerConfig]
            if (value := getattr(config, key)) != default or key in ALWAYS_WRITTEN
            if key != "dialect"
        },
        "dialect": config.dialect,
        "expect": expect and {"signature": str(expect.signature), "step": expect.step},
        "format": FORMAT,
        **_options(header.options),
        "schedcheck": header.schedcheck,
        "seed": header.seed,
        "start": "cold",
        "target": header.target,
        "version": header.version,
        "witness": header.witness,
    }
    return _to_json(line) + b"\n"


def _options(options: Options) -> dict[str, object]:
    """Return what is written of a target's options: nothing of none."""
    if options == NO_OPTIONS:
        return {}
    pieces = {"connector": options.connector, "scheduler": options.scheduler}
    named = {key: text for key, text in pieces.items() if text}
    values = {"config": dict(options.config)} if options.config else {}
    return {"options": values | named}


def encode_action(action: Action) -> bytes:
    """Return an action's line, newline included."""
    line = _not_default(action)
    if isinstance(action, Add):
        line["spec"] = _not_default(action.spec)
    return _to_json(line) + b"\n"


def _not_default(thing: Action | RequestSpec) -> dict[str, object]:
    """Return what must be written: fields that have no default, or another value than it."""
    return {
        key: value
        for key, default in KEYS[type(thing)]
        if (value := getattr(thing, key)) != default
    }


def write(path: Path, trace: Trace) -> None:
    """Write a trace, so that the file is whole or not there. Raises TraceUnwritable."""
    write_bytes(path, encode(trace))


def write_bytes(path: Path, content: bytes) -> None:
    """Write an encoded trace, making its folder where missing. Raises TraceUnwritable."""
    beside = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("xb") as file:
                file.write(content)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        raise TraceUnwritable(
            f"cannot write {printable(str(path), most=300)}: {reason(error)}"
        ) from error
