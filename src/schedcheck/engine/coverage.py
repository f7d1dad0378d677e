"""Coverage: which actions, lifecycle edges and journeys a run reached, counted by ourselves."""

from __future__ import annotations

from collections import Counter

from attrs import Factory, define

from schedcheck.engine.events import Seen
from schedcheck.model.actions import ACTIONS
from schedcheck.model.capability import Capability
from schedcheck.model.lifecycle import LAWFUL, TRANSITIONS, name_of
from schedcheck.model.trace import StepRecord
from schedcheck.oracles.ledger import Ledger


@define
class Coverage:
    """Counts what a run reached. Fold each event's ledger while it is fresh."""

    actions: Counter[str] = Factory(Counter)
    transitions: Counter[str] = Factory(Counter)
    journeys: Counter[str] = Factory(Counter)
    signatures: Counter[str] = Factory(Counter)
    traces: int = 0

    @property
    def actions_total(self) -> int:
        """Actions carried out so far."""
        return self.actions.total()

    def see_event(self, ledger: Ledger) -> None:
        """Count what the event folded last brought."""
        for _, before, after in ledger.changes:
            if (before, after) in LAWFUL:
                self.transitions[f"{name_of(before)} -> {name_of(after)}"] += 1
        for fact in ledger.facts:
            if fact.path:
                self.journeys[fact.journey] += 1

    def see_step(self, record: StepRecord) -> None:
        """Count an action."""
        self.actions[record.action.do] += 1

    def seen(self, capabilities: frozenset[Capability]) -> Seen:
        """Return the counts, with a zero for whatever this target should have reached."""
        missing = {
            action.do: ", ".join(sorted(action.needs - capabilities))
            for action in ACTIONS
            if action.needs - capabilities
        }
        expected = [str(edge) for edge in TRANSITIONS if edge.needs <= capabilities]
        return Seen(
            actions={a.do: self.actions[a.do] for a in ACTIONS if a.do not in missing},
            actions_missing=missing,
            transitions={
                edge: self.transitions[edge]
                for edge in [*expected, *sorted(set(self.transitions) - set(expected))]
            },
            journeys=dict(sorted(self.journeys.items())),
            signatures=dict(sorted(self.signatures.items())),
        )
