"""Reading traces, which come from strangers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from attrs import NOTHING, evolve

from schedcheck.model.actions import ACTIONS, Action, Add, requests_of
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.options import Options
from schedcheck.model.request import OUTPUT_OF, RequestSpec
from schedcheck.model.trace import FORMAT, RECORDED_FORMAT, Expectation, Header, Trace
from schedcheck.model.verdict import Signature
from schedcheck.tracefile.form import (
    BYTES_MAX,
    CHAIN_MAX,
    DRAFTS_MAX,
    HEADER_KEYS,
    KEYS,
    LINE_BYTES_MAX,
    NAME_MAX,
    PARTS_MAX,
    RANGES,
    TEXT_MAX,
    TOKENS_ALL_MAX,
    TOKENS_MAX,
    TYPES,
    TraceError,
    options_in,
    printable,
    reason,
    shown,
    unfit,
)
from schedcheck.tracefile.recorded import KEY

_KINDS: Final[Mapping[str, type[Action]]] = {action.do: action for action in ACTIONS}
_MAJOR, _MINOR = (int(part) for part in RECORDED_FORMAT.split("."))
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")

T = TypeVar("T")


def read(path: Path, *, on_ignored: Callable[[str], None] | None = None) -> Trace:
    """Read a trace file. Raises TraceError for whatever is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise TraceError(str(path), 0, f"cannot read it: {reason(error)}") from error
    return decode(data, name=str(path), on_ignored=on_ignored)


def decode(data: bytes, *, name: str, on_ignored: Callable[[str], None] | None = None) -> Trace:
    """Read a trace from the content of a file; ``name`` stands for it in messages.

    ``on_ignored`` gets one line for each field of a newer minor version that was skipped, once
    per field. Raises TraceError for whatever is wrong.
    """
    problem = unfit(data)
    if problem:
        raise TraceError(name, 0, problem)
    # A newline that ends the file opens no further line.
    lines = data.removesuffix(b"\n").split(b"\n")
    reader = Reader(name, on_ignored, last=0 if data.endswith(b"\n") else len(lines))
    header = reader.header(lines[0])
    actions = tuple(reader.actions(lines[1:]))
    if not actions:
        raise TraceError(name, 0, "it has a header but no action: it was cut off, or never begun")
    if header.expect and header.expect.step > len(actions):
        problem = f"the trace ends with step {len(actions)}: was it cut off?"
        raise TraceError(name, 1, f"expect names step {header.expect.step}, but {problem}")
    return Trace(header=header, actions=actions)


class Reader:
    """Turns lines into values, knowing where it is for the sake of messages."""

    def __init__(
        self,
        name: str,
        on_ignored: Callable[[str], None] | None,
        *,
        last: int,
        line_bytes_max: int = LINE_BYTES_MAX,
    ) -> None:
        self.name, self.on_ignored = name, on_ignored
        self.line_bytes_max = line_bytes_max
        self.last = last
        """Number of the last line if no newline ends it, and so it may be cut off; else 0."""
        self.line = 1
        self.newer = ""
        """The format of the file if it is a newer minor version than ours."""
        self.ignored: set[str] = set()
        self.prompts: dict[str, tuple[int, int]] = {}
        """What each prompt added so far costs: tokens, and how long a chain it continues."""

    def error(self, problem: str) -> TraceError:
        """Return an error about the line that is being read."""
        if self.newer:
            known = f"this version knows {RECORDED_FORMAT}"
            problem += f" (the trace has format {self.newer}, {known})"
        return TraceError(self.name, self.line, problem)

    def header(self, line: bytes) -> Header:
        """Read the first line of a trace that is going to be replayed."""
        found = self.json(line)
        found.pop("recording", None)
        return self.header_of(found)

    def header_of(self, found: dict[str, Any]) -> Header:
        """Return the header that a first line holds."""
        if "format" not in found:
            raise self.error("it is no trace: its first line has no format")
        self._check_format(found["format"])
        start = self._text(found, "start") or "cold"
        if start == "checkpoint":
            raise self.error(
                "it goes on from another file, so it cannot be replayed: "
                "schedcheck check judges it, schedcheck shrink makes a trace of it"
            )
        self._check_keys(found, HEADER_KEYS, "the header")
        if start != "cold":
            raise self.error(f"start is {shown(start)}; this version can only replay from cold")
        target = self._text(found, "target")
        if not target:
            raise self.error("the header has no target")
        config = self._made(found.get("config", {}), SchedulerConfig, "the config", no="dialect")
        dialect = self._converted(found.get("dialect", Dialect.V1), Dialect, "dialect")
        return Header(
            target=target,
            version=self._text(found, "version"),
            config=evolve(config, dialect=dialect),
            options=self._options(found.get("options")),
            capabilities=self._capabilities(found.get("capabilities", [])),
            seed=self._text(found, "seed"),
            schedcheck=self._text(found, "schedcheck"),
            expect=self._expectation(found.get("expect")),
            witness=self._text(found, "witness"),
        )

    def actions(self, lines: Iterable[bytes]) -> Iterator[Action]:
        """Yield the actions of a trace that is going to be replayed."""
        parts = tokens = 0
        seen: dict[bytes, Action] = {}
        for self.line, line in enumerate(lines, 2):
            action = seen.get(line) or self.action(self.json(line))
            if not isinstance(action, Add) and len(seen) < 10_000:
                seen[line] = action  # most lines are plain steps: reading is ten times faster
            parts += 1 + len(requests_of(action))
            if isinstance(action, Add):
                tokens += self.prompts[action.request][0]
                parts += len(action.spec.prompt)
            if tokens > TOKENS_ALL_MAX:
                raise self.error(f"all prompts together have more than {TOKENS_ALL_MAX:,} tokens")
            if parts > PARTS_MAX:
                raise self.error(f"more than {PARTS_MAX:,} actions, prompt segments and names")
            yield action

    def json(self, line: bytes) -> dict[str, Any]:
        """Decode one line, which must hold one JSON object."""
        if len(line) > self.line_bytes_max:
            raise self.error(f"the line is longer than {self.line_bytes_max // 2**20} MiB")
        if not line.strip():
            raise self.error("the line is empty; every line after the header holds one action")
        try:
            value = msgspec.json.decode(line)
        except RecursionError:
            raise self.error("it is nested too deep") from None
        # Not every release of msgspec makes its errors ValueErrors, or turns these into its own.
        except (msgspec.MsgspecError, ValueError) as error:
            raise self.error(self._what_is_wrong(line, str(error))) from None
        if not isinstance(value, dict):
            raise self.error(f"a line holds one JSON object, not {shown(value)}")
        self._check_twice(line, value)
        return value

    def _what_is_wrong(self, line: bytes, problem: str) -> str:
        """Say what is wrong with a line that is no JSON, better than the decoder can."""
        at_its_end = "truncated" in problem or f"(byte {len(line)})" in problem
        if self.line == self.last and at_its_end and line.lstrip().startswith(b"{"):
            return f"the file ends in the middle of line {self.line}: it was cut off"
        if _SURROGATE.search(line):
            return "a text holds half of a surrogate pair, which is no character"
        if "truncated" in problem:
            return "it is not JSON: the line ends too early"
        if "UTF-8" in problem or "utf-8" in problem:
            return "it is not JSON: it is not UTF-8"
        return f"it is not JSON: {printable(problem.removeprefix('JSON is malformed: '))}"

    def _check_twice(self, line: bytes, value: Mapping[str, object]) -> None:
        """Refuse a key that stands twice: decoders silently keep one of the two."""
        inner = sum(len(one) for one in value.values() if isinstance(one, dict))
        if line.count(b":") == len(value) + inner:
            return  # one colon for each key that was kept, so none was lost

        def pairs(entries: list[tuple[str, object]]) -> dict[str, object]:
            kept: dict[str, object] = {}
            for key, entry in entries:
                if key in kept:
                    raise self.error(f"{shown(key)} stands twice in one object")
                kept[key] = entry
            return kept

        try:
            json.loads(line, object_pairs_hook=pairs, strict=False)
        except RecursionError:
            raise self.error("it is nested too deep") from None

    def _check_format(self, found: object) -> None:
        if not isinstance(found, str) or not re.fullmatch(r"[0-9]{1,6}\.[0-9]{1,6}", found):
            raise self.error(f"format is {shown(found)}, which is no version like {FORMAT}")
        major, minor = (int(part) for part in found.split("."))
        if major != _MAJOR:
            raise self.error(
                f"the trace has format {found}, this version reads {_MAJOR}.x only: "
                f"use {'a newer' if major > _MAJOR else 'an older'} schedcheck"
            )
        self.newer = found if minor > _MINOR else ""

    def _check_keys(self, found: Mapping[str, object], known: Iterable[str], where: str) -> None:
        for key in sorted(found.keys() - set(known)):
            if not self.newer:
                raise self.error(
                    f"unknown field {shown(key)} in {where}; "
                    f"this version knows {', '.join(sorted(known))}"
                )
            self._ignore(f"unknown field {shown(key)} in {where}")

    def _ignore(self, what: str) -> None:
        # Bounded: a hostile file may hold as many different unknown keys as it likes.
        if self.on_ignored and what not in self.ignored and len(self.ignored) < 20:
            self.ignored.add(what)
            self.on_ignored(str(self.error(f"skipped {what}")))

    def _text(self, found: Mapping[str, object], key: str) -> str:
        value = found.get(key, "")
        if not isinstance(value, str):
            raise self.error(f"{key} is {shown(value)}, not a text")
        if len(value) > TEXT_MAX or not value.isprintable():
            raise self.error(f"{key} is not a printable text of at most {TEXT_MAX:,} characters")
        return value

    def _capabilities(self, found: object) -> frozenset[Capability]:
        names = self._converted(found, list[str], "capabilities")
        for name in sorted(set(names) - set(Capability)):
            if not self.newer:
                raise self.error(f"unknown capability {shown(name)} in the header")
            self._ignore(f"unknown capability {shown(name)}")
        return frozenset(Capability(name) for name in names if name in set(Capability))

    def _options(self, found: object) -> Options:
        try:
            return options_in(found)
        except ValueError as error:
            raise self.error(f"options: {printable(str(error))}") from None

    def _expectation(self, found: object) -> Expectation | None:
        if found is None:
            return None
        entry = self._object(found, "expect")
        self._check_keys(entry, ("signature", "step"), "expect")
        step = self._converted(entry.get("step"), int, "step in expect")
        self._check_range("step", step, "expect")
        text = self._text(entry, "signature")
        try:
            signature = Signature.parse(text)
        except ValueError as error:
            raise self.error(f"expect: {printable(str(error))}") from None
        return Expectation(signature=signature, step=step)

    def action(self, found: dict[str, Any]) -> Action:
        """Return the action that a line holds; what is recorded beside it is not looked at."""
        beside = found.pop(KEY, [])
        if not isinstance(beside, list):
            raise self.error(f"{KEY} is {shown(beside)}, not a list of events")
        action = self._action(found)
        for name in requests_of(action):
            self.check_name(name, "request")
        if isinstance(action, Add):
            self.prompts[action.request] = self._prompt(action)
        return action

    def forget_prompts(self, most: int) -> None:
        """Keep only what the last so many prompts cost: streams go on for ever."""
        while len(self.prompts) > most:
            del self.prompts[next(iter(self.prompts))]

    def _action(self, found: dict[str, Any]) -> Action:
        do = found.get("do")
        kind = _KINDS.get(do) if isinstance(do, str) else None
        if kind is None:
            what = f"unknown action {shown(do)}" if "do" in found else "the line has no do"
            raise self.error(f"{what}; this version knows {', '.join(_KINDS)}")
        where = f"{'an' if kind.do[0] == 'a' else 'a'} {do} action"
        return self._made(found, kind, where)

    def _prompt(self, add: Add) -> tuple[int, int]:
        """Check what an add action asks for, and return what its prompt costs."""
        if add.request in self.prompts:
            raise self.error(f"{shown(add.request)} is added twice")
        if add.spec.engine_id_of is not None:
            self.check_name(add.spec.engine_id_of, "engine_id_of")
        tokens, chain = 0, 0
        for stream, length in add.spec.prompt:
            self.check_name(stream.removeprefix(OUTPUT_OF), "prompt stream")
            if not 0 <= length <= TOKENS_MAX:
                raise self.error(
                    f"a prompt segment has {shown(length)} tokens; 0 to {TOKENS_MAX:,} are allowed"
                )
            tokens += length
            if stream.startswith(OUTPUT_OF):
                # One that is not added (yet) is the executor's to report: the action is not
                # eligible then.
                before = self.prompts.get(stream.removeprefix(OUTPUT_OF), (0, 0))
                tokens, chain = tokens + before[0], max(chain, before[1] + 1)
        for name, what in ((add.spec.adapter, "adapter"), (add.spec.salt, "salt")):
            if name is not None:
                self.check_name(name, what)
        for pair in add.spec.drafts:
            if not 0 <= pair[1] <= pair[0] <= DRAFTS_MAX:
                raise self.error(
                    f"drafts has {shown(pair[0])} proposed, {shown(pair[1])} accepted; "
                    f"0 to {DRAFTS_MAX:,} are allowed, and no more accepted than proposed"
                )
        for length in add.spec.chunks:
            if not 1 <= length <= TOKENS_MAX:
                raise self.error(
                    f"a chunk has {shown(length)} tokens; 1 to {TOKENS_MAX:,} are allowed"
                )
            tokens += length
        self._check_chunk_limits(add.spec)
        if not add.spec.prompt_tokens_count:
            raise self.error("the prompt has no tokens; at least 1 is needed")
        if tokens > TOKENS_MAX:
            raise self.error(f"the prompt takes more than {TOKENS_MAX:,} tokens to compute")
        if chain > CHAIN_MAX:
            raise self.error(f"more than {CHAIN_MAX} requests continue one another's output")
        return tokens, chain

    def _check_chunk_limits(self, spec: RequestSpec) -> None:
        if len(spec.chunk_max_tokens) > len(spec.chunks):
            raise self.error(
                f"chunk_max_tokens has {len(spec.chunk_max_tokens)} number(s) "
                f"for {len(spec.chunks)} chunk(s)"
            )
        for limit in spec.chunk_max_tokens:
            if not 1 <= limit <= TOKENS_MAX:
                raise self.error(
                    f"chunk_max_tokens has {shown(limit)}; 1 to {TOKENS_MAX:,} are allowed"
                )

    def _made(self, found: object, kind: type[T], where: str, *, no: str = "") -> T:
        """Make an attrs value from a JSON object, strictly; ``no`` is a field it may not have."""
        entry = self._object(found, where)
        self._check_keys(entry, [key for key, _ in KEYS[kind] if key != no], where)
        values: dict[str, Any] = {}
        for key, default in KEYS[kind]:
            if key in entry:
                values[key] = self._field(kind, key, entry[key], where)
            elif default is NOTHING:
                raise self.error(f"{where} has no {key}")
        values.pop("do", None)
        try:
            # By the class itself, since not every release of msgspec runs the validators.
            return kind(**values)
        except (ValueError, TypeError) as error:
            raise self.error(f"{where}: {printable(str(error))}") from None

    def _field(self, kind: type, key: str, found: object, where: str) -> object:
        type_ = TYPES[kind].get(key, str)
        if type_ is RequestSpec:
            return self._made(found, RequestSpec, f"the spec of {where}")
        value = self._converted(found, type_, f"{key} in {where}")
        if type(value) is int:
            self._check_range(key, value, where)
        return value

    def _object(self, found: object, where: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self.error(f"{where} is {shown(found)}, not a JSON object")
        return found

    def _converted(self, found: object, kind: type[T], what: str) -> T:
        try:
            return msgspec.convert(found, kind, strict=True)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if isinstance(kind, type) and issubclass(kind, Enum):
                known = ", ".join(str(one.value) for one in kind)
                raise self.error(f"{what} is {shown(found)}; this version knows {known}") from None
            problem = str(error).replace("`", "").replace("Expected", "expected")
            problem = problem.replace("got None", "got null")
            raise self.error(f"{what} is {shown(found)}: {printable(problem)}") from None

    def _check_range(self, key: str, value: int, where: str) -> None:
        least, most = RANGES[key]
        if not least <= value <= most:
            raise self.error(
                f"{key} in {where} is {shown(value)}; {least:,} to {most:,} are allowed"
            )

    def check_name(self, name: str, what: str) -> None:
        """Raise TraceError for what could not be a name."""
        if not 0 < len(name) <= NAME_MAX or not name.isprintable() or " " in name:
            raise self.error(
                f"{what} {shown(name)} is no name: 1 to {NAME_MAX} printable characters, no spaces"
            )
