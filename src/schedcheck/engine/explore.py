"""Exploration: every trace within a scope, breadth first, so that the first violation is shortest.

A state is copied by pickling the scheduler together with the history that judges it, and
recognised by a fingerprint: everything the scheduler holds, and of the history what invariants
and moves can still see. Two states with one fingerprint behave alike, so only the first is kept.
State spaces do not exhaust unless the number of requests is bounded: a scope bounds it.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum

from attrs import fields, frozen, has

from schedcheck.engine.executor import Executor
from schedcheck.engine.moves import drain_for, every_action
from schedcheck.invariants.registry import Invariant
from schedcheck.judge import Judge
from schedcheck.model.actions import Action
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Header, Trace
from schedcheck.model.verdict import Finding, Signature
from schedcheck.sut import Target


@frozen(kw_only=True)
class Scope:
    """The bounds within which exploration is exhaustive."""

    config: SchedulerConfig
    menu: tuple[RequestSpec, ...]
    """What an added request may be."""
    adds_max: int
    depth_max: int
    """The longest trace, in actions."""
    drains: bool = True
    """Whether a quiet tail may end a trace: many steps that count as one action."""
    states_max: int = 200_000
    """Different states after which exploration gives up."""


@frozen(kw_only=True)
class Exploration:
    """What exploring a scope showed."""

    shortest: Trace | None
    """The shortest trace that shows the signature looked for; None if there is none in scope."""
    states: int
    transitions: int
    is_exhaustive: bool
    """Whether the whole scope was searched, or a violation ended the search."""


@frozen
class _Node:
    frozen_state: bytes
    actions: tuple[Action, ...]


def explore(
    target: Target,
    scope: Scope,
    invariants: Sequence[Invariant],
    *,
    looking_for: Signature,
) -> Exploration:
    """Return the shortest trace of a scope that shows a signature.

    The target's schedulers must pickle, as those of the reference do. A state that shows another
    violation is not followed further. Raises TypeError or pickle.PicklingError if they do not.
    """
    search = _Search(target, scope, tuple(invariants), looking_for)
    return search.run()


class _Search:
    def __init__(
        self,
        target: Target,
        scope: Scope,
        invariants: tuple[Invariant, ...],
        looking_for: Signature,
    ) -> None:
        self.target, self.scope = target, scope
        self.invariants, self.looking_for = invariants, looking_for
        self.seen: set[Hashable] = set()
        self.transitions = 0

    def run(self) -> Exploration:
        judge = Judge(self.scope.config, self.target.capabilities, self.invariants)
        queue = deque([_Node(self._freeze(self.target.open(self.scope.config), judge), ())])
        while queue and len(self.seen) < self.scope.states_max:
            node = queue.popleft()
            for action in self._actions_after(node):
                findings, frozen_state = self._take(node, action)
                actions = (*node.actions, action)
                shown = [one for one in findings if one.signature == self.looking_for]
                if shown:
                    return self._result(actions, shown[0])
                if frozen_state is not None and len(actions) < self.scope.depth_max:
                    queue.append(_Node(frozen_state, actions))
        return self._result(None, None, exhaustive=not queue)

    def _actions_after(self, node: _Node) -> list[Action]:
        _, judge = self._thaw(node.frozen_state)
        offered = every_action(
            judge.ledger, self.target.capabilities, self.scope.menu, adds_max=self.scope.adds_max
        )
        drain = self.scope.drains and node.actions
        return [*offered, drain_for(judge.ledger)] if drain else offered

    def _take(self, node: _Node, action: Action) -> tuple[tuple[Finding, ...], bytes | None]:
        """Return what an action shows, and the state after it if it is new and unspoilt."""
        self.transitions += 1
        executor, judge = self._thaw(node.frozen_state)
        executor.number = len(node.actions)
        findings = executor.apply(action).findings
        if findings or action.do == "drain":
            return findings, None
        mark = _fingerprint(executor.sut, judge)
        if mark in self.seen:
            return (), None
        self.seen.add(mark)
        return (), self._freeze(executor.sut, judge)

    def _freeze(self, sut: object, judge: Judge) -> bytes:
        return pickle.dumps((sut, judge.ledger, judge.worker, judge.memory))

    def _thaw(self, frozen_state: bytes) -> tuple[Executor, Judge]:
        judge = Judge(self.scope.config, self.target.capabilities, self.invariants)
        sut, judge.ledger, judge.worker, judge.memory = pickle.loads(frozen_state)  # noqa: S301  made by _freeze
        return Executor(sut, judge), judge

    def _result(
        self,
        actions: tuple[Action, ...] | None,
        finding: Finding | None,
        *,
        exhaustive: bool = True,
    ) -> Exploration:
        shortest = None
        if actions is not None and finding is not None:
            header = Header(
                target=self.target.name,
                config=self.scope.config,
                capabilities=self.target.capabilities,
            )
            shortest = Trace(header=header, actions=actions).with_expectation(finding)
        return Exploration(
            shortest=shortest,
            states=len(self.seen),
            transitions=self.transitions,
            is_exhaustive=exhaustive,
        )


def _fingerprint(sut: object, judge: Judge) -> Hashable:
    """Return what tells this state from every state that may behave differently."""
    ledger = judge.ledger
    lives = tuple(
        (
            life.name,
            life.status,
            life.in_flight,
            min(life.times_new, 2),
            life.times_preempted > 0,
            life.preempted_since_scheduled,
            life.told_to_forget,
            life.finished,
            min(life.announced, 2),
            tuple(life.path),
            _dump(life.load),
            _dump(life.send),
            len(life.delivered),
        )
        for life in ledger.lives.values()
    )
    held = judge.memory.contents()
    return lives, _dump(ledger.in_flight), _dump(judge.worker.requests), held, _dump(sut)


_SKIPPED = frozenset({"verified", "states", "_states", "stamp"})
"""Attributes that follow from others, or only save work."""


def _dump(thing: object) -> Hashable:
    """Return nested tuples of everything that a value holds."""
    if thing is None or isinstance(thing, int | str | bytes | float | Enum):
        return thing
    if isinstance(thing, Mapping):
        return tuple((_dump(key), _dump(value)) for key, value in thing.items())
    if isinstance(thing, set | frozenset):
        return tuple(sorted((_dump(one) for one in thing), key=repr))
    if isinstance(thing, Iterable):
        return tuple(_dump(one) for one in thing)
    kind: type = type(thing)
    if has(kind):
        names = [one.name for one in fields(kind) if one.name not in _SKIPPED]
        return tuple(_dump(getattr(thing, name)) for name in names)
    return tuple(
        (name, _dump(value)) for name, value in sorted(vars(thing).items()) if name not in _SKIPPED
    )
