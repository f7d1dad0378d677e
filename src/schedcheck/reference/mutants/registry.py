"""Every mutant and variant, what it is evidence of, and what kills it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from attrs import frozen

from schedcheck.reference.mutants import (
    blocks,
    budgets,
    classification,
    ends,
    tokens,
    transfers,
)
from schedcheck.reference.scheduler import Scheduler
from schedcheck.sut import TargetError

_VLLM: Final = "https://github.com/vllm-project/vllm"


@frozen(kw_only=True)
class Mutant:
    """The reference with one seeded fault; or a variant, with none."""

    name: str
    scheduler_class: type[Scheduler]
    evidence: tuple[str, ...]
    """Upstream issues that show that the fault was real."""
    must_kill: tuple[str, ...] = ()
    """Invariants of which each is found violated within the quick profile. Empty: a variant."""
    may_kill: tuple[str, ...] = ()
    """Invariants that may be violated in the same step, or sooner in some traces."""

    @property
    def is_variant(self) -> bool:
        """Whether it is another way of being right, which nothing may kill."""
        return not self.must_kill

    @property
    def summary(self) -> str:
        """The fault in one sentence."""
        return (self.scheduler_class.__doc__ or "").partition("\n")[0]


MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="resumed-as-new",
        scheduler_class=classification.ResumedAsNew,
        evidence=(f"{_VLLM}/pull/31583",),
        must_kill=("REQ-001",),
    ),
    Mutant(
        name="loading-set-not-cleaned",
        scheduler_class=classification.LoadingSetNotCleaned,
        evidence=(f"{_VLLM}/pull/31583",),
        must_kill=("REQ-002",),
    ),
    Mutant(
        name="resumed-as-running",
        scheduler_class=classification.ResumedAsRunning,
        evidence=(f"{_VLLM}/pull/46595",),
        must_kill=("REQ-001",),
    ),
    Mutant(
        name="resumed-twice",
        scheduler_class=classification.ResumedTwice,
        evidence=(f"{_VLLM}/issues/21594",),
        must_kill=("SCH-001",),
        may_kill=("SCH-002", "SCH-003"),
    ),
    Mutant(
        name="skipped-as-resumed",
        scheduler_class=classification.SkippedAsResumed,
        evidence=(f"{_VLLM}/pull/46595",),
        must_kill=("REQ-003",),
    ),
    Mutant(
        name="leak-on-abort-while-loading",
        scheduler_class=blocks.LeakOnAbortWhileLoading,
        evidence=("https://github.com/vllm-project/vllm-ascend/pull/16663",),
        must_kill=("KV-001",),
        may_kill=("PRG-001",),
    ),
    Mutant(
        name="freed-while-loading",
        scheduler_class=blocks.FreedWhileLoading,
        evidence=(f"{_VLLM}/pull/32255",),
        must_kill=("KV-002",),
        may_kill=(
            "REQ-006",
            "KV-004",
        ),
    ),
    Mutant(
        name="freed-while-sending",
        scheduler_class=blocks.FreedWhileSending,
        evidence=(f"{_VLLM}/issues/46240",),
        must_kill=("KV-002",),
    ),
    Mutant(
        name="freed-in-flight",
        scheduler_class=blocks.FreedInFlight,
        evidence=(
            f"{_VLLM}/pull/45357",
            "https://github.com/vllm-project/vllm-ascend/issues/14055",
        ),
        must_kill=("KV-002",),
        may_kill=("KV-004",),
    ),
    Mutant(
        name="double-free-on-preemption",
        scheduler_class=blocks.DoubleFreeOnPreemption,
        evidence=(
            "https://github.com/sgl-project/sglang/pull/18694",
            f"{_VLLM}/issues/42571",
        ),
        must_kill=("KV-003",),
        may_kill=("KV-002", "KV-004", "KV-006"),
    ),
    Mutant(
        name="block-handed-out-twice",
        scheduler_class=blocks.BlockHandedOutTwice,
        evidence=(f"{_VLLM}/issues/42571",),
        must_kill=("KV-006",),
        may_kill=("KV-002", "KV-003", "KV-004"),
    ),
    Mutant(
        name="table-too-short",
        scheduler_class=blocks.TableTooShort,
        evidence=("https://github.com/LMCache/LMCache/issues/2327",),
        must_kill=("KV-005",),
        may_kill=("KV-004",),
    ),
    Mutant(
        name="victim-in-step",
        scheduler_class=blocks.VictimInStep,
        evidence=(f"{_VLLM}/issues/21594", f"{_VLLM}/issues/23347"),
        must_kill=("SCH-005",),
    ),
    Mutant(
        name="finish-never-announced",
        scheduler_class=ends.FinishNeverAnnounced,
        evidence=(f"{_VLLM}/pull/15043",),
        must_kill=("REQ-004",),
    ),
    Mutant(
        name="finish-announced-twice",
        scheduler_class=ends.FinishAnnouncedTwice,
        evidence=(f"{_VLLM}/pull/43433",),
        must_kill=("REQ-004",),
    ),
    Mutant(
        name="delivers-after-abort",
        scheduler_class=ends.DeliversAfterAbort,
        evidence=(f"{_VLLM}/pull/14326",),
        must_kill=("TOK-002",),
        may_kill=("TOK-001", "REQ-001"),
    ),
    Mutant(
        name="exceeds-max-tokens",
        scheduler_class=ends.ExceedsMaxTokens,
        evidence=(f"{_VLLM}/pull/57676",),
        must_kill=("TOK-002",),
    ),
    Mutant(
        name="ended-but-scheduled",
        scheduler_class=ends.EndedButScheduled,
        evidence=(f"{_VLLM}/pull/14326",),
        must_kill=("REQ-007",),
        may_kill=("SCH-001", "REQ-002", "SCH-003", "SCH-002"),
    ),
    Mutant(
        name="late-completion-revives",
        scheduler_class=ends.LateCompletionRevives,
        evidence=(f"{_VLLM}/pull/32255",),
        must_kill=("REQ-006",),
        may_kill=("REQ-005",),
    ),
    Mutant(
        name="sleeps-with-delayed-free",
        scheduler_class=ends.SleepsWithDelayedFree,
        evidence=(f"{_VLLM}/pull/43433",),
        must_kill=("PRG-002",),
    ),
    Mutant(
        name="lost-from-queues",
        scheduler_class=ends.LostFromQueues,
        evidence=(f"{_VLLM}/pull/57841",),
        must_kill=("REQ-005",),
    ),
    Mutant(
        name="budget-overrun",
        scheduler_class=budgets.BudgetOverrun,
        evidence=(f"{_VLLM}/pull/7391",),
        must_kill=("SCH-002",),
    ),
    Mutant(
        name="running-limit-overrun",
        scheduler_class=budgets.RunningLimitOverrun,
        evidence=(f"{_VLLM}/issues/257",),
        must_kill=("SCH-003",),
    ),
    Mutant(
        name="schedules-one-too-many",
        scheduler_class=budgets.SchedulesOneTooMany,
        evidence=(f"{_VLLM}/issues/45138",),
        must_kill=("SCH-004",),
        may_kill=("TOK-001",),
    ),
    Mutant(
        name="crashes-on-equal-priority",
        scheduler_class=budgets.CrashesOnEqualPriority,
        evidence=(f"{_VLLM}/pull/29764",),
        must_kill=("ENG-001",),
    ),
    Mutant(
        name="answers-nonsense",
        scheduler_class=budgets.AnswersNonsense,
        evidence=(f"{_VLLM}/pull/28558",),
        must_kill=("ENG-003",),
    ),
    Mutant(
        name="late-completion-promotes-reused-id",
        scheduler_class=transfers.LateCompletionPromotesReusedId,
        evidence=(f"{_VLLM}/pull/32255",),
        must_kill=("XFER-001",),
        may_kill=("KV-002",),
    ),
    Mutant(
        name="loads-deadlock",
        scheduler_class=transfers.LoadsDeadlock,
        evidence=(f"{_VLLM}/pull/44560",),
        must_kill=("PRG-001",),
    ),
    Mutant(
        name="failed-load-kept",
        scheduler_class=transfers.FailedLoadKept,
        evidence=(
            "https://github.com/vllm-project/vllm-ascend/issues/10561",
            f"{_VLLM}/issues/45138",
        ),
        must_kill=("KV-004",),
    ),
    Mutant(
        name="load-rounded-up",
        scheduler_class=transfers.LoadRoundedUp,
        evidence=(f"{_VLLM}/pull/34616",),
        must_kill=("KV-004",),
    ),
    Mutant(
        name="scheduled-while-loading",
        scheduler_class=transfers.ScheduledWhileLoading,
        evidence=(f"{_VLLM}/pull/32255",),
        must_kill=("XFER-001",),
        may_kill=("REQ-001",),
    ),
    Mutant(
        name="token-lost",
        scheduler_class=tokens.TokenLost,
        evidence=(f"{_VLLM}/pull/42117",),
        must_kill=("TOK-001",),
    ),
    Mutant(
        name="token-repeated",
        scheduler_class=tokens.TokenRepeated,
        evidence=(f"{_VLLM}/pull/38624",),
        must_kill=("TOK-001",),
        may_kill=("REQ-006", "SCH-004", "KV-004"),
    ),
    Mutant(
        name="repair-by-status",
        scheduler_class=Scheduler,
        evidence=(f"{_VLLM}/pull/31583",),
    ),
    Mutant(
        name="repair-by-set",
        scheduler_class=classification.RepairBySet,
        evidence=(f"{_VLLM}/pull/31583",),
    ),
)
"""Mutants in order of concern; the variants, which nothing may kill, come last."""


def find(name: str) -> Mutant:
    """Return a mutant or variant. Raises TargetError, naming the nearest, if there is none."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    near = get_close_matches(name, [mutant.name for mutant in MUTANTS], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise TargetError(f"no mutant {name!r}{hint} (schedcheck list mutants shows them all)")
