"""Where a recording goes: files in turn, of bounded size and number."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import BinaryIO, Final

from attrs import define, field, frozen
from attrs.validators import ge

from schedcheck.model.trace import Header
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life
from schedcheck.tracefile import SUFFIX, EventEncoder, Tokens
from schedcheck.tracefile.recorded import (
    CheckpointForm,
    DrainedForm,
    LifeForm,
    RecordingForm,
)
from schedcheck.tracefile.recording import (
    body_of_spec,
    encode_recording_header,
    load_form,
    view_form,
)

FOLDER: Final = Path(".schedcheck/recordings")
"""Where recordings go without being asked, below the current folder."""
_FLUSH_SECONDS: Final = 1.0
_BUFFER_BYTES: Final = 64 * 2**10


@frozen(kw_only=True)
class Options:
    """How to record."""

    folder: Path = FOLDER
    name: str = "recording"
    """Files are called ``NAME.0001.trace.jsonl`` and so on; numbers go on where others are."""
    bytes_max: int = field(default=64 * 2**20, validator=ge(1))
    """A file that has grown so far is followed by the next one."""
    files_max: int = field(default=8, validator=ge(1))
    """So many files are kept, the newest; the others are deleted."""
    tokens: bool = False
    """Whether token ids are written, prompts and outputs. Without, only numbers and hashes are."""
    check: bool = False
    """Whether what happens is judged at once, and a violation logged."""


@define
class RecordingFiles:
    """The files of one recording. Whatever the system refuses raises OSError."""

    options: Options
    header: Header
    tokens: Tokens
    part: int = field(init=False, default=0)
    path: Path | None = field(init=False, default=None)
    """The file that is written now."""
    _file: BinaryIO | None = field(init=False, default=None)
    _bytes: int = field(init=False, default=0)
    _flushed: float = field(init=False, default=0.0)

    def begin(self, checkpoint: CheckpointForm | None = None) -> None:
        """Begin the next file, with what is known there unless nothing happened yet."""
        self.close()
        folder = self.options.folder
        folder.mkdir(parents=True, exist_ok=True)
        older = self._files()
        number = max(older, default=0) + 1
        self.part += 1
        tokens = (
            self.tokens if checkpoint is None or self.tokens is not Tokens.TOY else Tokens.COUNTS
        )
        form = RecordingForm(tokens=tokens, part=self.part)
        path = folder / f"{self.options.name}.{number:04}{SUFFIX}"
        self._file = path.open("xb", buffering=_BUFFER_BYTES)
        self.path, self._bytes = path, 0
        for oldest in sorted(older)[: max(0, len(older) + 1 - self.options.files_max)]:
            older[oldest].unlink(missing_ok=True)
        self.write(encode_recording_header(self.header, form, checkpoint))

    def write(self, line: bytes) -> None:
        """Write a line, which reaches the disk within about a second of further lines."""
        assert self._file is not None, "a recording is written before it was begun"
        self._file.write(line)
        self._bytes += len(line)
        now = time.monotonic()
        if now - self._flushed > _FLUSH_SECONDS:
            self._flushed = now
            self._file.flush()

    @property
    def is_full(self) -> bool:
        """Whether the file has grown as far as it may."""
        return self._bytes >= self.options.bytes_max

    def flush(self) -> None:
        """Hand what was written to the system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """End the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _files(self) -> dict[int, Path]:
        pattern = re.compile(rf"{re.escape(self.options.name)}\.(\d{{1,9}}){re.escape(SUFFIX)}")
        found = ((pattern.fullmatch(one.name), one) for one in self.options.folder.iterdir())
        return {int(match[1]): path for match, path in found if match is not None}


def checkpoint_of(ledger: Ledger, encoder: EventEncoder) -> CheckpointForm:
    """Return where a recording is, so that another file, written with ``encoder``, goes on."""
    snapshot = ledger.snapshot
    in_flight = encoder.go_on([step.output for step in ledger.in_flight], snapshot)
    now = DrainedForm(
        rounds=0,
        views={name: view_form(view) for name, view in snapshot.requests.items()},
        queues={queue: list(names) for queue, names in snapshot.queues.items()},
        free=snapshot.blocks_free,
        total=snapshot.blocks_total,
        free_ids=None if snapshot.free_block_ids is None else list(snapshot.free_block_ids),
        refs=dict(snapshot.block_refs or {}),
    )
    lives = [_life_form(life) for life in ledger.lives.values() if not life.rejected]
    return CheckpointForm(lives=lives, in_flight=in_flight, now=now)


def _life_form(life: Life) -> LifeForm:
    load, send = life.load, life.send
    return LifeForm(
        name=life.name,
        spec=body_of_spec(life.spec),
        unknown=bool(life.spec.chunks),  # which of its turns it is in is not kept
        news=life.times_new,
        resumes=life.times_resumed,
        preemptions=life.times_preempted,
        preempted=life.preempted_since_scheduled,
        forgot=life.told_to_forget,
        path=list(life.path),
        delivered=len(life.delivered),
        finished=life.finished,
        announced=life.announced,
        load=None if load is None or load.ended else load_form(load.load),
        send=None if send is None or send.ended else sorted(send.blocks),
    )
