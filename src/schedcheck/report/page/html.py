"""A page that shows a trace: one file, which asks nobody for anything.

Rules
-----
- Its policy (CSP) allows the one script and the one style in it, by their hashes, and nothing else.
- What a stranger wrote is in the data alone, as JSON in ASCII without ``<``, ``>`` and ``&``; the
  script puts it into the page as text, never as markup.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from schedcheck.engine.events import Lane, StoryLine
from schedcheck.report.page.view import LETTERS, View
from schedcheck.report.words import clean


def page_html(view: View) -> str:
    """Return the page."""
    style, script = _part("page.css"), _part("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": _data(view)}
    page = _part("page.html")
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text, 1)
    return page


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _data(view: View) -> str:
    """Return the data; of each state only what is not as it was an action before."""
    data = {
        "title": view.title,
        "facts": view.facts,
        "requests": view.requests,
        "blocks": view.blocks,
        "letters": LETTERS,
        "steps": [
            {**_step(line), "changes": _changes(view, index)}
            for index, line in enumerate(view.story)
        ],
        "slots": [
            [
                [[one.step_id, one.first, one.last, one.is_open, one.tokens[place]] for one in row]
                for row in view.slots(place)
            ]
            for place in range(len(view.requests))
        ],
        "complaint": _complaint(view),
        "page": "\n".join(map(clean, view.page.splitlines())),
    }
    text = json.dumps(data, separators=(",", ":"))  # in ASCII: U+2028 and the like are escaped
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _step(line: StoryLine) -> dict[str, object]:
    step: dict[str, object] = {
        "n": line.number,
        "action": clean(line.action),
        "note": clean(line.note),
        "queues": [
            " ".join(map(clean, names)) for names in (line.waiting, line.loading, line.running)
        ],
        "free": "" if line.blocks_free is None else f"{line.blocks_free}/{line.blocks_total}",
    }
    if line.is_violation:
        step["bad"] = True
    return step


def _changes(view: View, index: int) -> dict[int, object]:
    """Return the requests that are not as they were, None for one that is not tracked any more."""
    now = view.states[index] if index < len(view.states) else {}
    before = view.states[index - 1] if 0 < index <= len(view.states) else {}
    changes: dict[int, object] = {
        place: _lane(lane) for place, lane in now.items() if before.get(place) != lane
    }
    changes.update((place, None) for place in before if place not in now)
    return changes


def _lane(lane: Lane) -> list[object]:
    return [lane.status, lane.tokens_computed, lane.tokens_known, lane.blocks]


def _complaint(view: View) -> dict[str, str] | None:
    if view.complaint is None:
        return None
    complaint = view.complaint
    told = {
        "signature": complaint.signature,
        "about": complaint.subject,
        "expected": complaint.expected,
        "found": complaint.found,
    }
    return {key: clean(text) for key, text in told.items()}
