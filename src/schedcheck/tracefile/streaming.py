"""Reading recordings as streams: of any length, in constant memory, from strangers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, TypeVar

import msgspec
from attrs import define, field, frozen
from msgspec import UNSET

from schedcheck.model.actions import Action, Add, Complete, Schedule, Step
from schedcheck.model.capability import Capability
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import EMPTY_SNAPSHOT, Snapshot
from schedcheck.model.tokens import prompt_tokens
from schedcheck.model.trace import AnyEvent, Header, Scheduled
from schedcheck.tracefile.events import EventDecoder, nameless
from schedcheck.tracefile.form import TraceError, printable
from schedcheck.tracefile.reading import Reader
from schedcheck.tracefile.recorded import (
    ACTION_KEYS,
    LINE_BYTES_MAX,
    CheckpointForm,
    LifeForm,
    LineForm,
    RecordingForm,
    Tokens,
)

T = TypeVar("T")

_PLAIN: Final[dict[str, Action]] = {one.do: one for one in (Schedule(), Complete(), Step())}
_SPECS_MAX: Final = 4_096
"""How many requests are remembered for the sake of later turns of their conversations."""


@frozen(kw_only=True)
class RecordedStep:
    """An action, what it led to, and where it stands."""

    line: int
    """Of the file, from 1."""
    number: int
    """Of the action, from 1."""
    action: Action
    events: tuple[AnyEvent, ...]


@frozen(kw_only=True)
class Beginning:
    """What is known before the first step of a file."""

    header: Header
    tokens: Tokens
    part: int = 1
    lives: tuple[tuple[LifeForm, RequestSpec], ...] = ()
    in_flight: tuple[Scheduled, ...] = ()
    snapshot: Snapshot = EMPTY_SNAPSHOT
    is_recording: bool = True
    """Its header says that it is one; other traces are read as well."""
    is_whole: bool = True
    """Nothing happened before the first step."""


@define
class RecordingReader:
    """Reads a recording in our own format, line by line. Raises TraceError."""

    stream: BinaryIO
    name: str
    on_ignored: Callable[[str], None] | None = None
    beginning: Beginning = field(init=False)
    _reader: Reader = field(init=False)
    _decoder: EventDecoder = field(init=False)
    _specs: dict[str, RequestSpec] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._reader = Reader(self.name, self.on_ignored, last=0, line_bytes_max=LINE_BYTES_MAX)
        line = next(read_lines(self.stream, self.name), None)
        if line is None:
            raise TraceError(self.name, 0, "it is empty")
        self.beginning = self._begin(line)

    def steps(self) -> Iterator[RecordedStep]:
        """Yield what is recorded, in order."""
        decode, reader = msgspec.json.Decoder(LineForm).decode, self._reader
        for number, line in enumerate(read_lines(self.stream, self.name, first=2), 1):
            reader.line = number + 1
            try:
                form = decode(line)
                action = self._action_of(form)
                events = tuple(self._decoder.event_of(one, action) for one in form.recorded)
            except TraceError:
                raise
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise reader.error(self._what_is_wrong(line, error)) from None
            yield RecordedStep(line=number + 1, number=number, action=action, events=events)

    def _what_is_wrong(self, line: bytes, error: Exception) -> str:
        if not line.endswith(b"\n"):
            return f"the file ends in the middle of line {self._reader.line}: it was cut off"
        if isinstance(error, RecursionError):
            return "it is nested too deep"
        text = str(error).replace("`", "").replace(" - at $.", " in ")
        return printable(text.replace("JSON is malformed:", "it is not JSON:"), most=300)

    def _action_of(self, form: LineForm) -> Action:
        plain = _PLAIN.get(form.do)
        found: dict[str, object] = {
            key: msgspec.json.decode(raw)
            for key in ACTION_KEYS
            if (raw := getattr(form, key)) is not UNSET
        }
        if plain is not None and not found:
            return plain
        return self._made({"do": form.do, **found})

    def _made(self, found: dict[str, object]) -> Action:
        action = self._reader.action(found)
        if isinstance(action, Add):
            self._remember(action.request, action.spec)
        return action

    def _remember(self, name: str, spec: RequestSpec) -> None:
        self._specs[name] = spec
        if len(self._specs) > _SPECS_MAX:
            del self._specs[next(iter(self._specs))]
        self._reader.forget_prompts(_SPECS_MAX)

    def _prompt_of(self, add: Add) -> tuple[int, ...]:
        if self.beginning.tokens is not Tokens.TOY:
            return nameless(add.spec.prompt_tokens_count)
        return prompt_tokens(add.request, self._specs)

    def _begin(self, line: bytes) -> Beginning:
        reader = self._reader
        found = reader.json(line)
        is_recording = "recording" in found or found.get("start") == "checkpoint"
        recording = self._converted(found.pop("recording", {}), RecordingForm, "recording")
        is_whole = found.get("start") != "checkpoint"
        checkpoint = CheckpointForm()
        if not is_whole:
            found["start"] = "cold"
            checkpoint = self._converted(found.pop("checkpoint", {}), CheckpointForm, "checkpoint")
        header = reader.header_of(found)
        shows_refs = Capability.SHOWS_REF_COUNTS in header.capabilities
        self._decoder = EventDecoder(self._prompt_of, self._made, shows_refs=shows_refs)
        try:
            in_flight = self._decoder.begin(checkpoint)
        except ValueError as error:
            raise reader.error(f"the checkpoint: {printable(str(error))}") from None
        return Beginning(
            header=header,
            tokens=recording.tokens if is_whole else Tokens.COUNTS,
            part=recording.part,
            lives=tuple((one, self._life(one)) for one in checkpoint.lives),
            in_flight=in_flight,
            snapshot=self._decoder.snapshot,
            is_recording=is_recording,
            is_whole=is_whole,
        )

    def _life(self, form: LifeForm) -> RequestSpec:
        self._reader.check_name(form.name, "request")
        spec = {"prompt": [["own", 1]], **form.spec}
        add = self._reader.action({"do": "add", "request": form.name, "spec": spec})
        assert isinstance(add, Add)
        self._remember(add.request, add.spec)
        return add.spec

    def _converted(self, found: object, kind: type[T], what: str) -> T:
        try:
            return msgspec.convert(found, kind, str_keys=True)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            text = str(error).replace("`", "").replace(" - at $.", " in ")
            raise self._reader.error(f"{what} in the header: {printable(text)}") from None


def read_lines(stream: BinaryIO, name: str, *, first: int = 1) -> Iterator[bytes]:
    """Yield lines with their newlines, none longer than a recording may have. Raises TraceError."""
    number = first
    while True:
        try:
            line = stream.readline(LINE_BYTES_MAX + 1)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise TraceError(name, number, f"cannot read it: {printable(str(error))}") from None
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            raise TraceError(name, number, f"the line is longer than {LINE_BYTES_MAX // 2**20} MiB")
        yield line
        number += 1
