"""The state machine in both forms, ``verify``, and what a violation looks like as an exception."""

from __future__ import annotations

import pickle
import subprocess
import sys
import unittest
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

import schedcheck
from schedcheck import Violation, machine, verify
from schedcheck.catalogue.exemptions import LedgerError
from schedcheck.engine.failures import failure_of
from schedcheck.engine.play import play
from schedcheck.engine.profiles import PROFILES, UnknownProfile
from schedcheck.engine.replay import replay
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import UnknownInvariant, every_invariant
from schedcheck.model.actions import Preempt, Step
from schedcheck.model.config import Dialect
from schedcheck.model.trace import Trace
from schedcheck.model.verdict import Verdict
from schedcheck.reference.target import reference_target
from schedcheck.stateful import context
from schedcheck.stateful.driver import Tally
from schedcheck.stateful.machine import FORMS, machine_of, plan_for
from schedcheck.stateful.verify import ROUND, VacuityWarning, Vacuous, rounds_of, settings_of
from schedcheck.stateful.violation import class_of, plain_lines, violation
from schedcheck.sut import TargetError
from schedcheck.tracefile import decode, read

SEED_FAULT = "reference+resumed-as-new"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Failing traces are saved below the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found_in(target, **how) -> Violation:
    with pytest.raises(Violation) as caught:
        verify(target, **how)
    return caught.value


def quietly(**how):
    """Verify the reference with too few traces to reach everything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VacuityWarning)
        return verify("reference", **how)


class TestLaziness:
    def test_importing_schedcheck_imports_no_hypothesis(self):
        """A worker process has neither hypothesis nor the terminal libraries."""
        code = (
            "import sys, schedcheck, schedcheck.stateful.context;"
            "print(sorted({'hypothesis', 'pytest', 'rich', 'click'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert b"[]" == done.stdout.strip()

    def test_what_it_offers(self):
        assert ["Violation", "__version__", "machine", "record", "verify"] == sorted(
            schedcheck.__all__
        )
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = schedcheck.nothing


class TestVerify:
    def test_the_reference_holds_and_says_what_was_reached(self):
        ended = quietly(max_examples=30)
        assert {Verdict.HOLDS, Verdict.VACUOUS} >= {one.verdict for one in ended.results}
        assert (30, 0, "quick") == (ended.traces, ended.seed, ended.profile)
        assert ended.seen.actions["drain"] == 30, "every trace has its quiet tail"
        assert ended.seen.actions["add"] > 100

    def test_the_seed_fault_is_found_shrunk_saved_and_told(self, in_a_folder_of_its_own):
        error = found_in(SEED_FAULT, invariants="REQ-001")
        failure = error.failure
        assert "REQ-001/new-after-preemption" == failure.complaint.signature
        assert failure.is_minimal
        assert failure.actions <= 12 < failure.actions_found
        assert error.saved is not None
        assert in_a_folder_of_its_own / ".schedcheck" / "traces" == error.saved.resolve().parent
        trace = read(error.saved)
        assert (SEED_FAULT, failure.actions) == (trace.header.target, len(trace.actions))
        assert "FAILED" == replay(resolve(SEED_FAULT), SEED_FAULT, trace).outcome

    def test_what_is_known_is_told_and_no_violation(self, in_a_folder_of_its_own):
        ledger = in_a_folder_of_its_own / "known.toml"
        ledger.write_text(
            f"""[[known]]
            engine = "{SEED_FAULT}"
            releases = "all"
            signature = "REQ-001/new-after-preemption"
            reason = "It is a mutant."
            link = "unreported"
            """
        )
        ended = verify(SEED_FAULT, invariants="REQ-001", known=ledger)
        assert [Verdict.KNOWN] == [one.verdict for one in ended.results]
        (told,) = ended.known.results
        assert (True, "It is a mutant.") == (told.traces > 0, told.reason)
        assert ended.traces == PROFILES["quick"].traces // 4, "nothing ends the run"
        assert found_in(SEED_FAULT, invariants="REQ-001", known="none").failure.is_minimal
        ledger.write_text(ledger.read_text().replace("new-after", "running-after"))
        assert found_in(SEED_FAULT, invariants="REQ-001", known=ledger).failure.is_minimal

    def test_a_ledger_that_is_wrong_is_an_error(self, in_a_folder_of_its_own):
        (in_a_folder_of_its_own / "known.toml").write_text("[[known]]")
        with pytest.raises(LedgerError, match="entry 1: lacks 'engine'"):
            verify("reference", known="known.toml")

    def test_the_text_is_the_table_of_the_command_line(self):
        error = found_in(SEED_FAULT, invariants="REQ-001")
        lines = str(error).splitlines()
        assert lines[0].startswith("VIOLATED  REQ-001  a preempted request comes back as resumed")
        assert f"replay          schedcheck replay {error.saved}" in str(error)
        assert 1 == str(error).count("<- here")
        assert "\x1b" not in str(error)

    def test_equal_seeds_give_equal_runs(self):
        once, again, other = (quietly(max_examples=8, seed=seed) for seed in (3, 3, 4))
        assert once == again
        assert once.seen != other.seen

    def test_a_run_does_not_depend_on_hash_seeds(self):
        code = (
            "import sys, warnings; warnings.simplefilter('ignore');"
            "from schedcheck import verify;"
            "print(verify('reference', max_examples=12).seen)"
        )
        told = {
            subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                check=True,
                env={"PYTHONHASHSEED": hash_seed},
            ).stdout
            for hash_seed in ("1", "2")
        }
        assert 1 == len(told)

    def test_an_adapter_may_be_an_instance_a_class_or_a_function(self):
        target = reference_target("lost-from-queues")
        assert target.name == found_in(target).failure.target
        assert f"{__name__}:LosesRequests" == found_in(LosesRequests).failure.target

        def local():
            return target

        assert target.name == found_in(local).failure.target

    def test_a_chosen_invariant_is_the_only_one_asked(self):
        ended = quietly(invariants="SCH-*,!SCH-001", max_examples=10)
        assert {"SCH"} == {one.id[:3] for one in ended.results}
        assert "SCH-001" not in {one.id for one in ended.results}

    def test_a_chosen_dialect_is_the_only_one_spoken(self):
        spoken = set()

        class Listening(machine("reference", dialect="v2")):
            def teardown(self):
                spoken.add(self.driver.load.config.dialect)
                super().teardown()

        searched(Listening, settings_of(Listening.plan, 8))
        assert {Dialect.V2} == spoken
        with pytest.raises(TargetError, match="does not speak the dialect v9, only v1, v2"):
            verify("reference", dialect="v9")

    def test_a_crash_that_no_chosen_invariant_looks_at_is_said(self):
        with pytest.warns(VacuityWarning, match="traces ended in a crash, which only ENG-001"):
            verify("reference+crashes-on-equal-priority", invariants="KV-003", max_examples=10)

    @pytest.mark.parametrize(
        ("target", "how", "error", "told"),
        [
            ("nothing", {}, TargetError, "no target 'nothing'"),
            ("reference+nothing", {}, TargetError, "nothing"),
            ("no.such.module:Adapter", {}, TargetError, "does not import"),
            ("reference==1.0", {}, TargetError, "schedcheck run reference==1.0"),
            (object(), {}, TargetError, "is no Target: it lacks name"),
            ("reference", {"profile": "slow"}, UnknownProfile, "no profile 'slow'"),
            ("reference", {"invariants": "ABC-*"}, UnknownInvariant, "no invariant matches"),
        ],
    )
    def test_what_is_given_wrongly_is_named(self, target, how, error, told):
        with pytest.raises(error, match=told):
            verify(target, **how)

    def test_a_trace_that_cannot_be_saved_is_printed(self, in_a_folder_of_its_own, capsys):
        (in_a_folder_of_its_own / ".schedcheck").write_text("in the way")
        error = found_in("reference+lost-from-queues")
        assert error.saved is None
        assert error.failure.trace in capsys.readouterr().err
        assert "schedcheck replay" not in str(error)

    def test_a_target_that_is_not_deterministic_is_still_a_failure_and_said(self):
        """Hypothesis complains of flakiness instead; the violation would be lost."""
        error = found_in(FailsOnlyInTheBeginning())
        assert "NOT SHOWN AGAIN: the target is not deterministic" in str(error)


class LosesRequests:
    """A user's adapter, as a class."""

    def __init__(self):
        target = reference_target("lost-from-queues")
        self.name, self.version = "mine", "2.1"
        self.capabilities, self.dialects = target.capabilities, target.dialects
        self.honours, self.open = target.honours, target.open


class FailsOnlyInTheBeginning:
    """A scheduler whose fault depends on something that no trace holds."""

    def __init__(self):
        self.right, self.wrong = reference_target(), reference_target("lost-from-queues")
        self.name, self.version = "unsteady", ""
        self.capabilities, self.dialects = self.right.capabilities, self.right.dialects
        self.honours = self.right.honours
        self.is_wrong = True

    def open(self, config):
        if not self.is_wrong:
            return self.right.open(config)
        system = self.wrong.open(config)
        preempt = system.scheduler.preempt

        def noted(request):
            self.is_wrong = False
            preempt(request)

        system.scheduler.preempt = noted
        return system


class TestVacuity:
    """Hypothesis says nothing about a rule that never ran."""

    def test_what_was_never_put_to_the_test_is_a_warning_at_the_callers_line(self):
        with pytest.warns(VacuityWarning, match="is vacuous") as warned:
            verify("reference", max_examples=2)
        assert __file__ == warned[0].filename
        assert "never ran in 2 traces" in str(warned[0].message)

    def test_or_an_error(self):
        with pytest.raises(Vacuous, match="is vacuous"):
            verify("reference", max_examples=2, strict=True)

    def test_the_quick_profile_leaves_nothing_untested_on_the_reference(self):
        ended = verify("reference", strict=True)
        assert {Verdict.HOLDS} == {one.verdict for one in ended.results}


class TestContext:
    def test_what_a_runner_forces_wins_over_arguments_and_its_defaults_do_not(self):
        around = context.Context(profile_forced="ci", profile_default="nightly", seed_forced=7)
        assert ("ci", 7) == (around.profile("quick"), around.seed(1))
        around = context.Context(profile_default="nightly")
        assert ("quick", 1) == (around.profile("quick"), around.seed(1))
        assert ("nightly", 0) == (around.profile(None), around.seed(None))
        assert "quick" == context.current().profile(None)

    def test_a_runner_hears_what_happened(self):
        heard = []
        around = context.Context(
            seed_forced=5,
            on_begin=lambda *told: heard.append(told),
            on_violation=lambda failure, _saved: heard.append(failure.complaint.invariant),
        )
        with context.surround(around):
            found_in(SEED_FAULT, invariants="REQ-001")
        assert [(SEED_FAULT, "quick", 5), "REQ-001"] == heard


class TestRounds:
    @pytest.mark.parametrize(("examples", "sizes"), [(5, [5]), (10, [10]), (25, [13, 12])])
    def test_as_many_examples_as_asked_for_in_rounds(self, examples, sizes):
        rounds = rounds_of(settings_of(plan("reference"), examples))
        assert sizes == [one.max_examples for one in rounds]

    def test_a_quarter_of_the_profiles_traces(self):
        assert 125 == settings_of(plan("reference")).max_examples
        assert ROUND * 12 <= 125


def plan(target, invariants=""):
    return plan_for(target, profile="quick", invariants=invariants, dialect=None)


def searched(kind, how, seed=0):
    """Run a machine as Hypothesis does, and return what it raised and what it reached."""
    kind = machine_of(kind.plan, kind, Tally(seed=seed))
    try:
        run_state_machine_as_test(seeded(seed)(kind), settings=how)
    except Violation as error:
        return error, kind.tally
    return None, kind.tally


class TestForms:
    """Both forms stand on the same methods and find the same faults."""

    @pytest.mark.parametrize("form", ["dispatcher", "named"])
    def test_the_reference_holds(self, form):
        kind = machine("reference", form=form)
        error, tally = searched(kind, settings_of(kind.plan, 30))
        assert error is None
        assert tally.coverage.traces >= 30
        assert tally.coverage.actions["step"] > 0

    @pytest.mark.parametrize(
        ("form", "mutant", "signature"),
        [
            ("dispatcher", "resumed-twice", "SCH-001/scheduled-twice"),
            ("dispatcher", "lost-from-queues", "REQ-005/in-no-queue"),
            ("dispatcher", "budget-overrun", "SCH-002/over-token-budget"),
            ("named", "resumed-twice", "SCH-001/scheduled-twice"),
            ("named", "lost-from-queues", "REQ-005/in-no-queue"),
            ("named", "budget-overrun", "SCH-002/over-token-budget"),
        ],
    )
    def test_a_fault_is_found(self, form, mutant, signature):
        invariant = signature.partition("/")[0]
        kind = machine(f"reference+{mutant}", form=form, invariants=invariant)
        error, _ = searched(kind, settings_of(kind.plan, 300))
        assert class_of(signature) is type(error)

    def test_the_named_rules_are_the_ones_people_know(self):
        assert {
            *("add", "step", "schedule", "complete", "preempt", "abort"),
            *("finish_transfer", "fail_transfer", "finish_send", "reset_prefix_cache"),
        } == {name for name in vars(FORMS["named"]) if not name.startswith("_")}
        assert {"act"} == {name for name in vars(FORMS["dispatcher"]) if not name.startswith("_")}

    def test_a_form_that_does_not_exist(self):
        with pytest.raises(ValueError, match="there are dispatcher, named"):
            machine("reference", form="other")

    def test_a_rule_of_ones_own(self):
        class Mine(machine("reference", form="named")):
            @rule()
            def two_steps(self):
                for _ in range(2):
                    if self.can("step"):
                        self.do(Step())

        error, _ = searched(Mine, settings_of(Mine.plan, 10))
        assert error is None
        assert Mine.TestCase is not machine("reference").TestCase

    def test_a_rule_of_ones_own_that_asks_for_what_cannot_happen(self):
        class Mine(machine("reference")):
            @rule()
            def wrong(self):
                self.do(Preempt("r99"))

        with pytest.raises(ValueError, match="preempt is not eligible now: r99 does not run"):
            searched(Mine, settings_of(Mine.plan, 10))


class TestTail:
    """A fault that only the quiet tail shows is raised in teardown."""

    def test_it_fails_the_test_and_is_shrunk_like_any_other(self):
        failure = found_in("reference+lost-from-queues", invariants="PRG-001").failure
        assert ("PRG-001/stalled", 3) == (failure.complaint.signature, failure.actions)
        assert ("drain", 46) == (failure.story[-1].action, failure.actions_found)

    def test_hypothesis_raises_it_from_teardown_with_its_own_class(self):
        kind = machine("reference+lost-from-queues", invariants="PRG-001")
        error, tally = searched(kind, settings_of(kind.plan, 30))
        assert class_of("PRG-001/stalled") is type(error)
        assert error.failure.story == tally.failing.failure.story, "the same when replayed"

    def test_nothing_is_drained_after_a_failure(self):
        """The first finding ends the trace; a second one in teardown would replace it."""
        kind = machine("reference+lost-from-queues")
        error, tally = searched(kind, settings_of(kind.plan, 30))
        assert "REQ-005/in-no-queue" == error.failure.complaint.signature
        drained = tally.coverage.actions["drain"]
        assert drained < tally.coverage.traces


class TestTestCase:
    def test_it_runs_under_unittest_and_fails_with_the_table(self):
        case = machine("reference+lost-from-queues").TestCase
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        assert 1 == result.testsRun
        (_, told) = result.failures[0]
        assert "schedcheck.Violation[REQ-005/in-no-queue]: VIOLATED  REQ-005" in told

    def test_its_settings_can_be_assigned_as_with_any_machine(self):
        kind = machine("reference")
        kind.TestCase.settings = settings(kind.TestCase.settings, max_examples=3)
        ends = []
        around = context.Context(on_end=ends.append)
        with context.surround(around), warnings.catch_warnings():
            warnings.simplefilter("ignore", VacuityWarning)
            kind.TestCase("runTest").runTest()
        assert [3] == [ended.traces for ended in ends]

    def test_a_forced_profile_is_for_it_too(self, monkeypatch):
        monkeypatch.setattr("schedcheck.stateful.verify.TRACES_SHARE", 100)
        ends = []
        around = context.Context(profile_forced="abort-storm", on_end=ends.append)
        case = machine("reference", profile="ci", invariants="SCH-002").TestCase("runTest")
        with context.surround(around), warnings.catch_warnings():
            warnings.simplefilter("ignore", VacuityWarning)
            case.runTest()
        assert [("abort-storm", 10)] == [(ended.profile, ended.traces) for ended in ends]


class TestViolation:
    def failure(self):
        found = found_in("reference+lost-from-queues")
        trace: Trace = decode(found.failure.trace.encode(), name="it")
        playback = play(resolve(trace.header.target), trace, every_invariant())
        return failure_of(trace, playback, playback.findings[0], origin="", actions_found=3)

    def test_each_signature_has_one_class_of_its_own(self):
        """Hypothesis merges failures of one class from one line."""
        one, other = class_of("REQ-001/new-after-preemption"), class_of("REQ-001/other")
        assert one is class_of("REQ-001/new-after-preemption")
        assert one is not other
        assert "schedcheck.Violation[REQ-001/other]" == f"{other.__module__}.{other.__name__}"
        assert issubclass(one, Violation)
        assert issubclass(one, AssertionError)

    def test_hypothesis_tells_two_signatures_apart(self):
        """Both come from one line, as they do from the machine."""
        signatures = ["REQ-001/new-after-preemption", "REQ-001/other"]
        plain = self.failure()

        @settings(database=None, max_examples=50)
        @given(st.sampled_from(signatures))
        def fails_twice(signature):
            raise class_of(signature)(plain)

        with pytest.raises(ExceptionGroup) as caught:
            fails_twice()
        assert {class_of(one) for one in signatures} == set(map(type, caught.value.exceptions))

    def test_it_survives_pickling(self):
        error = violation(self.failure())
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  our own
        assert (type(error), error.failure, str(error)) == (type(again), again.failure, str(again))

    def test_without_a_report_it_is_told_in_plain_lines(self):
        lines = list(plain_lines(self.failure(), path="x.trace.jsonl"))
        assert lines[0].startswith("VIOLATED  REQ-005  ")
        assert "  replay    schedcheck replay x.trace.jsonl" == lines[-1]
        assert 1 == sum("<- here" in line for line in lines)
