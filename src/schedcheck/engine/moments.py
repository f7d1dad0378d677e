"""What is to be seen of a playback, in words that every engine shares, so that two compare.

Engine ids never get this far, and block numbers are topics of their own (BLOCK_TOPICS): two
engines, or two releases of one, may lawfully choose other blocks. What only explains (the reason
for a refusal, a crash's message) is left out for the same cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from schedcheck.engine.events import Fact, Moment
from schedcheck.engine.story import queues_of, words_for
from schedcheck.model.capability import Capability
from schedcheck.model.output import Accepted, Blocks, EngineOutput, Rejected, Role, SchedulerOutput
from schedcheck.model.snapshot import Snapshot
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
    TransferEnded,
)
from schedcheck.model.verdict import Finding

VIOLATES: Final = "violates"
"""The topic of what an invariant finds."""
BLOCK_TOPICS: Final = frozenset({"sends blocks", "loads into", "block numbers", "free numbers"})
"""Facts about which blocks, not how many."""

FOLLOWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "computes": ("starts at", "hands over", "sends blocks"),
    "status": ("computed", "known", "preemptions", "holds", "block numbers"),
}
"""Topics that say nothing new where another one already is there on one side alone."""
OWN_COUNTS: Final = frozenset({"computed", "preemptions"})
"""What an engine counts for itself, each in its own way: a load may count when it begins or ends.
Where a row starts is a fact of its own."""
_SIGHTS: Final = (
    "waiting", "loading", "running", "status", *FOLLOWERS["status"], "free blocks", "free numbers",
    "has work",
)  # fmt: skip

_TOPICS_OF: Final[Mapping[Capability, tuple[str, ...]]] = {
    Capability.SHOWS_STATUS: ("status", "computed", "known", "preemptions", "loading", "waiting"),
    Capability.SHOWS_QUEUES: ("waiting", "running"),
    Capability.SHOWS_STARTS: ("starts at",),
    Capability.SHOWS_BLOCK_TABLES: ("holds", "block numbers", "sends blocks", "loads into"),
    Capability.SHOWS_FREE_BLOCKS: ("free numbers",),
    Capability.SHOWS_CACHED_TOKENS: ("cached",),
    Capability.ANNOUNCES_FINISH: ("tells workers finished",),
    Capability.ANNOUNCES_PREEMPTION: ("tells workers preempted",),
}
"""What is only to be seen where a target has the capability."""


def unseen_by(capabilities: frozenset[Capability]) -> tuple[str, ...]:
    """Return the topics of facts that a target with these capabilities does not show."""
    missing = (topics for one, topics in _TOPICS_OF.items() if one not in capabilities)
    return tuple(sorted({topic for topics in missing for topic in topics}))


def rank(topic: str) -> int:
    """Return where a topic belongs: what was done, what that violates, what it is like after it."""
    return 2 + _SIGHTS.index(topic) if topic in _SIGHTS else int(topic == VIOLATES)


def moments_of(records: Iterable[StepRecord]) -> tuple[Moment, ...]:
    """Return one moment for each event of each action carried out."""
    return tuple(
        Moment(
            number=record.number,
            action=words_for(record.action),
            event=_word(event),
            facts=(
                *_facts(event),
                *(_findings(record.findings) if event is record.events[-1] else ()),
                *_sights(event.snapshot),
                Fact("has work", "", "yes" if event.has_work else "no"),
            ),
        )
        for record in records
        for event in record.events
    )


def _word(event: AnyEvent) -> str:
    match event:
        case Added(name=name):
            return f"add {name}"
        case Scheduled():
            return "schedule"
        case Completed():
            return "complete"
        case Controlled(action=action):
            return words_for(action)
        case TransferEnded(name=name, transfer=transfer):
            return f"the {transfer.value} of {name} ends"
        case Drained():
            return "the quiet tail ends"
        case Crashed(call=call, error=error, function=function):
            return f"{call} raises {error} in {function}"
        case Malformed(call=call, problem=problem):
            return f"{call} answers outside the protocol: {problem}"
        case Hung(detail=detail):
            return detail
        case Repeated():
            return "played again"


def _facts(event: AnyEvent) -> Iterator[Fact]:
    """Yield what an event itself says."""
    match event:
        case Added(answer=answer) | Controlled(answer=answer):
            yield from _answer(answer)
        case Scheduled(output=output):
            yield from _scheduled(output)
        case Completed(output=output):
            yield from _completed(output)
        case Drained(rounds=rounds, idle_rounds=idle, unfinished=unfinished):
            yield Fact("quiet rounds", "", str(rounds))
            yield Fact("idle rounds", "", str(idle))
            yield Fact("unfinished", "", _names(unfinished))
        case Repeated(difference=difference, impurity=impurity):
            yield Fact("came out otherwise", "", difference)
            yield Fact("changed by looking", "", impurity)
        case _:
            return


def _answer(answer: Accepted | Rejected) -> Iterator[Fact]:
    yield Fact("answers", "", "refused" if isinstance(answer, Rejected) else "accepted")
    yield Fact("now sends", "", _names(answer.sends) if isinstance(answer, Accepted) else "")


def _scheduled(output: SchedulerOutput) -> Iterator[Fact]:
    for row in output.rows:
        known = row.known_tokens
        role = None if row.role is Role.UNKNOWN else row.role.value.lower()
        yield Fact("sent as", row.name, role)
        yield Fact("computes", row.name, _tokens(row.count))
        yield Fact("starts at", row.name, None if row.start is None else str(row.start))
        yield Fact("hands over", row.name, None if known is None else _tokens(len(known)))
        yield Fact("sends blocks", row.name, _blocks(row.block_ids) or "")
    for name, drafts in output.scheduled_spec_decode_tokens.items():
        yield Fact("verifies", name, f"{len(drafts)} draft(s)")
    for name, places in output.scheduled_encoder_inputs.items():
        yield Fact("encodes", name, " ".join(map(str, places)))
    for load in output.loads:
        when = "" if load.is_async else " in this step"
        yield Fact("loads", load.name, f"{_tokens(load.count)} from {load.start}{when}")
        yield Fact("loads into", load.name, _blocks(load.block_ids))
    told = output.preempted
    yield Fact("tells workers preempted", "", None if told is None else _names(sorted(told)))
    yield Fact("tells workers finished", "", _names(sorted(output.finished)))
    yield Fact("drops media", "", _names(sorted(output.freed_encoder_keys)))


def _completed(output: EngineOutput) -> Iterator[Fact]:
    for name, tokens in output.delivered.items():
        yield Fact("delivers", name, _names(map(str, tokens)))
    for name, reason in output.finished.items():
        yield Fact("finishes", name, reason.value.lower())
    for name, (local, external) in output.cached_tokens.items():
        yield Fact("cached", name, f"{local} hit, {external} loaded")
    yield Fact("now sends", "", _names(sorted(output.sends)))


def _findings(findings: Iterable[Finding]) -> Iterator[Fact]:
    yield Fact(VIOLATES, "", ", ".join(sorted({str(one.signature) for one in findings})))


def _sights(snapshot: Snapshot) -> Iterator[Fact]:
    """Yield what a scheduler looks like between two calls."""
    waiting, loading, running = queues_of(snapshot)
    yield Fact("waiting", "", _names(waiting))
    yield Fact("loading", "", _names(loading))
    yield Fact("running", "", _names(running))
    for name, view in snapshot.requests.items():
        yield Fact("status", name, None if view.status is None else view.status.value)
        yield Fact("computed", name, _count(view.num_computed_tokens))
        yield Fact("known", name, _count(view.num_tokens))
        yield Fact("preemptions", name, _count(view.num_preemptions))
        held = None if view.block_ids is None else sum(map(len, view.block_ids))
        yield Fact("holds", name, None if held is None else f"{held} block(s)")
        yield Fact("block numbers", name, _blocks(view.block_ids))
    free = snapshot.free_block_ids
    yield Fact("free blocks", "", _count(snapshot.blocks_free))
    yield Fact("free numbers", "", None if free is None else _names(map(str, free)))


def _names(names: Iterable[str]) -> str:
    return " ".join(names)


def _tokens(count: int) -> str:
    return f"{count} token(s)"


def _count(count: int | None) -> str | None:
    return None if count is None else str(count)


def _blocks(blocks: Blocks | None) -> str | None:
    """Return block numbers, those of each group in parentheses."""
    if blocks is None:
        return None
    return " ".join(f"({_names(map(str, group))})" for group in blocks)
