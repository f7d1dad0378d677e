"""The contract everyone builds on: the values of the model and their few rules."""

from __future__ import annotations

import attrs
import pytest

from schedcheck.model.actions import (
    ACTIONS,
    Abort,
    Action,
    Add,
    AddChunk,
    AnswerLookup,
    Complete,
    Drain,
    FailTransfer,
    FinishSend,
    FinishTransfer,
    GrammarReady,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Schedule,
    Step,
    requests_of,
)
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.lifecycle import LAWFUL, TRANSITIONS, is_lawful, name_of
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.model.trace import Header, Trace
from schedcheck.model.verdict import Finding, Mismatch, Signature

SPEC = RequestSpec(prompt=(("sys", 4), ("own", 3)), max_tokens=5)


# --- Configuration and requests. ---


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert SchedulerConfig(block_size=4).blocks_for(tokens) == blocks


def test_slots_total_is_blocks_times_size():
    assert SchedulerConfig(blocks_total=7, block_size=4).slots_total == 28


@pytest.mark.parametrize(
    ("tokens", "max_model_len", "fits"),
    [(12, 64, True), (13, 64, False), (10, 10, True), (11, 10, False)],
)
def test_a_request_fits_by_pool_and_by_model_length(tokens, max_model_len, fits):
    config = SchedulerConfig(blocks_total=3, block_size=4, max_model_len=max_model_len)
    assert config.fits(tokens) is fits


@pytest.mark.parametrize(
    "field",
    [
        *("blocks_total", "block_size", "max_num_batched_tokens"),
        *("max_num_seqs", "max_model_len", "max_steps_in_flight"),
    ],
)
def test_no_limit_may_be_zero(field):
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**{field: 0})


def test_a_request_counts_its_tokens():
    assert (SPEC.prompt_tokens_count, SPEC.total_tokens_max) == (7, 12)


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"remote_tokens": -1}])
def test_a_request_refuses_impossible_numbers(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RequestSpec(prompt=(("own", 1),), **wrong)


# --- Actions. ---


def test_every_action_is_listed_and_named_once():
    assert len(set(ACTIONS)) == len(ACTIONS) == len({kind.do for kind in ACTIONS})
    assert set(ACTIONS) == set(Action.__args__)


def test_every_action_is_a_frozen_value():
    # The reducer keys candidates by trace, so actions must compare and hash by content.
    assert hash(Step(finish_loads=("r0",))) == hash(Step(finish_loads=("r0",)))
    for kind in ACTIONS:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            object.__new__(kind).anything = 1


@pytest.mark.parametrize(
    ("action", "names"),
    [
        (Add("r0", SPEC), ("r0",)),
        (Schedule(), ()),
        (Complete(), ()),
        (Complete(finish_loads=("r1", "r0")), ("r1", "r0")),
        (Step(), ()),
        (Step(finish_loads=("r0",)), ("r0",)),
        (FinishTransfer("r0"), ("r0",)),
        (FailTransfer("r0", bad_block=1), ("r0",)),
        (FinishSend("r0"), ("r0",)),
        (Abort("r0"), ("r0",)),
        (Preempt("r0"), ("r0",)),
        (ResetPrefixCache(running=True), ()),
        (AnswerLookup("r0"), ("r0",)),
        (GrammarReady("r0"), ("r0",)),
        (AddChunk("r0"), ("r0",)),
        (Pause(), ()),
        (Resume(), ()),
        (Drain(), ()),
    ],
    ids=repr,
)
def test_requests_of_names_whom_an_action_is_about(action, names):
    assert requests_of(action) == names


def test_the_actions_above_are_all_there_are():
    (mark,) = test_requests_of_names_whom_an_action_is_about.pytestmark
    assert {type(action) for action, _ in mark.args[1]} == set(ACTIONS)


# --- Life of a request. ---


def reachable(start: Status | None, capabilities: frozenset[Capability]) -> set[Status | None]:
    """Return every status that a request can get to from ``start``, however long it takes."""
    found: set[Status | None] = set()
    for _ in range(len(Status) + 2):  # no path is longer than there are states
        found |= {
            edge.after
            for edge in TRANSITIONS
            if edge.needs <= capabilities and (edge.before == start or edge.before in found)
        }
    return found


def test_no_transition_stands_twice():
    pairs = [(edge.before, edge.after) for edge in TRANSITIONS]
    assert len(pairs) == len(set(pairs)) == len(LAWFUL)


def test_no_transition_stays_where_it_is():
    assert [str(edge) for edge in TRANSITIONS if edge.before == edge.after] == []


def test_every_status_can_be_reached_and_leads_to_an_end():
    everything = frozenset(Capability)
    ends = {status for status in Status if status.is_finished}
    assert reachable(None, everything) == set(Status)
    assert [
        one for one in Status if one not in ends and not ends & reachable(one, everything)
    ] == []


def test_a_plain_scheduler_can_still_run_preempt_and_finish():
    # Without any capability nothing is loaded, aborted or failed, but requests live and end.
    assert {Status.RUNNING, Status.PREEMPTED, Status.FINISHED_LENGTH_CAPPED} <= reachable(
        None, frozenset()
    )
    assert Status.FINISHED_ABORTED not in reachable(None, frozenset())
    assert Status.WAITING_FOR_REMOTE_KVS not in reachable(None, frozenset())


def test_what_is_finished_stays_so():
    # Being forgotten is no transition: engines differ in when they do it.
    assert [str(edge) for edge in TRANSITIONS if edge.before and edge.before.is_finished] == []
    assert [str(edge) for edge in TRANSITIONS if edge.after is None] == []


def test_loading_needs_a_target_that_loads():
    # Otherwise coverage would count these edges as missed on a target that cannot take them.
    loading = Status.WAITING_FOR_REMOTE_KVS
    edges = [edge for edge in TRANSITIONS if loading in (edge.before, edge.after)]
    without = [str(edge) for edge in edges if Capability.ASYNC_LOADS not in edge.needs]
    assert without == ["WAITING_FOR_REMOTE_KVS -> FINISHED_ABORTED"]


def test_a_preempted_request_never_becomes_a_waiting_one():
    # Otherwise it would come back as new: the fault that REQ-001 is about.
    assert not is_lawful(Status.PREEMPTED, Status.WAITING, RequestSpec(prompt=(("own", 2),)))


def test_only_a_session_goes_from_one_turn_to_the_next():
    # Otherwise every request might become a waiting one by itself, and come back as new.
    plain = RequestSpec(prompt=(("own", 2),))
    session = RequestSpec(prompt=(("own", 2),), chunks=(1,))
    for before in (Status.RUNNING, Status.PREEMPTED):
        assert not is_lawful(before, Status.WAITING, plain)
        assert is_lawful(before, Status.WAITING, session)


def test_only_a_request_with_a_grammar_waits_for_one():
    waits = Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    assert not is_lawful(None, waits, RequestSpec(prompt=(("own", 2),)))
    assert is_lawful(None, waits, RequestSpec(prompt=(("own", 2),), grammar=True))


def test_is_finished_agrees_with_the_name():
    assert [s.is_finished for s in Status] == [s.name.startswith("FINISHED") for s in Status]


def test_a_transition_reads_as_two_words():
    assert [str(edge) for edge in TRANSITIONS][:2] == ["(absent) -> WAITING", "WAITING -> RUNNING"]
    assert name_of(Status.RUNNING) == "RUNNING"


# --- Verdicts and traces. ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "REQ-001/new-after-preemption",
            Signature(invariant="REQ-001", kind="new-after-preemption"),
        ),
        ("ENG-001/A-in-a/b", Signature(invariant="ENG-001", kind="A-in-a/b")),
    ],
)
def test_a_signature_reads_back_as_it_is_written(text, expected):
    assert (Signature.parse(text), str(expected)) == (expected, text)


@pytest.mark.parametrize("text", ["", "REQ-001", "REQ-001/", "/kind", "/"])
def test_what_is_no_signature_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="one looks like REQ-001/kind-of-mismatch"):
        Signature.parse(text)


def test_a_trace_lists_its_requests_in_order():
    other = RequestSpec(prompt=(("own", 1),))
    actions = (Add("r1", SPEC), Step(), Add("r0", other))
    trace = Trace(header=Header(target="reference"), actions=actions)
    assert list(trace.specs.items()) == [("r1", SPEC), ("r0", other)]


def test_an_expectation_is_taken_from_a_finding_and_nothing_else_changes():
    trace = Trace(header=Header(target="reference", seed="1/2"), actions=(Step(), Step()))
    mismatch = Mismatch(kind="leak", subject="block 3", expected="free", found="owned")
    changed = trace.with_expectation(Finding(invariant="KV-001", mismatch=mismatch, step=2))
    expect = changed.header.expect
    assert (str(expect.signature), expect.step) == ("KV-001/leak", 2)
    assert attrs.evolve(changed, header=attrs.evolve(changed.header, expect=None)) == trace


def test_each_turn_of_a_session_may_have_its_own_limit() -> None:
    spec = RequestSpec(
        prompt=(("own", 2),), max_tokens=3, stop_at=1, chunks=(1, 1), chunk_max_tokens=(1,)
    )
    assert [3, 1, 3] == [spec.max_tokens_in(turn) for turn in range(3)]
    assert [2, 1, 2] == [spec.output_tokens_in(turn) for turn in range(3)]
    assert 2 + 1 + 1 + 3 + 1 + 3 == spec.total_tokens_max
