"""Hunting: which invariants kill a mutant, and in which traces.

A hunt plays the same traces as a campaign with that seed, shrinks nothing, and can stop as soon as
it has seen enough. So what ``run reference+MUTANT`` finds and what kills the mutant are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.profiles import PROFILES, Profile
from schedcheck.engine.targets import REFERENCE, resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.trace import Trace
from schedcheck.model.verdict import Finding
from schedcheck.reference.mutants.registry import Mutant

QUICK: Final = PROFILES["quick"]
VARIANT_TRACES: Final = 200
"""Traces after which nothing having fired on a variant is believed."""


@frozen(kw_only=True)
class Played:
    """One random trace of a hunt, as it was played."""

    number: int
    """Its number in the run, from 1."""
    trace: Trace
    findings: tuple[Finding, ...]
    """What its last action violates; empty: it held through its quiet tail."""

    @property
    def violates(self) -> frozenset[str]:
        """Ids of the invariants that its first violating step violates."""
        return frozenset(finding.invariant for finding in self.findings)


def hunt(
    target_text: str, *, profile: Profile = QUICK, seed: int = 0, traces: int | None = None
) -> Iterator[Played]:
    """Yield the traces of a run one by one; at most as many as the profile says, or ``traces``.

    Raises TargetError if there is no such target.
    """
    campaign = Campaign(
        target=resolve(target_text),
        target_text=target_text,
        profile=profile,
        invariants=every_invariant(),
        seed=seed,
        emit=lambda _event: None,
    )
    for number in range(1, 1 + (profile.traces if traces is None else traces)):
        trace, findings = campaign.play_one(number)
        yield Played(number=number, trace=trace, findings=findings)


@frozen(kw_only=True)
class Kills:
    """What killed one mutant: a row of the kill matrix."""

    mutant: Mutant
    found: frozenset[str]
    """Invariants that were violated at the first violating step of some trace."""
    traces: int
    """Traces played: up to the one that showed the last of what had to be found, or all."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What had to kill it and did not."""
        return tuple(sorted(set(self.mutant.must_kill) - self.found))

    @property
    def undeclared(self) -> tuple[str, ...]:
        """What killed it although the mutant declares it nowhere."""
        return tuple(sorted(self.found - declared_by(self.mutant)))


def declared_by(mutant: Mutant) -> frozenset[str]:
    """Return the invariants that must or may be violated where a mutant is first violated."""
    return frozenset(mutant.must_kill) | frozenset(mutant.may_kill)


def target_text_of(mutant: Mutant) -> str:
    """Return what the mutant is called on a command line."""
    return f"{REFERENCE}+{mutant.name}"


def kills_of(mutant: Mutant, *, seed: int = 0) -> Kills:
    """Hunt one mutant with the quick profile until everything that must kill it has done so.

    A variant, which nothing may kill, is played VARIANT_TRACES times.
    """
    must, found, number = frozenset(mutant.must_kill), set[str](), 0
    traces = VARIANT_TRACES if mutant.is_variant else QUICK.traces
    for played in hunt(target_text_of(mutant), seed=seed, traces=traces):
        number = played.number
        found |= played.violates
        if must and must <= found:
            break
    return Kills(mutant=mutant, found=frozenset(found), traces=number)
