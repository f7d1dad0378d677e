"""The request lifecycle as a Hypothesis state machine, in two forms that stand on one Driver.

Rules
-----
- The default form has one rule, which draws one integer and decodes it into an action that is
  eligible. Hypothesis switches a random part of a machine's rules off in each trace, and a
  lifecycle without ``add`` or ``step`` finds nothing: with one rule there is nothing to switch off.
- The second form has a rule for each kind of action, for people who read and extend it.
- A zero leaves the choice to the trace's own generator. Hypothesis fills much of what it tries with
  zeros, up to half in some releases, which would be traces of nothing but plain steps.
- A trace's configuration and load come from an ``initialize`` rule, its quiet tail from
  ``teardown``; a violation in the tail fails the test like any other.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from random import Random
from typing import ClassVar, Final, Literal, cast

from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from schedcheck.catalogue.exemptions import known_issues
from schedcheck.engine.moves import INTEGER_BITS, why_not
from schedcheck.engine.profiles import draw_load, get_profile
from schedcheck.engine.targets import as_target, resolve
from schedcheck.invariants.registry import select
from schedcheck.model.actions import Action
from schedcheck.model.config import Dialect
from schedcheck.model.known import covering
from schedcheck.oracles.ledger import Ledger
from schedcheck.stateful.driver import Driver, Plan, Tally
from schedcheck.stateful.strategies import numbers, seeds
from schedcheck.sut import Target, TargetError

Form = Literal["dispatcher", "named"]

_PLAINEST: Final = "step"


class _TestCaseOf:
    """Gives each machine class one TestCase, whose ``settings`` can be assigned as usual."""

    def __get__(
        self, machine: LifecycleMachine | None, kind: type[LifecycleMachine]
    ) -> type[unittest.TestCase]:
        if "_lifecycle_case" not in vars(kind):
            from schedcheck.stateful.verify import test_case_of  # noqa: PLC0415  it imports us

            kind._lifecycle_case = test_case_of(kind)  # noqa: SLF001  our own class
        return kind._lifecycle_case  # noqa: SLF001  the same


class LifecycleMachine(RuleBasedStateMachine):
    """What both forms have in common: a driver, the load of a trace, and the quiet tail.

    A rule of your own calls ``do`` with an action that is eligible now (``can`` says which kinds
    are); it raises ``schedcheck.Violation`` when an invariant does not hold.
    """

    plan: ClassVar[Plan]
    tally: ClassVar[Tally]
    salt: ClassVar[str] = ""
    """Goes into every trace's own generator, so that no two rounds of a run begin alike."""
    _lifecycle_case: ClassVar[type[unittest.TestCase]]
    TestCase = _TestCaseOf()  # type: ignore[assignment]  # a descriptor as well, and a narrower one

    def __init__(self) -> None:
        super().__init__()
        self._driver: Driver | None = None
        self._generator = Random(self.salt)
        self._exception_outside = sys.exception()

    @property
    def driver(self) -> Driver:
        """The trace being played. It exists once the load has been drawn."""
        assert self._driver is not None, "the load is drawn before anything else"
        return self._driver

    @property
    def ledger(self) -> Ledger:
        """The history so far, to be read."""
        return self.driver.judge.ledger

    @initialize(seed=seeds())
    def draw_the_load(self, seed: int) -> None:
        """Draw the configuration and the traffic of this trace, and open a scheduler."""
        plan = self.plan
        self._generator.seed(f"{self.salt}/{seed}")
        load = draw_load(plan.target, plan.profile, self._generator, dialect=plan.dialect)
        self._driver = Driver(plan, load, self.tally)

    def do(self, action: Action) -> None:
        """Carry out an action. Raises Violation, and ValueError if it is not eligible now."""
        reason = why_not(action, self.ledger, self.plan.target.capabilities)
        if reason is not None:
            raise ValueError(f"{action.do} is not eligible now: {reason}")
        self.driver.do(action)

    def can(self, word: str) -> bool:
        """Return whether an action of this kind is eligible now."""
        if self._driver is None:
            return False
        # Hypothesis wants a rule to be left even when nothing more can happen.
        return word == _PLAINEST if self.driver.is_over else word in self.driver.offered()

    def choose(self, word: str, number: int = 0) -> None:
        """Carry out an action of this kind, the integer choosing what it is about."""
        if not self.driver.is_over:
            self.do(self.driver.offered()[word].build(self.number_for(number)))

    def number_for(self, drawn: int) -> int:
        """Return the integer to decode: one less than what was drawn, for zero one of our own."""
        return drawn - 1 if drawn else self._generator.getrandbits(INTEGER_BITS)

    def teardown(self) -> None:
        """Run the quiet tail, unless something was raised before, and close the scheduler."""
        if self._driver is None:
            return
        raised = sys.exception() is not self._exception_outside
        try:
            if not raised:
                self.driver.drain()
        finally:
            self.driver.close()


class DispatcherMachine(LifecycleMachine):
    """One rule, one integer, any eligible action."""

    @rule(number=numbers())
    def act(self, number: int) -> None:
        """Do what the integer chooses among everything that can happen now."""
        if not self.driver.is_over:
            self.do(self.driver.decode(self.number_for(number)))


class NamedMachine(LifecycleMachine):
    """One rule for each kind of action, under the action's own name."""

    @precondition(lambda self: self.can("add"))
    @rule(number=numbers())
    def add(self, number: int) -> None:
        """Send a request, described by the integer."""
        self.choose("add", number)

    @precondition(lambda self: self.can("step"))
    @rule()
    def step(self) -> None:
        """Plan a step, then complete the oldest in flight."""
        self.choose("step")

    @precondition(lambda self: self.can("schedule"))
    @rule()
    def schedule(self) -> None:
        """Plan a step, which stays in flight."""
        self.choose("schedule")

    @precondition(lambda self: self.can("complete"))
    @rule()
    def complete(self) -> None:
        """Complete the oldest step in flight."""
        self.choose("complete")

    @precondition(lambda self: self.can("preempt"))
    @rule(number=numbers(32))
    def preempt(self, number: int) -> None:
        """Preempt a running request by force."""
        self.choose("preempt", number)

    @precondition(lambda self: self.can("finish_transfer"))
    @rule(number=numbers(32))
    def finish_transfer(self, number: int) -> None:
        """End a KV load."""
        self.choose("finish_transfer", number)

    @precondition(lambda self: self.can("fail_transfer"))
    @rule(number=numbers(32))
    def fail_transfer(self, number: int) -> None:
        """End a KV load with an error."""
        self.choose("fail_transfer", number)

    @precondition(lambda self: self.can("finish_send"))
    @rule(number=numbers(32))
    def finish_send(self, number: int) -> None:
        """End the sending of a finished request's KV."""
        self.choose("finish_send", number)

    @precondition(lambda self: self.can("abort"))
    @rule(number=numbers(32))
    def abort(self, number: int) -> None:
        """Give a request up."""
        self.choose("abort", number)

    @precondition(lambda self: self.can("reset_prefix_cache"))
    @rule(number=numbers(32))
    def reset_prefix_cache(self, number: int) -> None:
        """Empty the prefix cache, sometimes preempting all that runs."""
        self.choose("reset_prefix_cache", number)


FORMS: Final[dict[str, type[LifecycleMachine]]] = {
    "dispatcher": DispatcherMachine,
    "named": NamedMachine,
}


def machine(
    target: object,
    *,
    profile: str = "quick",
    invariants: str = "",
    form: Form = "dispatcher",
    dialect: Dialect | str | None = None,
    known: str | Path | None = None,
) -> type[LifecycleMachine]:
    """Make a Hypothesis state machine of a scheduler: ``machine(MyScheduler).TestCase``.

    ``target`` is a ``schedcheck.sut.Target``, a class or function that makes one, or what one
    types on the command line (``"reference"``, ``"vllm"``, ``"my_pkg.my_mod:MyAdapter"``).
    ``invariants`` are patterns as ``KV-*,!KV-003``; empty: all. ``known`` is a known-issue ledger,
    as in ``verify``. The class can be given more rules in a subclass. Raises TargetError,
    UnknownProfile, UnknownInvariant and LedgerError.
    """
    if form not in FORMS:
        raise ValueError(f"no form {form!r} of the machine; there are {', '.join(FORMS)}")
    plan = plan_for(target, profile=profile, invariants=invariants, dialect=dialect, known=known)
    return machine_of(plan, FORMS[form])


def machine_of(
    plan: Plan, base: type[LifecycleMachine], tally: Tally | None = None
) -> type[LifecycleMachine]:
    """Return a machine class of its own for a plan, with a tally of its own."""
    members = {
        "plan": plan,
        "tally": tally or Tally(),
        "__module__": base.__module__,
        "__doc__": base.__doc__,
    }
    return cast("type[LifecycleMachine]", type(base.__name__, (base,), members))


def plan_for(
    target: object,
    *,
    profile: str,
    invariants: str,
    dialect: Dialect | str | None,
    known: str | Path | None = None,
) -> Plan:
    """Resolve what people write.

    Raises TargetError, UnknownProfile, UnknownInvariant and LedgerError.
    """
    found, text = _found(target)
    if dialect is not None and dialect not in found.dialects:
        spoken = ", ".join(found.dialects)
        raise TargetError(f"{text} does not speak the dialect {dialect}, only {spoken}")
    return Plan(
        target=found,
        target_text=text,
        profile=get_profile(profile),
        invariants=select(invariants),
        dialect=None if dialect is None else Dialect(dialect),
        known=covering(known_issues(known), found.name, found.version),
    )


def _found(target: object) -> tuple[Target, str]:
    """Return the target and the text that names it in a trace."""
    if isinstance(target, str):
        return _named(target), target.partition("==")[0]  # the release is the target's version
    text = _importable_name(target)
    found = as_target(target, name=text or repr(target))
    return found, text or found.name


def _named(text: str) -> Target:
    """Resolve a name in this process. Raises TargetError if it needs a process of its own."""
    engine, pinned, release = text.partition("==")
    if not pinned:
        return resolve(text)
    try:
        found = resolve(engine)
        here = f"this process has {engine} {found.version}".rstrip()
    except TargetError as error:
        found, here = None, f"this process has none ({str(error).partition(';')[0]})"
    if found is None or found.version != release:
        raise TargetError(
            f"{text} cannot be verified here: {here}. In an environment of its own: "
            f"schedcheck run {text}"
        )
    return found


def _importable_name(thing: object) -> str:
    """Return ``package.module:Adapter`` for a class or function found there; empty for others."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    if not isinstance(module, str) or module not in sys.modules or module == "__main__":
        return ""
    found = getattr(sys.modules[module], name, None) if isinstance(name, str) else None
    return f"{module}:{name}" if name and found is thing else ""
