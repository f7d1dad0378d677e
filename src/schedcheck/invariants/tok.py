"""TOK: the tokens that reach the client."""

from __future__ import annotations

from collections.abc import Iterator

from schedcheck.invariants.registry import invariant
from schedcheck.model.output import FinishReason
from schedcheck.model.snapshot import Snapshot
from schedcheck.model.trace import Completed
from schedcheck.model.verdict import Mismatch, Severity
from schedcheck.oracles.ledger import Ledger, Life


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
        return life.spec.max_tokens
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
        stop = life.spec.stop_at
        limit = life.spec.max_tokens if stop is None else min(life.spec.max_tokens, stop + 1)
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
