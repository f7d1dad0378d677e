"""Telling a trace: each action in words, the queues after it, and what was worth a note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import fields

from schedcheck.engine.events import StoryLine
from schedcheck.model.actions import Action, Add, Complete, Drain, FailTransfer, Step, requests_of
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import Rejected, Role
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import EMPTY_SNAPSHOT, RequestView, Snapshot, Status
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Crashed,
    Drained,
    Hung,
    Malformed,
    Repeated,
    Scheduled,
    StepRecord,
)
from schedcheck.oracles.ledger import Ledger


def tell(records: Iterable[StepRecord]) -> tuple[StoryLine, ...]:
    """Return one line for each action carried out."""
    return tuple(_line(record) for record in records)


def _line(record: StepRecord) -> StoryLine:
    after = record.events[-1].snapshot if record.events else EMPTY_SNAPSHOT
    waiting, loading, running = queues_of(after)
    return StoryLine(
        number=record.number,
        action=words_for(record.action),
        waiting=waiting,
        loading=loading,
        running=running,
        blocks_free=after.blocks_free,
        blocks_total=after.blocks_total,
        note=", ".join(_worth_telling(record)),
        is_violation=bool(record.findings),
    )


def queues_of(snapshot: Snapshot) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return who waits, loads and runs, whatever an engine calls its queues."""
    loading = _names_in(snapshot, Status.WAITING_FOR_REMOTE_KVS)
    running = _names_in(snapshot, Status.RUNNING) or snapshot.queues.get("running", ())
    waiting = tuple(
        name
        for queue, names in snapshot.queues.items()
        if queue != "running"
        for name in names
        if name not in loading and name not in running
    )
    return waiting, loading, running


def _worth_telling(record: StepRecord) -> list[str]:
    """Return the notes of an action; of the many of a quiet tail, the last few."""
    notes = [note for event in record.events for note in _notes(event)]
    return ["…", *notes[-5:]] if len(notes) > 8 else notes


def _names_in(snapshot: Snapshot, status: Status) -> tuple[str, ...]:
    return tuple(name for name, view in snapshot.requests.items() if view.status is status)


def words_for(action: Action) -> str:
    """Return an action as it stands in a table: ``add r0 prompt=5 max=3 remote=4``."""
    match action:
        case Add():
            return _words_for_add(action)
        case Step(finish_loads=names) | Complete(finish_loads=names) if names:
            return f"{action.do}, loads end: {' '.join(names)}"
        case FailTransfer(request=name, bad_block=block):
            return f"fail_transfer {name} from block {block}"
        case Drain():
            return "drain"
        case _:
            forced = " running" if getattr(action, "running", False) else ""
            only = " admission" if getattr(action, "admission_only", False) else ""
            return " ".join([action.do, *requests_of(action)]) + forced + only


def _words_for_add(action: Add) -> str:
    spec = action.spec
    words = [
        f"add {action.request}",
        f"prompt={spec.prompt_tokens_count}",
        f"max={spec.max_tokens}",
    ]
    shared = [f"{stream}:{length}" for stream, length in spec.prompt if stream != "own" and length]
    if shared:
        words.append(f"shares={'+'.join(shared)}")
    if spec.remote_tokens:
        words.append(f"remote={spec.remote_tokens}{'' if spec.load_async else ' sync'}")
    if spec.stop_at is not None:
        words.append(f"stop_at={spec.stop_at}")
    if spec.priority:
        words.append(f"priority={spec.priority}")
    if spec.send_kv:
        words.append("send")
    if spec.engine_id_of is not None:
        words.append(f"id_of={spec.engine_id_of}")
    return " ".join([*words, *_words_for_features(spec)])


def _words_for_features(spec: RequestSpec) -> Iterator[str]:
    if spec.lookup_undecided:
        yield "undecided"
    if spec.grammar:
        yield "grammar"
    if spec.adapter is not None:
        yield f"adapter={spec.adapter}"
    if spec.salt is not None:
        yield f"salt={spec.salt}"
    if spec.drafts:
        plan = "+".join(f"{accepted}/{proposed}" for proposed, accepted in spec.drafts)
        yield f"drafts={plan}"
    if spec.chunks:
        yield f"chunks={'+'.join(map(str, spec.chunks))}"
    if spec.chunk_max_tokens:
        yield f"chunk_max={'+'.join(map(str, spec.chunk_max_tokens))}"


def _notes(event: AnyEvent) -> Iterator[str]:
    """Yield what is worth saying about an event."""
    match event:
        case Added(answer=Rejected(reason=reason)) | Controlled(answer=Rejected(reason=reason)):
            yield f"refused: {reason}"
        case Scheduled(output=output):
            for row in output.rows:
                if row.role is not Role.RUNNING:
                    yield f"{row.name} {row.role.value.lower()} +{row.count}"
            for name in output.preempted or ():
                yield f"{name} preempted"
            for name, drafts in output.scheduled_spec_decode_tokens.items():
                yield f"{name} verifies {len(drafts)} draft(s)"
            for name, places in output.scheduled_encoder_inputs.items():
                yield f"{name} encodes {len(places)} medium(s)"
            for load in output.loads:
                how = "" if load.is_async else " in this step"
                yield f"{load.name} loads {load.count}{how}"
        case Completed(result=result, output=output):
            if result.loads_finished:
                yield f"{' '.join(result.loads_finished)} loaded"
            for name in result.loads_failed:
                yield f"{name} load failed"
            if result.sends_finished:
                yield f"{' '.join(result.sends_finished)} sent"
            for name, reason in output.finished.items():
                yield f"{name} finished ({reason.value.lower()})"
        case Drained(rounds=rounds, idle_rounds=idle):
            yield f"{rounds} quiet rounds" + (
                f", the last {idle} scheduled nothing" if idle else ""
            )
        case Crashed(error=error, function=function):
            yield f"{error} in {function}"
        case Hung(detail=detail):
            yield detail
        case Malformed(problem=problem):
            yield problem
        case Repeated(difference=difference, impurity=impurity):
            yield difference or impurity or "played again: the same came out"
        case _:
            return


def holdings(ledger: Ledger) -> tuple[str, ...]:
    """Return, for each request the scheduler still tracks, what it holds."""
    return tuple(_holding(name, view) for name, view in sorted(ledger.snapshot.requests.items()))


def _holding(name: str, view: RequestView) -> str:
    blocks = [block for group in view.block_ids or () for block in group]
    status = view.status.value if view.status else "?"
    which = f" ({' '.join(map(str, blocks))})" if 0 < len(blocks) <= 12 else ""
    computed = f"{view.num_computed_tokens} of {view.num_tokens} tokens computed"
    return f"{name}  {status}  holds {len(blocks)} block(s){which}, {computed}"


_SIZES: Final = frozenset(
    {"blocks_total", "block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len"}
)
"""What of a configuration is always told."""


def words_for_config(config: SchedulerConfig) -> str:
    """Return a configuration in words; what is off or plain by default is left out."""
    words = [
        f"{config.blocks_total} blocks of {config.block_size}",
        f"budget {config.max_num_batched_tokens}",
        f"max_num_seqs {config.max_num_seqs}",
        f"max_model_len {config.max_model_len}",
    ]
    for one in fields(SchedulerConfig):
        value = getattr(config, one.name)
        if one.name not in _SIZES and value != one.default:
            words.append(f"{one.name} {value}")
    return " · ".join(words)
