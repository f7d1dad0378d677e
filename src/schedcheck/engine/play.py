"""Playing a list of actions on a fresh scheduler, from the first to the first finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from attrs import evolve, frozen

from schedcheck.engine.executor import BlackBox, Executor, Watch
from schedcheck.engine.moves import why_not
from schedcheck.engine.repeat import is_about_repetition, play_again
from schedcheck.invariants.registry import Invariant
from schedcheck.judge import Judge
from schedcheck.model.actions import (
    Action,
    Complete,
    Drain,
    FinishSend,
    FinishTransfer,
    Schedule,
)
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.trace import (
    Completed,
    Controlled,
    Crashed,
    Header,
    Scheduled,
    StepRecord,
    Trace,
    Transfer,
    TransferEnded,
)
from schedcheck.model.verdict import Finding, Signature
from schedcheck.sut import Refused, Target, TargetError


@frozen(kw_only=True)
class Playback:
    """What playing a trace showed."""

    records: tuple[StepRecord, ...]
    """One for each action carried out, the skipped ones left out."""
    judge: Judge
    drift: str = ""
    """Why a strict playback stopped before its end: which action was not eligible, and why."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the last action showed; a playback ends with its first finding."""
        return self.records[-1].findings if self.records else ()

    @property
    def has_crashed(self) -> bool:
        """Whether a call raised that no chosen invariant looks at."""
        return any(isinstance(event, Crashed) for one in self.records for event in one.events)

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions that were carried out."""
        return tuple(record.action for record in self.records)


def looking_past(
    known: AbstractSet[Signature],
    wanted: Signature,
    playing: Callable[[AbstractSet[Signature]], Playback],
) -> Playback:
    """Return a playback that ends with what is wanted, going past known findings if it must.

    It is played with every finding counting first: what shows so shows anywhere, whatever ledger is
    there, and nothing wanted is taken for a consequence of something known.
    """
    first = playing(frozenset())
    found = {finding.signature for finding in first.findings}
    others = known - {wanted}
    if wanted in found or not found & others:
        return first
    return playing(others)


def spelled_out(playback: Playback) -> tuple[Action, ...]:
    """Return the actions carried out, a last drain spelled out as the actions it consisted of.

    A violation in the middle of a quiet tail is told better by what happened than by ``drain``;
    one that only the end of the tail shows needs the drain, which is then left as it is.
    """
    if not playback.records or not isinstance(playback.records[-1].action, Drain):
        return playback.actions
    *before, drain = playback.records
    steps: list[Action] = []
    for event in drain.events:
        match event:
            case Scheduled():
                steps.append(Schedule())
            case Controlled(action=action):
                steps.append(action)
            case Completed():
                steps.append(Complete())
            case TransferEnded(name=name, transfer=Transfer.LOAD):
                steps.append(FinishTransfer(name))
            case TransferEnded(name=name):
                steps.append(FinishSend(name))
            case _:
                return playback.actions
    return (*(record.action for record in before), *steps)


def check_config(target: Target, config: SchedulerConfig) -> None:
    """Raise TargetError if a target cannot be given exactly this configuration."""
    honoured = target.honours(config)
    if isinstance(honoured, Refused):
        raise TargetError(f"{target.name} refuses this configuration: {honoured.reason}")
    if honoured != config:
        raise TargetError(f"{target.name} cannot be given this configuration, only {honoured}")


def play(
    target: Target,
    trace: Trace,
    invariants: Sequence[Invariant],
    *,
    lenient: bool = False,
    watch: Watch | None = None,
    blackbox: BlackBox | None = None,
    known: AbstractSet[Signature] = frozenset(),
) -> Playback:
    """Play a trace until its first finding that is not ``known``, or its end.

    A strict playback stops at the first action that is not eligible; a lenient one skips it.
    Raises TargetError if the target cannot be given the trace's configuration.
    """
    check_config(target, trace.header.config)
    return play_actions(
        target,
        trace.header,
        trace.actions,
        invariants,
        lenient=lenient,
        watch=watch,
        blackbox=blackbox,
        known=known,
    )


def play_actions(
    target: Target,
    header: Header,
    actions: Iterable[Action],
    invariants: Sequence[Invariant],
    *,
    lenient: bool = False,
    watch: Watch | None = None,
    blackbox: BlackBox | None = None,
    repeat: bool = False,
    known: AbstractSet[Signature] = frozenset(),
) -> Playback:
    """Play actions as ``play`` does, with a configuration known to be honoured.

    With ``repeat``, or if that is what the header is about, they are played once more and compared.
    """
    judge = Judge(header.config, target.capabilities, invariants, known)
    records: list[StepRecord] = []
    drift = ""
    if blackbox is not None:
        blackbox.begin(header)
    executor = Executor(target.open(header.config), judge, watch)
    try:
        for number, action in enumerate(actions, 1):
            reason = why_not(action, judge.ledger, target.capabilities)
            if reason is not None and lenient:
                continue
            if reason is not None:
                drift = f"action {number} ({action.do}) was not eligible: {reason}"
                break
            if blackbox is not None:
                blackbox.note(action)
            records.append(executor.apply(action))
            if records[-1].findings or judge.is_cut_short:
                break
    finally:
        executor.close()
        if blackbox is not None:
            blackbox.end()
    playback = Playback(records=tuple(records), judge=judge, drift=drift)
    is_whole = bool(records) and not (
        playback.findings or drift or playback.has_crashed or judge.is_cut_short
    )
    if is_whole and (repeat or is_about_repetition(header)):
        records[-1] = judged_again(target, header, records, judge)
        return Playback(records=tuple(records), judge=judge)
    return playback


def judged_again(
    target: Target, header: Header, records: Sequence[StepRecord], judge: Judge
) -> StepRecord:
    """Return the last record with what playing all of it once more showed."""
    last, again = records[-1], play_again(target, header, records)
    findings = judge.observe(again, step=last.number)
    return evolve(last, events=(*last.events, again), findings=findings)
