"""Examining a target: is it what it says, does it answer as agreed, is it the same twice?

A search of its own is made, shorter than any run: what traces show of each capability is
collected, and invariants other than those about answers and repetition are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from attrs import define, field

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.evidence import BEHAVIOUR, Evidence
from schedcheck.engine.executor import BlackBox
from schedcheck.engine.play import play_actions
from schedcheck.engine.profiles import draw_load, get_profile
from schedcheck.invariants.registry import Invariant, every_invariant, select
from schedcheck.model.capability import Capability
from schedcheck.model.check import Check, State, ok
from schedcheck.model.options import Options
from schedcheck.model.trace import Trace
from schedcheck.model.verdict import Finding
from schedcheck.sut import Target

TRACES_MIN: Final = 40
"""Traces that are played in any case."""
TRACES_MAX: Final = 400
"""Traces after which a capability that nothing has shown is taken for missing."""
REPEATED: Final = 10
"""Traces that are played twice and looked at twice as often."""
RAISED_SHARE: Final = 0.2
"""Of the traces: where more end in an exception, hardly anything else can be said."""


@define(kw_only=True)
class Examination:
    """One target, examined."""

    target: Target
    target_text: str
    options: Options
    seed: int = 0
    blackbox: BlackBox | None = None
    evidence: Evidence = field(init=False, factory=Evidence)
    traces: int = field(init=False, default=0)
    _raised: int = field(init=False, default=0)
    """Traces that ended because a call raised."""
    _found: dict[str, str] = field(init=False, factory=dict)
    """What was seen of each invariant that did not hold: the first time."""

    def checks(self) -> Iterator[Check]:
        """Yield one check after another."""
        yield self._configurations()
        self._search()
        yield self._held("answers", ("ENG-003",), f"all of {self.traces} traces as agreed")
        yield self._calls()
        yield self._held("determinism", ("DET-001",), f"{REPEATED} traces came out the same twice")
        yield self._held("looks", ("DET-002",), f"looking changed nothing in {REPEATED} traces")
        yield from self._capabilities()

    def _campaign(self, invariants: Sequence[Invariant]) -> Campaign:
        return Campaign(
            target=self.target,
            target_text=self.target_text,
            options=self.options,
            profile=get_profile("quick"),
            invariants=invariants,
            seed=self.seed,
            emit=lambda _event: None,
            blackbox=self.blackbox,
        )

    def _configurations(self) -> Check:
        """Look at whether a configuration that it honours is honoured unchanged."""
        what = "configurations"
        for number in range(1, TRACES_MIN + 1):
            rng = Random(f"{self.seed}/{number}")
            config = draw_load(self.target, get_profile("quick"), rng).config
            again = self.target.honours(config)
            if again != config:
                return Check(
                    what=what,
                    state=State.CHANGED,
                    detail=f"honours() answers {again} when it is asked again about {config}",
                    fix="return a configuration that was returned before unchanged",
                )
        return ok(what, f"all of {TRACES_MIN} are honoured as they were answered")

    def _search(self) -> None:
        faults, repeats = select("ENG-*"), select("ENG-*,DET-*")
        campaign = self._campaign(faults)
        wanted = self.target.capabilities - BEHAVIOUR
        while self.traces < TRACES_MAX:
            self.traces += 1
            trace, findings = campaign.play_one(self.traces)
            self._note(findings)
            self._raised += any(one.invariant == "ENG-001" for one in findings)
            is_repeated = self.traces <= REPEATED
            self._play(trace, repeats if is_repeated else faults, repeat=is_repeated)
            if self.traces >= TRACES_MIN and wanted <= self.evidence.seen.keys():
                return

    def _play(self, trace: Trace, invariants: Sequence[Invariant], *, repeat: bool) -> None:
        self.evidence.begin(trace.header.config)
        playback = play_actions(
            self.target,
            trace.header,
            trace.actions,
            invariants,
            watch=self.evidence.see,
            blackbox=self.blackbox,
            repeat=repeat,
        )
        self._note(playback.findings)
        if playback.drift:  # it was eligible when the trace was made
            self._found.setdefault("DET-001", playback.drift)

    def _note(self, findings: Sequence[Finding]) -> None:
        for one in findings:
            self._found.setdefault(one.invariant, f"{one.signature}: {one.mismatch.found}")

    def _held(self, what: str, invariants: Sequence[str], detail: str) -> Check:
        for one in invariants:
            if one in self._found:
                fix = f"schedcheck run with --invariants {one} makes the smallest trace of it"
                return Check(what=what, state=State.CHANGED, detail=self._found[one], fix=fix)
        return ok(what, detail)

    def _calls(self) -> Check:
        """Look at how many traces end in an exception: a few are a fault to be run for."""
        what, told = "calls", f"raised in {self._raised} of {self.traces} traces"
        if not self._raised:
            return ok(what, told)
        told = f"{told}, first {self._found['ENG-001']}"
        if self._raised <= self.traces * RAISED_SHARE:
            return ok(what, told)
        fix = "schedcheck run with --invariants ENG-001 makes the smallest trace of it"
        return Check(what=what, state=State.CHANGED, detail=told, fix=fix)

    def _capabilities(self) -> Iterator[Check]:
        claimed, seen = self.target.capabilities, self.evidence.seen
        for one in Capability:
            what = f"capability {one}"
            if one in BEHAVIOUR and one in claimed:
                judges = [each.id for each in every_invariant() if one in each.requires]
                told = f"judged by {', '.join(judges)}" if judges else "it says how to judge others"
                yield ok(what, f"claimed; {told}")
            elif one in claimed and one in seen:
                yield ok(what, f"claimed, and seen: {seen[one]}")
            elif one in claimed:
                yield Check(
                    what=what,
                    state=State.MISSING,
                    detail=f"claimed, and never seen in {self.traces} traces",
                    fix="mend the adapter, or do not claim it: a false claim gives false alarms",
                )
            elif one in seen and one not in BEHAVIOUR:
                yield Check(
                    what=what,
                    state=State.CHANGED,
                    detail=f"not claimed, yet seen: {seen[one]}",
                    fix="claim it, so that what needs it is checked",
                )
