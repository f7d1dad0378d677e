"""What a trace file may hold: limits, ranges, keys with their defaults; and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_type_hints

from attrs import NOTHING, fields

from schedcheck.model.actions import ACTIONS
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.options import NO_OPTIONS, Options, options_of, written
from schedcheck.model.request import RequestSpec

SUFFIX: Final = ".trace.jsonl"
"""How a trace file's name ends."""

BYTES_MAX: Final = 64 * 2**20
LINE_BYTES_MAX: Final = 2**20
LINES_MAX: Final = 1_000_000
PARTS_MAX: Final = 2_000_000
"""Actions, prompt segments and names in ``finish_loads`` of one trace, counted together."""
NAME_MAX: Final = 200
"""The most characters of the name of a request or a prompt stream."""
TEXT_MAX: Final = 2_000
"""The most characters of a text in the header."""
TOKENS_MAX: Final = 1_000_000
"""The most prompt tokens of one request, those of the requests whose output it continues too."""
TOKENS_ALL_MAX: Final = 10_000_000
"""The same over all requests of a trace: about 360 MB of Python integers."""
CHAIN_MAX: Final = 100
"""How many requests may continue one another's output: the toy model follows them recursively."""

DRAFTS_MAX: Final = 1_000
"""The most drafts proposed at once."""

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "bad_block": (0, 1_000_000),
    "block_size": (1, 65_536),
    "blocks_total": (1, 1_000_000),
    "max_model_len": (2, 10_000_000),
    "max_num_batched_tokens": (1, 10_000_000),
    "max_num_seqs": (1, 100_000),
    "max_steps_in_flight": (1, 1_000),
    "max_tokens": (1, TOKENS_MAX),
    "priority": (-(2**31), 2**31 - 1),
    "remote_tokens": (0, TOKENS_MAX),
    "encoder_cache_size": (0, 10_000_000),
    "max_loras": (0, 100_000),
    "max_num_encoder_input_tokens": (0, 10_000_000),
    "num_speculative_tokens": (0, 1_000),
    "sliding_window": (0, 10_000_000),
    "step": (1, LINES_MAX),
    "steps_max": (1, 1_000_000),
    "stop_at": (0, TOKENS_MAX),
}
"""The smallest and largest number that each field may hold."""

COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
}
"""How files begin that are compressed."""

HEADER_KEYS: Final = (
    *("capabilities", "config", "dialect", "expect", "format", "options"),
    *("schedcheck", "seed", "start", "target", "version", "witness"),
)


OPTIONS_MAX: Final = 100
"""The most options of an engine that a header may hold."""


def options_in(found: object) -> Options:
    """Return the options that a header holds. Raises ValueError for what is none."""
    if found is None:
        return NO_OPTIONS
    if not isinstance(found, dict):
        raise ValueError(f"it is {shown(found)}, not a JSON object")  # noqa: TRY004  a trace's
    unknown = sorted(found.keys() - {"config", "connector", "scheduler"})
    if unknown:
        raise ValueError(f"unknown field {shown(unknown[0])}")
    config = found.get("config", {})
    if not isinstance(config, dict) or len(config) > OPTIONS_MAX:
        raise ValueError(f"config is no JSON object of at most {OPTIONS_MAX} options")
    return options_of(
        scheduler=_text_in(found, "scheduler"),
        connector=_text_in(found, "connector"),
        config=tuple(f"{key}={_value_in(config, key)}" for key in config),
    )


def _text_in(found: Mapping[str, object], key: str) -> str | None:
    value = found.get(key)
    if value is not None and not (isinstance(value, str) and len(value) <= TEXT_MAX):
        raise ValueError(f"{key} is {shown(value)}, not a text of at most {TEXT_MAX:,} characters")
    return value


def _value_in(config: Mapping[str, object], key: str) -> str:
    value = config[key]
    if isinstance(value, str) and len(value) <= TEXT_MAX and value.isprintable():
        return value
    if isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() <= 64):
        return written(value)
    raise ValueError(f"{shown(key)} is {shown(value)}, not a printable text, a number or a boolean")


class TraceError(ValueError):
    """A trace cannot be read; the message is one line that names file, line and fault.

    ``line`` counts from 1; 0 stands for the file as a whole.
    """

    def __init__(self, name: str, line: int, problem: str) -> None:
        super().__init__(name, line, problem)
        self.name, self.line, self.problem = name, line, problem

    def __str__(self) -> str:
        where = printable(self.name, most=300)
        return f"{where}:{self.line}: {self.problem}" if self.line else f"{where}: {self.problem}"


class TraceUnwritable(OSError):
    """A trace cannot be written; the message names the file and the reason."""


def _keys_of(kind: type, *, also: tuple[str, ...] = ()) -> tuple[tuple[str, object], ...]:
    """Return the keys of a kind of value in the order of a file, with their defaults."""
    defaults = {one.name: one.default for one in fields(kind)} | dict.fromkeys(also, NOTHING)
    return tuple(sorted(defaults.items()))


KEYS: Final[Mapping[type, tuple[tuple[str, object], ...]]] = {
    RequestSpec: _keys_of(RequestSpec),
    SchedulerConfig: _keys_of(SchedulerConfig),
    **{kind: _keys_of(kind, also=("do",)) for kind in ACTIONS},
}
ALWAYS_WRITTEN: Final = frozenset(
    {
        *("blocks_total", "block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len"),
        *("max_steps_in_flight", "policy", "chunked_prefill", "prefix_caching"),
        "load_failure_policy",
    }
)
"""Fields of the config that are written whatever they are."""
TYPES: Final[Mapping[type, Mapping[str, Any]]] = {
    kind: {one.name: get_type_hints(kind)[one.name] for one in fields(kind)} for kind in KEYS
}


def shown(value: object) -> str:
    """Return a stranger's JSON value as a few printable characters."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() if value.bit_length() > 64:
            return f"a number of {value.bit_length()} bits"
        case int() | float():
            return str(value)
        case str():
            return f'"{printable(value, most=60)}"'
        case dict():
            return "an object"
        case _:
            return "a list"


def printable(text: str, *, most: int = 120) -> str:
    """Return a stranger's text fit for one line of a terminal."""
    kept = "".join(one if one.isprintable() else "?" for one in text[: most + 1])
    return kept if len(kept) <= most else f"{kept[: most - 3]}..."


def reason(error: OSError | ValueError) -> str:
    """Return what the system says about an error."""
    return getattr(error, "strerror", None) or str(error)


def unfit(data: bytes) -> str | None:
    """Return why the content as a whole is no trace, before any of it is taken apart."""
    if not data:
        return "it is empty"
    if len(data) > BYTES_MAX:
        return f"it is larger than {BYTES_MAX // 2**20} MiB, the most that a trace may have"
    for start, how in COMPRESSED.items():
        if data.startswith(start):
            return f"it is compressed ({how}): unpack it first"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it is UTF-16: save it as UTF-8"
    if data.startswith(b"\xef\xbb\xbf"):
        return "it starts with a byte order mark: save it as UTF-8 without one"
    if data.count(b"\n") > LINES_MAX:
        return f"it has more than {LINES_MAX:,} lines, the most that a trace may have"
    return None
