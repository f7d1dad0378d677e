"""Making a trace of a recording: what its clients and its outside did, as actions.

Preemptions, admissions and all else that a scheduler decides come from playing the trace. What a
request is like is only known when it is over: how long its answer was, how much was loaded for it.
So the recording is read once, and its requests are described at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import define, evolve, field, frozen

from schedcheck.model.actions import (
    Abort,
    Action,
    Add,
    Complete,
    FailTransfer,
    FinishSend,
    FinishTransfer,
    Preempt,
    ResetPrefixCache,
    Schedule,
    Step,
    requests_of,
)
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import FinishReason, Role
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import EMPTY_SNAPSHOT, Snapshot, Status
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Scheduled,
    Trace,
    Transfer,
    TransferEnded,
)
from schedcheck.model.verdict import Finding
from schedcheck.recording.checking import Checker
from schedcheck.recording.formats import Reader
from schedcheck.tracefile import Beginning, RecordedStep, Tokens

_WINDOWS: Final = (50, 200, 800)
"""Lengths in actions of the ends of a recording that are tried before all of it."""


class NothingShown(ValueError):
    """A recording shows no violation, so that there is nothing to shrink."""


@frozen(kw_only=True)
class Rebuilt:
    """A recording as traces to be replayed, up to its first violation."""

    trace: Trace
    """All of it, expected to show the violation."""
    shorter: tuple[Trace, ...]
    """Parts of it that may show the same, the most promising first."""
    shapes: tuple[str, ...]
    """What each step planned, as it was recorded: ``r0:new+4 r1:running+1``."""
    finding: Finding
    line: int
    """On which line of the file that stands."""


@define
class _Known:
    """What a recording tells of one request."""

    name: str
    spec: RequestSpec
    status: Status | None = None
    delivered: int = 0
    remote: int = 0
    sends: bool = False
    finished: FinishReason | None = None
    added: int = 0
    """Number of the action that added it."""
    gone: int | None = None
    """Number of the action with which it ended."""
    loaded: int | None = None
    """How many tokens were loaded since it was last admitted."""
    life: list[Action] = field(factory=list)
    """What happened to it, as actions that make the same happen to it alone."""

    def admit(self, start: int) -> None:
        """Take in where it goes on: behind what it loaded, or at the last token of its prompt."""
        if self.loaded is not None:
            # Of a prompt that is there as a whole the last token is computed once more.
            length = self.spec.prompt_tokens_count
            is_whole = start == length - 1 and self.loaded != start
            self.remote = max(self.remote, length if is_whole else start)
        self.loaded = None
        self.life.append(Step())

    def note(self, status: Status | None) -> None:
        """Take in a change of status; a preemption is forced by what the target can do."""
        if status is Status.PREEMPTED and self.status is Status.RUNNING:
            self.life += [Preempt(self.name), ResetPrefixCache(running=True)]
        self.status = status


@define
class _Rebuilding:
    is_known: bool
    """Whether every request is described in full: then the actions say all there is to say."""
    requests: dict[str, _Known] = field(factory=dict)
    actions: list[Action] = field(factory=list)
    shapes: list[str] = field(factory=list)
    snapshot: Snapshot = EMPTY_SNAPSHOT

    def meet(self, name: str, spec: RequestSpec, *, delivered: int) -> None:
        """Take in a request that was there before: as if it were added when the file begins."""
        self.requests[name] = _Known(name, spec, delivered=delivered)
        self.actions.append(Add(name, spec))

    def take(self, step: RecordedStep) -> None:
        """Take in one line."""
        ended: list[Action] = []
        for event in step.events:
            ended += self._look(event)
        match step.action:
            case Add(request=name):
                if name in self.requests:
                    self.actions.append(step.action)
            case Complete() | Step():
                self.actions += [*ended, step.action]
            case FinishTransfer() | FailTransfer() | FinishSend():
                self.actions += ended
            case _:
                if all(name in self.requests for name in requests_of(step.action)):
                    self.actions.append(step.action)

    def _look(self, event: AnyEvent) -> Iterator[Action]:
        """Take in what happened, and yield the transfers that ended."""
        before, self.snapshot = self.snapshot, event.snapshot
        if event.snapshot.requests is not before.requests:
            for name, view in event.snapshot.requests.items():
                if view is not before.requests.get(name) and name in self.requests:
                    self.requests[name].note(view.status)
        match event:
            case Added(name=name, spec=spec):
                self.requests[name] = _Known(name, spec, added=len(self.actions))
            case Scheduled(output=output):
                self.shapes.append(shape_of(event))
                for load in output.loads:
                    if load.name in self.requests:
                        known = self.requests[load.name]
                        known.remote = max(known.remote, load.start + load.count)
                        known.loaded = load.start + load.count
                        known.life.append(Step())
                for row in output.rows:
                    if row.role is not Role.RUNNING and row.name in self.requests:
                        self.requests[row.name].admit(row.start or 0)
            case Completed(result=result, output=output):
                for name, tokens in output.delivered.items():
                    if name in self.requests:
                        self.requests[name].delivered += len(tokens)
                for name, reason in output.finished.items():
                    self._end(name, reason)
                self._send(output.sends)
                ended = result.loads_finished
                if self.is_known:  # loads within a step are reported only where they fail
                    ended = tuple(dict.fromkeys((*ended, *result.loads_failed)))
                yield from self._transfers(
                    (name, Transfer.LOAD, result.loads_failed.get(name)) for name in ended
                )
                yield from self._transfers(
                    (name, Transfer.SEND, None) for name in result.sends_finished
                )
            case Controlled(action=Abort(request=name), answer=answer):
                self._end(name, FinishReason.ABORTED)
                self._send(getattr(answer, "sends", ()))
            case TransferEnded(name=name, transfer=transfer, bad_block=bad):
                del name, transfer, bad  # the result that reports it says the same
            case _:
                return

    def _end(self, name: str, reason: FinishReason) -> None:
        if name in self.requests and self.requests[name].finished is None:
            self.requests[name].finished = reason
            self.requests[name].gone = len(self.actions)

    def _send(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.requests:
                self.requests[name].sends = True

    def _transfers(self, ended: Iterable[tuple[str, Transfer, int | None]]) -> Iterator[Action]:
        for name, transfer, bad in ended:
            if name not in self.requests:
                continue
            action: Action = FinishSend(name)
            if transfer is Transfer.LOAD:
                action = FinishTransfer(name) if bad is None else FailTransfer(name, bad)
            self.requests[name].life += [action, Step()]
            yield action

    def described(self, config: SchedulerConfig) -> tuple[Action, ...]:
        """Return the actions, each request described as it turned out to be."""
        specs = {name: _described(known, config) for name, known in self.requests.items()}
        return tuple(
            Add(action.request, specs[action.request]) if isinstance(action, Add) else action
            for action in self.actions
        )


def rebuild(reader: Reader, checker: Checker) -> Rebuilt:
    """Read a recording up to its first violation and return it as traces.

    Raises NothingShown if it shows none, TraceError for what cannot be read.
    """
    rebuilding = _Rebuilding(is_known=reader.beginning.tokens is Tokens.TOY)
    for form, spec in reader.beginning.lives:
        rebuilding.meet(form.name, spec, delivered=form.delivered)
    for step in reader.steps():
        rebuilding.take(step)
        findings = checker.take(step)
        if findings:
            finding = min(findings, key=lambda one: one.signature)
            return _rebuilt(rebuilding, reader.beginning, finding, step.line)
    raise NothingShown("it shows no violation; schedcheck check says what it was asked about")


def _rebuilt(rebuilding: _Rebuilding, beginning: Beginning, finding: Finding, line: int) -> Rebuilt:
    header = beginning.header
    actions = tuple(rebuilding.actions)
    if not rebuilding.is_known:
        actions = rebuilding.described(header.config)
    actions = _merged(actions)
    finding = evolve(finding, step=max(1, len(actions)))
    trace = Trace(header=evolve(header, expect=None), actions=actions)
    return Rebuilt(
        trace=trace.with_expectation(finding),
        shorter=tuple(
            one.with_expectation(evolve(finding, step=len(one.actions)))
            for one in _shorter(trace, rebuilding.requests, finding.mismatch.subject)
            if one.actions
        ),
        shapes=tuple(rebuilding.shapes),
        finding=finding,
        line=line,
    )


def _described(known: _Known, config: SchedulerConfig) -> RequestSpec:
    """Return a request as a recording shows it, when it is over or the recording ends."""
    spec, delivered = known.spec, known.delivered
    longest = min(config.max_model_len, config.slots_total) - spec.prompt_tokens_count
    most, stop_at = max(1, min(spec.max_tokens, longest)), spec.stop_at
    if known.finished is FinishReason.LENGTH and delivered:
        most = delivered
    elif known.finished is FinishReason.STOPPED and delivered:
        most, stop_at = max(most, delivered), delivered - 1
    return evolve(
        spec,
        max_tokens=most,
        stop_at=stop_at,
        remote_tokens=max(spec.remote_tokens, min(known.remote, spec.prompt_tokens_count)),
        send_kv=spec.send_kv or known.sends,
    )


def _shorter(trace: Trace, requests: dict[str, _Known], subject: str) -> Iterator[Trace]:
    """Yield parts of a trace, the first of which may be enough.

    That is what happened to its subject alone, preemptions forced; what went on beside it; and ends
    of growing length.
    """
    if subject in requests:
        about = requests[subject]
        spec = trace.specs.get(subject, about.spec)
        yield evolve(trace, actions=(Add(subject, spec), *about.life, Step()))
        end = len(trace.actions)
        beside = {
            name
            for name, known in requests.items()
            if (end if known.gone is None else known.gone) > about.added
        }
        yield _only(trace, beside, min(requests[name].added for name in beside))
        yield _only(trace, beside, about.added)
    for length in _WINDOWS:
        begin = len(trace.actions) - length
        if begin > 0:
            late = {
                name
                for name, known in requests.items()
                if (begin if known.gone is None else known.gone) >= begin
            }
            yield _only(trace, late, begin)


def _merged(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Put each step that was completed before the next one was planned into one action."""
    merged: list[Action] = []
    in_flight = 0
    for action in actions:
        at = len(merged)
        while at and isinstance(merged[at - 1], FinishTransfer):
            at -= 1
        alone = in_flight == 1 and at > 0 and isinstance(merged[at - 1], Schedule)
        if isinstance(action, Complete) and alone:
            ended = tuple(name for one in merged[at:] for name in requests_of(one))
            merged[at - 1 :] = [Step((*ended, *action.finish_loads))]
            in_flight = 0
            continue
        in_flight += isinstance(action, Schedule) - isinstance(action, Complete)
        merged.append(action)
    return tuple(merged)


def _only(trace: Trace, names: set[str], begin: int) -> Trace:
    """Return what some requests do, and the steps from an action on."""
    kept: list[Action] = []
    for number, action in enumerate(trace.actions):
        if isinstance(action, Step | Complete) and number >= begin:
            ended = tuple(name for name in action.finish_loads if name in names)
            kept.append(evolve(action, finish_loads=ended))
        elif (number >= begin or isinstance(action, Add)) and names.issuperset(requests_of(action)):
            kept.append(action)
    return evolve(trace, actions=tuple(kept))


def shape_of(event: Scheduled) -> str:
    """Return what a step planned, in words that can be compared."""
    return " ".join(f"{row.name}:{row.role.value.lower()}+{row.count}" for row in event.output.rows)
