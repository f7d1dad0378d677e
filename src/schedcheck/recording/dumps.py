"""Reading dumps of vLLM's SchedulerOutput: JSON Lines with vLLM's own field names.

One line is one step, as ``dataclasses.asdict`` gives it, sets as lists. What is looked at:
``scheduled_new_reqs`` (``req_id``, ``prompt_token_ids``, ``block_ids``, ``num_computed_tokens``),
``scheduled_cached_reqs`` (``req_ids``, ``resumed_req_ids`` or ``resumed_from_preemption``,
``new_block_ids``, ``num_computed_tokens``), ``num_scheduled_tokens``, ``preempted_req_ids``,
``finished_req_ids``, ``scheduled_spec_decode_tokens``. Whatever else stands there is skipped:
every release has fields of its own.

A first line without ``num_scheduled_tokens`` may give the limits, by vLLM's names:
``max_num_batched_tokens``, ``max_num_seqs``, ``max_model_len``, ``block_size``, ``version``.

A dump holds no results: a step counts as executed when the next one is planned, and a request as
ended when the workers are told to forget it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, BinaryIO, Final, TypeVar

import msgspec
from attrs import define, field
from msgspec import Meta, Struct

from schedcheck.model.actions import Schedule
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    FinishReason,
    Role,
    Row,
    SchedulerOutput,
    TableUpdate,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Added, AnyEvent, Completed, Header, Scheduled
from schedcheck.tracefile import Beginning, RecordedStep, Tokens, TraceError
from schedcheck.tracefile.events import blocks_of, nameless
from schedcheck.tracefile.form import printable
from schedcheck.tracefile.streaming import read_lines

T = TypeVar("T")

_CAPABILITIES: Final = frozenset({Capability.SHOWS_ROLES, Capability.SHOWS_STARTS})
_MANY: Final = 10**6

Count = Annotated[int, Meta(ge=0, le=_MANY)]
Blocks = list[list[int]]


class NewRequest(Struct):
    """What is looked at of a NewRequestData."""

    req_id: str
    num_computed_tokens: Count
    prompt_token_ids: list[int] | None = None
    block_ids: Blocks | None = None


class CachedRequests(Struct):
    """What is looked at of a CachedRequestData."""

    req_ids: list[str] = []
    resumed_req_ids: list[str] | None = None
    resumed_from_preemption: list[bool] | None = None
    new_block_ids: list[Blocks | None] = []
    num_computed_tokens: list[Count] = []


class Dumped(Struct):
    """What is looked at of a SchedulerOutput."""

    num_scheduled_tokens: dict[str, Count]
    scheduled_new_reqs: list[NewRequest] = []
    scheduled_cached_reqs: CachedRequests = msgspec.field(default_factory=CachedRequests)
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}
    preempted_req_ids: list[str] | None = None
    finished_req_ids: list[str] = []


class Limits(Struct):
    """What a first line may say."""

    max_num_batched_tokens: Annotated[int, Meta(ge=1)] = _MANY
    max_num_seqs: Annotated[int, Meta(ge=1)] = _MANY
    max_model_len: Annotated[int, Meta(ge=2)] = 10 * _MANY
    block_size: Annotated[int, Meta(ge=1)] = 16
    version: str = ""


def is_dump(line: bytes) -> bool:
    """Return whether a file that begins with this line is a dump."""
    return b'"num_scheduled_tokens"' in line or (
        b'"max_num_batched_tokens"' in line and b'"format"' not in line
    )


@define
class DumpReader:
    """Reads a dump, line by line. Raises TraceError."""

    stream: BinaryIO
    name: str
    beginning: Beginning = field(init=False)
    _first: bytes = field(init=False, default=b"")
    _seen: dict[str, None] = field(init=False, factory=dict)
    _open: SchedulerOutput | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        first = next(read_lines(self.stream, self.name), b"")
        limits = Limits()
        if b'"num_scheduled_tokens"' in first:
            self._first = first
        else:
            limits = self._decoded(first, Limits, 1)
        config = SchedulerConfig(
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=limits.block_size,
        )
        header = Header(
            target="vllm", version=limits.version, config=config, capabilities=_CAPABILITIES
        )
        self.beginning = Beginning(header=header, tokens=Tokens.COUNTS, is_whole=False)

    def steps(self) -> Iterator[RecordedStep]:
        """Yield what is recorded, in order."""
        begun = 1 if self._first else 2
        for number, line in enumerate(self._lines(), 1):
            at = number + begun - 1
            dumped = self._decoded(line, Dumped, at)
            events = tuple(self._events(dumped, number - 1, at))
            yield RecordedStep(line=at, number=number, action=Schedule(), events=events)

    def _lines(self) -> Iterator[bytes]:
        if self._first:
            yield self._first
        yield from read_lines(self.stream, self.name, first=2)

    def _decoded(self, line: bytes, kind: type[T], number: int) -> T:
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if not line.endswith(b"\n") and "truncated" in str(error):
                problem = f"the file ends in the middle of line {number}: it was cut off"
            else:
                problem = printable(str(error).replace("`", "").replace(" - at $.", " in "))
            raise TraceError(self.name, number, problem) from None

    def _events(self, dumped: Dumped, step_id: int, line: int) -> Iterator[AnyEvent]:
        yield from self._executed(dumped.finished_req_ids)
        for new in dumped.scheduled_new_reqs:
            if new.req_id not in self._seen:
                yield self._added(new)
        output = self._output(dumped, step_id, line)
        self._open = output
        yield Scheduled(output=output)

    def _executed(self, finished: Sequence[str]) -> Iterator[Completed]:
        """Yield the end of the step before, with which these requests ended."""
        ended = {name: FinishReason.STOPPED for name in finished if name in self._seen}
        for name in ended:
            del self._seen[name]
        if self._open is not None:
            yield Completed(
                step_id=self._open.step_id,
                result=WorkerResult(),
                output=EngineOutput(finished=ended),
            )

    def _added(self, new: NewRequest) -> Added:
        self._seen[new.req_id] = None
        length = min(max(1, len(new.prompt_token_ids or ())), _MANY)
        spec = RequestSpec(prompt=(("own", length),), max_tokens=_MANY)
        return Added(name=new.req_id, spec=spec, tokens=nameless(length), answer=Accepted())

    def _output(self, dumped: Dumped, step_id: int, line: int) -> SchedulerOutput:
        cached = dumped.scheduled_cached_reqs
        lengths = {len(cached.req_ids), len(cached.num_computed_tokens), len(cached.new_block_ids)}
        if len(lengths) > 1:
            problem = "req_ids, num_computed_tokens and new_block_ids are not equally long"
            raise TraceError(self.name, line, f"{problem} in scheduled_cached_reqs")
        counts = dumped.num_scheduled_tokens
        rows = [_new_row(one, counts) for one in dumped.scheduled_new_reqs]
        rows += _cached_rows(cached, counts)
        return SchedulerOutput(
            step_id=step_id,
            rows=tuple(rows),
            preempted=None
            if dumped.preempted_req_ids is None
            else tuple(sorted(dumped.preempted_req_ids)),
            finished=tuple(sorted(dumped.finished_req_ids)),
            scheduled_spec_decode_tokens={
                name: tuple(drafts) for name, drafts in dumped.scheduled_spec_decode_tokens.items()
            },
        )


def _new_row(new: NewRequest, counts: Mapping[str, int]) -> Row:
    return Row(
        name=new.req_id,
        role=Role.NEW,
        start=new.num_computed_tokens,
        count=counts.get(new.req_id, 0),
        block_ids=blocks_of(new.block_ids),
        table_update=TableUpdate.REPLACE,
    )


def _cached_rows(cached: CachedRequests, counts: Mapping[str, int]) -> Iterator[Row]:
    flags = cached.resumed_from_preemption or [False] * len(cached.req_ids)
    resumed = set(cached.resumed_req_ids or ())
    resumed |= {name for name, flag in zip(cached.req_ids, flags, strict=False) if flag}
    for name, start, blocks in zip(
        cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
    ):
        role = Role.RESUMED if name in resumed else Role.RUNNING
        yield Row(
            name=name,
            role=role,
            start=start,
            count=counts.get(name, 0),
            block_ids=blocks_of(blocks),
            table_update=TableUpdate.APPEND if role is Role.RUNNING else TableUpdate.REPLACE,
        )
