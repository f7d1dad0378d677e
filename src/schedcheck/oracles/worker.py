"""The simulated worker: plays the model runner, and knows what a model runner cannot do.

Rules
-----
- Steps are executed in the order in which they were planned. A worker learns of a preemption or
  an abort from a later step, so a step already in flight is executed as it was issued.
- Within a step: forget what is finished (and, in the V2 dialect, what was preempted), learn what
  is new, replace or append tables, compute, sample.
- It samples for a row exactly when the row computes the last token the worker knows: one token,
  and one more for each draft that the row carries and that is what it samples itself.
- It proposes drafts for a request each time it samples for it, as the request's draft plan says.
- It keeps encoder outputs until it is told to drop them, and needs one for each medium that a row
  computes tokens of.
- A row whose KV came from a failed load computes nonsense, and so samples a token that is wrong;
  the rows of steps that were planned before the failure was known go on from it. The result says
  that the load failed, so the worker keeps nothing of these tokens either.
- Where the scheduler plans ahead of the samples (async scheduling), a row counts on every draft in
  flight being right: the workers take back what they have refused since it was planned.
- It cannot compute for a request it does not know, compute tokens it does not have, or write
  beyond a table. It says so in ``problems`` and carries on as well as it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from attrs import Factory, define

from schedcheck.model.config import Dialect
from schedcheck.model.output import Role, Row, SchedulerOutput, TableUpdate, WorkerResult
from schedcheck.model.tokens import (
    ROOT,
    UNKNOWN_DRAFT,
    WRONG_DRAFT,
    extend,
    next_token,
    root_of,
    state_of,
    token_in,
)
from schedcheck.oracles.facts import InFlight, Problem
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life

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
    """Tokens with KV, as far as the worker was asked to compute or told that they are loaded;
    refused drafts are not among them."""
    last_start: int = 0
    last_end: int = 0
    """Which positions its last row computed, refused drafts among them."""
    proposed: tuple[int, ...] = ()
    """Drafts proposed when it was sampled last."""
    refused: dict[int, int] = Factory(dict)
    """How many drafts were refused, by the id of the step that verified them."""
    hit: int = 0
    """Tokens that it shares from the prefix cache."""
    hit_epoch: int = 0
    """How often the prefix cache had been emptied when it was hit."""
    verified: dict[Place, tuple[int, int, int]] = Factory(dict)
    """Shadow memory's note of what it found right: write stamp, state and cache resets, by
    block."""

    @classmethod
    def with_tokens(cls, tokens: Iterable[int], *, root: int = ROOT) -> WorkerRequest:
        """Return a request that the worker has just been sent."""
        request = cls([], [root])
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
            self.tokens, self.states = [], [self.states[0]]
            self.learn(tokens)


@define
class SimulatedWorker:
    """One worker's memory of the requests it was sent. The Judge alone makes it execute."""

    ledger: Ledger
    requests: dict[str, WorkerRequest] = Factory(dict)
    problems: list[Problem] = Factory(list)
    """What was wrong with the step executed last."""
    sampled: dict[str, tuple[int, int]] = Factory(dict)
    """Of the step executed last: tokens known before it sampled, and how many it sampled."""
    encoded: dict[str, int] = Factory(dict)
    """Encoder outputs that the workers keep: tokens, by medium."""
    _proposals: Counter[str] = Factory(Counter)

    def forget(self, name: str) -> None:
        """Forget a request that ended. Called by the Judge alone."""
        self.requests.pop(name, None)
        self._proposals.pop(name, None)

    def answer(self) -> WorkerResult:
        """Return the result of the oldest step in flight, without executing it."""
        step = self.ledger.in_flight[0]
        sampled: dict[str, tuple[int, ...]] = {}
        drafts: dict[str, tuple[int, ...]] = {}
        for row in step.output.rows:
            tokens = self._sample(row, step)
            if tokens:
                sampled[row.name] = tokens
                if not step.computes_nonsense(row.name) and self.ledger.lives[row.name].spec.drafts:
                    drafts[row.name] = self._propose(row, tokens)
        ended = [life for life in self.ledger.lives.values() if life.load and life.load.ended]
        bad = {
            life.name: life.load.bad_block
            for life in ended
            if life.load and life.load.bad_block is not None
        }
        return WorkerResult(
            sampled=sampled,
            drafts=drafts,
            loads_finished=tuple(life.name for life in ended),
            sends_finished=tuple(
                life.name
                for life in self.ledger.lives.values()
                if life.send is not None and life.send.ended
            ),
            loads_failed=bad | step.bad_blocks,
        )

    def _sample(self, row: Row, step: InFlight) -> tuple[int, ...]:
        """Return what a row samples: nothing, if it does not compute all that is known."""
        life = self.ledger.lives.get(row.name)
        if life is None:
            return ()
        length, state = self._known_to(row, life)
        drafts = self._drafts_of(row, step)
        if self._start(row, step) + row.count < length + len(drafts):
            return ()
        if step.computes_nonsense(row.name):
            return (token_in(state ^ _NONSENSE),)
        tokens: list[int] = []
        for draft in (*drafts, None):
            index = length + len(tokens) - len(life.prompt)
            tokens.append(next_token(life.spec, state=state, output_index=index))
            if tokens[-1] != draft:
                break
            state = extend(state, tokens[-1])
        return tuple(tokens)

    def _known_to(self, row: Row, life: Life) -> tuple[int, int]:
        """Return how many tokens the workers know once they have read a row, and their state."""
        known = self.requests.get(row.name)
        root = root_of(life.spec)
        if row.role in (Role.NEW, Role.RESUMED) and row.known_tokens is not None:
            return len(row.known_tokens), state_of(row.known_tokens, root=root)
        if row.role is Role.NEW or known is None:
            return len(life.prompt), life.state_at(len(life.prompt))
        return len(known.tokens), known.states[-1]

    def _drafts_of(self, row: Row, step: InFlight) -> tuple[int, ...]:
        """Return the drafts of a row; those that only the workers know are looked up."""
        drafts = step.output.scheduled_spec_decode_tokens.get(row.name, ())
        known = self.requests.get(row.name)
        proposed = known.proposed if known is not None else ()
        return tuple(
            proposed[number] if draft == UNKNOWN_DRAFT and number < len(proposed) else draft
            for number, draft in enumerate(drafts)
        )

    def _propose(self, row: Row, sampled: tuple[int, ...]) -> tuple[int, ...]:
        """Return the drafts that are proposed after a row has sampled."""
        life = self.ledger.lives[row.name]
        plan = life.spec.drafts
        proposed, accepted = plan[self._proposals[row.name] % len(plan)]
        proposed = min(proposed, self.ledger.config.num_speculative_tokens)
        length, state = self._known_to(row, life)
        for token in sampled:
            state = extend(state, token)
        length += len(sampled)
        drafts: list[int] = []
        for number in range(proposed):
            if number >= accepted:
                drafts.append(WRONG_DRAFT)
                continue
            index = length + number - len(life.prompt)
            drafts.append(next_token(life.spec, state=state, output_index=index))
            state = extend(state, drafts[-1])
        return tuple(drafts)

    def _start(self, row: Row, step: InFlight) -> int:
        known = self.requests.get(row.name) if row.role is Role.RUNNING else None
        if known is None:
            return row.start or 0
        if row.start is None:
            return known.computed
        return row.start - self._refused_since(step, known)

    def _refused_since(self, step: InFlight, request: WorkerRequest) -> int:
        """Return how many drafts a step counted on that were refused after it was planned."""
        if not self.ledger.config.async_scheduling:
            return 0
        own = step.output.step_id
        return sum(request.refused.get(one, 0) for one in range(own - step.ahead, own))

    def execute(self, step: InFlight, result: WorkerResult) -> None:
        """Execute a step and keep the tokens sampled and the drafts proposed in it."""
        self.problems.clear()
        self.sampled = {}
        output = step.output
        for name in output.finished:
            self.requests.pop(name, None)
        if self.ledger.config.dialect is Dialect.V2:
            for name in output.preempted or ():
                self.requests.pop(name, None)
        self._encode(output)
        for row in output.rows:
            life = self.ledger.lives.get(row.name)
            if life is None:
                continue
            request = self._compute(row, life, step, result.sampled.get(row.name, ()))
            request.proposed = result.drafts.get(row.name, ())
            self._proposals[row.name] += row.name in result.drafts
            if not step.computes_nonsense(row.name):
                new = result.sampled.get(row.name, ())
                if new:
                    self.sampled[row.name] = (len(request.tokens), len(new))
                request.learn(new)

    def _encode(self, output: SchedulerOutput) -> None:
        """Drop and compute encoder outputs, and look whether every row has those it needs."""
        for key in output.freed_encoder_keys:
            self.encoded.pop(key, None)
        for name, places in output.scheduled_encoder_inputs.items():
            life = self.ledger.lives.get(name)
            media = life.spec.media if life is not None else ()
            for item in (media[place] for place in places if 0 <= place < len(media)):
                self.encoded[item.key] = item.tokens
        held, room = sum(self.encoded.values()), self.ledger.config.encoder_cache_size
        if held > room:
            self._problem(
                "encoder-overflow",
                " ".join(sorted(output.scheduled_encoder_inputs)) or "the encoder cache",
                f"encoder outputs of at most {room} tokens are kept",
                f"{held} tokens, of the media {' '.join(self.encoded)}",
            )

    def _problem(self, kind: str, name: str, expected: str, found: str) -> None:
        self.problems.append(Problem(kind, name, expected, found))

    def _compute(
        self, row: Row, life: Life, step: InFlight, sampled: tuple[int, ...]
    ) -> WorkerRequest:
        start = self._start(row, step)
        drafts = len(step.output.scheduled_spec_decode_tokens.get(row.name, ()))
        request = self._update(row, life)
        if row.name in step.hits:
            request.hit, request.hit_epoch = step.hits[row.name]
        end = start + row.count
        if end > len(request.tokens) + drafts:
            self._problem(
                "tokens-unknown",
                row.name,
                f"at most the {len(request.tokens)} tokens the workers know",
                f"asked to compute tokens {start} to {end - 1}",
            )
        if row.role is Role.RUNNING and start > request.computed:
            self._problem(
                "tokens-skipped",
                row.name,
                f"it goes on at token {request.computed}, where its last step ended",
                f"asked to compute tokens {start} to {end - 1}",
            )
        room = min((len(table) for table in request.tables), default=0)
        size = self.ledger.config.block_size
        if (row.block_ids is not None or request.tables) and end > room * size:
            self._problem(
                "table-too-short",
                row.name,
                f"{-(-end // size)} blocks for tokens up to {end - 1}",
                f"{room} blocks of {size}",
            )
        self._look_for_media(row, life, start, end)
        accepted = max(0, len(sampled) - 1)
        request.last_start, request.last_end = start, end
        refused = max(0, drafts - accepted)
        request.computed = end - refused
        if refused:
            request.refused[step.output.step_id] = refused
        return request

    def _look_for_media(self, row: Row, life: Life, start: int, end: int) -> None:
        for item in life.spec.media:
            if item.is_within(start, end) and item.key not in self.encoded:
                self._problem(
                    "encoder-missing",
                    row.name,
                    f"the encoder output of {item.key} is there when its tokens are computed",
                    f"asked to compute tokens {start} to {end - 1} without it",
                )

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
            request = WorkerRequest.with_tokens(life.prompt, root=root_of(life.spec))
            self.requests[row.name] = request
        if row.known_tokens is not None:
            request.relearn(row.known_tokens)
        if row.block_ids is not None:
            if row.table_update is TableUpdate.REPLACE:
                request.refused.clear()
                request.tables = [list(group) for group in row.block_ids]
            elif len(request.tables) == len(row.block_ids):
                for table, group in zip(request.tables, row.block_ids, strict=True):
                    table.extend(group)
            else:
                request.tables = [list(group) for group in row.block_ids]
        return request
