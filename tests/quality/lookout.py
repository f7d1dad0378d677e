"""The lawful behaviours that an over-strict checker calls faults, and how each is recognised.

A Lookout watches a trace and names those that it shows. The names are those of the files in
``invariants/controls/``: each of these traces shows its behaviour, and nothing may fire on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.model.actions import (
    Abort,
    ResetPrefixCache,
)
from schedcheck.model.output import Rejected, Role
from schedcheck.model.snapshot import Snapshot, Status
from schedcheck.model.tokens import UNKNOWN_DRAFT
from schedcheck.model.trace import AnyEvent, Completed, Controlled, Scheduled
from schedcheck.oracles.ledger import Ledger

BEHAVIOURS = {
    "01a-idle-while-a-step-is-in-flight": "an empty step while output is in flight",
    "01b-idle-while-kv-loads": "an empty step while all that waits loads KV",
    "01c-idle-while-a-grammar-compiles": "an empty step while all that waits has no grammar yet",
    "01d-idle-while-a-session-awaits-its-chunk": "an empty step while a session is parked",
    "01e-idle-while-an-answer-is-awaited": "an empty step while the outside is undecided",
    "01f-idle-while-paused": "an empty step during a pause",
    "02-preempting-step-admits-nobody": "a step preempts, blocks are free, and nobody is admitted",
    "03-preempts-itself-and-schedules-nothing": "a request preempts itself: the step is empty",
    "04a-computed-goes-down-by-refused-drafts": "computed tokens go down without a preemption",
    "04b-computed-goes-down-by-a-failed-load": "computed tokens go down after a failed load",
    "05-waits-with-loaded-blocks": "a request waits with blocks: its load has ended",
    "06a-delivers-while-preempted": "output of a step issued before a preemption is delivered",
    "06b-finishes-while-preempted": "such output ends the request",
    "07-ended-stands-in-a-step-in-flight": "a step in flight computes for a request that ended",
    "08-blocks-reused-while-a-step-writes-them": "blocks of an aborted request are reused at once",
    "09a-end-announced-of-a-request-never-scheduled": "an end is announced of one never sent",
    "09b-id-announced-as-ended-and-new": "one step announces an id as ended and sends it as new",
    "09c-end-announced-while-its-kv-is-sent": "an end is announced while the free is delayed",
    "10-tracked-in-no-queue": "a request is tracked after it left every queue",
    "11a-blocks-shared": "two requests hold one block",
    "11b-freed-block-hit-again": "a free block is hit, and is held again with what it holds",
    "11c-blocks-behind-the-window-given-back": "a table has fewer blocks than computed tokens need",
    "11d-more-blocks-than-tokens": "drafts take more blocks than the known tokens need",
    "12-hits-what-this-step-writes": "a request hits blocks that another writes in the same step",
    "13a-skipped-and-running-again": "a running request is passed over for a step",
    "13b-preempted-and-resumed-at-once": "a forced reset, and the next step resumes",
    "14-admitted-past-an-older-one": "a request is admitted past an older one that is blocked",
    "15-urgent-one-waits": "an urgent request waits while a less urgent one runs",
    "16-loads-beside-a-full-house": "more requests load and run than max_num_seqs",
    "17-drafts-only-the-workers-know": "drafts known only by their number are verified",
    "18-all-tokens-in-flight": "nothing of a running request is left to plan: all is in flight",
    "19-empty-step-with-news": "a step without rows announces an end",
    "20-undecided-then-answered": "a request is admitted after the outside has made up its mind",
    "21a-load-of-an-aborted-request-reported": "the end of an aborted request's load is reported",
    "21b-failed-load-reported-once": "a load fails, and that is the only report of it",
    "23a-reset-refused": "a reset is refused while blocks are in use",
    "23b-abort-of-a-request-that-never-ran": "a request is aborted before it was ever scheduled",
    "24-new-again-in-the-v2-dialect": "a preempted request is new again, once the workers forgot",
    "25a-continuation-sent-as-new": "a session's next turn is sent as new",
    "25b-continuation-after-a-preemption-sent-as-new": "the same, preempted in the turn before",
    "26-computes-a-part-and-samples-nothing": "a step computes part of a prompt: no token",
}
"""Each behaviour, numbered as in the field's own list, in words."""


class Lookout:
    """Names the lawful behaviours that each event shows; remembers a little of what was before."""

    def __init__(self) -> None:
        self.rows_before: set[str] = set()
        self.was_reset = False

    def see(self, event: AnyEvent, ledger: Ledger) -> Iterator[str]:
        yield from in_a_snapshot(event.snapshot, ledger)
        if isinstance(event, Scheduled):
            yield from in_an_empty_step(event, ledger)
            yield from in_a_plan(event, ledger)
            yield from in_admissions(event, ledger)
            yield from self.between_plans(event, ledger)
            self.rows_before = {row.name for row in event.output.rows}
            yield from reused_in_flight(event, ledger)
        if isinstance(event, Completed):
            yield from in_a_result(event, ledger)
        if isinstance(event, Controlled):
            yield from in_a_control(event, ledger)
            is_reset = isinstance(event.action, ResetPrefixCache)
            self.was_reset = is_reset and event.action.running
        else:
            self.was_reset = False

    def between_plans(self, event: Scheduled, ledger: Ledger) -> Iterator[str]:
        for fact in ledger.facts:
            if fact.row.role is Role.RUNNING and fact.row.name not in self.rows_before:
                yield "13a-skipped-and-running-again"
            if self.was_reset and fact.preempted and fact.row.role is Role.RESUMED:
                yield "13b-preempted-and-resumed-at-once"
        rows = {row.name for row in event.output.rows}
        for life in ledger.live():
            view = event.snapshot.requests.get(life.name)
            running = view is not None and view.status is Status.RUNNING
            if running and life.name not in rows and view.num_computed_tokens == view.num_tokens:
                yield "18-all-tokens-in-flight"


def in_a_snapshot(snapshot: Snapshot, ledger: Ledger) -> Iterator[str]:
    queued = {name for queue in snapshot.queues.values() for name in queue}
    held = [snapshot.blocks_of(name) for name in snapshot.requests]
    if sum(map(len, held)) > len(frozenset().union(*held)):
        yield "11a-blocks-shared"
    for name, view in snapshot.requests.items():
        blocks, size = len(snapshot.blocks_of(name)), ledger.config.block_size
        if view.status is Status.WAITING and blocks:
            yield "05-waits-with-loaded-blocks"
        if name not in queued:
            yield "10-tracked-in-no-queue"
        if view.status is Status.RUNNING:
            if 0 < blocks * size < view.num_computed_tokens:
                yield "11c-blocks-behind-the-window-given-back"
            if blocks > ledger.config.blocks_for(view.num_tokens):
                yield "11d-more-blocks-than-tokens"
        yield from computed_went_down(name, snapshot, ledger)


def computed_went_down(name: str, snapshot: Snapshot, ledger: Ledger) -> Iterator[str]:
    before, after = ledger.before.requests.get(name), snapshot.requests[name]
    if before is None or before.status is not Status.RUNNING or after.status is not before.status:
        return
    if after.num_computed_tokens < before.num_computed_tokens and ledger.executed is not None:
        failed = name in ledger.executed.bad_blocks
        yield (
            "04b-computed-goes-down-by-a-failed-load"
            if failed
            else "04a-computed-goes-down-by-refused-drafts"
        )


def in_an_empty_step(event: Scheduled, ledger: Ledger) -> Iterator[str]:
    live = ledger.live()
    if event.output.rows or not live:
        return
    if ledger.paused is not None:
        yield "01f-idle-while-paused"
        return
    if len(ledger.in_flight) > 1:
        yield "01a-idle-while-a-step-is-in-flight"
        return
    if not event.output.loads and all(life.load is not None for life in live):
        yield "01b-idle-while-kv-loads"
    waits_for = {life.blocked_by for life in live}
    if waits_for == {"grammar"}:
        yield "01c-idle-while-a-grammar-compiles"
    if waits_for == {"chunk"}:
        yield "01d-idle-while-a-session-awaits-its-chunk"
    if waits_for == {"lookup"}:
        yield "01e-idle-while-an-answer-is-awaited"


def in_a_plan(event: Scheduled, ledger: Ledger) -> Iterator[str]:
    output = event.output
    preempted = {name for name, old, new in ledger.changes if new is Status.PREEMPTED and old}
    admits = any(row.role is not Role.RUNNING for row in output.rows)
    if preempted and event.snapshot.blocks_free and not admits:
        yield "02-preempting-step-admits-nobody"
    if preempted and not output.rows:
        yield "03-preempts-itself-and-schedules-nothing"
    if output.finished and not output.rows:
        yield "19-empty-step-with-news"
    for name in output.finished:
        if not ledger.lives[name].was_sent:
            yield "09a-end-announced-of-a-request-never-scheduled"
        if name in event.snapshot.requests and ledger.lives[name].send:
            yield "09c-end-announced-while-its-kv-is-sent"
    if any(UNKNOWN_DRAFT in drafts for drafts in output.scheduled_spec_decode_tokens.values()):
        yield "17-drafts-only-the-workers-know"
    yield from hits(event, ledger)


def hits(event: Scheduled, ledger: Ledger) -> Iterator[str]:
    before = ledger.before
    held_before = {block for name in before.requests for block in before.blocks_of(name)}
    for name, (tokens, _) in ledger.in_flight[-1].hits.items():
        blocks = [
            block for row in event.output.rows if row.name == name for block in row.block_ids[0]
        ]
        hit = blocks[: tokens // ledger.config.block_size]
        others = {
            block
            for row in event.output.rows
            if row.name != name and row.block_ids
            for block in row.block_ids[0]
        }
        if hit and not held_before & set(hit) and not others & set(hit):
            yield "11b-freed-block-hit-again"
        if set(hit) & (others - held_before):
            yield "12-hits-what-this-step-writes"


def reused_in_flight(event: Scheduled, ledger: Ledger) -> Iterator[str]:
    """No load from outside may write them: all writers stand in one order."""
    held = {block for name in event.snapshot.requests for block in event.snapshot.blocks_of(name)}
    for step in list(ledger.in_flight)[:-1]:
        for row in step.output.rows:
            ended = ledger.lives[row.name].finished is not None
            if ended and row.block_ids and held & set(row.block_ids[0]):
                yield "08-blocks-reused-while-a-step-writes-them"


def in_admissions(event: Scheduled, ledger: Ledger) -> Iterator[str]:
    loading = [life.name for life in ledger.live() if life.status is Status.WAITING_FOR_REMOTE_KVS]
    blocked = {life.name for life in ledger.live() if life.blocked_by}
    ended = {ledger.lives[name].engine_id for name in event.output.finished}
    names = list(ledger.lives)
    running = event.snapshot.queues["running"]
    for fact in ledger.facts:
        older = set(names[: names.index(fact.row.name)])
        if fact.row.role is Role.NEW:
            if fact.life.engine_id in ended:
                yield "09b-id-announced-as-ended-and-new"
            if fact.preempted and fact.told_to_forget:
                yield "24-new-again-in-the-v2-dialect"
            if fact.continued:
                was_preempted = fact.life.times_preempted > 0
                yield "25a-continuation-sent-as-new"
                if was_preempted:
                    yield "25b-continuation-after-a-preemption-sent-as-new"
            if fact.life.spec.lookup_undecided:
                yield "20-undecided-then-answered"
        if fact.times_sent == 0 and older & (set(loading) | blocked):
            yield "14-admitted-past-an-older-one"
    urgent = min(
        (ledger.lives[name].spec.priority for name in event.snapshot.queues["waiting"]), default=9
    )
    if any(ledger.lives[name].spec.priority > urgent for name in running):
        yield "15-urgent-one-waits"
    if len(loading) + len(running) > ledger.config.max_num_seqs:
        yield "16-loads-beside-a-full-house"


def in_a_result(event: Completed, ledger: Ledger) -> Iterator[str]:
    was = ledger.before.requests
    for name in event.output.delivered:
        if name in was and was[name].status is Status.PREEMPTED:
            yield "06a-delivers-while-preempted"
            if name in event.output.finished:
                yield "06b-finishes-while-preempted"
    ended = {
        life.name
        for life in ledger.lives.values()
        if life.finished and life.name not in ledger.finished_now
    }
    rows = ledger.executed.output.rows
    if ended & {row.name for row in rows}:
        yield "07-ended-stands-in-a-step-in-flight"
    if ended & set(event.result.loads_finished):
        yield "21a-load-of-an-aborted-request-reported"
    if set(event.result.loads_failed) & set(event.result.loads_finished):
        yield "21b-failed-load-reported-once"
    if any(row.name not in event.result.sampled and row.role is Role.NEW for row in rows):
        yield "26-computes-a-part-and-samples-nothing"


def in_a_control(event: Controlled, ledger: Ledger) -> Iterator[str]:
    if isinstance(event.action, ResetPrefixCache) and isinstance(event.answer, Rejected):
        yield "23a-reset-refused"
    if isinstance(event.action, Abort) and not ledger.lives[event.action.request].was_sent:
        yield "23b-abort-of-a-request-that-never-ran"
