"""Judging what was recorded: step by step, in constant memory.

Rules
-----
- The first step with a finding ends it, as everywhere.
- A request first seen running has an unknown history: what is wrong with it makes an invariant
  UNKNOWN, no violation. While there is one, the same goes for findings about blocks.
- A recording without token values cannot be asked what only these show (NEEDS_TOKENS).
- A request that ended is remembered until a few more have ended, then forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field

from schedcheck.invariants.registry import Invariant, every_invariant
from schedcheck.judge import Judge
from schedcheck.model.actions import requests_of
from schedcheck.model.capability import Capability
from schedcheck.model.output import Rejected
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Scheduled,
    StepRecord,
    TransferEnded,
)
from schedcheck.model.verdict import Finding
from schedcheck.oracles.ledger import STATUS_OF
from schedcheck.oracles.life import Life, OpenLoad, OpenSend
from schedcheck.tracefile import Beginning, RecordedStep, Tokens
from schedcheck.tracefile.events import load_of, nameless
from schedcheck.tracefile.recorded import LifeForm

NEEDS_TOKENS: Final = frozenset(
    {
        *("CACHE-001", "CACHE-002", "CACHE-003", "KV-002", "KV-004", "KV-005"),
        *("SCH-004", "SCH-011", "TOK-001", "TOK-003", "TOK-004", "TOK-006"),
    }
)
"""What is seen only by whoever knows every token, or simulates the workers."""
NEEDS_SPECS: Final = frozenset({"XFER-003", "XFER-004", "XFER-005"})
"""What is seen only by whoever knows what a request asks of the outside, and how that ended."""
STEPS_KEPT: Final = 12
"""How many of the last steps are kept to tell a violation by."""
ENDED_KEPT: Final = 8
"""How many requests that ended are remembered: each costs time with every event."""
_ENDED_MAX: Final = 4_096
"""The same, where an engine never says that it has forgotten them."""
_ABOUT_BLOCKS: Final = ("KV", "CACHE", "XFER")
_MANY: Final = 10**6


@define
class Checker:
    """Judges one recording. Feed it with ``take`` until that returns findings."""

    beginning: Beginning
    invariants: Sequence[Invariant] = field(factory=every_invariant)
    judge: Judge = field(init=False)
    last: deque[StepRecord] = field(init=False, factory=lambda: deque(maxlen=STEPS_KEPT))
    """The last steps."""
    doubts: dict[str, str] = field(init=False, factory=dict)
    """Invariants of which nothing can be said, and why."""
    not_asked: dict[str, str] = field(init=False, factory=dict)
    """Invariants that this recording cannot be asked about, and why."""
    events: int = field(init=False, default=0)
    requests: int = field(init=False, default=0)
    """How many were seen."""
    _unknown: set[str] = field(init=False, factory=set)
    _ended: deque[str] = field(init=False, factory=deque)

    def __attrs_post_init__(self) -> None:
        begins, asked = self.beginning, list(self.invariants)
        header, simulates = begins.header, begins.tokens is Tokens.TOY
        if not simulates:
            needs = {one.id for one in asked} & (NEEDS_TOKENS | NEEDS_SPECS)
            self.not_asked = {
                id_: "needs token values"
                if id_ in NEEDS_TOKENS
                else "needs to know what requests ask of the outside"
                for id_ in sorted(needs)
            }
            asked = [one for one in asked if one.id not in needs]
        self.judge = Judge(header.config, header.capabilities, asked, simulates=simulates)
        lives = [_life_of(form, spec, begins) for form, spec in begins.lives]
        self._unknown = {form.name for form, _ in begins.lives if form.unknown}
        self._ended.extend(life.name for life in lives if not life.is_live)
        self.requests = len(lives)
        self.judge.go_on(lives, begins.in_flight, begins.snapshot)

    def take(self, step: RecordedStep) -> tuple[Finding, ...]:
        """Judge one step and return what is wrong with it. Raises ValueError for nonsense."""
        findings: tuple[Finding, ...] = ()
        for event in step.events:
            self.events += 1
            self._meet(event)
            found = self.judge.observe(event, step=step.number)
            findings = findings or (self._beyond_doubt(found) if found else ())
            self._forget(event)
        self.last.append(
            StepRecord(
                number=step.number, action=step.action, events=step.events, findings=findings
            )
        )
        return findings

    def _beyond_doubt(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        kept: list[Finding] = []
        for finding in findings:
            subject = finding.mismatch.subject
            about_blocks = finding.invariant.partition("-")[0] in _ABOUT_BLOCKS
            if subject in self._unknown or (about_blocks and self._unknown):
                who = subject if subject in self._unknown else min(self._unknown)
                reason = f"the history of {who} is unknown: it was first seen running"
                self.doubts.setdefault(finding.invariant, reason)
            else:
                kept.append(finding)
        return tuple(kept)

    def _meet(self, event: AnyEvent) -> None:
        """Take in requests that are named and were never added."""
        lives = self.judge.ledger.lives
        match event:
            case Added(name=name):
                self.requests += 1
                self._unknown.discard(name)
                return
            case Scheduled(output=output):
                for row in output.rows:
                    if row.name not in lives:
                        self._adopt(row.name, row.start or 0)
                named = [load.name for load in output.loads]
                for mapping in (output.scheduled_encoder_inputs,):
                    named += mapping
            case Completed(result=result):
                named = [*result.loads_finished, *result.loads_failed, *result.sends_finished]
                named += result.drafts
            case Controlled(action=action):
                named = list(requests_of(action))
            case TransferEnded(name=name):
                named = [name]
            case _:
                return
        for name in named:
            if name not in lives:
                self._adopt(name, 0)
        if isinstance(event, TransferEnded):
            self._check_transfer(event)

    def _check_transfer(self, event: TransferEnded) -> None:
        ledger = self.judge.ledger
        life, is_send = ledger.lives[event.name], event.transfer.value == "send"
        sync = event.bad_block is not None and ledger.sync_load_in_flight(event.name)
        if not (life.send if is_send else life.load or sync):
            raise ValueError(f"a {event.transfer} of {event.name} ends that never began")

    def _adopt(self, name: str, computed: int) -> None:
        """Take in a request of which nothing is known."""
        spec = RequestSpec(prompt=(("own", max(1, min(computed, _MANY))),), max_tokens=_MANY)
        life = Life(name, spec, name, nameless(spec.prompt_tokens_count), times_new=1)
        self._unknown.add(name)
        self.requests += 1
        self.judge.go_on([life], (), self.judge.ledger.snapshot)

    def _forget(self, event: AnyEvent) -> None:
        """Let go of a request that ended long ago."""
        ledger, ended = self.judge.ledger, self._ended
        ended.extend(ledger.finished_now)
        if isinstance(event, Added) and isinstance(event.answer, Rejected):
            ended.append(event.name)
        for _ in range(len(ended) - ENDED_KEPT):
            name = ended.popleft()
            life = ledger.lives.get(name)
            if life is not None and not self._is_settled(life) and len(ended) < _ENDED_MAX:
                ended.append(name)
                continue
            self._unknown.discard(name)
            self.judge.forget(name)

    def _is_settled(self, life: Life) -> bool:
        """Return whether nothing more is to come of a request that ended."""
        announces = Capability.ANNOUNCES_FINISH in self.judge.capabilities
        return not (
            life.in_flight
            or life.load
            or life.send
            or (announces and life.was_sent and not life.announced)
            or life.name in self.judge.ledger.snapshot.requests
        )


def _life_of(form: LifeForm, spec: RequestSpec, begins: Beginning) -> Life:
    """Return what a checkpoint says of a request."""
    view = begins.snapshot.requests.get(form.name)
    status = None if form.finished is None else STATUS_OF[form.finished]
    length = spec.prompt_tokens_count
    return Life(
        form.name,
        spec,
        form.name,
        nameless(length),
        status=status if view is None else view.status,
        delivered=[0] * form.delivered,
        sampled_to=length + form.delivered,
        grammar_ready=True,
        lookup_answered=True,
        times_new=form.news,
        times_resumed=form.resumes,
        times_preempted=form.preemptions,
        preempted_since_scheduled=form.preempted,
        told_to_forget=form.forgot,
        path=list(form.path),
        finished=form.finished,
        finishes_reported=int(form.finished is not None),
        announced=form.announced,
        load=None if form.load is None else OpenLoad(load_of(form.load)),
        send=None if form.send is None else OpenSend(frozenset(form.send)),
    )
