"""Every mutant and variant, what it is evidence of, and what kills it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from attrs import frozen

from schedcheck.reference.mutants import (
    blocks,
    budgets,
    caching,
    classification,
    drafts,
    ends,
    impure,
    media,
    order,
    tokens,
    transfers,
    waiting,
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
        may_kill=(
            "CACHE-003",
            "KV-004",
        ),
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
        may_kill=(
            "KV-002",
            "KV-003",
            "KV-004",
            "KV-007",
            "KV-008",
        ),
    ),
    Mutant(
        name="table-too-short",
        scheduler_class=blocks.TableTooShort,
        evidence=("https://github.com/LMCache/LMCache/issues/2327",),
        must_kill=("KV-005",),
        may_kill=(
            "KV-004",
            "KV-009",
            "XFER-003",
        ),
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
        may_kill=("PRG-004",),
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
        may_kill=("REQ-008", "REQ-011", "TOK-001", "TOK-005"),
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
        name="sleeps-with-news",
        scheduler_class=ends.SleepsWithNews,
        evidence=(f"{_VLLM}/pull/43433",),
        must_kill=("PRG-004",),
        may_kill=("PRG-002",),
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
        may_kill=("TOK-004",),
    ),
    Mutant(
        name="token-repeated",
        scheduler_class=tokens.TokenRepeated,
        evidence=(f"{_VLLM}/pull/38624",),
        must_kill=("TOK-001",),
        may_kill=(
            "KV-004",
            "REQ-006",
            "SCH-004",
            "TOK-003",
        ),
    ),
    Mutant(
        name="scheduled-before-grammar",
        scheduler_class=waiting.ScheduledBeforeGrammar,
        evidence=("https://github.com/torch-spyre/sendnn-inference/pull/985",),
        must_kill=("REQ-008",),
    ),
    Mutant(
        name="admitted-before-lookup",
        scheduler_class=waiting.AdmittedBeforeLookup,
        evidence=(f"{_VLLM}/pull/23620",),
        must_kill=("REQ-008",),
    ),
    Mutant(
        name="scheduled-between-turns",
        scheduler_class=waiting.ScheduledBetweenTurns,
        evidence=(f"{_VLLM}/pull/52717",),
        must_kill=("REQ-008",),
        may_kill=(
            "REQ-002",
            "REQ-006",
        ),
    ),
    Mutant(
        name="session-ends-early",
        scheduler_class=waiting.SessionEndsEarly,
        evidence=(f"{_VLLM}/pull/53861",),
        must_kill=("REQ-010",),
    ),
    Mutant(
        name="continuation-loses-answer",
        scheduler_class=waiting.ContinuationLosesAnswer,
        evidence=(f"{_VLLM}/issues/49449", f"{_VLLM}/pull/28973"),
        must_kill=("TOK-001",),
        may_kill=("TOK-003",),
    ),
    Mutant(
        name="schedules-while-paused",
        scheduler_class=waiting.SchedulesWhilePaused,
        evidence=(f"{_VLLM}/pull/28721",),
        must_kill=("SCH-007",),
    ),
    Mutant(
        name="loads-while-paused",
        scheduler_class=waiting.LoadsWhilePaused,
        evidence=(f"{_VLLM}/pull/33926",),
        must_kill=("SCH-007",),
    ),
    Mutant(
        name="finish-reported-twice",
        scheduler_class=waiting.FinishReportedTwice,
        evidence=(f"{_VLLM}/pull/33377",),
        must_kill=("REQ-009",),
    ),
    Mutant(
        name="prefill-cut-without-chunks",
        scheduler_class=waiting.PrefillCutWithoutChunks,
        evidence=(f"{_VLLM}/pull/39608",),
        must_kill=("SCH-013",),
    ),
    Mutant(
        name="skipped-reversed",
        scheduler_class=waiting.SkippedReversed,
        evidence=(f"{_VLLM}/pull/32173",),
        must_kill=("SCH-012",),
    ),
    Mutant(
        name="drafts-beyond-model-length",
        scheduler_class=drafts.DraftsBeyondModelLength,
        evidence=(f"{_VLLM}/pull/53962", f"{_VLLM}/pull/50342"),
        must_kill=("SCH-006",),
        may_kill=("PRG-001", "PRG-003"),
    ),
    Mutant(
        name="window-moved-by-drafts",
        scheduler_class=drafts.WindowMovedByDrafts,
        evidence=(f"{_VLLM}/pull/47728",),
        must_kill=("KV-009",),
        may_kill=("KV-004",),
    ),
    Mutant(
        name="drafts-of-unscheduled",
        scheduler_class=drafts.DraftsOfUnscheduled,
        evidence=(f"{_VLLM}/pull/28558",),
        must_kill=("SCH-009",),
    ),
    Mutant(
        name="stale-drafts-after-resume",
        scheduler_class=drafts.StaleDraftsAfterResume,
        evidence=(f"{_VLLM}/pull/31944",),
        must_kill=("TOK-006",),
    ),
    Mutant(
        name="refused-drafts-counted",
        scheduler_class=drafts.RefusedDraftsCounted,
        evidence=(f"{_VLLM}/pull/46066",),
        must_kill=("SCH-009",),
        may_kill=(
            "KV-004",
            "KV-009",
            "PRG-001",
            "SCH-004",
            "TOK-001",
        ),
    ),
    Mutant(
        name="drafts-delivered-unverified",
        scheduler_class=drafts.DraftsDeliveredUnverified,
        evidence=("https://github.com/ohdearquant/lattice/issues/243",),
        must_kill=("TOK-003",),
        may_kill=("TOK-001", "TOK-002"),
    ),
    Mutant(
        name="too-many-drafts",
        scheduler_class=drafts.TooManyDrafts,
        evidence=("https://github.com/triton-inference-server/tensorrtllm_backend/issues/473",),
        must_kill=("SCH-009",),
        may_kill=("TOK-006",),
    ),
    Mutant(
        name="encoder-input-forgotten",
        scheduler_class=media.EncoderInputForgotten,
        evidence=(f"{_VLLM}/pull/39544", "https://github.com/vllm-project/vllm-gaudi/pull/823"),
        must_kill=("SCH-011",),
    ),
    Mutant(
        name="encoder-budget-ignored",
        scheduler_class=media.EncoderBudgetIgnored,
        evidence=(f"{_VLLM}/issues/55733",),
        must_kill=("SCH-010",),
    ),
    Mutant(
        name="encoder-cache-overfilled",
        scheduler_class=media.EncoderCacheOverfilled,
        evidence=(f"{_VLLM}/issues/55733",),
        must_kill=("SCH-011",),
    ),
    Mutant(
        name="encoder-output-dropped-early",
        scheduler_class=media.EncoderOutputDroppedEarly,
        evidence=(f"{_VLLM}/pull/39544",),
        must_kill=("SCH-011",),
    ),
    Mutant(
        name="too-many-adapters",
        scheduler_class=media.TooManyAdapters,
        evidence=("https://github.com/sgl-project/sglang/issues/23141",),
        must_kill=("SCH-008",),
    ),
    Mutant(
        name="hit-across-adapters",
        scheduler_class=caching.HitAcrossAdapters,
        evidence=(f"{_VLLM}/issues/3264", f"{_VLLM}/issues/30931"),
        must_kill=("CACHE-001",),
    ),
    Mutant(
        name="hit-across-salts",
        scheduler_class=caching.HitAcrossSalts,
        evidence=(f"{_VLLM}/issues/44701",),
        must_kill=("CACHE-001",),
    ),
    Mutant(
        name="hit-by-last-block-only",
        scheduler_class=caching.HitByLastBlockOnly,
        evidence=("https://github.com/vllm-project/aibrix/pull/2330",),
        must_kill=("CACHE-001",),
    ),
    Mutant(
        name="failed-load-cached",
        scheduler_class=caching.FailedLoadCached,
        evidence=(f"{_VLLM}/pull/37827",),
        must_kill=("CACHE-001",),
    ),
    Mutant(
        name="reset-keeps-hashes",
        scheduler_class=caching.ResetKeepsHashes,
        evidence=("https://github.com/ovg-project/kvcached/issues/362",),
        must_kill=("CACHE-002",),
    ),
    Mutant(
        name="cached-block-handed-out",
        scheduler_class=caching.CachedBlockHandedOut,
        evidence=(f"{_VLLM}/pull/37164",),
        must_kill=("CACHE-003",),
        may_kill=("CACHE-001", "KV-004"),
    ),
    Mutant(
        name="reference-not-taken-on-hit",
        scheduler_class=caching.ReferenceNotTakenOnHit,
        evidence=(f"{_VLLM}/pull/37164",),
        must_kill=("KV-008",),
        may_kill=("KV-003",),
    ),
    Mutant(
        name="used-block-evicted",
        scheduler_class=caching.UsedBlockEvicted,
        evidence=(f"{_VLLM}/pull/37164", f"{_VLLM}/pull/4761"),
        must_kill=("KV-003",),
        may_kill=("KV-008",),
    ),
    Mutant(
        name="negative-hit-count",
        scheduler_class=caching.NegativeHitCount,
        evidence=(f"{_VLLM}/pull/36752",),
        must_kill=("CACHE-004",),
    ),
    Mutant(
        name="leak-on-preemption",
        scheduler_class=caching.LeakOnPreemption,
        evidence=("https://github.com/jjang-ai/vmlx/pull/68",),
        must_kill=("KV-007", "KV-008"),
        may_kill=("KV-001", "PRG-001"),
    ),
    Mutant(
        name="reference-left-by-abort",
        scheduler_class=caching.ReferenceLeftByAbort,
        evidence=("https://github.com/jjang-ai/vmlx/pull/68",),
        must_kill=("KV-008",),
        may_kill=("KV-007",),
    ),
    Mutant(
        name="window-too-short",
        scheduler_class=caching.WindowTooShort,
        evidence=(f"{_VLLM}/pull/47728",),
        must_kill=("KV-009",),
    ),
    Mutant(
        name="sampled-token-dropped",
        scheduler_class=tokens.SampledTokenDropped,
        evidence=(f"{_VLLM}/pull/42117",),
        must_kill=("TOK-004",),
    ),
    Mutant(
        name="stop-noticed-late",
        scheduler_class=tokens.StopNoticedLate,
        evidence=("https://github.com/snowflakedb/ArcticInference/issues/161",),
        must_kill=("TOK-005",),
        may_kill=("TOK-002",),
    ),
    Mutant(
        name="preemption-ping-pong",
        scheduler_class=tokens.PreemptionPingPong,
        evidence=(f"{_VLLM}/pull/21809", f"{_VLLM}/issues/49674"),
        must_kill=("PRG-003",),
        may_kill=("CACHE-001", "KV-004", "PRG-001", "SCH-011"),
    ),
    Mutant(
        name="load-begins-twice",
        scheduler_class=transfers.LoadBeginsTwice,
        evidence=(f"{_VLLM}/pull/51595",),
        must_kill=("XFER-002",),
    ),
    Mutant(
        name="loads-more-than-held",
        scheduler_class=transfers.LoadsMoreThanHeld,
        evidence=(f"{_VLLM}/pull/53314",),
        must_kill=("XFER-003",),
    ),
    Mutant(
        name="loads-again",
        scheduler_class=transfers.LoadsAgain,
        evidence=(f"{_VLLM}/pull/18232",),
        must_kill=("XFER-004",),
    ),
    Mutant(
        name="sends-twice",
        scheduler_class=transfers.SendsTwice,
        evidence=(f"{_VLLM}/pull/43371",),
        must_kill=("XFER-005",),
    ),
    Mutant(
        name="order-depends-on-history",
        scheduler_class=impure.OrderDependsOnHistory,
        evidence=(f"{_VLLM}/pull/27211",),
        must_kill=("DET-001",),
        may_kill=("SCH-012",),
    ),
    Mutant(
        name="changed-by-looking",
        scheduler_class=impure.ChangedByLooking,
        evidence=(f"{_VLLM}/pull/44431",),
        must_kill=("DET-002",),
        may_kill=("SCH-012", "DET-001"),
    ),
    Mutant(
        name="overtaken-when-it-does-not-fit",
        scheduler_class=order.OvertakenWhenItDoesNotFit,
        evidence=(f"{_VLLM}/pull/32173",),
        must_kill=("SCH-014",),
        may_kill=("PRG-001",),
    ),
    Mutant(
        name="first-gives-way",
        scheduler_class=order.FirstGivesWay,
        evidence=(f"{_VLLM}/issues/23347",),
        must_kill=("SCH-015",),
        may_kill=("PRG-001", "PRG-003"),
    ),
    Mutant(
        name="preemptions-miscounted",
        scheduler_class=order.PreemptionsMiscounted,
        evidence=(f"{_VLLM}/pull/31583",),
        must_kill=("REQ-011",),
        may_kill=("SCH-014",),
    ),
    Mutant(
        name="reset-leaves-running",
        scheduler_class=order.ResetLeavesRunning,
        evidence=(f"{_VLLM}/pull/46066",),
        must_kill=("CACHE-005",),
    ),
    Mutant(
        name="reset-always-refused",
        scheduler_class=order.ResetAlwaysRefused,
        evidence=(f"{_VLLM}/pull/12284",),
        must_kill=("CACHE-005",),
    ),
    Mutant(
        name="sends-unasked",
        scheduler_class=order.SendsUnasked,
        evidence=(f"{_VLLM}/issues/46240",),
        must_kill=("XFER-005",),
        may_kill=("KV-001", "KV-002", "KV-003", "KV-007", "REQ-006"),
    ),
    Mutant(
        name="fails-instead-of-recomputing",
        scheduler_class=order.FailsInsteadOfRecomputing,
        evidence=(f"{_VLLM}/issues/45138",),
        must_kill=("XFER-006",),
    ),
    Mutant(
        name="window-never-moves",
        scheduler_class=order.WindowNeverMoves,
        evidence=(f"{_VLLM}/pull/34568",),
        must_kill=("KV-010",),
        may_kill=("PRG-001",),
    ),
    Mutant(
        name="repair-by-status",
        scheduler_class=Scheduler,
        evidence=(f"{_VLLM}/pull/31583",),
    ),
    Mutant(
        name="drafts-by-number",
        scheduler_class=drafts.DraftsByNumber,
        evidence=(f"{_VLLM}/pull/28558",),
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
