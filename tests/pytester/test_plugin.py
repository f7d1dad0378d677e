"""The pytest plugin, driven through pytest itself."""

from __future__ import annotations

import sys
from xml.etree import ElementTree as ET

import pytest
from attrs import evolve

import schedcheck
from schedcheck.catalogue import entry
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.trace import Expectation, Trace
from schedcheck.model.verdict import Signature
from schedcheck.report.text import summary_lines
from schedcheck.tracefile import read, write

# Loaded here once: a run within a test forgets whatever it is the first to import.
LOADED = (schedcheck.verify, every_invariant(), resolve("reference"), summary_lines)
MINIMAL = read(entry("REQ-001").minimal)
CONTROL = read(entry("REQ-001").control)
STRICT = ("-W", "error", "-p", "no:cacheprovider")

FAILING = """
    from schedcheck import verify

    def test_lifecycle():
        verify("reference+lost-from-queues", profile="ci", seed=3)
"""
PASSING = """
    import warnings
    from schedcheck import verify

    def test_lifecycle():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verify("reference", max_examples=3)
"""


def with_header(trace: Trace, **changes: object) -> Trace:
    return evolve(trace, header=evolve(trace.header, **changes))


@pytest.fixture
def project(pytester):
    """Return what writes trace files into a project."""

    def put(trace: Trace, name: str = "it", *, folder: str = "tests/traces"):
        path = pytester.path / folder / f"{name}.trace.jsonl"
        write(path, trace)
        return path

    return put


class TestTraceFiles:
    def test_they_are_items_named_after_their_invariant(self, pytester, project):
        project(MINIMAL, "minimal", folder="invariants/REQ-001-resumed-not-new")
        project(CONTROL, "control", folder="invariants/REQ-001-resumed-not-new")
        project(MINIMAL, "elsewhere", folder="other")
        result = pytester.runpytest(*STRICT, "--strict-markers", "--collect-only", "-q")
        result.stdout.fnmatch_lines(
            [
                "invariants/REQ-001-resumed-not-new/control.trace.jsonl::REQ-001",
                "invariants/REQ-001-resumed-not-new/minimal.trace.jsonl::REQ-001",
            ]
        )
        result.stdout.no_fnmatch_line("*elsewhere*")

    def test_one_asked_for_by_name_is_an_item_wherever_it_is(self, pytester, project):
        result = pytester.runpytest(*STRICT, project(MINIMAL, folder="other"))
        result.assert_outcomes(passed=1)

    def test_other_folders_can_be_named(self, pytester, project):
        pytester.makeini("[pytest]\nschedcheck_traces = regressions")
        project(MINIMAL, folder="regressions/old")
        project(MINIMAL, folder="tests/traces")
        pytester.runpytest(*STRICT).assert_outcomes(passed=1)

    def test_a_minimal_trace_and_a_control_pass(self, pytester, project):
        project(MINIMAL, "minimal")
        project(CONTROL, "control")
        pytester.runpytest(*STRICT, "-m", "schedcheck").assert_outcomes(passed=2)

    def test_a_minimal_trace_that_shows_nothing_fails_and_says_the_way_out(self, pytester, project):
        project(with_header(MINIMAL, target="reference"))
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "FIXED: every action was eligible and REQ-001/new-after-preemption did not show*",
                "step  action*",
                "FAILED tests/traces/it.trace.jsonl::REQ-001 - FIXED: *",
            ]
        )

    def test_the_signature_at_another_step_fails_with_the_table(self, pytester, project):
        expect = Expectation(signature=MINIMAL.header.expect.signature, step=3)
        project(with_header(MINIMAL, expect=expect))
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "FAILED: REQ-001/new-after-preemption shows at action 6, not at 3",
                "VIOLATED  REQ-001 *",
                "*<- here*",
                "*schedcheck replay tests/traces/it.trace.jsonl",
            ]
        )

    def test_another_signature_fails(self, pytester, project):
        expect = Expectation(signature=Signature("REQ-001", "other"), step=6)
        project(with_header(MINIMAL, expect=expect))
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["OTHER: REQ-001/new-after-preemption at action 6"])

    def test_a_control_that_fails_or_is_vacuous_fails(self, pytester, project):
        project(with_header(CONTROL, target="reference+lost-from-queues"), "broken")
        project(evolve(CONTROL, actions=CONTROL.actions[:1]), "vacuous")
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=2)
        result.stdout.fnmatch_lines(
            [
                "OTHER: REQ-005/in-no-queue at action *",
                "DRIFTED: *nothing put REQ-001 to the test",
            ]
        )

    def test_one_that_cannot_be_read_fails_in_one_line(self, pytester, project):
        path = project(MINIMAL)
        path.write_bytes(path.read_bytes()[:100])
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["tests/traces/it.trace.jsonl:1: the file ends in *"])
        result.stdout.no_fnmatch_line("*Traceback*")

    def test_a_mutant_that_does_not_exist_fails(self, pytester, project):
        project(with_header(MINIMAL, target="reference+nothing"))
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*no mutant 'nothing'*"])


class TestSkipped:
    """A trace for something that is not here is no error, and says why it was not replayed."""

    def skipped(self, pytester, reason):
        result = pytester.runpytest(*STRICT, "-rs")
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines([f"SKIPPED *it.trace.jsonl:1: {reason}"])

    def test_an_engine_that_is_not_installed(self, pytester, project, monkeypatch):
        monkeypatch.setitem(sys.modules, "vllm", None)
        project(with_header(MINIMAL, target="vllm", version="0.13.0"), folder="invariants/X/known")
        self.skipped(pytester, "vllm *")

    def test_another_release_than_the_one_it_was_found_on(self, pytester, project):
        project(with_header(MINIMAL, version="0.9"))
        self.skipped(pytester, "found on reference+resumed-as-new 0.9, and*--on reference+resumed*")

    def test_a_target_that_schedcheck_does_not_know(self, pytester, project):
        project(with_header(MINIMAL, target="sglang"))
        self.skipped(pytester, "no target 'sglang' here")

    def test_a_trace_runs_no_code_of_its_choice(self, pytester, project):
        """A trace may come from a stranger: it must not choose what is imported and called."""
        pytester.makepyfile(evil="open('executed', 'w').close()\ndef call(): ...")
        project(with_header(MINIMAL, target="evil:call"))
        self.skipped(
            pytester, "a trace may not run 'evil:call' unless schedcheck_adapters allows it"
        )
        assert not (pytester.path / "executed").exists()

    def test_an_allowed_adapter_whose_engine_is_not_installed(self, pytester, project):
        pytester.makeini("[pytest]\nschedcheck_adapters = mine:*")
        pytester.makepyfile(mine="import an_engine_that_is_not_there")
        pytester.syspathinsert()
        project(with_header(MINIMAL, target="mine:adapter"))
        self.skipped(pytester, "adapter 'mine:adapter' does not import: *")


def test_an_allowed_adapter_is_run_and_a_broken_one_fails(pytester, project):
    pytester.makeini("[pytest]\nschedcheck_adapters = ours_*")
    pytester.makepyfile(
        ours_good="""
            from schedcheck.reference.target import reference_target
            def adapter():
                return reference_target("resumed-as-new")
        """,
        ours_bad="raise OSError('no')",
    )
    pytester.syspathinsert()
    project(with_header(MINIMAL, target="ours_good:adapter"), "good")
    project(with_header(MINIMAL, target="ours_bad:adapter"), "bad")
    result = pytester.runpytest(*STRICT)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["adapter 'ours_bad:adapter' does not import: OSError: no"])


class TestFailingVerify:
    def test_it_shows_the_table_and_nothing_of_hypothesis(self, pytester):
        pytester.makepyfile(test_it=FAILING)
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "*_ test_lifecycle _*",
                "VIOLATED  REQ-005  *",
                "  reference+lost-from-queues · profile ci · seed 3 · trace *",
                "*<- here",
                "  replay          schedcheck replay .schedcheck/traces/REQ-005-*.trace.jsonl",
                "FAILED *::test_lifecycle - REQ-005/in-no-queue: *",
            ]
        )
        for noise in ("*ypothesis.*", "*state = *", "*Traceback*", "*reproduce_failure*"):
            result.stdout.no_fnmatch_line(noise)
        assert 40 > len(result.outlines)
        assert [] != list((pytester.path / ".schedcheck" / "traces").iterdir())

    def test_the_engines_traceback_comes_with_v(self, pytester):
        pytester.makepyfile(FAILING.replace("lost-from-queues", "crashes-on-equal-priority"))
        quiet = pytester.runpytest(*STRICT)
        quiet.stdout.fnmatch_lines(["VIOLATED  ENG-001 *"])
        quiet.stdout.no_fnmatch_line("*Traceback*")
        pytester.runpytest(*STRICT, "-v").stdout.fnmatch_lines(
            ["*- the engine's traceback -*", "Traceback (most recent call last):", "TypeError: *"]
        )

    def test_a_test_case_of_the_machine_shows_the_same(self, pytester):
        pytester.makepyfile(
            """
            from schedcheck import machine
            TestLifecycle = machine("reference+lost-from-queues").TestCase
            """
        )
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*_ TestLifecycle.runTest _*", "VIOLATED  REQ-005  *"])

    def test_an_engine_that_is_not_there_is_one_line(self, pytester):
        pytester.makepyfile(
            'import schedcheck\ndef test_it():\n    schedcheck.verify("reference==0.13.0")'
        )
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "*_ test_it _*",
                "reference==0.13.0 cannot be verified here: *",
                "*short test summary*",
            ],
            consecutive=True,
        )

    def test_an_expected_failure_stays_one(self, pytester):
        pytester.makepyfile(
            "import pytest\nfrom schedcheck import verify, Violation\n"
            "@pytest.mark.xfail(raises=Violation, strict=True)\n"
            'def test_it():\n    verify("reference+lost-from-queues")'
        )
        pytester.runpytest(*STRICT).assert_outcomes(xfailed=1)

    def test_junit_gets_seed_invariant_and_trace(self, pytester):
        pytester.makepyfile(FAILING)
        pytester.runpytest(*STRICT, "--junitxml=it.xml")
        root = ET.parse(pytester.path / "it.xml").getroot()  # noqa: S314  our own file
        told = {one.get("name"): one.get("value") for one in root.iter("property")}
        assert ("3", "ci") == (told["schedcheck_seed"], told["schedcheck_profile"])
        assert "REQ-005" == told["schedcheck_invariant"]
        assert "REQ-005/in-no-queue" == told["schedcheck_signature"]
        assert (pytester.path / told["schedcheck_trace"]).is_file()


class TestWorkflow:
    """In a GitHub workflow."""

    @pytest.fixture
    def summary(self, pytester, monkeypatch):
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
        return pytester.path / "summary.md"

    def test_a_violation_is_annotated_at_its_test_and_told_in_the_summary(self, pytester, summary):
        pytester.makepyfile(test_it=FAILING)
        result = pytester.runpytest(*STRICT)
        result.stdout.fnmatch_lines(
            ["::error file=test_it.py,line=3,title=REQ-005/in-no-queue::test_lifecycle%0A*"]
        )
        assert "VIOLATED  REQ-005" in summary.read_text()

    def test_so_is_a_trace_that_shows_something_else(self, pytester, project, summary):
        project(with_header(MINIMAL, target="reference"))
        result = pytester.runpytest(*STRICT)
        result.stdout.fnmatch_lines(["::error file=tests/traces/it.trace.jsonl,line=1,title=REQ-*"])

    def test_a_name_in_a_trace_gives_no_orders(self, pytester, project, summary):
        """What a workflow reads as a command begins a line, whatever blanks are before it."""
        name = ":" * 100  # so long that it goes on on the next line
        renamed = [
            evolve(one, finish_loads=(name,)) if getattr(one, "finish_loads", ()) else one
            for one in MINIMAL.actions
        ]
        renamed = [evolve(one, request=name) if hasattr(one, "request") else one for one in renamed]
        project(with_header(evolve(MINIMAL, actions=tuple(renamed)), expect=None))
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(failed=1)
        orders = [line for line in result.outlines if line.lstrip().startswith("::")]
        assert 1 == len(orders), "only our own"

    def test_what_passes_or_fails_for_its_own_reasons_is_not(self, pytester, summary):
        pytester.makepyfile(PASSING, test_fails="def test_it():\n    assert False")
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.no_fnmatch_line("*::error*")
        assert not summary.exists()

    def test_elsewhere_nothing_is(self, pytester, monkeypatch):
        monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
        pytester.makepyfile(FAILING)
        pytester.runpytest(*STRICT).stdout.no_fnmatch_line("*::error*")


class TestOptions:
    def test_they_win_over_what_a_test_asks_for_and_are_shown(self, pytester):
        pytester.makepyfile(FAILING)
        result = pytester.runpytest(
            *STRICT, "--schedcheck-profile", "pressure", "--schedcheck-seed", "7"
        )
        result.stdout.fnmatch_lines(
            ["schedcheck: profile pressure, seed 7", "*· profile pressure · seed 7 · *"]
        )

    def test_the_ini_value_is_for_tests_that_ask_for_nothing(self, pytester):
        pytester.makeini("[pytest]\nschedcheck_profile = abort-storm")
        pytester.makepyfile(
            test_asks=FAILING, test_asks_nothing=FAILING.replace(', profile="ci"', "")
        )
        result = pytester.runpytest(*STRICT)
        result.stdout.fnmatch_lines(["*· profile ci · *", "*· profile abort-storm · *"])

    def test_a_profile_that_does_not_exist_is_a_usage_error(self, pytester):
        result = pytester.runpytest("--schedcheck-profile", "slow")
        assert pytest.ExitCode.USAGE_ERROR == result.ret
        result.stderr.fnmatch_lines(["*schedcheck: no profile 'slow'; there are quick, *"])

    def test_without_the_plugin_verify_still_works(self, pytester):
        pytester.makepyfile(FAILING)
        result = pytester.runpytest_subprocess(*STRICT, "-p", "no:schedcheck", "--tb=short")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E   *Violation[[]REQ-005/in-no-queue[]]: VIOLATED *"])
        result.stdout.no_fnmatch_line("*run_state_machine*")


class TestCoverage:
    def test_a_green_run_ends_with_what_was_reached(self, pytester):
        pytester.makepyfile(PASSING)
        result = pytester.runpytest(*STRICT)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            [
                "*= schedcheck coverage =*",
                "test_a_green_run_ends_with_what_was_reached.py::test_lifecycle",
                "  reference · * 3 traces · * seed 0",
                "  actions *",
                "  transitions *",
            ]
        )
        pytester.runpytest(*STRICT, "-q").stdout.no_fnmatch_line("*schedcheck coverage*")

    def test_a_run_without_verify_says_nothing(self, pytester):
        pytester.makepyfile("def test_nothing(): pass")
        result = pytester.runpytest(*STRICT)
        result.stdout.no_fnmatch_line("*schedcheck coverage*")

    def test_what_was_not_tested_is_a_warning(self, pytester):
        pytester.makepyfile(
            'from schedcheck import verify\ndef test_it():\n    verify("reference", max_examples=2)'
        )
        result = pytester.runpytest("-W", "default", "-p", "no:cacheprovider")
        result.assert_outcomes(passed=1, warnings=1)
        result.stdout.fnmatch_lines(["*VacuityWarning: reference, profile quick, seed 0: *"])


def test_with_xdist(pytester, project):
    """Tables, coverage, properties and one random seed cross from the processes."""
    pytest.importorskip("xdist")
    pytester.makepyfile(test_bad=FAILING, test_good=PASSING)
    project(MINIMAL)
    result = pytester.runpytest_subprocess(
        *STRICT, "-n", "2", "--schedcheck-seed", "random", "--junitxml=it.xml"
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "VIOLATED  REQ-005  *",
            "*= schedcheck coverage =*",
            "test_good.py::test_lifecycle",
            "FAILED test_bad.py::test_lifecycle - REQ-005/in-no-queue: *",
        ]
    )
    (shown,) = (line for line in result.outlines if line.startswith("schedcheck: seed "))
    root = ET.parse(pytester.path / "it.xml").getroot()  # noqa: S314  our own file
    seeds = {p.get("value") for p in root.iter("property") if p.get("name") == "schedcheck_seed"}
    assert {shown.removeprefix("schedcheck: seed ")} == seeds
