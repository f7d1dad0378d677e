"""Driving, eligibility and the campaign, on the reference and on small fakes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from attrs import evolve

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.contract import problem_with
from schedcheck.engine.events import Ended, Fault, Found, Outcome, Shrunk, Started
from schedcheck.engine.executor import Executor
from schedcheck.engine.jobs import ReplayJob, RunJob, ShrinkJob
from schedcheck.engine.moves import choices, decode, drain_for, every_action, why_not
from schedcheck.engine.perform import perform
from schedcheck.engine.play import play_actions
from schedcheck.engine.profiles import PROFILES, Feature, draw_load, get_profile
from schedcheck.engine.replay import replay
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant, select
from schedcheck.judge import Judge
from schedcheck.model.actions import (
    ACTIONS,
    Abort,
    Add,
    Complete,
    Drain,
    FailTransfer,
    FinishTransfer,
    Preempt,
    ResetPrefixCache,
    Schedule,
    Step,
)
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.lifecycle import TRANSITIONS
from schedcheck.model.output import SchedulerOutput
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Crashed, Expectation, Header, Malformed, Trace
from schedcheck.model.verdict import Signature, Verdict
from schedcheck.reference.target import ReferenceTarget
from schedcheck.sut import PieceFault, Refused, SystemUnderTest, TargetError

EVERYTHING = every_invariant()


def spec(prompt: int = 2, **more: object) -> RequestSpec:
    return RequestSpec(prompt=(("own", prompt),), **more)


def play(*actions, target="reference", config=None, invariants=EVERYTHING):
    header = Header(target=target, config=config or SchedulerConfig())
    return play_actions(resolve(target), header, actions, invariants)


SEED_FAULT = (
    Add("r0", spec(max_tokens=3, remote_tokens=1)),
    Step(),
    FinishTransfer("r0"),
    Step(),
    Step(),
    Preempt("r0"),
    Step(),
    FinishTransfer("r0"),
    Step(),
    Step(),
)


def test_the_seed_fault_shows_on_its_mutant_and_not_on_the_reference():
    shown = play(*SEED_FAULT, target="reference+resumed-as-new")
    assert ["REQ-001/new-after-preemption"] == [str(one.signature) for one in shown.findings]
    assert () == play(*SEED_FAULT).findings


@pytest.mark.parametrize("variant", ["repair-by-status", "repair-by-set"])
def test_both_repairs_of_the_seed_fault_pass(variant):
    played = play(*SEED_FAULT, Drain(), target=f"reference+{variant}")
    assert ("", ()) == (played.drift, played.findings)
    assert "REQ-001" in played.judge.witnessed


class TestEligibility:
    """A trace that says more than a scheduler can do must be refused, in words."""

    @pytest.mark.parametrize(
        ("action", "reason"),
        [
            (Add("r0", spec()), "r0 was added before"),
            (Add("r1", spec(engine_id_of="r9")), "r1 reuses the engine id of r9"),
            (Add("r1", spec(engine_id_of="r0")), "the engine id of r0 is still in use"),
            (
                Add("r1", RequestSpec(prompt=(("output:r9", 1),))),
                "continues 'r9', which is not added",
            ),
            (Complete(), "no step is in flight"),
            (FinishTransfer("r0"), "r0 loads nothing"),
            (FailTransfer("r7"), "r7 loads nothing"),
            (Step(("r0",)), "r0 loads nothing"),
            (Abort("r7"), "r7 is not an unfinished request"),
            (Preempt("r0"), "r0 does not run"),
        ],
    )
    def test_reasons(self, action, reason):
        played = play(Add("r0", spec()), action)
        assert f"action 2 ({action.do}) was not eligible: " in played.drift
        assert reason in played.drift

    def test_no_more_steps_in_flight_than_the_configuration_allows(self):
        assert "1 step(s) are in flight" in play(Add("r0", spec()), Schedule(), Schedule()).drift

    def test_a_failing_load_has_no_block_beyond_its_last(self):
        loading = (Add("r0", spec(remote_tokens=1)), Step())
        assert "" == play(*loading, FailTransfer("r0", 0)).drift
        assert "the load of r0 has 1 block(s)" in play(*loading, FailTransfer("r0", 1)).drift

    def test_a_forced_reset_waits_for_loads(self):
        loading = (Add("r0", spec(remote_tokens=1)), Step())
        drift = play(*loading, ResetPrefixCache(running=True)).drift
        assert "not allowed while KV is being loaded" in drift

    def test_what_the_target_lacks_is_named(self):
        judge = Judge(SchedulerConfig(), frozenset())
        assert "the target lacks ABORT" == why_not(Abort("r0"), judge.ledger, frozenset())

    def test_every_action_that_decode_draws_is_eligible(self):
        """Otherwise generated traces drift when they are replayed."""
        target = resolve("reference")
        for seed in range(20):
            rng = Random(seed)
            load = draw_load(target, get_profile("quick"), rng)
            judge = Judge(load.config, target.capabilities, ())
            executor = Executor(target.open(load.config), judge)
            for _ in range(40):
                action = decode(rng.getrandbits(64), judge.ledger, load)
                assert None is why_not(action, judge.ledger, target.capabilities), action
                executor.apply(action)

    def test_small_integers_choose_plain_actions(self):
        target = resolve("reference")
        load = draw_load(target, get_profile("quick"), Random(0))
        judge = Judge(load.config, target.capabilities, ())
        assert Step() == decode(0, judge.ledger, load)
        assert "step" == choices(judge.ledger, load)[0].word

    def test_exploration_is_offered_the_same_actions(self):
        judge = Judge(SchedulerConfig(), resolve("reference").capabilities, ())
        offered = every_action(judge.ledger, judge.capabilities, (spec(),), adds_max=1)
        plain = {"step", "schedule", "add", "reset_prefix_cache", "pause"}
        assert plain == {one.do for one in offered}


class Fake:
    """A target whose scheduler does whatever a test wants in ``schedule``."""

    name, version = "fake", "1"
    capabilities = frozenset(Capability)
    dialects = resolve("reference").dialects

    def __init__(self, schedule) -> None:
        self.reference, self.what = resolve("reference"), schedule

    def honours(self, config: SchedulerConfig) -> SchedulerConfig | Refused:
        return self.reference.honours(config)

    def open(self, config: SchedulerConfig) -> SystemUnderTest:
        sut = self.reference.open(config)
        plain = sut.schedule
        sut.schedule = lambda: self.what(plain)
        return sut


def explode(_plain):
    raise KeyError("no such thing")


def leave(_plain):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("schedule", "signature"),
    [
        (explode, "ENG-001/KeyError-in-explode"),
        (leave, "ENG-001/SystemExit-in-leave"),
        (lambda _plain: None, "ENG-003/malformed-schedule"),
        (lambda _plain: SchedulerOutput(step_id=0, finished=("r9",)), "ENG-003/malformed-schedule"),
    ],
)
def test_what_an_adapter_does_wrong_is_a_finding_and_not_an_error_of_ours(schedule, signature):
    played = play_actions(
        Fake(schedule), Header(target="fake"), (Add("r0", spec()), Step()), EVERYTHING
    )
    assert [signature] == [str(one.signature) for one in played.findings]
    assert isinstance(played.records[-1].events[-1], Crashed | Malformed)


@pytest.mark.parametrize(
    ("fault", "signature", "found"),
    [
        (
            PieceFault(piece="connector", method="ask", error=KeyError("r0")),
            "ENG-001/KeyError-in-ask",
            "the connector, not the engine, raises KeyError: 'r0'",
        ),
        (
            PieceFault(piece="connector", method="ask", clause="no-pair", problem="answers 3"),
            "ENG-003/connector-no-pair",
            "the connector's ask answers 3",
        ),
    ],
)
def test_what_a_users_piece_does_wrong_is_not_said_of_the_engine(fault, signature, found):
    def schedule(_plain):
        raise fault

    played = play_actions(Fake(schedule), Header(target="fake"), (Step(),), EVERYTHING)
    (finding,) = played.findings
    assert (signature, found) == (str(finding.signature), finding.mismatch.found)


def test_a_crash_message_is_one_printable_line():
    def schedule(_plain):
        raise ValueError("two\nlines \x1b[31m")

    played = play_actions(Fake(schedule), Header(target="fake"), (Step(),), EVERYTHING)
    assert "ValueError: two lines ?[31m" == played.findings[0].mismatch.found


@pytest.mark.parametrize(
    ("call", "answer", "problem"),
    [
        ("add", None, "it returned None, not Accepted or Rejected"),
        ("schedule", 3, "it returned 3, not SchedulerOutput"),
        ("complete", "x", "it returned 'x', not EngineOutput"),
        ("snapshot", {}, "it returned a dict, not Snapshot"),
        ("has_work", 1, "it returned 1, not bool"),
    ],
)
def test_the_contract_names_what_was_returned(call, answer, problem):
    assert problem == problem_with(call, answer, Judge(SchedulerConfig(), frozenset()).ledger)


class TestDrain:
    def test_everything_finishes_and_the_bound_is_not_met(self):
        actions = [Add(f"r{n}", spec(3, max_tokens=4, remote_tokens=n % 3)) for n in range(4)]
        played = play(*actions, Step(), Drain(steps_max=200))
        assert () == played.findings
        assert "KV-001" in played.judge.witnessed

    def test_a_stall_ends_after_a_few_idle_rounds(self):
        config = SchedulerConfig(blocks_total=6, block_size=1, max_num_seqs=2)
        loads = [Add(f"r{n}", spec(4, remote_tokens=3)) for n in range(2)]
        played = play(*loads, Drain(), target="reference+loads-deadlock", config=config)
        assert ["PRG-001/stalled"] == [str(one.signature) for one in played.findings]

    def test_its_bound_grows_with_the_work_left(self):
        judge = play(Add("r0", spec(5, max_tokens=9))).judge
        assert drain_for(judge.ledger).steps_max > 14


def collect(job) -> list:
    events: list = []
    perform(job, events.append)
    return events


def campaign(target: str, *, seed: int = 0, invariants: str = "", traces: int = 60) -> list:
    """Run a part of the quick profile."""
    events: list = []
    Campaign(
        target=resolve(target),
        target_text=target,
        profile=evolve(PROFILES["quick"], traces=traces),
        invariants=select(invariants),
        seed=seed,
        emit=events.append,
    ).run()
    return events


class TestCampaign:
    def test_the_reference_holds_and_reaches_every_action_and_every_edge(self):
        ended = collect(RunJob(target="reference"))[-1]
        assert isinstance(ended, Ended)
        assert {Verdict.HOLDS} == {one.verdict for one in ended.results}
        assert [] == [word for word, times in ended.seen.actions.items() if not times]
        assert len(ACTIONS) == len(ended.seen.actions)
        assert [] == [edge for edge, times in ended.seen.transitions.items() if not times]
        assert len(TRANSITIONS) == len(ended.seen.transitions)

    def test_the_same_seed_finds_the_same_and_another_seed_something_else(self):
        def told(seed):
            return [
                evolve(one, seconds=0.0) if isinstance(one, Ended) else one
                for one in campaign("reference+token-lost", seed=seed)
                if isinstance(one, Started | Found | Shrunk | Ended)
            ]

        assert told(3) == told(3)
        assert told(3) != told(4)

    def test_a_signature_is_told_once_before_and_once_after_shrinking(self):
        events = campaign("reference+freed-while-loading", invariants="KV-002")
        found = [one for one in events if isinstance(one, Found)]
        shrunk = [one for one in events if isinstance(one, Shrunk)]
        assert 1 == len(found) == len(shrunk)
        assert shrunk[0].failure.actions <= found[0].failure.actions
        assert shrunk[0].failure.is_minimal
        assert events[-1].seen.signatures["KV-002/freed-while-loading"] > 1

    def test_a_crash_is_counted_when_nobody_asked_about_crashes(self):
        ended = campaign("reference+crashes-on-equal-priority", invariants="REQ-001")[-1]
        assert ended.crashes_ignored > 0
        assert ["HOLDS"] == [one.verdict for one in ended.results]

    def test_an_invariant_without_its_capability_is_not_applicable(self):
        target = resolve("reference")
        lacking = evolve(target, capabilities=target.capabilities - {Capability.ASYNC_LOADS})
        events: list = []
        Campaign(
            target=lacking,
            target_text="reference",
            profile=evolve(PROFILES["quick"], traces=3),
            invariants=select("XFER-001"),
            seed=0,
            emit=events.append,
        ).run()
        result = events[-1].results[0]
        assert (result.verdict, result.reason) == (Verdict.NOT_APPLICABLE, "lacks ASYNC_LOADS")
        assert "ASYNC_LOADS" == events[-1].seen.actions_missing["finish_transfer"]

    def test_an_interrupt_ends_the_run_with_what_was_found(self):
        def emit(event):
            events.append(event)
            if isinstance(event, Shrunk):
                raise KeyboardInterrupt

        events: list = []
        with pytest.raises(KeyboardInterrupt):
            perform(RunJob(target="reference+freed-while-loading"), emit)
        assert "interrupted" == events[-1].stopped_early

    def test_time_ends_a_run_and_it_says_so(self):
        ended = collect(RunJob(target="reference", seconds_max=0.0))[-1]
        assert "--max-time 0s" == ended.stopped_early
        assert ended.traces < PROFILES["quick"].traces


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (RunJob(target="nope"), "no target 'nope'"),
        (RunJob(target="reference+resumed-as-knew"), "did you mean resumed-as-new"),
        (RunJob(target="reference", profile="slow"), "no profile 'slow'"),
        (RunJob(target="reference", invariants="NO-*"), "no invariant matches"),
        (RunJob(target="no_such_module:Adapter"), "does not import: ModuleNotFoundError"),
        (RunJob(target="json:loads"), "cannot be made: TypeError"),
        (RunJob(target="json:JSONDecoder"), "is no Target: it lacks name"),
        (RunJob(target="reference", dialect="v3"), "v3"),
        (ReplayJob(target="reference", trace="{", name="t"), "t:1: "),
    ],
)
def test_what_a_job_is_given_wrongly_is_one_line(job, message):
    fault = collect(job)[-1]
    assert isinstance(fault, Fault)
    assert message in fault.message
    assert "\n" not in fault.message
    assert not fault.is_ours


def header(target: str, kind: str = "", **more) -> Header:
    expect = Expectation(signature=Signature("REQ-001", kind), step=10) if kind else None
    return Header(target=target, expect=expect, **more)


class TestReplay:
    def outcome(self, on: str, kind: str = "", actions=SEED_FAULT, **more) -> tuple[Outcome, str]:
        told = replay(resolve(on), on, Trace(header=header(on, kind, **more), actions=actions))
        return told.outcome, told.reason

    def test_failed(self):
        outcome, reason = self.outcome("reference+resumed-as-new", "new-after-preemption")
        assert Outcome.FAILED is outcome
        assert "REQ-001/new-after-preemption at action 10" == reason

    def test_other(self):
        outcome, _ = self.outcome("reference+resumed-as-new", "running-after-preemption")
        assert Outcome.OTHER is outcome

    def test_fixed(self):
        outcome, _ = self.outcome("reference", "new-after-preemption")
        assert Outcome.FIXED is outcome

    def test_drifted_where_an_action_is_not_eligible(self):
        outcome, reason = self.outcome(
            "reference", "new-after-preemption", actions=(*SEED_FAULT[:2], Complete())
        )
        assert (outcome, "action 3 (complete)" in reason) == (Outcome.DRIFTED, True)

    def test_drifted_where_the_witness_is_silent(self):
        outcome, reason = self.outcome("reference", "new-after-preemption", actions=SEED_FAULT[:4])
        assert (outcome, "nothing put REQ-001 to the test" in reason) == (Outcome.DRIFTED, True)

    def test_holds(self):
        assert Outcome.HOLDS is self.outcome("reference", witness="REQ-001")[0]

    def test_error_where_the_configuration_cannot_be_had(self):
        config = SchedulerConfig(chunked_prefill=False, max_num_batched_tokens=1)
        outcome, reason = self.outcome("reference", config=config)
        assert (outcome, "cannot be given this configuration" in reason) == (Outcome.ERROR, True)


def test_shrinking_a_trace_that_holds_is_refused():
    from schedcheck.tracefile import encode

    trace = Trace(header=header("reference", "new-after-preemption"), actions=SEED_FAULT)
    job = ShrinkJob(target="reference", trace=encode(trace).decode(), name="t")
    assert "t does not show REQ-001/new-after-preemption" in collect(job)[-1].message


def test_a_profile_that_refuses_every_configuration_is_an_error():
    class Stubborn(Fake):
        def honours(self, config: SchedulerConfig) -> SchedulerConfig | Refused:
            return Refused("too small")

    with pytest.raises(TargetError, match="refuses every configuration offered: too small"):
        draw_load(Stubborn(None), get_profile("quick"), Random(0))


def test_requests_are_drawn_so_that_each_fits_alone():
    """A request that can never fit stalls many engines by design, which would be a false alarm."""
    target = resolve("reference")

    def adds() -> Iterator[tuple[Add, SchedulerConfig]]:
        for seed in range(40):
            rng = Random(seed)
            load = draw_load(target, get_profile("pressure"), rng)
            judge = Judge(load.config, target.capabilities, ())
            executor = Executor(target.open(load.config), judge)
            for _ in range(30):
                action = decode(rng.getrandbits(64), judge.ledger, load)
                executor.apply(action)
                if isinstance(action, Add):
                    yield action, load.config

    drawn = list(adds())
    assert len(drawn) > 100
    assert all(config.fits(add.spec.total_tokens_max) for add, config in drawn)


class TakesDraftsBack(ReferenceTarget):
    """A target that takes speculative decoding back where a trace asks for it."""

    def honours(self, config):
        return super().honours(evolve(config, num_speculative_tokens=0))


def test_a_feature_that_a_target_takes_back_is_not_asked_for():
    target = TakesDraftsBack()
    loads = [draw_load(target, PROFILES["quick"], Random(seed)) for seed in range(200)]
    assert not any(Feature.DRAFTS in load.features for load in loads)
    assert any(Feature.MEDIA in load.features for load in loads)
