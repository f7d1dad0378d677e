"""TOK: the tokens that reach the client."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.capability import Capability
from schedcheck.model.output import FinishReason
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.tokens import UNKNOWN_DRAFT
from schedcheck.model.trace import Completed, Scheduled
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life


def _delivers_after_preemption(event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    return any(
        name in ledger.lives and ledger.lives[name].times_preempted > 0
        for name in event.output.delivered
    )


@invariant(
    "TOK-001",
    "the tokens delivered are the continuation of the prompt: none lost, repeated or invented",
    severity=Severity.CRITICAL,
    on=(Completed,),
    witness=_delivers_after_preemption,
    witnessed_by="a request that was preempted delivers a token",
    evidence=("https://github.com/vllm-project/vllm/pull/31583",),
)
def continuation(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare each delivered token with the toy model, and the number of them at the end."""
    for name, tokens in event.output.delivered.items():
        life = ledger.lives.get(name)
        if life is not None:
            yield from _compare(life, tokens)
    for name in ledger.finished_now:
        life = ledger.lives[name]
        due = _tokens_due(life)
        if due is not None and len(life.delivered) < due:
            yield Mismatch(
                kind="finished-short",
                subject=name,
                expected=f"{due} tokens are delivered before it finishes as {life.finished}",
                found=f"{len(life.delivered)} were",
            )


def _compare(life: Life, tokens: tuple[int, ...]) -> Iterator[Mismatch]:
    first = len(life.prompt) + len(life.delivered) - len(tokens)
    for position, token in enumerate(tokens, first):
        if token == life.token_at(position):
            continue
        if position > len(life.prompt) and token == life.token_at(position - 1):
            kind, found = "token-repeated", "the token before it once more"
        elif token == life.token_at(position + 1):
            kind, found = "token-lost", "the token after it, so one was lost"
        else:
            kind, found = "token-wrong", "a token that the model did not sample there"
        yield Mismatch(
            kind=kind,
            subject=life.name,
            expected=f"output token {position - len(life.prompt)} of its continuation",
            found=found,
        )
        return


def _tokens_due(life: Life) -> int | None:
    """Return how many output tokens a request has when it finishes by itself."""
    if life.finished is FinishReason.LENGTH:
        return life.spec.max_tokens_in(life.turn)
    if life.finished is FinishReason.STOPPED and life.spec.stop_at is not None:
        return life.spec.stop_at + 1
    return None


def _ends_or_ended(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    step = ledger.executed
    return step is not None and any(
        row.name in ledger.lives and ledger.lives[row.name].finished for row in step.output.rows
    )


@invariant(
    "TOK-002",
    "nothing is delivered after a request ended, nor beyond max_tokens or its stop token",
    severity=Severity.MAJOR,
    on=(Completed,),
    witness=_ends_or_ended,
    witnessed_by="a step completes in which a request ended, or had ended before",
    evidence=("https://github.com/vllm-project/vllm/pull/57676",),
)
def nothing_after_the_end(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look at each delivery: had the request ended, or had it all its tokens?"""
    for name, tokens in event.output.delivered.items():
        life = ledger.lives.get(name)
        if life is None or not tokens:
            continue
        limit = life.tokens_due
        if life.finished is not None and name not in ledger.finished_now:
            yield Mismatch(
                kind="delivered-after-end",
                subject=name,
                expected=f"nothing more after it ended ({life.finished})",
                found=f"{len(tokens)} token(s) delivered",
            )
        elif len(life.delivered) > limit:
            yield Mismatch(
                kind="beyond-its-end",
                subject=name,
                expected=f"at most {limit} output token(s)",
                found=f"{len(life.delivered)} delivered",
            )


def _delivers(event: Completed, _before: Snapshot, _ledger: Ledger) -> bool:
    return any(event.output.delivered.values())


@invariant(
    "TOK-003",
    "no token is delivered before the workers have sampled it",
    severity=Severity.CRITICAL,
    on=(Completed,),
    witness=_delivers,
    witnessed_by="a token is delivered",
    evidence=(
        "https://github.com/ohdearquant/lattice/issues/243",
        "https://github.com/vllm-project/vllm/pull/52765",
    ),
)
def sampled_before_delivered(
    event: Completed, before: Snapshot, ledger: Ledger
) -> Iterator[Mismatch]:
    """Compare how far the workers have sampled with how far the client has tokens."""
    for name, tokens in event.output.delivered.items():
        life = ledger.lives.get(name)
        if life is None or not tokens:
            continue
        reached = len(life.prompt) + len(life.delivered)
        if reached > life.sampled_to:
            yield Mismatch(
                kind="delivered-unsampled",
                subject=name,
                expected=f"{max(0, life.sampled_to - len(life.prompt))} token(s), all sampled",
                found=f"{len(life.delivered)} delivered",
            )


def _samples_next(ledger: Ledger) -> Iterator[tuple[Life, int]]:
    """Yield who sampled its next token in a step that counts, and how many tokens are due."""
    for name, (known, new) in ledger.sampled.items():
        life, step = ledger.lives[name], ledger.executed
        if step is None or step.computes_nonsense(name):
            continue
        if step.turns.get(name) != life.turn:
            continue  # planned before its last answer was over: of this turn it computes nothing
        preempted_since = step.preemptions.get(name) != life.times_preempted
        ended = life.finished is not None and name not in ledger.finished_now
        if not ended and not preempted_since:
            yield life, min(known + new - len(life.prompt), life.tokens_due)


def _samples(_event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    return any(True for _ in _samples_next(ledger))


@invariant(
    "TOK-004",
    "a token sampled for a request that was not preempted meanwhile is delivered with that step",
    severity=Severity.CRITICAL,
    on=(Completed,),
    witness=_samples,
    witnessed_by="a request samples a token and was not preempted since the step was planned",
    evidence=("https://github.com/vllm-project/vllm/pull/42117",),
)
def sampled_is_delivered(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare what a step sampled with what it delivered: a pure model hides what is done twice."""
    for life, due in _samples_next(ledger):
        if len(life.delivered) < due and life.finished is not FinishReason.ERROR:
            yield Mismatch(
                kind="sampled-not-delivered",
                subject=life.name,
                expected=f"{due} output token(s) delivered: so many are sampled",
                found=f"{len(life.delivered)} delivered",
            )


def _turn_ends(event: Completed, _before: Snapshot, ledger: Ledger) -> bool:
    lives = [ledger.lives[name] for name in event.output.delivered if name in ledger.lives]
    return any(
        len(life.delivered) >= life.tokens_due and life.turn == len(life.spec.chunks)
        for life in lives
    )


@invariant(
    "TOK-005",
    "a request ends with its last token: its stop token, or token number max_tokens",
    severity=Severity.MAJOR,
    on=(Completed,),
    witness=_turn_ends,
    witnessed_by="the last token of a request is delivered",
    evidence=(
        "https://github.com/snowflakedb/ArcticInference/issues/161",
        "https://github.com/vllm-project/vllm/pull/57676",
    ),
)
def ends_when_due(event: Completed, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Look at each delivery that completes a request: did it end?"""
    for name, tokens in event.output.delivered.items():
        life = ledger.lives.get(name)
        if life is None or not tokens or not life.is_live or life.turn < len(life.spec.chunks):
            continue
        if len(life.delivered) >= life.tokens_due:
            yield Mismatch(
                kind="not-ended",
                subject=name,
                expected=f"it ends: all of its {life.tokens_due} output token(s) are delivered",
                found="it goes on",
            )


def _verifies(event: Scheduled, _before: Snapshot, _ledger: Ledger) -> bool:
    drafts = event.output.scheduled_spec_decode_tokens.values()
    return any(token != UNKNOWN_DRAFT for tokens in drafts for token in tokens)


@invariant(
    "TOK-006",
    "drafts that are verified were proposed since the request was last scheduled and not preempted",
    severity=Severity.CRITICAL,
    on=(Scheduled,),
    requires={Capability.SPEC_DECODE},
    witness=_verifies,
    witnessed_by="a step verifies drafts that the scheduler knows",
    evidence=(
        "https://github.com/vllm-project/vllm/pull/31944",
        "https://github.com/vllm-project/vllm/pull/46899",
    ),
)
def drafts_are_fresh(event: Scheduled, before: Snapshot, ledger: Ledger) -> Iterator[Mismatch]:
    """Compare the drafts of each row with the latest that the workers proposed for it."""
    drafts = event.output.scheduled_spec_decode_tokens
    for fact in ledger.facts:
        verified = drafts.get(fact.row.name, ())
        known = tuple(token for token in verified if token != UNKNOWN_DRAFT)
        if known and known != fact.proposed[: len(known)]:
            yield Mismatch(
                kind="stale-drafts",
                subject=fact.row.name,
                expected=f"at most the {len(fact.proposed)} draft(s) proposed since",
                found=f"{len(known)} draft(s) of an earlier step, or of nobody",
            )
