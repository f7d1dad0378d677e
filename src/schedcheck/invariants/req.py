"""REQ: the classification of requests and their life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect
from schedcheck.model.lifecycle import is_lawful, name_of
from schedcheck.model.output import FinishReason, Role
from schedcheck.model.snapshot import Snapshot, Status
from schedcheck.model.trace import Added, Completed, Controlled, Event, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.facts import RowFact
from schedcheck.oracles.ledger import Ledger

_CALLS = (Added, Scheduled, Completed, Controlled)


def _comes_back(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return any(fact.preempted and not fact.finished for fact in ledger.facts)


@invariant(
    "REQ-001",
    "a preempted request comes back as resumed, never as new",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.SHOWS_ROLES},
    witness=_comes_back,
    witnessed_by="a preempted request is scheduled again",
    evidence=("https://github.com/vllm-project/vllm/pull/31583",),
)
def resumed_not_new(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look at each row whose request was preempted since it was last scheduled."""
    for fact in ledger.facts:
        if not fact.preempted or fact.finished:
            continue
        if fact.row.role is Role.RUNNING:
            yield _mismatch(
                fact, "running-after-preemption", "it comes back as resumed", "sent as running"
            )
        elif fact.row.role is Role.NEW and ledger.config.dialect is Dialect.V1:
            yield _mismatch(
                fact,
                "new-after-preemption",
                "it comes back in scheduled_cached_reqs, as resumed",
                f"sent in scheduled_new_reqs ({fact.journey})",
            )
        elif fact.row.role is Role.NEW:
            yield from _new_in_v2(fact)


def _new_in_v2(fact: RowFact) -> Iterator[Mismatch]:
    """In the V2 dialect a resumed request is new to the workers, who were told to forget it."""
    known = len(fact.life.prompt) + len(fact.life.delivered)
    carried = fact.row.known_tokens
    if not fact.told_to_forget:
        yield _mismatch(
            fact,
            "new-before-forgotten",
            "the workers are told of the preemption before it comes back as new",
            "sent as new while the workers still know it",
        )
    elif carried is not None and len(carried) < known:
        yield _mismatch(
            fact,
            "new-without-its-tokens",
            f"it carries the {known} tokens known, prompt and output",
            f"it carries {len(carried)}",
        )


def _mismatch(fact: RowFact, kind: str, expected: str, found: str) -> Mismatch:
    return Mismatch(kind=kind, subject=fact.row.name, expected=expected, found=found)


def _sent_as_new(event: Scheduled, _before: Snapshot, _ledger: Ledger) -> bool:
    return bool(event.output.scheduled_new_reqs)


@invariant(
    "REQ-002",
    "a request is first sent as new, and as new again only when its session goes on",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.SHOWS_ROLES},
    witness=_sent_as_new,
    witnessed_by="a request is sent as new",
    evidence=("https://github.com/vllm-project/vllm/pull/31583",),
)
def new_first_and_once(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare each row's role with how often its request was sent before."""
    for fact in ledger.facts:
        if fact.times_sent == 0 and fact.row.role in (Role.RESUMED, Role.RUNNING):
            yield _mismatch(
                fact,
                "cached-before-new",
                "a request that the workers never got is sent in full, as new",
                f"sent as {fact.row.role.value.lower()}",
            )
        elif fact.known and fact.row.role is Role.NEW and not (fact.preempted or fact.continued):
            yield _mismatch(
                fact,
                "new-twice",
                "it is sent as new once",
                f"sent as new again, after {fact.times_sent} time(s)",
            )


def _keeps_running(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return any(fact.row.role is Role.RUNNING for fact in ledger.facts)


@invariant(
    "REQ-003",
    "a request is sent as resumed only after a preemption",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={Capability.SHOWS_ROLES},
    witness=_keeps_running,
    witnessed_by="a running request is scheduled again",
    evidence=("https://github.com/vllm-project/vllm/pull/31583",),
)
def resumed_after_preemption(
    event: Scheduled, before: Snapshot, ledger: Ledger
) -> Iterator[Mismatch]:
    """Look at each resumed row: was its request preempted since it was last scheduled?"""
    for fact in ledger.facts:
        if fact.row.role is Role.RESUMED and fact.times_sent and not fact.preempted:
            yield _mismatch(
                fact,
                "resumed-without-preemption",
                "it goes on as running",
                "sent as resumed, though not preempted since it was last scheduled",
            )


def _announces(event: Scheduled, _before: Snapshot, _ledger: Ledger) -> bool:
    return bool(event.output.finished)


@invariant(
    "REQ-004",
    "the end of a request is announced to the workers exactly once, in the next step planned",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={Capability.ANNOUNCES_FINISH},
    witness=_announces,
    witnessed_by="the end of a request is announced",
    evidence=("https://github.com/vllm-project/vllm/pull/43433",),
)
def finish_announced_once(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare ``finished`` with the requests that ended before this step was planned."""
    for name, times in Counter(event.output.finished).items():
        life = ledger.lives.get(name)
        if life is None:
            continue
        if life.finished is None:
            yield Mismatch(
                kind="announced-alive",
                subject=name,
                expected="only the end of a request that ended is announced",
                found="the workers are told to forget it while it is unfinished",
            )
        elif life.announced > 1:
            yield Mismatch(
                kind="announced-twice",
                subject=name,
                expected="its end is announced once",
                found=f"announced {life.announced} times, {times} of them in this step",
            )
    for name in sorted(ledger.unannounced - set(event.output.finished)):
        yield Mismatch(
            kind="not-announced",
            subject=name,
            expected="its end is announced in the first step planned after it",
            found="this step does not name it, so the workers keep its state for ever",
        )


def _moves(_event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    return bool(ledger.changes)


@invariant(
    "REQ-005",
    "every unfinished request is tracked and stands in exactly one queue",
    severity=Severity.CRITICAL,
    on=_CALLS,
    requires={Capability.SHOWS_QUEUES},
    witness=_moves,
    witnessed_by="a request changes its status",
    evidence=("https://github.com/vllm-project/vllm/pull/57841",),
)
def in_one_queue(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the places of each request over all queues."""
    places = Counter(name for queue in event.snapshot.queues.values() for name in queue)
    for life in ledger.lives.values():
        expected = int(life.is_live)
        tracked = life.name in event.snapshot.requests
        if places[life.name] == expected and (tracked or not life.is_live):
            continue
        if not life.is_live:
            kind, found = "ended-but-queued", f"it stands in {places[life.name]} queue(s)"
        elif not tracked:
            kind, found = "forgotten", "the scheduler does not track it any more"
        elif places[life.name] == 0:
            kind, found = "in-no-queue", "it stands in none, so it is never scheduled again"
        else:
            kind, found = "in-two-queues", f"it stands in {places[life.name]} places"
        yield Mismatch(
            kind=kind,
            subject=life.name,
            expected="it stands in one queue" if life.is_live else "it stands in no queue",
            found=found,
        )


@invariant(
    "REQ-006",
    "the status of a request changes only as the table of transitions says",
    severity=Severity.MAJOR,
    on=_CALLS,
    requires={Capability.SHOWS_STATUS},
    witness=_moves,
    witnessed_by="a request changes its status",
    evidence=("https://github.com/vllm-project/vllm/pull/32255",),
)
def lawful_transition(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look each change of status up in ``model.lifecycle.TRANSITIONS``."""
    for name, old, new in ledger.changes:
        # A request that is gone though unfinished is REQ-005's business.
        if new is not None and not is_lawful(old, new, ledger.lives[name].spec):
            yield Mismatch(
                kind=f"{name_of(old)}-to-{name_of(new)}".lower(),
                subject=name,
                expected=f"no request goes from {name_of(old)} to {name_of(new)} in one call",
                found="it did",
            )


def _runs_beside_ended(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return bool(ledger.facts) and any(life.finished for life in ledger.lives.values())


@invariant(
    "REQ-007",
    "a request that ended is never scheduled again",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    witness=_runs_beside_ended,
    witnessed_by="something is scheduled after a request ended",
    evidence=("https://github.com/vllm-project/vllm/issues/23347",),
)
def ended_not_scheduled(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for rows whose request ended before the step was planned."""
    for fact in ledger.facts:
        if fact.finished:
            reason = fact.life.finished
            yield _mismatch(
                fact,
                "ended-but-scheduled",
                "nothing more is computed for it",
                f"{fact.row.count} token(s) scheduled after it ended ({reason})",
            )
    for load in ledger.load_facts:
        if load.finished:
            yield Mismatch(
                kind="ended-but-loading",
                subject=load.load.name,
                expected="nothing more is loaded for it",
                found=f"a load began after it ended ({load.life.finished})",
            )


def _waits(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return any(life.is_live and life.blocked_by for life in ledger.lives.values())


@invariant(
    "REQ-008",
    "a request that waits for its grammar, a chunk or an answer from outside is not scheduled",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    witness=_waits,
    witnessed_by="a step is planned while a request waits for a grammar, a chunk or an answer",
    evidence=(
        "https://github.com/torch-spyre/sendnn-inference/pull/985",
        "https://github.com/vllm-project/vllm/pull/52717",
    ),
)
def blocked_not_scheduled(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for rows, and for loads, of requests that wait for something outside."""
    alive = [one for one in ledger.facts if not one.finished]  # the others are REQ-007's
    rows = [(one.row.name, one.blocked_by, "token(s) scheduled") for one in alive]
    begun = [one for one in ledger.load_facts if not one.finished]
    loads = [(one.load.name, one.blocked_by, "a load began") for one in begun]
    for name, blocked_by, found in (*rows, *loads):
        if blocked_by:
            yield Mismatch(
                kind=f"scheduled-before-{blocked_by}",
                subject=name,
                expected=f"nothing is planned for it before its {blocked_by} is there",
                found=found,
            )


def _ends(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    return bool(ledger.finished_now)


@invariant(
    "REQ-009",
    "the end of a request is reported to its client exactly once",
    severity=Severity.MAJOR,
    on=(Completed,),
    witness=_ends,
    witnessed_by="a request ends with a step's result",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/33377",
        "https://github.com/vllm-project/vllm/pull/25067",
    ),
)
def finish_reported_once(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for reports of requests that had ended before, and for reports of an abort."""
    for name, reason in event.output.finished.items():
        life = ledger.lives.get(name)
        if life is not None and life.finishes_reported > 1:
            yield Mismatch(
                kind="reported-twice",
                subject=name,
                expected=f"no further report: it had ended before ({life.finished})",
                found=f"reported as {reason}, report number {life.finishes_reported}",
            )


def _session_ends_a_turn(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    return any(life.spec.chunks and life.awaits_chunk for life in ledger.live())


@invariant(
    "REQ-010",
    "a streaming session does not end by itself before its last chunk is answered",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires={Capability.STREAMING_INPUT},
    witness=_session_ends_a_turn,
    witnessed_by="a session has answered and awaits its next chunk",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/53861",
        "https://github.com/vllm-project/vllm/pull/45022",
    ),
)
def session_goes_on(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look at each request that finished: was that its last turn?"""
    for name in ledger.finished_now:
        life = ledger.lives[name]
        by_itself = life.finished in (FinishReason.STOPPED, FinishReason.LENGTH)
        if by_itself and life.turn < len(life.spec.chunks):
            yield Mismatch(
                kind="ended-with-chunks-left",
                subject=name,
                expected=f"it goes on: {len(life.spec.chunks) - life.turn} chunk(s) are to come",
                found=f"it ended as {life.finished} after answer {life.turn + 1}",
            )


def _was_preempted(event: Event, _before: Snapshot, ledger: Ledger) -> bool:
    return any(
        view.num_preemptions and name in ledger.lives
        for name, view in event.snapshot.requests.items()
    )


@invariant(
    "REQ-011",
    "the engine counts the preemptions of a request as often as they happen",
    severity=Severity.MINOR,
    on=_CALLS,
    requires={Capability.SHOWS_STATUS},
    witness=_was_preempted,
    witnessed_by="an engine says that a request was preempted",
    evidence=("https://github.com/vllm-project/vllm/pull/31583",),
)
def preemptions_are_counted(event: Event, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the engine's counter with the preemptions that were seen."""
    for name, view in event.snapshot.requests.items():
        life = ledger.lives.get(name)
        if life is None or view.num_preemptions is None:
            continue
        if view.num_preemptions < 0 or (
            view.num_preemptions != life.times_preempted and view.status is not Status.RUNNING
        ):
            yield Mismatch(
                kind="miscounted-preemptions",
                subject=name,
                expected=f"{life.times_preempted}: so often it was seen preempted",
                found=f"{view.num_preemptions} counted",
            )
            return
