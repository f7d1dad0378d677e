"""The simulated worker: plays the model runner, and knows what a model runner cannot do.

Rules
-----
- Steps are executed in the order in which they were planned. A worker learns of a preemption or
  an abort from a later step, so a step already in flight is executed as it was issued.
- Within a step: forget what is finished (and, in the V2 dialect, what was preempted), learn what
  is new, replace or append tables, compute, sample.
- It samples one token for a row exactly when the row computes the last token the worker knows.
- A row whose KV came from a failed load computes nonsense, and so samples a token that is wrong.
  Its result says that the load failed, so the worker keeps nothing of that token either.
- It cannot compute for a request it does not know, compute tokens it does not have, or write
  beyond a table. It says so in ``problems`` and carries on as well as it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import Factory, define

from schedcheck.model.config import Dialect
from schedcheck.model.output import Role, Row, TableUpdate, WorkerResult
from schedcheck.model.tokens import ROOT, extend, next_token, state_of, token_in
from schedcheck.oracles.ledger import InFlight, Ledger, Life, Problem

_NONSENSE: Final = 0x0DDC0FFEE0DDF00D
"""Mixed into the state of a row that read KV nobody wrote."""


Place = tuple[int, int]
"""A block: (KV cache group, block id)."""


@define
class WorkerRequest:
    """What a worker keeps about one request."""

    tokens: list[int]
    states: list[int]
    """The toy model's state after each prefix of ``tokens``, the empty one first."""
    tables: list[list[int]] = Factory(list)
    """Block ids for each KV cache group."""
    computed: int = 0
    """Tokens with KV, as far as the worker was asked to compute or told that they are loaded."""
    verified: dict[Place, tuple[int, int]] = Factory(dict)
    """Shadow memory's note of what it found right: write stamp and state, by block."""

    @classmethod
    def with_tokens(cls, tokens: Iterable[int]) -> WorkerRequest:
        """Return a request that the worker has just been sent."""
        request = cls([], [ROOT])
        request.learn(tokens)
        return request

    def learn(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            self.tokens.append(token)
            self.states.append(extend(self.states[-1], token))

    def relearn(self, tokens: tuple[int, ...]) -> None:
        """Replace all tokens."""
        if tuple(self.tokens) != tokens:
            self.tokens, self.states = [], [ROOT]
            self.learn(tokens)


@define
class SimulatedWorker:
    """One worker's memory of the requests it was sent. The Judge alone makes it execute."""

    ledger: Ledger
    requests: dict[str, WorkerRequest] = Factory(dict)
    problems: list[Problem] = Factory(list)
    """What was wrong with the step executed last."""

    def answer(self) -> WorkerResult:
        """Return the result of the oldest step in flight, without executing it."""
        step = self.ledger.in_flight[0]
        sampled: dict[str, tuple[int, ...]] = {}
        for row in step.output.rows:
            token = self._sample(row, failed=row.name in step.bad_blocks)
            if token is not None:
                sampled[row.name] = (token,)
        ended = [life for life in self.ledger.lives.values() if life.load and life.load.ended]
        bad = {
            life.name: life.load.bad_block
            for life in ended
            if life.load and life.load.bad_block is not None
        }
        return WorkerResult(
            sampled=sampled,
            loads_finished=tuple(life.name for life in ended),
            sends_finished=tuple(
                life.name
                for life in self.ledger.lives.values()
                if life.send is not None and life.send.ended
            ),
            loads_failed=bad | step.bad_blocks,
        )

    def _sample(self, row: Row, *, failed: bool) -> int | None:
        life = self.ledger.lives.get(row.name)
        if life is None:
            return None
        known = self.requests.get(row.name)
        if row.role in (Role.NEW, Role.RESUMED) and row.known_tokens is not None:
            length, state = len(row.known_tokens), state_of(row.known_tokens)
        elif row.role is Role.NEW or known is None:
            length, state = len(life.prompt), life.state_at(len(life.prompt))
        else:
            length, state = len(known.tokens), known.states[-1]
        if self._start(row) + row.count < length:
            return None
        if failed:
            return token_in(state ^ _NONSENSE)
        return next_token(life.spec, state=state, output_index=length - len(life.prompt))

    def _start(self, row: Row) -> int:
        if row.start is not None:
            return row.start
        known = self.requests.get(row.name)
        return known.computed if known is not None and row.role is Role.RUNNING else 0

    def execute(self, step: InFlight, sampled: Mapping[str, tuple[int, ...]]) -> None:
        """Execute a step and keep the tokens sampled in it."""
        self.problems.clear()
        output = step.output
        for name in output.finished:
            self.requests.pop(name, None)
        if self.ledger.config.dialect is Dialect.V2:
            for name in output.preempted or ():
                self.requests.pop(name, None)
        for row in output.rows:
            if row.name in self.ledger.lives:
                self._compute(row, self.ledger.lives[row.name])
                if row.name not in step.bad_blocks:
                    self.requests[row.name].learn(sampled.get(row.name, ()))

    def _compute(self, row: Row, life: Life) -> None:
        start = self._start(row)
        request = self._update(row, life)
        end = start + row.count
        if end > len(request.tokens):
            self.problems.append(
                Problem(
                    "tokens-unknown",
                    row.name,
                    f"at most the {len(request.tokens)} tokens the workers know",
                    f"asked to compute tokens {start} to {end - 1}",
                )
            )
        room = min((len(table) for table in request.tables), default=0)
        size = self.ledger.config.block_size
        if (row.block_ids is not None or request.tables) and end > room * size:
            self.problems.append(
                Problem(
                    "table-too-short",
                    row.name,
                    f"{-(-end // size)} blocks for tokens up to {end - 1}",
                    f"{room} blocks of {size}",
                )
            )
        request.computed = end

    def _update(self, row: Row, life: Life) -> WorkerRequest:
        request = self.requests.get(row.name)
        if request is None and row.role is not Role.NEW:
            self.problems.append(
                Problem(
                    "unknown-request",
                    row.name,
                    "a request that the workers know",
                    f"sent as {row.role.value.lower()}, though unknown or forgotten",
                )
            )
        if request is None or row.role is Role.NEW:
            request = WorkerRequest.with_tokens(life.prompt)
            self.requests[row.name] = request
        if row.known_tokens is not None:
            request.relearn(row.known_tokens)
        if row.block_ids is not None:
            if row.table_update is TableUpdate.REPLACE:
                request.tables = [list(group) for group in row.block_ids]
            elif len(request.tables) == len(row.block_ids):
                for table, group in zip(request.tables, row.block_ids, strict=True):
                    table.extend(group)
            else:
                request.tables = [list(group) for group in row.block_ids]
        return request
