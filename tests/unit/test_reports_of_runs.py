"""JUnit XML, SARIF and what a workflow shows: read back by the parsers that people use."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest
from attrs import evolve
from junitparser import Error, Failure, JUnitXml, Properties, Skipped
from markdown_it import MarkdownIt

from schedcheck.model.verdict import Severity, Verdict
from schedcheck.report.github import annotation, defused, step_summary
from schedcheck.report.junit import Told, junit_xml
from schedcheck.report.sarif import sarif_json
from telling import COMPLAINT, FAILURE, HOSTILE, STORY, ended, result

PATH = ".schedcheck/traces/REQ-001-7f3a.trace.jsonl"
RED = ended(
    result("KV-001"),
    result("REQ-001", Verdict.VIOLATED),
    result("REQ-002", Verdict.VACUOUS, "never"),
    result("REQ-003", Verdict.NOT_APPLICABLE, "lacks SHOWS_ROLES"),
    result("REQ-004", Verdict.UNKNOWN, "KeyError"),
)
TOLD = [Told(FAILURE, PATH)]
STRANGE = HOSTILE + "]]></failure>&{0}[x](y)::error::%0A`````\ud800\ufffe"
HOSTILE_FAILURE = evolve(
    FAILURE,
    complaint=evolve(COMPLAINT, kind=STRANGE, subject=STRANGE, expected=STRANGE, found=STRANGE),
    target=STRANGE,
    version=STRANGE,
    config=STRANGE,
    story=tuple(evolve(line, action=STRANGE, note=STRANGE) for line in STORY),
)
HOSTILE_ENDED = evolve(RED, target=STRANGE, version=STRANGE, stopped_early=STRANGE)


# JUnit.


def parsed(ended_=RED, told=TOLD) -> JUnitXml:
    return JUnitXml.fromstring(junit_xml(ended_, told))


def test_each_invariant_is_a_test_case():
    (suite,) = parsed()
    assert (5, 1, 1, 2) == (suite.tests, suite.failures, suite.errors, suite.skipped)
    cases = {case.name.split()[0]: case for case in suite}
    kinds = {name: [type(one) for one in case.result] for name, case in cases.items()}
    assert {
        "KV-001": [],
        "REQ-001": [Failure],
        "REQ-002": [Skipped],
        "REQ-003": [Skipped],
        "REQ-004": [Error],
    } == kinds
    assert "schedcheck.REQ" == cases["REQ-001"].classname
    assert {"vacuous: never", "not applicable: lacks SHOWS_ROLES"} == {
        cases[name].result[0].message for name in ("REQ-002", "REQ-003")
    }


def test_a_known_issue_is_neither_a_pass_nor_a_failure():
    (suite,) = parsed(ended(result("KV-001", Verdict.KNOWN)), [])
    assert (1, 0, 1) == (suite.tests, suite.failures, suite.skipped)
    assert ["known"] == [one.message for case in suite for one in case.result]


def test_a_failure_holds_what_the_terminal_shows():
    (suite,) = parsed()
    (case,) = (one for one in suite if one.name.startswith("REQ-001"))
    (failure,) = case.result
    assert "VIOLATED  REQ-001" in failure.text
    assert f"schedcheck replay {PATH}" in failure.text
    assert {"schedcheck_signature": COMPLAINT.signature, "schedcheck_trace": PATH} == {
        one.name: one.value for some in case.iterchildren(Properties) for one in some
    }


def test_a_run_can_be_repeated_from_its_properties():
    (suite,) = parsed()
    found = {one.name: one.value for one in suite.properties()}
    assert ("quick", "7341") == (found["schedcheck_profile"], found["schedcheck_seed"])


def test_a_strangers_words_break_no_xml():
    (suite,) = parsed(HOSTILE_ENDED, [Told(HOSTILE_FAILURE, STRANGE)])
    assert 5 == len(list(suite))
    text = "".join(failure.text for case in suite for failure in case.result if failure.text)
    assert "</failure>" in text
    assert "\x1b" not in text


def test_a_violation_whose_trace_was_lost_is_a_failure_all_the_same():
    (suite,) = parsed(told=[])
    assert [Failure] == [type(one) for case in suite for one in case.result][:1]


# SARIF.


def sarif(ended_=RED, told=TOLD) -> dict:
    return json.loads(sarif_json(ended_, told, schedcheck="0.1.0"))


@pytest.fixture(scope="module")
def schema() -> dict:
    """The schema of SARIF 2.1.0, which no package for Python ships."""
    path = os.environ.get("SCHEDCHECK_SARIF_SCHEMA", "")
    if not path:
        pytest.skip("SCHEDCHECK_SARIF_SCHEMA names no file; .ci/run fetches it where npm is")
    return json.loads(Path(path).read_text())


@pytest.mark.parametrize(
    ("ended_", "told"),
    [
        (RED, TOLD),
        (ended(), []),
        (RED, [Told(evolve(FAILURE, story=()))]),
        (HOSTILE_ENDED, [Told(HOSTILE_FAILURE, STRANGE), Told(FAILURE, "/x/a b/ä.jsonl")]),
    ],
    ids=["violation", "green", "no-story", "hostile"],
)
def test_it_fits_the_schema(schema, ended_, told):
    kind = jsonschema.validators.validator_for(schema)
    checker = kind(schema, format_checker=kind.FORMAT_CHECKER)
    assert [] == [error.message for error in checker.iter_errors(sarif(ended_, told))]


def test_the_schema_refuses_what_is_wrong(schema):
    """A validator that takes everything would prove nothing."""
    log = sarif()
    log["runs"][0]["results"][0]["level"] = "critical"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, schema)


def test_the_trace_is_the_code_flow():
    (found,) = sarif()["runs"][0]["results"]
    (flow,) = found["codeFlows"]
    (thread,) = flow["threadFlows"]
    steps = thread["locations"]
    places = [one["location"]["physicalLocation"] for one in steps]
    assert [2, 3, 4, 5] == [place["region"]["startLine"] for place in places], "line 1: the header"
    assert {PATH} == {place["artifactLocation"]["uri"] for place in places}
    assert [0, 1, 2, 3] == [one["executionOrder"] for one in steps]
    assert "4  schedule: r0 new +1" == steps[-1]["location"]["message"]["text"]
    assert ["important"] * 3 + ["essential"] == [one["importance"] for one in steps]
    assert places[-1] == found["locations"][0]["physicalLocation"]


def test_a_rule_is_what_its_invariant_is():
    run = sarif()["runs"][0]
    (found,) = run["results"]
    rule = run["tool"]["driver"]["rules"][found["ruleIndex"]]
    assert (found["ruleId"], "REQ-001") == (rule["id"], rule["id"])
    assert "error" == found["level"] == rule["defaultConfiguration"]["level"]
    minor = evolve(FAILURE, severity=Severity.MINOR)
    assert "warning" == sarif(told=[Told(minor, PATH)])["runs"][0]["results"][0]["level"]


def test_a_fault_keeps_its_fingerprint_as_long_as_it_is_the_same():
    prints = [
        sarif(told=[Told(failure, path)])["runs"][0]["results"][0]["partialFingerprints"]
        for failure, path in (
            (FAILURE, PATH),
            (evolve(FAILURE, actions=2, story=STORY[:2]), "elsewhere"),
            (evolve(FAILURE, complaint=evolve(COMPLAINT, kind="other")), PATH),
        )
    ]
    assert prints[0] == prints[1] != prints[2]


def test_a_strangers_words_are_no_link_and_no_placeholder():
    (found,) = sarif(told=[Told(HOSTILE_FAILURE, STRANGE)])["runs"][0]["results"]
    text = found["message"]["text"]
    assert "\\[x\\](y)" in text
    assert not re.search(r"(?<!\{)\{0\}(?!\})", text)
    assert "\x1b" not in text


def test_a_path_becomes_an_address():
    def uri(path: str) -> str:
        (found,) = sarif(told=[Told(FAILURE, path)])["runs"][0]["results"]
        return found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]

    assert "a%20b/%C3%A4.jsonl" == uri("a b/ä.jsonl")
    assert "file:///x/a%3Fb" == uri("/x/a?b")


# A workflow.


def test_an_annotation_stands_at_the_action():
    expected = f"::error file={PATH},line=5,title=REQ-001 a preempted request comes back as resumed"
    assert annotation(TOLD[0]).startswith(expected)
    minor = annotation(Told(evolve(FAILURE, severity=Severity.MINOR)))
    assert minor.startswith("::warning title=REQ-001")


def test_an_annotation_is_one_command_whatever_is_in_it():
    text = annotation(Told(HOSTILE_FAILURE, "a,b:c%\n::error::x"))
    assert 1 == len(text.splitlines())
    command, properties, *message = re.split(r"(?<!^)::", text, maxsplit=1)[0].split(" ", 1)
    assert "::error" == command
    assert "file=a%2Cb%3Ac%25?%3A%3Aerror%3A%3Ax,line=5" == properties.partition(",title")[0]
    assert [] == message
    assert "\x1b" not in unquote(text)


@pytest.mark.parametrize(
    "text", ["::set-env name=x::y", "  ::error::x", "a\n\t::stop-commands::t", "x ##[error]y"]
)
def test_no_line_of_a_report_is_a_command(text):
    for line in defused(text).splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


def test_what_is_no_command_stays_as_it_is():
    text = "a :: b\n  x: y\n#[z]"
    assert text == defused(text)


def test_a_summary_is_a_heading_and_fences():
    tokens = MarkdownIt().parse(step_summary(HOSTILE_ENDED, [Told(HOSTILE_FAILURE, PATH)]))
    assert {"heading_open", "heading_close", "inline", "fence"} == {one.type for one in tokens}
    headings = [one.content for one in tokens if one.type == "inline"]
    title = "REQ-001: a preempted request comes back as resumed, never as new"
    assert ["schedcheck", title] == headings


def test_a_summary_is_never_too_long_to_be_shown():
    long = evolve(FAILURE, config="x" * 500_000)
    text = step_summary(RED, [Told(long, PATH)] * 5)
    assert len(text.encode()) < 1_000_000
    assert text.endswith("5 more in the log.\n")


def test_a_run_that_was_lost_says_so():
    assert "did not come to its end" in step_summary(None, [])
