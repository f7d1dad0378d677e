"""SCH: budgets, and the shape of what a step hands to the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.capability import Capability
from schedcheck.model.config import Policy
from schedcheck.model.output import Role
from schedcheck.model.snapshot import Snapshot, Status
from schedcheck.model.trace import Completed, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.facts import RowFact
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life


def _two_rows(event: Scheduled, _before: Snapshot, _ledger: Ledger) -> bool:
    return len(event.output.rows) > 1


@invariant(
    "SCH-001",
    "a step names each request at most once, with at least one token to compute",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    witness=_two_rows,
    witnessed_by="a step schedules two requests",
    evidence=("https://github.com/vllm-project/vllm/pull/28558",),
)
def one_row_each(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the rows of each request."""
    for name, times in Counter(row.name for row in event.output.rows).items():
        if times > 1:
            yield Mismatch(
                kind="scheduled-twice",
                subject=name,
                expected="one row in this step",
                found=f"{times} rows",
            )
    for row in event.output.rows:
        if row.count < 1 or (row.start is not None and row.start < 0):
            yield Mismatch(
                kind="no-tokens",
                subject=row.name,
                expected="at least one token from a position of 0 or more",
                found=f"{row.count} token(s) from position {row.start}",
            )


def _budget_spent(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    total = sum(row.count for row in event.output.rows)
    return total >= ledger.config.max_num_batched_tokens


@invariant(
    "SCH-002",
    "a step computes no more tokens than max_num_batched_tokens",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    witness=_budget_spent,
    witnessed_by="a step spends the whole token budget",
)
def token_budget(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Add up the tokens of all rows."""
    total = sum(row.count for row in event.output.rows)
    if total > ledger.config.max_num_batched_tokens:
        yield Mismatch(
            kind="over-token-budget",
            subject=f"step {event.output.step_id}",
            expected=f"at most {ledger.config.max_num_batched_tokens} tokens",
            found=f"{total} tokens",
        )


def _house_full(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return _running(event) >= ledger.config.max_num_seqs


def _running(event: Scheduled) -> int:
    return max(len(event.output.rows), len(event.snapshot.queues.get("running", ())))


@invariant(
    "SCH-003",
    "no more requests run at once than max_num_seqs",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    witness=_house_full,
    witnessed_by="as many requests run as may",
)
def running_limit(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the rows of the step and the running queue."""
    if _running(event) > ledger.config.max_num_seqs:
        yield Mismatch(
            kind="over-running-limit",
            subject=f"step {event.output.step_id}",
            expected=f"at most {ledger.config.max_num_seqs} running requests",
            found=f"{_running(event)}",
        )


def _computes(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    return ledger.executed is not None and bool(ledger.executed.output.rows)


@invariant(
    "SCH-004",
    "the workers are only asked to compute tokens they know, of requests they know",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires={Capability.SHOWS_STARTS},
    witness=_computes,
    witnessed_by="a step computes something",
    evidence=("https://github.com/vllm-project/vllm/issues/45138",),
)
def workers_can_do_it(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report what the simulated worker found impossible when it executed the step."""
    for problem in ledger.worker_problems:
        if problem.kind in ("unknown-request", "tokens-unknown", "tokens-skipped"):
            yield Mismatch(
                kind=problem.kind,
                subject=problem.name,
                expected=problem.expected,
                found=problem.found,
            )


def _preempts(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return any(new is Status.PREEMPTED for _, _, new in ledger.changes)


@invariant(
    "SCH-005",
    "a request preempted while a step is planned has no tokens in that step",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.SHOWS_STATUS},
    witness=_preempts,
    witnessed_by="a request is preempted while a step is planned",
    evidence=(
        "https://github.com/vllm-project/vllm/issues/21594",
        "https://github.com/vllm-project/vllm/issues/23347",
    ),
)
def preempted_not_scheduled(
    event: Scheduled, before: Snapshot, ledger: Ledger
) -> Iterator[Mismatch]:
    """Look at the status that each row's request has once the step is planned."""
    for row in event.output.rows:
        view = event.snapshot.requests.get(row.name)
        if view is not None and view.status is Status.PREEMPTED:
            yield Mismatch(
                kind="scheduled-but-preempted",
                subject=row.name,
                expected="its row is taken out of the step when it is preempted",
                found=f"{row.count} token(s) scheduled, though its blocks are given away",
            )


def _reaches_the_limit(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    limit = ledger.config.max_model_len
    return any((row.start or 0) + row.count >= limit - 1 for row in event.output.rows)


@invariant(
    "SCH-006",
    "no step computes beyond max_model_len",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.SHOWS_STARTS},
    witness=_reaches_the_limit,
    witnessed_by="a step computes the last token but one that the model takes, or the last",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/50342",
        "https://github.com/vllm-project/vllm/pull/53962",
    ),
)
def within_model_length(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the end of each row with the longest request that the model takes."""
    for row in event.output.rows:
        end = (row.start or 0) + row.count
        if end > ledger.config.max_model_len:
            yield Mismatch(
                kind="beyond-model-length",
                subject=row.name,
                expected=f"positions below {ledger.config.max_model_len}",
                found=f"computes up to position {end - 1}",
            )


def _paused_with_work(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return ledger.paused is not None and bool(ledger.live())


@invariant(
    "SCH-007",
    "nothing is scheduled during a pause, and nothing is admitted while admission is paused",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={Capability.PAUSE, Capability.SHOWS_ROLES},
    witness=_paused_with_work,
    witnessed_by="a step is planned during a pause although a request is unfinished",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/28721",
        "https://github.com/vllm-project/vllm/pull/33926",
    ),
)
def pause_holds(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for rows and loads that a pause forbids."""
    if ledger.paused is None:
        return
    for row in event.output.rows:
        if not ledger.paused.admission_only:
            yield _during_pause("scheduled-while-paused", row.name, "nothing is scheduled")
        elif row.role in (Role.NEW, Role.RESUMED) and not before.blocks_of(row.name):
            yield _during_pause("admitted-while-paused", row.name, "nothing is admitted")
    for load in ledger.load_facts:
        goes_on = ledger.paused.admission_only and before.blocks_of(load.load.name)
        if load.load.is_async and not goes_on:
            yield _during_pause("loads-while-paused", load.load.name, "no load begins")


def _during_pause(kind: str, name: str, expected: str) -> Mismatch:
    return Mismatch(kind=kind, subject=name, expected=f"{expected} during a pause", found="it is")


def _adapters_in(event: Scheduled, ledger: Ledger) -> set[str]:
    specs = (ledger.lives[row.name].spec for row in event.output.rows if row.name in ledger.lives)
    return {spec.adapter for spec in specs if spec.adapter is not None}


def _adapters_full(event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return 0 < ledger.config.max_loras <= len(_adapters_in(event, ledger))


@invariant(
    "SCH-008",
    "a step uses no more different adapters than max_loras",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.ADAPTERS},
    witness=_adapters_full,
    witnessed_by="a step uses as many adapters as it may",
    evidence=(
        "https://github.com/sgl-project/sglang/issues/23141",
        "https://github.com/sgl-project/sglang/issues/25865",
    ),
)
def adapter_limit(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Count the adapters of the requests in a step."""
    used, limit = _adapters_in(event, ledger), ledger.config.max_loras
    if 0 < limit < len(used):
        yield Mismatch(
            kind="too-many-adapters",
            subject=f"step {event.output.step_id}",
            expected=f"at most {limit} adapter(s)",
            found=f"{len(used)}: {' '.join(sorted(used))}",
        )


def _verifies(event: Scheduled, _before: Snapshot, _ledger: Ledger) -> bool:
    return bool(event.output.scheduled_spec_decode_tokens)


@invariant(
    "SCH-009",
    "drafts are verified only for requests in the step, few enough, behind tokens that are known",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.SPEC_DECODE},
    witness=_verifies,
    witnessed_by="a step verifies drafts",
    evidence=("https://github.com/vllm-project/vllm/pull/28558",),
)
def drafts_fit_their_row(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the drafts of a step with its rows."""
    counts = event.output.num_scheduled_tokens
    limit = ledger.config.num_speculative_tokens
    for name, drafts in event.output.scheduled_spec_decode_tokens.items():
        if not drafts:
            continue
        if name not in counts:
            kind, expected = "drafts-unscheduled", "drafts only for requests in the step"
        elif len(drafts) > limit:
            kind, expected = "too-many-drafts", f"at most {limit} drafts"
        elif counts[name] <= len(drafts):
            kind, expected = "drafts-only", "at least one known token before the drafts"
        else:
            continue
        found = f"{len(drafts)} draft(s) of {counts.get(name, 0)} scheduled token(s)"
        yield Mismatch(kind=kind, subject=name, expected=expected, found=found)


def _encodes(event: Scheduled, _before: Snapshot, _ledger: Ledger) -> bool:
    return bool(event.output.scheduled_encoder_inputs)


@invariant(
    "SCH-010",
    "a step encodes only media of requests in the step, within the encoder's budget",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={Capability.ENCODER_INPUTS},
    witness=_encodes,
    witnessed_by="a step encodes a medium",
)
def encoder_budget(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Add up what a step encodes, and look for whom."""
    counts, total = event.output.num_scheduled_tokens, 0
    for name, places in event.output.scheduled_encoder_inputs.items():
        media = ledger.lives[name].spec.media
        if name not in counts:
            yield Mismatch(
                kind="encodes-unscheduled",
                subject=name,
                expected="media are encoded for requests in the step",
                found=f"{len(places)} encoded for a request that is not in it",
            )
        if len(set(places)) < len(places) or any(not 0 <= one < len(media) for one in places):
            yield Mismatch(
                kind="encodes-what-is-not-there",
                subject=name,
                expected=f"each of its {len(media)} media at most once",
                found=f"places {' '.join(map(str, places))}",
            )
        total += sum(media[one].tokens for one in places if 0 <= one < len(media))
    if total > ledger.config.max_num_encoder_input_tokens:
        yield Mismatch(
            kind="over-encoder-budget",
            subject=f"step {event.output.step_id}",
            expected=f"at most {ledger.config.max_num_encoder_input_tokens} encoder tokens",
            found=f"{total} tokens",
        )


def _computes_media(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    rows = ledger.executed.output.rows if ledger.executed is not None else ()
    return any(
        item.is_within(row.start or 0, (row.start or 0) + row.count)
        for row in rows
        if row.name in ledger.lives
        for item in ledger.lives[row.name].spec.media
    )


@invariant(
    "SCH-011",
    "the encoder output of a medium is cached when its tokens are computed, and the cache suffices",
    severity=Severity.CRITICAL,
    on=(Completed,),
    requires={Capability.ENCODER_INPUTS, Capability.SHOWS_STARTS},
    witness=_computes_media,
    witnessed_by="a step computes tokens of a medium",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/39544",
        "https://github.com/vllm-project/vllm/issues/45658",
        "https://github.com/vllm-project/vllm/issues/55733",
    ),
)
def encoder_outputs_there(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Report what the simulated worker missed, or had no room for, in its encoder cache."""
    for problem in ledger.worker_problems:
        if problem.kind.startswith("encoder-"):
            yield Mismatch(
                kind=problem.kind,
                subject=problem.name,
                expected=problem.expected,
                found=problem.found,
            )


def _stay_waiting(before: Snapshot, after: Snapshot) -> Iterator[tuple[list[str], list[str]]]:
    """Yield, for each queue of waiting requests, those that stay in it as they were, twice."""
    for queue, names in after.queues.items():
        if queue == "running":
            continue
        stayed = {
            name
            for name in names
            if name in before.requests
            and name in after.requests
            and before.requests[name].status is after.requests[name].status
        }
        old = [name for name in before.queues.get(queue, ()) if name in stayed]
        yield old, [name for name in names if name in stayed and name in old]


def _two_stay(event: Scheduled, before: Snapshot, _ledger: Ledger) -> bool:
    return any(len(old) > 1 for old, _ in _stay_waiting(before, event.snapshot))


@invariant(
    "SCH-012",
    "planning a step does not change the order of requests that go on waiting",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={Capability.SHOWS_QUEUES, Capability.SHOWS_STATUS},
    witness=_two_stay,
    witnessed_by="two requests wait in one queue before and after a step is planned",
    evidence=("https://github.com/vllm-project/vllm/pull/32173",),
)
def order_is_kept(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the order of those that stay in a queue with the order before."""
    for old, new in _stay_waiting(before, event.snapshot):
        if old != new:
            yield Mismatch(
                kind="waiting-order-changed",
                subject=" ".join(new),
                expected=f"they wait in the order in which they waited: {' '.join(old)}",
                found=" ".join(new),
            )
            return


def _admitted_whole(_event: Scheduled, _before: Snapshot, ledger: Ledger) -> bool:
    return not ledger.config.chunked_prefill and any(
        fact.row.role in (Role.NEW, Role.RESUMED) for fact in ledger.facts
    )


@invariant(
    "SCH-013",
    "without chunked prefill a request is admitted with all of its tokens in one step",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={Capability.CHUNKED_PREFILL, Capability.SHOWS_STARTS, Capability.SHOWS_ROLES},
    witness=_admitted_whole,
    witnessed_by="a request is admitted while chunked prefill is off",
    evidence=("https://github.com/vllm-project/vllm/pull/39608",),
)
def prefill_in_one_step(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the end of each admitted row with the tokens that are known."""
    if ledger.config.chunked_prefill:
        return
    for fact in ledger.facts:
        end = (fact.row.start or 0) + fact.row.count
        known = len(fact.life.prompt) + len(fact.life.delivered)
        if fact.row.role in (Role.NEW, Role.RESUMED) and not fact.finished and end < known:
            yield Mismatch(
                kind="prefill-in-parts",
                subject=fact.row.name,
                expected=f"all of its {known} tokens in the step that admits it",
                found=f"tokens up to {end - 1}",
            )


def _admissions(ledger: Ledger) -> list[RowFact]:
    return [
        fact
        for fact in ledger.facts
        if fact.row.role in (Role.NEW, Role.RESUMED) and not fact.finished
    ]


def _comes_before(one: Life, other: Life, ledger: Ledger) -> bool:
    """Return whether a request that waits for room alone is to be admitted before another."""
    order = list(ledger.lives)
    if ledger.config.policy is Policy.PRIORITY:
        urgent = one.spec.priority - other.spec.priority
        return urgent < 0 or (urgent == 0 and order.index(one.name) < order.index(other.name))
    return one.times_preempted > 0 or order.index(one.name) < order.index(other.name)


def _left_waiting(event: Scheduled, before: Snapshot, ledger: Ledger) -> list[Life]:
    """Return who waited for room alone before this step and waits still."""
    return [
        life
        for life in ledger.live()
        if _status(before, life.name) in (Status.WAITING, Status.PREEMPTED)
        and _status(event.snapshot, life.name) is _status(before, life.name)
        and not (life.blocked_by or life.load or life.in_flight or life.spec.adapter)
        and not before.blocks_of(life.name)
    ]


def _status(snapshot: Snapshot, name: str) -> Status | None:
    return snapshot.requests[name].status if name in snapshot.requests else None


def _someone_is_left(event: Scheduled, before: Snapshot, ledger: Ledger) -> bool:
    return bool(_admissions(ledger)) and bool(_left_waiting(event, before, ledger))


@invariant(
    "SCH-014",
    "no request that has never run is admitted past one that comes before it and could run",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={
        Capability.ORDERED_ADMISSION,
        Capability.SHOWS_STATUS,
        Capability.SHOWS_ROLES,
        Capability.SHOWS_BLOCK_TABLES,
    },
    witness=_someone_is_left,
    witnessed_by="a request is admitted while another goes on waiting for room",
    evidence=("https://github.com/vllm-project/vllm/pull/32173",),
)
def nobody_overtakes(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for somebody left waiting who comes before one that was admitted for the first time."""
    admitted = [
        fact
        for fact in _admissions(ledger)
        if fact.times_sent == 0 and not before.blocks_of(fact.row.name)
    ]
    waiting = _left_waiting(event, before, ledger) if admitted else []
    for fact in admitted:
        for life in waiting:
            if _comes_before(life, fact.life, ledger):
                yield Mismatch(
                    kind="overtaken",
                    subject=life.name,
                    expected=f"it is admitted before {fact.row.name}, or nobody is",
                    found=f"{fact.row.name} was admitted, and it waits on",
                )
                return


def _kept_running(event: Scheduled, before: Snapshot, ledger: Ledger) -> list[str]:
    """Return who ran before, runs still, and was free to give way when somebody had to.

    Whoever gives way is at least as far back as the one that needs a block. So, first come first
    served and with nothing else in flight, those behind it had no place in the step yet. Where
    priorities count they may have had one.
    """
    rows = event.output.num_scheduled_tokens
    by_order = ledger.config.policy is Policy.FCFS and len(ledger.in_flight) == 1
    return [
        name
        for name in before.queues.get("running", ())
        if _status(event.snapshot, name) is Status.RUNNING
        and name in ledger.lives
        and (by_order or (name not in rows and not ledger.lives[name].in_flight))
    ]


def _victims(before: Snapshot, ledger: Ledger) -> list[str]:
    running = before.queues.get("running", ())
    return [
        name
        for name, old, new in ledger.changes
        if old is Status.RUNNING and new is Status.PREEMPTED and name in running
    ]


def _gives_way_in_a_crowd(_event: Scheduled, before: Snapshot, ledger: Ledger) -> bool:
    return bool(_victims(before, ledger)) and len(before.queues.get("running", ())) > 1


@invariant(
    "SCH-015",
    "the request that gives way is the last that runs, or the least urgent where priorities count",
    severity=Severity.MAJOR,
    on=(Scheduled,),
    requires={
        Capability.ORDERED_PREEMPTION,
        Capability.SHOWS_STATUS,
        Capability.SHOWS_QUEUES,
    },
    witness=_gives_way_in_a_crowd,
    witnessed_by="a step preempts a request while several run",
    evidence=("https://github.com/vllm-project/vllm/issues/23347",),
)
def the_last_gives_way(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look for somebody who runs on and should have given way first."""
    running = before.queues.get("running", ())
    order = list(ledger.lives)

    def rank(name: str) -> tuple[int, int]:
        if ledger.config.policy is Policy.PRIORITY:
            return ledger.lives[name].spec.priority, order.index(name)
        return 0, running.index(name)

    kept = _kept_running(event, before, ledger)
    for victim in _victims(before, ledger):
        worse = [name for name in kept if rank(name) > rank(victim)]
        if worse:
            yield Mismatch(
                kind="wrong-victim",
                subject=victim,
                expected=f"{worse[-1]} gives way first",
                found=f"{victim} was preempted, and {worse[-1]} runs on",
            )
            return
