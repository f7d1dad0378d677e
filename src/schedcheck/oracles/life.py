"""The life of one request, as far as it is known from the outside."""

from __future__ import annotations

from attrs import Factory, define

from schedcheck.model.output import FinishReason, Load
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.model.tokens import chunk_tokens, extend, next_token, root_of


@define
class OpenLoad:
    """An asynchronous load between its start and the result that reports it."""

    load: Load
    ended: bool = False
    """Physically over: nothing writes its blocks any more."""
    bad_block: int | None = None


@define
class OpenSend:
    """A send between the end of its request and the result that reports it."""

    blocks: frozenset[int]
    after_step: int = -1
    """The step planned last when it began: the workers learn of the send only after that one."""
    ended: bool = False


@define
class Life:
    """Everything that is known about one request."""

    name: str
    spec: RequestSpec
    engine_id: str
    prompt: tuple[int, ...]
    """Of a session: all that was said before this turn's answer."""
    rejected: bool = False
    status: Status | None = None
    delivered: list[int] = Factory(list)
    """Output of this turn that reached the client."""
    sampled_to: int = 0
    """How many tokens it would have if all that was ever sampled for it were kept."""
    computed_max: int = 0
    """The most tokens that executed steps ever computed for it."""
    turn: int = 0
    """How many chunks of its session were begun."""
    chunks_given: int = 0
    continued_since_scheduled: bool = False
    """Its session went on with a new chunk since it was last scheduled."""
    grammar_ready: bool = False
    lookup_answered: bool = False
    proposed: tuple[int, ...] = ()
    """Drafts that the workers proposed since it was last scheduled, preempted or continued."""
    first_start: int | None = None
    """Where its first row began: tokens hit and loaded; None: not sent, or a load failed in a
    step."""
    load_ends: set[int] = Factory(set)
    """How far the loads that began before its first row were to reach: with so many tokens it was
    admitted, even where the last of them is computed again."""
    load_has_failed: bool = False
    """A load within a step failed, so that its first row began too far."""
    hit: int = 0
    """Tokens it shared from the prefix cache when it got its blocks."""
    hit_epoch: int = 0
    loaded_to: int | None = None
    """How many tokens a load that failed left it, until it is scheduled again."""
    load_end_max: int = 0
    """How far any of its loads was to reach: so much room it may have."""
    has_loaded: bool = False
    """A load of it ended well since it was last preempted or continued."""
    times_sent: int = 0
    """How often a send of its KV began."""
    in_flight: int = 0
    """Steps in flight that compute something for it."""
    times_new: int = 0
    times_resumed: int = 0
    times_preempted: int = 0
    preempted_since_scheduled: bool = False
    told_to_forget: bool = False
    """Since it was last scheduled, the workers were told that it was preempted."""
    path: list[Status] = Factory(list)
    """Statuses seen since it was last scheduled."""
    finished: FinishReason | None = None
    finishes_reported: int = 0
    announced: int = 0
    """How often the workers were told to forget it for good."""
    load: OpenLoad | None = None
    send: OpenSend | None = None
    _states: list[int] = Factory(list)

    @property
    def is_live(self) -> bool:
        """Whether it was accepted and has not ended."""
        return not self.rejected and self.finished is None

    @property
    def tokens_due(self) -> int:
        """How many tokens this turn's answer has when it is over."""
        return self.spec.output_tokens_in(self.turn)

    @property
    def awaits_chunk(self) -> bool:
        """Whether its session has answered and cannot go on before the next chunk."""
        return self._is_turn_over and self.turn == self.chunks_given < len(self.spec.chunks)

    @property
    def awaits_grammar(self) -> bool:
        """Whether its grammar is still being compiled."""
        return self.spec.grammar and not self.grammar_ready

    @property
    def awaits_lookup(self) -> bool:
        """Whether the outside has not said yet how much of its prompt it holds."""
        return self.spec.lookup_undecided and not self.lookup_answered

    @property
    def blocked_by(self) -> str:
        """What it waits for from outside, other than a load; empty: nothing."""
        if self.awaits_grammar:
            return "grammar"
        if self.awaits_lookup:
            return "lookup"
        return "chunk" if self.awaits_chunk else ""

    @property
    def _is_turn_over(self) -> bool:
        return len(self.delivered) >= self.tokens_due

    def begin_due_turn(self) -> None:
        """Begin the next turn of a session, if this one is over and a chunk is there."""
        if self.is_live and self._is_turn_over and self.turn < self.chunks_given:
            said = (*self.prompt, *self.delivered[:-1])
            chunk = chunk_tokens(self.name, self.spec, self.turn)
            del self._states[len(said) + 1 :]
            self.prompt = (*said, *chunk)
            for token in chunk if self._states else ():
                self._states.append(extend(self._states[-1], token))
            self.delivered = []
            self.turn += 1
            self.sampled_to = len(self.prompt)
            self.continued_since_scheduled = True
            self.preempted_since_scheduled = self.told_to_forget = self.has_loaded = False
            self.proposed = ()

    @property
    def was_sent(self) -> bool:
        """Whether the workers ever got it."""
        return self.times_new + self.times_resumed > 0

    def state_at(self, length: int) -> int:
        """Return the toy model's state after the first ``length`` tokens it ought to have."""
        states = self._states
        if not states:
            states.append(root_of(self.spec))
            for token in self.prompt:
                states.append(extend(states[-1], token))
        while len(states) <= length:
            states.append(extend(states[-1], self._token_after(len(states) - 1)))
        return states[length]

    def token_at(self, position: int) -> int:
        """Return the token it ought to have at a position, prompt or output."""
        if position < len(self.prompt):
            return self.prompt[position]
        return self._token_after(position)

    def _token_after(self, length: int) -> int:
        state = self.state_at(length)
        return next_token(self.spec, state=state, output_index=length - len(self.prompt))
