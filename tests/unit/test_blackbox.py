"""The trace so far, in a file that outlives the process that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from schedcheck.host import blackbox
from schedcheck.host.blackbox import MappedBlackBox, look
from schedcheck.model.actions import Abort, Add, Step
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Expectation, Header, Trace
from schedcheck.model.verdict import Signature
from schedcheck.tracefile import decode, encode

CONFIG = SchedulerConfig(blocks_total=5)
HEADER = Header(target="t", version="1", config=CONFIG, capabilities=frozenset(), seed="0/1")
ACTIONS = (Add("r0", RequestSpec(prompt=(("own", 3),))), Step(), Abort("r0"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "blackbox"
    blackbox.create(path)
    return path


def test_it_is_empty_at_first(path):
    assert (0, b"") == look(path)


def test_each_action_is_there_as_soon_as_it_is_noted(path):
    """Otherwise the call that kills the process would be the one that is missing."""
    box = MappedBlackBox(path)
    box.begin(HEADER)
    for number, action in enumerate(ACTIONS, 1):
        box.note(action)
        trace = Trace(header=HEADER, actions=ACTIONS[:number])
        assert encode(trace) == look(path)[1]


def test_everything_moves_the_counter(path):
    """Otherwise a worker that works would be taken to hang."""
    box = MappedBlackBox(path)
    counts = [look(path)[0]]
    for step in (lambda: box.begin(HEADER), lambda: box.note(Step()), box.end):
        step()
        counts.append(look(path)[0])
    assert sorted(set(counts)) == counts


def test_a_trace_that_is_over_leaves_nothing(path):
    box = MappedBlackBox(path)
    box.begin(HEADER)
    box.note(Step())
    box.end()
    assert b"" == look(path)[1]


def test_a_shorter_trace_after_a_longer_one_has_nothing_of_it(path):
    box = MappedBlackBox(path)
    for actions in (ACTIONS * 5, (Step(),)):
        box.begin(HEADER)
        for action in actions:
            box.note(action)
    assert encode(Trace(header=HEADER, actions=(Step(),))) == look(path)[1]


def test_a_part_of_a_trace_is_not_expected_to_show_what_the_whole_does(path):
    """Otherwise the part names a step that it does not have, and cannot be read."""
    expect = Expectation(signature=Signature("KV-001", "a-kind"), step=99)
    box = MappedBlackBox(path)
    box.begin(evolve(HEADER, expect=expect))
    box.note(Step())
    assert Trace(header=HEADER, actions=(Step(),)) == decode(look(path)[1], name="box")


def test_what_does_not_fit_ends_the_trace_there(path, monkeypatch):
    """Otherwise later actions would follow on a gap, and another trace would be replayed."""
    room = len(encode(Trace(header=HEADER, actions=(Step(),)))) + 30
    monkeypatch.setattr(blackbox, "SIZE", room + 16)
    blackbox.create(path)
    box = MappedBlackBox(path)
    box.begin(HEADER)
    for action in (Step(), ACTIONS[0], Step()):
        box.note(action)
    assert encode(Trace(header=HEADER, actions=(Step(),))) == look(path)[1]
    box.begin(HEADER)
    box.note(Step())
    assert encode(Trace(header=HEADER, actions=(Step(),))) == look(path)[1]


def test_a_forked_copy_writes_no_more(path):
    box = MappedBlackBox(path)
    box.begin(HEADER)
    box.note(Step())
    before = look(path)
    box.let_go()
    box.note(Step())
    box.end()
    assert before == look(path)
