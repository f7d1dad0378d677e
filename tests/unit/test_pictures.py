"""Pictures of a trace, without a browser: what is in them, and what cannot get out of its place."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from attrs import evolve

from schedcheck.catalogue import entry
from schedcheck.engine.events import Flight, Lane, Outcome, Replayed, Scenes
from schedcheck.engine.replay import replay
from schedcheck.engine.targets import resolve
from schedcheck.report.page import View, drawing_svg, page_html, timeline_json, view_of
from schedcheck.tracefile import read
from telling import COMPLAINT, FAILURE, HOSTILE, STORY

STRANGE = f"{HOSTILE}</script><img src=x onerror=alert(1)><!--&amp;\u2028]]>"


def told_of(name: str = "r0") -> Replayed:
    """Return four actions of two requests: a load, a preemption, and two steps that overlap."""
    running, waiting = Lane(status="RUNNING", blocks=(1, 2)), Lane(status="WAITING", blocks=())
    return Replayed(
        outcome=Outcome.FAILED,
        target="vllm",
        version="0.13.0",
        reason="",
        expected="",
        story=tuple(evolve(line, action=f"x {name}", note=name) for line in STORY),
        failure=evolve(FAILURE, complaint=evolve(COMPLAINT, subject=name, found=name)),
        scenes=Scenes(
            lanes=(
                {name: waiting},
                {name: running},
                {name: running, "r1": Lane(status="RUNNING", blocks=(2,))},
                {"r1": Lane(status="PREEMPTED", tokens_computed=0, tokens_known=4)},
            ),
            flights=(
                Flight(step_id=0, planned=2, completed=3, tokens={name: 5}),
                Flight(step_id=1, planned=3, completed=4, tokens={name: 1, "r1": 2}),
                Flight(step_id=2, planned=4, tokens={"r1": 3}),
            ),
        ),
    )


def view(name: str = "r0") -> View:
    return view_of(told_of(name), config=("7 blocks", name), page=f"# Page\n{name}")


class Parts(HTMLParser):
    """The elements of a page, and the text of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.within = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        self.within = tag

    def handle_endtag(self, tag):
        self.within = ""

    def handle_data(self, data):
        self.texts.setdefault(self.within, []).append(data)


def data_in(page: str) -> dict:
    return json.loads(Parts(page).texts["script"][0])


# What is drawn.


def test_a_replay_tells_scenes_only_when_asked():
    trace = read(entry("REQ-001").minimal)
    target = resolve(trace.header.target)
    assert replay(target, "x", trace).scenes is None
    scenes = replay(target, "x", trace, with_scenes=True).scenes
    statuses = [[lane.status for lane in lanes.values()] for lanes in scenes.lanes]
    loading = "WAITING_FOR_REMOTE_KVS"
    assert [["WAITING"], ["RUNNING"], ["PREEMPTED"], [loading], [loading], ["RUNNING"]] == statuses
    assert [(2, 2), (4, 5), (6, None)] == [(one.planned, one.completed) for one in scenes.flights]


def test_a_view_knows_owners_and_steps_in_flight():
    seen = view()
    assert (("r0", "r1"), (1, 2)) == (seen.requests, seen.blocks)
    assert [{}, {1: [0], 2: [0]}, {1: [0], 2: [0, 1]}, {}] == [seen.owners(n) for n in range(4)]
    spans = [[(one.first, one.last) for one in row] for row in seen.slots(0)]
    assert [[(2, 3)], [(3, 4)]] == spans, "two that overlap stand in two rows"
    assert [True] == [one.is_open for row in seen.slots(1) for one in row if one.step_id == 2]


def test_a_page_holds_what_changes_and_no_more():
    steps = data_in(page_html(view()))["steps"]
    assert [["0"], ["0"], ["1"], ["0", "1"]] == [sorted(one["changes"]) for one in steps]
    assert steps[3]["changes"]["0"] is None, "it is not tracked any more"
    assert [False, False, False, True] == ["bad" in one for one in steps]


def test_a_page_of_two_hundred_actions_is_small():
    lanes, story = [], []
    for number in range(200):
        story.append(evolve(STORY[0], number=number + 1, note="r0 new +1, r1 preempted, r2 loaded"))
        lanes.append(
            {
                f"r{place}": Lane(
                    status="RUNNING" if (number + place) % 3 else "WAITING",
                    tokens_computed=number,
                    tokens_known=number + 1,
                    blocks=tuple(range(place * 4, place * 4 + number % 5)),
                )
                for place in range(8)
            }
        )
    flights = [
        Flight(step_id=n, planned=n + 1, completed=min(200, n + 3), tokens={"r0": 1, "r1": 4})
        for n in range(200)
    ]
    scenes = Scenes(lanes=tuple(lanes), flights=tuple(flights))
    told = evolve(told_of(), story=tuple(story), scenes=scenes)
    page = page_html(view_of(told, page="x" * 5000))
    assert len(page.encode()) < 300_000


# What cannot get out of its place.


def test_a_strangers_words_are_data_in_a_page_and_nothing_else():
    plain, hostile = Parts(page_html(view())), Parts(page_html(view(STRANGE)))
    assert plain.elements == hostile.elements
    assert plain.attributes == hostile.attributes
    assert [2, 2] == [len(one.texts["script"]) for one in (plain, hostile)]
    data = hostile.texts["script"][0]
    assert data.isascii()
    assert not set("<>&") & set(data)


def test_a_page_allows_its_own_script_and_style_by_their_hashes_alone():
    page = page_html(view())
    parts = Parts(page)
    policy = dict(re.findall(r"([a-z-]+) ([^;]+)", dict(parts.attributes[::-1])["content"] or ""))
    (policy_text,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    policy = {one.split()[0]: one.split()[1:] for one in policy_text.split("; ")}

    def hashed(text: str) -> list[str]:
        return [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"]

    assert ["'none'"] == policy["default-src"]
    assert hashed(parts.texts["script"][1]) == policy["script-src"]
    assert hashed("".join(parts.texts["style"])) == policy["style-src"]


def test_a_page_asks_nobody_for_anything():
    page = page_html(view())
    assert not re.findall(r"https?://|//[a-z]|url\(|@import|\bsrc=|fetch\(|XMLHttp|WebSocket", page)


def test_a_page_never_makes_markup_of_text():
    script = Parts(page_html(view())).texts["script"][1]
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function", script
    )


@pytest.mark.parametrize("name", ["r0", STRANGE])
def test_a_drawing_is_xml_without_scripts_and_links(name):
    content = drawing_svg(view(name))
    root = ET.fromstring(content)  # noqa: S314  our own file
    kinds = {one.tag.rpartition("}")[2] for one in root.iter()}
    assert {"svg", "title", "rect", "text", "path"} == kinds
    assert not [
        key for one in root.iter() for key in one.attrib if "href" in key or key[:2] == "on"
    ]
    assert {"1", "2", "3", "4"} <= {one.text for one in root.iter() if one.tag.endswith("text")}


def test_a_drawing_has_a_cell_for_each_state():
    root = ET.fromstring(drawing_svg(view()))  # noqa: S314  our own file
    titles = [one.text for one in root.iter() if one.tag.endswith("title")]
    assert ["r0 WAITING", "r0 RUNNING", "r0 RUNNING", "r1 RUNNING", "r1 PREEMPTED"] == [
        title for title in titles if title.startswith("r")
    ]
    assert "block 2: r0 r1" in titles


@pytest.mark.parametrize("name", ["r0", STRANGE])
def test_a_timeline_is_in_the_format_that_perfetto_opens(name):
    log = json.loads(timeline_json(view(name)))
    for event in log["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] in "MXCi"
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] > 0


def test_a_timeline_has_lanes_steps_and_the_violation():
    events = json.loads(timeline_json(view()))["traceEvents"]
    slices = {
        (one["pid"], one["tid"], one["name"], one["ts"], one["dur"])
        for one in events
        if one["ph"] == "X"
    }
    assert (2, 1, "RUNNING", 2000, 2000) in slices, "a status that lasts is one slice"
    assert (3, 1, "step 0", 2000, 2000) in slices
    assert (3, 2, "step 1", 3000, 2000) in slices, "it overlaps, so it has a line of its own"
    assert (4, 2, "r0 r1", 3000, 1000) in slices
    assert ["VIOLATED REQ-001/new-after-preemption"] == [
        one["name"] for one in events if one["ph"] == "i"
    ]
