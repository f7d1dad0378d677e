"""A run as JUnit XML: one test case for each invariant, for those who collect test results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from attrs import frozen

from schedcheck.engine.events import Ended, Failure, InvariantResult
from schedcheck.invariants.registry import UnknownInvariant, get
from schedcheck.model.verdict import Verdict
from schedcheck.report.text import failure_lines
from schedcheck.report.words import clean


@frozen
class Told:
    """A violation, and where its trace was saved; empty: nowhere."""

    failure: Failure
    path: str = ""


_SKIPPED: Final = (Verdict.VACUOUS, Verdict.NOT_APPLICABLE, Verdict.KNOWN)
"""What is no pass, and no failure of this run: a known issue among it."""


def junit_xml(ended: Ended, told: Sequence[Told]) -> bytes:
    """Return the file. Violations are failures, what was not put to the test is skipped.

    An invariant whose checker failed is an error: nothing is known about it.
    """
    verdicts = [result.verdict for result in ended.results]
    counts = {
        "tests": len(verdicts),
        "failures": verdicts.count(Verdict.VIOLATED),
        "errors": verdicts.count(Verdict.UNKNOWN),
        "skipped": sum(verdict in _SKIPPED for verdict in verdicts),
    }
    numbers = {key: str(count) for key, count in counts.items()}
    seconds = f"{ended.seconds:.3f}"
    root = ET.Element("testsuites", {"name": "schedcheck", "time": seconds, **numbers})
    name = clean(f"schedcheck {ended.target} {ended.version}".strip())
    suite = ET.SubElement(root, "testsuite", {"name": name, "time": seconds, **numbers})
    properties = ET.SubElement(suite, "properties")
    for key, value in (
        ("target", ended.target),
        ("version", ended.version),
        ("profile", ended.profile),
        ("seed", ended.seed),
        ("traces", ended.traces),
        ("actions", ended.actions),
        ("stopped_early", ended.stopped_early),
    ):
        if value != "":
            ET.SubElement(properties, "property", name=f"schedcheck_{key}", value=clean(str(value)))
    for result in ended.results:
        _case(suite, result, [one for one in told if one.failure.complaint.invariant == result.id])
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ET.Element, result: InvariantResult, told: Sequence[Told]) -> None:
    family = result.id.partition("-")[0]
    case = ET.SubElement(
        suite,
        "testcase",
        classname=f"schedcheck.{clean(family)}",
        name=clean(f"{result.id} {title_of(result.id)}".strip()),
        time="0",
    )
    if told:
        properties = ET.SubElement(case, "properties")
        for one in told:
            signature = clean(one.failure.complaint.signature)
            ET.SubElement(properties, "property", name="schedcheck_signature", value=signature)
            if one.path:
                path = clean(one.path)
                ET.SubElement(properties, "property", name="schedcheck_trace", value=path)
    if result.verdict is Verdict.VIOLATED:
        for one in told:
            complaint = one.failure.complaint
            failure = ET.SubElement(
                case,
                "failure",
                type=clean(complaint.signature),
                message=clean(f"{complaint.subject}: {complaint.found}"),
            )
            failure.text = "\n" + "\n".join(failure_lines(one.failure, path=one.path)) + "\n"
        if not told:
            ET.SubElement(case, "failure", type=result.id, message="violated; the run was lost")
    elif result.verdict is Verdict.UNKNOWN:
        ET.SubElement(case, "error", type="checker", message=clean(result.reason))
    elif result.verdict in _SKIPPED:
        words = result.verdict.value.lower().replace("_", " ")
        ET.SubElement(
            case, "skipped", message=clean(f"{words}: {result.reason}".removesuffix(": "))
        )


def title_of(id_: str) -> str:
    """Return an invariant's sentence; empty for one that this version does not know."""
    try:
        return get(id_).title
    except UnknownInvariant:
        return ""
