"""``verify``: the one public verb. Search with Hypothesis, shrink with our own reducer, tell.

Rules
-----
- Hypothesis generates and does not shrink: on schedulers its shrinker is a thousand times slower
  than our reducer and often stops short of the minimum. It keeps no database either: a failure is
  kept as a trace file, which any version of schedcheck replays.
- Hypothesis is asked for ten traces at a time. Of longer runs it makes five in six by repeating
  parts of the one before: the same configuration and load, which decide more than the actions.
- A run is a function of its seed, which is 0 unless somebody says otherwise, and of the modules
  that are loaded: recent releases of Hypothesis draw constants that they find in them, and offer no
  switch. What repeats a failure anywhere is its trace.
- A run that found nothing but left something untested says so.
"""

from __future__ import annotations

import sys
import unittest
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from attrs import define, evolve
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from schedcheck.engine.campaign import EXECUTIONS_MAX, Start, shrink_and_report
from schedcheck.engine.events import Ended, Failure, Found, JobEvent, Shrunk
from schedcheck.engine.known import signatures_of
from schedcheck.engine.profiles import get_profile
from schedcheck.engine.saving import save
from schedcheck.engine.shrink import Budget
from schedcheck.model.config import Dialect
from schedcheck.model.verdict import Verdict
from schedcheck.stateful import context
from schedcheck.stateful.driver import Failing, Plan, Tally
from schedcheck.stateful.machine import FORMS, LifecycleMachine, machine_of, plan_for
from schedcheck.stateful.violation import violation
from schedcheck.tracefile import TraceUnwritable

TRACES_SHARE: Final = 4
"""``verify`` runs one in so many of a profile's traces: on the reference ``quick`` takes two or
three seconds and ``ci`` half a minute."""
ROUND: Final = 10
"""How many traces Hypothesis is asked for at a time: it begins to repeat itself after ten."""


class VacuityWarning(UserWarning):
    """A run found nothing, but something was never put to the test."""


class Vacuous(AssertionError):
    """A strict run found nothing, but something was never put to the test."""


def verify(
    target: object,
    *,
    profile: str | None = None,
    invariants: str = "",
    seed: int | None = None,
    max_examples: int | None = None,
    dialect: Dialect | str | None = None,
    strict: bool = False,
    known: str | Path | None = None,
) -> Ended:
    """Verify a scheduler's request lifecycle; raise Violation with a short trace if it is broken.

    ``target`` is a ``schedcheck.sut.Target``, a class or function that makes one, or what one
    types on the command line (``"reference"``, ``"vllm"``, ``"my_pkg.my_mod:MyAdapter"``); it runs
    in this process. ``profile`` is ``quick`` unless the test runner says otherwise, and a quarter
    of its traces are run unless ``max_examples`` is given. ``invariants`` are patterns as
    ``KV-*,!KV-003``; empty: all. Equal seeds give equal runs of a test program; the default is 0.

    ``known`` is the known-issue ledger: a file, ``"none"``, or None for the catalogue's. What it
    says of the target's version raises nothing; the returned ``known`` tells what was seen of it.

    Returns what was reached. What was never put to the test is a VacuityWarning, with ``strict``
    a Vacuous error. A violation's trace is saved under ``.schedcheck/traces``. Raises TargetError,
    UnknownProfile, UnknownInvariant and LedgerError.
    """
    __tracebackhide__ = True
    around = context.current()
    plan = plan_for(
        target,
        profile=around.profile(profile),
        invariants=invariants,
        dialect=dialect,
        known=known,
    )
    kind = machine_of(plan, FORMS["dispatcher"])
    ended = run(kind, rounds_of(settings_of(plan, max_examples)), seed=around.seed(seed))
    _tell_vacuity(ended, strict=strict)
    return ended


def settings_of(plan: Plan, max_examples: int | None = None) -> settings:
    """Return the Hypothesis settings of a plan."""
    return settings(
        max_examples=max_examples or max(1, plan.profile.traces // TRACES_SHARE),
        stateful_step_count=plan.profile.actions + 1,  # one step draws the load
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.generate,),
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )


def rounds_of(how: settings) -> tuple[settings, ...]:
    """Return the settings of each round in which so many examples are run."""
    rounds = max(1, how.max_examples // ROUND)
    each, more = divmod(how.max_examples, rounds)
    return tuple(settings(how, max_examples=each + (number < more)) for number in range(rounds))


def run(kind: type[LifecycleMachine], rounds: Sequence[settings], *, seed: int) -> Ended:
    """Run a machine with Hypothesis; shrink, save and raise what it finds."""
    __tracebackhide__ = True
    tally = Tally(seed=seed)
    kind = machine_of(kind.plan, kind, tally)
    around = context.current()
    around.on_begin(kind.plan.target_text, kind.plan.profile.name, seed)
    try:
        for number, how in enumerate(rounds):
            kind.salt = f"{seed}/{number}"
            run_state_machine_as_test(seeded(kind.salt)(kind), settings=how)
    except Exception:
        # Whatever Hypothesis makes of a failure (a group, a complaint about flakiness), what
        # failed is in the tally. Without one, something else is wrong, and passes.
        if tally.failing is None:
            raise
    if tally.failing is None:
        ended = tally.ended(kind.plan)
        around.on_end(ended)
        return ended
    failure, saved = _shrink(kind.plan, tally.failing)
    around.on_violation(failure, saved)
    raise violation(failure, saved) from None


@define
class _Keeper:
    """Keeps the smallest failure heard of, also as a file, so that nothing is lost midway."""

    failure: Failure
    saved: Path | None = None

    def hear(self, failure: Failure) -> None:
        """Save a failure, in the file of the larger one before."""
        self.failure = failure
        try:
            self.saved = save(failure)
        except TraceUnwritable as error:
            self.saved = None
            print(f"{error}; the trace is:\n{failure.trace}", file=sys.stderr)  # noqa: T201


def _shrink(plan: Plan, failing: Failing) -> tuple[Failure, Path | None]:
    keeper = _Keeper(failing.failure)

    def emit(event: JobEvent) -> None:
        if isinstance(event, Found | Shrunk):
            keeper.hear(event.failure)

    done = shrink_and_report(
        plan.target,
        [Start(failing.trace, failing.failure.origin)],
        failing.finding.signature,
        plan.invariants,
        emit=emit,
        budget_for=lambda: Budget(executions_max=EXECUTIONS_MAX),
        known=signatures_of(plan.known),
    )
    if not done:
        origin = f"{failing.failure.origin} · NOT SHOWN AGAIN: the target is not deterministic"
        keeper.hear(evolve(failing.failure, origin=origin))
    return keeper.failure, keeper.saved


def gaps(ended: Ended) -> Iterator[str]:
    """Yield what a run left untested, each with what would help."""
    for word, times in ended.seen.actions.items():
        if times == 0:
            yield f"{word} never ran in {ended.traces} traces"
    for result in ended.results:
        if result.verdict is Verdict.VACUOUS:
            yield f"{result.id} is vacuous ({result.reason})"
        elif result.verdict is Verdict.UNKNOWN:
            yield f"{result.id} is unknown: its checker failed ({result.reason})"
    if ended.crashes_ignored:
        yield f"{ended.crashes_ignored} traces ended in a crash, which only ENG-001 looks at"


def _tell_vacuity(ended: Ended, *, strict: bool) -> None:
    found = list(gaps(ended))
    if not found:
        return
    text = (
        f"{ended.target}, profile {ended.profile}, seed {ended.seed}: {'; '.join(found)}. "
        f"More traces (max_examples=) or another profile may reach it"
    )
    if strict:
        raise Vacuous(text)
    warnings.warn(text, VacuityWarning, stacklevel=3)


def test_case_of(kind: type[LifecycleMachine]) -> type[unittest.TestCase]:
    """Return a TestCase that runs a machine as ``verify`` does."""
    by_default = settings_of(kind.plan)

    class LifecycleTestCase(unittest.TestCase):
        """Runs the machine. Assign ``settings`` to change how."""

        settings: ClassVar[settings] = by_default

        def runTest(self) -> None:  # noqa: N802  unittest's own name
            __tracebackhide__ = True
            around = context.current()
            machine = kind
            rounds: Sequence[settings] = (self.settings,)
            if self.settings is by_default:  # nobody chose otherwise
                profile = around.profile_forced or kind.plan.profile.name
                plan = evolve(kind.plan, profile=get_profile(profile))
                machine, rounds = machine_of(plan, kind), rounds_of(settings_of(plan))
            _tell_vacuity(run(machine, rounds, seed=around.seed(None)), strict=False)

    LifecycleTestCase.__name__ = LifecycleTestCase.__qualname__ = f"{kind.__name__}.TestCase"
    LifecycleTestCase.__module__ = kind.__module__
    return LifecycleTestCase
