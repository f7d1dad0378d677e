"""The smallest traces there are: one that violates an invariant, and one that only exercises it.

One random failure shrinks to a local minimum. So several are taken, from several mutants and seeds,
each is shrunk, and the smallest of all is kept. The same seeds give the same traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from attrs import define, evolve, frozen

from schedcheck import __version__
from schedcheck.engine.hunt import declared_by, hunt, target_text_of
from schedcheck.engine.moves import drain_for
from schedcheck.engine.play import Playback, play_actions, spelled_out
from schedcheck.engine.shrink import Budget, Reproduce, reduce, size_of
from schedcheck.engine.targets import REFERENCE, resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.actions import Action, Add, Complete, Drain, Step, requests_of
from schedcheck.model.request import OUTPUT_OF, RequestSpec
from schedcheck.model.trace import Header, Trace
from schedcheck.model.verdict import Signature
from schedcheck.reference.mutants.registry import MUTANTS, Mutant
from schedcheck.sut import Target

SEEDS: Final = tuple(range(12))
"""Seeds tried at most: of each, the first trace found is shrunk."""
SEEDS_ON_ALL: Final = 3
"""So many are tried on every mutant; more only on the mutant with the smallest trace so far."""
AGREED: Final = 3
"""Starts that came to the same number of actions, after which no further one is tried."""
EXECUTIONS_MAX: Final = 4_000
"""Candidates that shrinking one start may try."""

Tell = Callable[[str], None]
"""Takes what is being done, for a person who watches."""


def mutants_for(id_: str) -> tuple[Mutant, ...]:
    """Return the mutants that an invariant must kill."""
    return tuple(mutant for mutant in MUTANTS if id_ in mutant.must_kill)


def smallest_violation(
    id_: str, *, start: Trace | None = None, seeds: Sequence[int] = SEEDS, tell: Tell
) -> Trace | None:
    """Return the smallest trace found on a mutant that violates an invariant; None: there is none.

    At its last action nothing fires but what the mutant declares. ``start`` is a trace known
    before: what is returned is no larger than it, if it still shows what its header says.
    """
    best, mutants = _Smallest(), mutants_for(id_)
    expect = start.header.expect if start is not None else None
    for mutant in mutants:
        if start and expect and expect.signature.invariant == id_ and _is_of(mutant, start):
            best.consider(start, _Violates(mutant, expect.signature))
    for number, seed in enumerate(seeds):
        if number >= SEEDS_ON_ALL and best.agreed >= AGREED:
            break
        for mutant in mutants:
            if number < SEEDS_ON_ALL or best.trace is None or _is_of(mutant, best.trace):
                tell(f"{mutant.name}, seed {seed}")
                _consider_violation(best, id_, mutant, seed)
    return best.trace


def smallest_control(
    id_: str, *, starts: Iterable[Trace] = (), seeds: Sequence[int] = SEEDS, tell: Tell
) -> Trace | None:
    """Return the smallest trace found on which the reference holds and the witness fires.

    It ends with a quiet tail that finishes everything. ``starts`` are traces to try besides random
    ones: the control known before, the trace that violates the invariant on a mutant.
    """
    best, exercises = _Smallest(), _Exercises(resolve(REFERENCE), id_)
    for trace in starts:
        best.consider(exercises.drained(trace), exercises)
    for number, seed in enumerate(seeds):
        if number >= SEEDS_ON_ALL and best.agreed >= AGREED:
            break
        tell(f"{REFERENCE}, seed {seed}")
        for played in hunt(REFERENCE, seed=seed):
            control = exercises(exercises.drained(played.trace))
            if control is not None:
                best.consider(control, exercises)
                break
    return best.trace


def plays(target: Target, trace: Trace) -> Playback | None:
    """Play a trace as far as it is eligible; None if the target has no such configuration."""
    if target.honours(trace.header.config) != trace.header.config:
        return None
    return play_actions(target, trace.header, trace.actions, every_invariant(), lenient=True)


@define
class _Smallest:
    """Keeps the smallest of what several traces shrink to."""

    trace: Trace | None = None
    agreed: int = 0
    """How many starts came to as few actions as the smallest."""
    _rank: tuple[bool, tuple[int, int]] | None = None

    def consider(self, start: Trace, reproduce: Reproduce) -> None:
        """Shrink a trace and keep the result, if it is smaller than all before it."""
        first = reproduce(start)
        if first is None:
            return
        reduction = reduce(first, reproduce, budget=Budget(executions_max=EXECUTIONS_MAX))
        found = _tidied(reduction.trace, reproduce)
        actions_before = len(self.trace.actions) if self.trace is not None else None
        rank = (not reduction.is_minimal, size_of(found))
        if self._rank is None or rank < self._rank:
            self.trace, self._rank = found, rank
        if self.trace is None or len(self.trace.actions) != actions_before:
            self.agreed = 0
        self.agreed += self.trace is not None and len(self.trace.actions) == len(found.actions)


@frozen
class _Violates:
    """Whether a trace shows a signature on a mutant, and nothing that the mutant hides."""

    mutant: Mutant
    signature: Signature

    def __call__(self, candidate: Trace) -> Trace | None:
        playback = plays(resolve(target_text_of(self.mutant)), candidate)
        if playback is None:
            return None
        shown = [one for one in playback.findings if one.signature == self.signature]
        fired = {one.invariant for one in playback.findings}
        if not shown or fired - declared_by(self.mutant):
            return None
        return evolve(candidate, actions=playback.actions).with_expectation(shown[0])

    def told_in_full(self, trace: Trace) -> Trace:
        """Return the trace with its quiet tail spelled out, if it can be: that shrinks further."""
        playback = plays(resolve(target_text_of(self.mutant)), trace)
        longer = evolve(trace, actions=spelled_out(playback)) if playback is not None else trace
        return self(longer) or trace


@frozen
class _Exercises:
    """Whether a trace holds, ends with everything finished, and the witness fires."""

    target: Target
    id: str

    def __call__(self, candidate: Trace) -> Trace | None:
        playback = plays(self.target, candidate)
        if playback is None or playback.findings or self.id not in playback.judge.witnessed:
            return None
        actions = playback.actions
        if not isinstance(actions[-1], Drain) or playback.judge.ledger.live():
            return None
        return evolve(candidate, actions=actions)

    def drained(self, trace: Trace) -> Trace:
        """Return a trace as a control of the reference, with its quiet tail."""
        header = Header(
            target=REFERENCE,
            config=trace.header.config,
            capabilities=self.target.capabilities,
            schedcheck=__version__,
            witness=self.id,
        )
        is_drained = bool(trace.actions) and isinstance(trace.actions[-1], Drain)
        actions = trace.actions if is_drained else (*trace.actions, Drain())
        return Trace(header=header, actions=actions)


def _is_of(mutant: Mutant, trace: Trace) -> bool:
    return trace.header.target == target_text_of(mutant)


def _consider_violation(best: _Smallest, id_: str, mutant: Mutant, seed: int) -> None:
    """Consider the first trace of a run on a mutant that violates an invariant."""
    for played in hunt(target_text_of(mutant), seed=seed):
        if id_ in played.violates:
            finding = next(one for one in played.findings if one.invariant == id_)
            violates = _Violates(mutant, finding.signature)
            trace = evolve(played.trace, header=evolve(played.trace.header, seed=""))
            best.consider(violates.told_in_full(trace.with_expectation(finding)), violates)
            return


def _tidied(trace: Trace, reproduce: Reproduce) -> Trace:
    """Name requests r0, r1, ... and bound the quiet tail by the work left, where that holds."""
    for tidy in (_renamed, _with_tail_bounded):
        trace = reproduce(tidy(trace)) or trace
    return trace


def _renamed(trace: Trace) -> Trace:
    names = {name: f"r{number}" for number, name in enumerate(trace.specs)}

    def renamed(action: Action) -> Action:
        match action:
            case Add(request=name, spec=spec):
                return Add(names[name], _spec_renamed(spec, names))
            case Step(finish_loads=loads) | Complete(finish_loads=loads):
                return evolve(action, finish_loads=tuple(names[name] for name in loads))
            case _:
                about = requests_of(action)
                changes = {"request": names[about[0]]} if about else {}
                return evolve(action, **changes)  # type: ignore[arg-type]  # those that have it

    return evolve(trace, actions=tuple(map(renamed, trace.actions)))


def _spec_renamed(spec: RequestSpec, names: Mapping[str, str]) -> RequestSpec:
    """Return a spec that means the same where requests are called otherwise."""

    def stream(word: str) -> str:
        former = word.removeprefix(OUTPUT_OF)
        return f"{OUTPUT_OF}{names[former]}" if word != former else word

    former = spec.engine_id_of
    return evolve(
        spec,
        prompt=tuple((stream(word), length) for word, length in spec.prompt),
        engine_id_of=None if former is None else names[former],
    )


def _with_tail_bounded(trace: Trace) -> Trace:
    *before, last = trace.actions
    if not isinstance(last, Drain):
        return trace
    playback = plays(resolve(trace.header.target), evolve(trace, actions=tuple(before)))
    if playback is None:
        return trace
    return evolve(trace, actions=(*before, drain_for(playback.judge.ledger)))
