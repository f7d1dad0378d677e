"""A run as SARIF 2.1.0: each violation a result, its trace the code flow that leads to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Final
from urllib.parse import quote

from schedcheck.engine.events import Ended, Failure, StoryLine
from schedcheck.invariants.registry import Invariant, every_invariant
from schedcheck.model.verdict import Severity
from schedcheck.report.junit import Told
from schedcheck.report.words import clean

VERSION: Final = "2.1.0"
SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final[Mapping[Severity, str]] = {
    Severity.CRITICAL: "error",
    Severity.MAJOR: "error",
    Severity.MINOR: "warning",
}

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})

Json = dict[str, object]


def sarif_json(ended: Ended, told: Sequence[Told], *, schedcheck: str) -> bytes:
    """Return the file; ``schedcheck`` is our own version.

    Line ``n + 1`` of a trace is action ``n``, so that every step of a code flow has a place.
    """
    wanted = {one.failure.complaint.invariant for one in told}
    rules = [one for one in every_invariant() if one.id in wanted]
    places = {one.id: index for index, one in enumerate(rules)}
    log = {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "schedcheck",
                        "version": schedcheck,
                        "rules": [_rule(one) for one in rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": not ended.stopped_early}],
                "properties": {
                    "target": clean(ended.target),
                    "version": clean(ended.version),
                    "profile": clean(ended.profile),
                    "seed": ended.seed,
                    "traces": ended.traces,
                    "actions": ended.actions,
                },
                "results": [_result(one, places) for one in told],
            }
        ],
    }
    return json.dumps(log, indent=1).encode() + b"\n"


def _rule(invariant: Invariant) -> Json:
    rule: Json = {
        "id": invariant.id,
        "shortDescription": {"text": invariant.title},
        "fullDescription": {"text": f"{invariant.title[:1].upper()}{invariant.title[1:]}."},
        "help": {"text": f"schedcheck explain {invariant.id} shows its page."},
        "defaultConfiguration": {"level": _LEVELS[invariant.severity]},
        "properties": {"tags": [invariant.id.partition("-")[0], invariant.severity.value]},
    }
    if invariant.evidence:
        rule["helpUri"] = invariant.evidence[0]
    return rule


def _result(told: Told, places: Mapping[str, int]) -> Json:
    failure, complaint = told.failure, told.failure.complaint
    text = f"{complaint.subject}: expected {complaint.expected}; found {complaint.found}."
    result: Json = {
        "ruleId": clean(complaint.invariant),
        "level": _LEVELS[failure.severity],
        "message": {"text": _message(text)},
        "locations": [_location(told, complaint.step)],
        "codeFlows": [{"threadFlows": [{"locations": list(_flow(told))}]}],
        "partialFingerprints": {"schedcheckSignature/v1": _fingerprint(failure)},
        "properties": {
            "signature": clean(complaint.signature),
            "target": clean(f"{failure.target} {failure.version}".strip()),
            "config": clean(failure.config),
        },
    }
    if complaint.invariant in places:
        result["ruleIndex"] = places[complaint.invariant]
    return result


def _flow(told: Told) -> Iterator[Json]:
    for order, line in enumerate(told.failure.story):
        yield {
            "executionOrder": order,
            "importance": "essential" if line.is_violation else "important",
            "location": _location(told, line.number, message=_words(line)),
        }
    if not told.failure.story:
        yield {"location": _location(told, told.failure.complaint.step)}


def _words(line: StoryLine) -> str:
    return _message(f"{line.number}  {line.action}" + (f": {line.note}" if line.note else ""))


def _message(text: str) -> str:
    """Return plain text as a message, in which brackets make links and braces are filled in."""
    return clean(text).translate(_ESCAPES)


def _location(told: Told, step: int, *, message: str = "") -> Json:
    location: Json = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(told.path or "trace-not-saved.trace.jsonl")},
            "region": {"startLine": step + 1},
        }
    }
    if message:
        location["message"] = {"text": message}
    return location


def _uri(path: str) -> str:
    """Return a path as a relative reference, or as a file's address where it is absolute."""
    whole = PurePath(path)
    address = quote(whole.as_posix(), safe="/", errors="replace")
    return f"file://{address}" if whole.is_absolute() else address


def _fingerprint(failure: Failure) -> str:
    """Return what stays the same from run to run as long as the fault is the same."""
    words = f"{failure.target} {failure.complaint.signature}"
    return sha256(words.encode(errors="replace")).hexdigest()
