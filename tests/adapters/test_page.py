"""The page of a trace in a real browser, as people see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, browser
from schedcheck.catalogue import entry
from schedcheck.tracefile import read

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img/src=x/onerror=window.hacked=1>",
    "\"'`${window.hacked=1}",
    "<b>&lt;&amp;",
    "#s3",
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as one:
        yield one


def where(tab: Browser) -> tuple[object, object, object]:
    """Return the fragment, the action told about, and the column that is marked."""
    return (
        tab.run("location.hash"),
        tab.run("document.querySelector('#now h2').textContent.split(' ')[0]"),
        tab.run("document.querySelector('th.now').textContent"),
    )


@pytest.fixture
def page(schedcheck, tmp_path) -> str:
    """The address of the page of the seed fault, on the mutant that has it."""
    made = schedcheck("show", entry("REQ-001").minimal, "--html", "out.html")
    assert (0, "") == (made.returncode, made.stdout), made.stderr
    return (tmp_path / "out.html").as_uri()


def test_it_shows_lanes_brackets_blocks_and_what_is_violated(tab, page):
    tab.open(page)
    assert "REQ-001: a preempted request comes back as resumed, never as new" == tab.run(
        "document.title"
    )
    assert "WRPLLR" == tab.run(
        "[...document.querySelectorAll('tr.request td')].map(one => one.textContent).join('')"
    )
    assert 2 == tab.run("document.querySelectorAll('tr.flight td.step').length")
    assert 1 == tab.run("document.querySelectorAll('td.step.open').length"), "the last is in flight"
    assert tab.run("document.querySelectorAll('tr.block td[data-o]').length") >= 5
    told = tab.run("document.getElementById('violation').textContent")
    assert "REQ-001/new-after-preemption" in told
    assert "## Not covered" in told, "the invariant's own page"
    assert ("#s6", "6", "6!") == where(tab), "it opens where it went wrong"


def test_keys_and_fragments_go_from_action_to_action(tab, page):
    tab.open(f"{page}#s4")
    assert ("#s4", "4", "4") == where(tab)
    for key, expected in (
        ("ArrowRight", ("#s5", "5", "5")),
        ("ArrowLeft", ("#s4", "4", "4")),
        ("Home", ("#s1", "1", "1")),
        ("ArrowLeft", ("#s1", "1", "1")),
        ("End", ("#s6", "6", "6!")),
        ("ArrowRight", ("#s6", "6", "6!")),
    ):
        tab.press(key)
        assert expected == where(tab), key
    tab.run("document.querySelector('th a[href=\"#s2\"]').click()")
    tab.run("document.getElementById('on').click(); document.getElementById('back').click()")
    assert ("#s2", "2", "2") == where(tab)


@pytest.mark.parametrize("fragment", ["#s0", "#s99999999999999999999", "#sx", "#<img>"])
def test_a_fragment_that_names_no_action_opens_the_page_all_the_same(tab, page, fragment):
    tab.open(page + fragment)
    assert [] == tab.complaints()
    assert tab.run("document.querySelectorAll('td.now').length") > 0


def test_what_changed_is_marked_with_what_it_was(tab, page):
    tab.open(f"{page}#s4")
    changed = tab.run(
        "[...document.querySelectorAll('#changes dd.changed')].map(one => one.textContent)"
    )
    assert "r0  (before: \u2013)" in changed, "loading"
    assert 1 == sum(one.startswith("WAITING_FOR_REMOTE_KVS") for one in changed)


def test_it_asks_for_nothing_and_has_nothing_to_complain_of(tab, page):
    tab.open(page)
    assert [page] == [address.partition("#")[0] for address in tab.asked_for()]
    assert [] == tab.complaints()


def test_it_is_dark_where_people_want_it_dark(tab, page):
    colours = []
    for scheme in ("light", "dark"):
        tab.open(page, scheme=scheme)
        colours.append(tab.run("getComputedStyle(document.body).backgroundColor"))
    assert ["rgb(255, 255, 255)", "rgb(13, 17, 23)"] == colours


@pytest.fixture
def hostile(schedcheck, tmp_path) -> str:
    """A page of a trace whose requests have such names as a stranger may give them."""
    lines = entry("REQ-001").control.read_text().splitlines()
    (old,) = list(read(entry("REQ-001").control).specs)[:1]
    adds = [
        {"do": "add", "request": name, "spec": {"max_tokens": 2, "prompt": [["own", 2]]}}
        for name in HOSTILE
    ]
    trace = tmp_path / "hostile.trace.jsonl"
    actions = [*map(json.dumps, adds), '{"do":"step"}', '{"do":"drain"}']
    header = json.loads(lines[0])
    header |= {"witness": "", "config": {**header["config"], "blocks_total": 8, "max_model_len": 9}}
    assert old, "the control has a request"
    trace.write_text("\n".join([json.dumps(header), *actions]) + "\n")
    made = schedcheck("show", trace, "--html", "hostile.html")
    assert 0 == made.returncode, made.stderr
    assert "only" not in made.stderr
    return Path(tmp_path / "hostile.html").as_uri()


def test_names_are_text_and_nothing_else(tab, hostile):
    tab.open(hostile)
    names = "[...document.querySelectorAll('tr.request th')].map(one => one.textContent)"
    assert sorted(HOSTILE) == sorted(tab.run(names))
    for key in ("Home", "ArrowRight", "ArrowRight", "End"):
        tab.press(key)
    assert tab.run("window.hacked === undefined")
    assert [2, 0, 0] == [
        tab.run(f"document.querySelectorAll('{kind}').length") for kind in ("script", "img", "b")
    ]
    assert [] == tab.complaints()


def test_even_what_got_in_would_not_run(tab, page):
    """The second wall: the policy of the page."""
    tab.open(page)
    tab.run(
        "{ const one = document.createElement('script'); one.textContent = 'window.hacked=1';"
        " document.body.append(one); document.body.insertAdjacentHTML('beforeend',"
        " '<img src=x onerror=\"window.hacked=1\">') }"
    )
    assert tab.run("window.hacked === undefined")
    tab.send("Page.navigate", url="about:blank")
    assert any("Content Security Policy" in one for one in tab.complaints())


def test_two_hundred_actions_are_drawn_and_weigh_little(tab, schedcheck, tmp_path):
    trace = tmp_path / "long.trace.jsonl"
    header = json.loads(entry("REQ-001").control.read_text().splitlines()[0])
    header |= {
        "witness": "",
        "config": {**header["config"], "max_model_len": 64, "max_num_seqs": 4},
    }
    header["config"] |= {"blocks_total": 64, "max_num_batched_tokens": 8}
    lines = [json.dumps(header)]
    for number in range(50):
        spec = {"max_tokens": 6, "prompt": [["own", 3]]}
        lines.append(json.dumps({"do": "add", "request": f"r{number}", "spec": spec}))
        lines += ['{"do":"step"}'] * 3
    trace.write_text("\n".join(lines) + "\n")
    made = schedcheck("show", trace, "--html", "long.html")
    assert 0 == made.returncode, made.stderr
    assert (tmp_path / "long.html").stat().st_size < 300_000
    tab.open((tmp_path / "long.html").as_uri())
    assert 200 == tab.run("document.querySelectorAll('th[scope=col]').length")
    tab.press("End")
    assert ("#s200", "200", "200") == where(tab)
    assert [] == tab.complaints()
