"""The pages of the families say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from schedcheck.invariants.registry import every_invariant
from schedcheck.model.lifecycle import TRANSITIONS

SCRIPT = Path(__file__).parents[2] / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_in_the_folder_are_those_that_the_code_writes(generate):
    stale = [
        path.name
        for path, text in generate.pages().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    assert [] == stale, "run python docs/generate.py"


def test_every_invariant_stands_on_the_page_of_its_family(generate):
    by_family = {one.name: generate.page(one) for one in generate.FAMILIES}
    assert {one.family for one in every_invariant()} == set(by_family)
    for one in every_invariant():
        assert f"[{one.id}]" in by_family[one.family]


def test_the_first_diagram_has_every_lawful_transition(generate):
    arrows = [line for line in generate.diagram(lambda _: True) if " --> " in line]
    ends = {edge.after for edge in TRANSITIONS if edge.after.is_finished}
    assert len(TRANSITIONS) + len(ends) == len(arrows)
