"""Judging while it is recorded: whatever is wrong is logged, and the engine goes on."""

from __future__ import annotations

from typing import Any

from schedcheck.model.actions import Action
from schedcheck.model.trace import Header
from schedcheck.model.verdict import Signature
from schedcheck.recording.checking import Checker
from schedcheck.recording.telling import tell_of
from schedcheck.tracefile import Beginning, RecordedStep, Tokens
from schedcheck.tracefile.events import EventDecoder, nameless
from schedcheck.tracefile.recorded import AnyForm


class OnlineCheck:
    """Judges one recording from its beginning; what was there before has an unknown history."""

    def __init__(self, header: Header) -> None:
        self.checker = Checker(Beginning(header=header, tokens=Tokens.COUNTS))
        self._decoder = EventDecoder(
            lambda add: nameless(add.spec.prompt_tokens_count), _no_action, shows_refs=False
        )
        self._number = 0
        self._told: set[Signature] = set()

    def take(self, action: Action, form: AnyForm) -> None:
        """Judge what an action led to, and log what is wrong with it."""
        self._number += 1
        event = self._decoder.event_of(form, action)
        findings = self.checker.take(
            RecordedStep(line=0, number=self._number, action=action, events=(event,))
        )
        if findings:
            tell_of(self.checker, findings, self._told)


def _no_action(_found: dict[str, Any]) -> Action:
    raise AssertionError("each action stands in a line of its own")
