"""What holds for every report, whatever is in it; how reports look is in ``tests/snapshots``."""

from __future__ import annotations

import shlex
from random import Random

import pytest
from attrs import evolve

from schedcheck.engine.events import Outcome, Seen
from schedcheck.engine.story import words_for_config
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.verdict import Verdict
from schedcheck.report.summary import summary_lines
from schedcheck.report.text import command, failure_lines, replay_lines, story_lines
from schedcheck.report.words import clean, fact_lines, filled, shortened
from telling import FAILURE, HOSTILE, STALL, STORY, UNSHRUNK, ended, line, replayed, result


def test_clean_text_has_nothing_that_moves_a_cursor_and_keeps_its_length():
    assert "?[2J[bold red]x[/] ?gnp???" == clean(HOSTILE)
    assert "r0 – é 漢" == clean("r0 – é 漢")


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("abcd", 1, "…"), ("a\nb", 3, "a?b"), ("", 3, "")],
)
def test_shortened(text, width, expected):
    assert expected == shortened(text, width)


def test_cells_fill_lines_and_are_never_split():
    assert ["aa  bb", "cccccccc", "d"] == filled(["aa", "bb", "cccccccc", "d"], 6)
    assert [] == filled([], 6)
    assert ["a · b"] == fact_lines(["a", "", "b"])


def test_a_command_can_be_pasted_into_a_shell():
    told = command("replay", "it's one; rm -rf.jsonl", on="my.mod:Adapter")
    assert ["schedcheck", "replay", "it's one; rm -rf.jsonl", "--on", "my.mod:Adapter"] == (
        shlex.split(told)
    )


def marked(text: str, style: str) -> str:
    return f"<{style}>{text}</{style}>"


def without_marks(text: str) -> str:
    for style in ("bold red", "green", "yellow", "dim"):
        text = text.replace(f"<{style}>", "").replace(f"</{style}>", "")
    return text


@pytest.mark.parametrize(
    "told",
    [
        lambda paint: failure_lines(UNSHRUNK, path="x", paint=paint),
        lambda paint: summary_lines(
            ended(result("REQ-001", Verdict.VACUOUS, "never")), name="vllm", paint=paint
        ),
        lambda paint: replay_lines(replayed(Outcome.FAILED, "why"), "x", paint=paint),
        lambda paint: story_lines(STORY, changes_only=True, paint=paint),
    ],
)
def test_colour_changes_no_character(told):
    """Otherwise a table would be aligned in a terminal alone, or in a file alone."""
    plain = list(told(lambda text, _style: text))
    coloured = list(told(marked))
    assert plain == [without_marks(line) for line in coloured]
    assert plain != coloured


def any_story(rng: Random):
    """Return a story of lines as long and as odd as they come."""
    words = ["add r10", "prompt=123", "max=7", "remote=40 sync", "shares=s0:2+output:r0:12", "send"]
    names = [f"r{number}" for number in range(40)]
    for number in range(1, rng.randint(1, 130)):
        some = " ".join(rng.sample(names, rng.randint(0, 12)))
        yield line(
            number,
            " ".join(rng.sample(words, rng.randint(1, len(words)))),
            f"{some} | {some[:6]} | {some}",
            free=rng.choice((None, 0, 123_456)),
            note=", ".join(["r1 new +1"] * rng.randint(0, 9) + ["x" * rng.choice((0, 30, 200))]),
            is_violation=rng.random() < 0.3,
        )


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("changes_only", [False, True])
def test_no_story_is_too_wide_and_none_loses_a_word_of_an_action(seed, changes_only):
    story = tuple(any_story(Random(seed)))
    told = list(story_lines(story, changes_only=changes_only))
    assert [] == [text for text in told if len(text) > 98]
    words = " ".join(told).split()
    for one in story:
        assert set(one.action.split()) <= set(words)
    assert sum(one.is_violation for one in story) == "\n".join(told).count("<- here")


def test_a_queue_that_stays_as_it_was_is_blank_where_only_changes_are_shown():
    story = (line(1, "step", "r0 | | r1"), line(2, "step", "r0 | | r2"), line(3, "step", "| | r2"))
    told = [text.split() for text in story_lines(story, changes_only=True)][1:]
    assert [["1", "step", "r0", "–", "r1", "7/7"], ["2", "step", "r2"], ["3", "step", "–"]] == told


def test_an_empty_story_is_a_table_without_rows():
    assert 1 == len(list(story_lines(())))


def labels(lines):
    return [text[2:17].strip() for text in lines if text.startswith("  ") and text[2:17].strip()]


def test_a_failure_that_was_not_saved_tells_no_way_to_replay_it():
    assert "replay" in labels(failure_lines(FAILURE, path="x"))
    assert "replay" not in labels(failure_lines(FAILURE))


@pytest.mark.parametrize(
    ("failure", "is_said"),
    [
        (FAILURE, False),
        (UNSHRUNK, True),
        (evolve(UNSHRUNK, origin=""), False),  # a replay has nothing to do with shrinking
    ],
)
def test_what_is_not_minimal_is_said_to_be(failure, is_said):
    assert is_said == ("not minimal" in labels(failure_lines(failure, path="x")))


def test_holdings_belong_to_faults_of_progress():
    held = evolve(FAILURE, holdings=("r0  RUNNING  holds 1 block(s)",))
    stalled = evolve(held, complaint=evolve(held.complaint, invariant="PRG-001"))
    assert "held blocks" not in labels(failure_lines(held))
    assert "held blocks" in labels(failure_lines(stalled))
    told = labels(failure_lines(evolve(stalled, stall=STALL)))
    assert "waits for" in told
    assert "held blocks" not in told, "the table of the stall says it"


EVERY_WARNING = ended(
    result("REQ-001", Verdict.VACUOUS, "never: it came to that"),
    result("REQ-002", Verdict.UNKNOWN, "KeyError"),
    result("REQ-003", Verdict.NOT_APPLICABLE, "lacks ABORT"),
    seen=Seen(actions={"add": 1, "step": 0}, actions_missing={"abort": "ABORT"}),
    crashes_ignored=2,
)


@pytest.mark.parametrize("profile", ["quick", "ci", "nightly", "transfers", "pressure"])
@pytest.mark.parametrize("stop", ["", "interrupted", "--max-time 5s", "the engine's process died"])
def test_every_warning_ends_in_a_fix_and_none_says_to_do_what_was_done(profile, stop):
    lines = list(summary_lines(evolve(EVERY_WARNING, profile=profile, stopped_early=stop)))
    first = next(i for i, text in enumerate(lines) if text.startswith("!"))
    told = "\n".join(lines[first:]).replace("\n   ", " ").splitlines()
    assert all(text.startswith("!  ") and ".  fix: " in text for text in told)
    assert 5 + (not stop) + bool(stop) == len(told)
    assert not any(f" {profile}" in text.partition("fix:")[2] for text in told)


@pytest.mark.parametrize(
    ("stop", "fix"),
    [
        ("--max-time 5s", "a longer --max-time"),
        ("interrupted", "run it again, with --max-time if it takes too long"),
        ("the engine's process died", "mend what is told above, then run it again"),
    ],
)
def test_a_run_that_ended_early_says_what_to_do_about_it(stop, fix):
    told = " ".join(" ".join(summary_lines(ended(stopped_early=stop))).split())
    assert f"not all traces were run: {stop}. fix: {fix}" in told


def test_a_run_without_traces_is_not_told_that_everything_is_vacuous():
    over = evolve(EVERY_WARNING, traces=0, stopped_early="interrupted")
    assert not [text for text in summary_lines(over) if "vacuous in" in text]


def test_every_edge_reached_has_a_line_and_every_other_one_a_name():
    edges = {f"A{number} -> B{number}": number % 3 for number in range(30)}
    lines = list(summary_lines(ended(seen=Seen(actions={}, transitions=edges))))
    told = " ".join("\n".join(lines).split())
    assert "20 of 30 never: A0 -> B0, A3 -> B3," in told
    for edge, times in edges.items():
        assert (f"{edge} {times}" if times else edge) in told
    assert all("->" not in text.split()[-1] for text in lines), "no edge is split"


def test_time_is_no_part_of_the_summary():
    slow, fast = ended(seconds=99.0), ended(seconds=1.0)
    assert list(summary_lines(slow)) == list(summary_lines(fast))


def test_what_is_set_in_a_configuration_is_told_and_what_is_plain_is_not():
    sizes = "16 blocks of 4 · budget 32 · max_num_seqs 4 · max_model_len 32"
    config = SchedulerConfig(
        blocks_total=16,
        block_size=4,
        max_num_batched_tokens=32,
        max_num_seqs=4,
        max_model_len=32,
    )
    assert sizes == words_for_config(config)
    ahead = evolve(config, max_steps_in_flight=2, async_scheduling=True, dialect=Dialect.V2)
    told = f"{sizes} · max_steps_in_flight 2 · async_scheduling True · dialect v2"
    assert told == words_for_config(ahead)
