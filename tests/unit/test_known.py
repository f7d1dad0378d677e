"""Going on past what is known: what is tainted, what is told, what is still found."""

from __future__ import annotations

import pytest
from attrs import evolve

from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Ended, Found, Known, Outcome, Shrunk
from schedcheck.engine.known import TRACES_EXPECTED, KnownTally
from schedcheck.engine.play import play_actions
from schedcheck.engine.profiles import PROFILES
from schedcheck.engine.replay import replay
from schedcheck.engine.targets import resolve
from schedcheck.invariants.registry import every_invariant, select
from schedcheck.judge import Judge
from schedcheck.model.actions import Add, Drain, FinishTransfer, Preempt, Step
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.known import KnownIssue
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import RequestView, Snapshot
from schedcheck.model.trace import Expectation, Header, Trace
from schedcheck.model.verdict import Finding, Mismatch, Signature, Verdict
from schedcheck.oracles.ledger import Ledger
from schedcheck.oracles.life import Life
from schedcheck.oracles.taint import Taint
from schedcheck.oracles.worker import SimulatedWorker, WorkerRequest
from schedcheck.tracefile import decode


def issue(signature: str, engine: str) -> KnownIssue:
    return KnownIssue(engine=engine, signature=signature, reason="It is.", link="unreported")


def campaign(
    target: str, *known: str, traces: int = 60, invariants: str = "", **how: object
) -> list:
    """Run a part of the quick profile with some signatures known; failures are not shrunk."""
    events: list = []
    Campaign(
        target=resolve(target),
        target_text=target,
        profile=evolve(PROFILES["quick"], traces=traces),
        invariants=select(invariants),
        seed=0,
        emit=events.append,
        known=tuple(issue(one, target) for one in known),
        executions_max=0,
        **how,
    ).run()
    return events


def verdicts(ended: Ended) -> dict[str, Verdict]:
    return {one.id: one.verdict for one in ended.results}


# What a finding is about, and what follows from it.


def finding(signature: str, subject: str) -> Finding:
    invariant, _, kind = signature.partition("/")
    mismatch = Mismatch(kind=kind, subject=subject, expected="", found="")
    return Finding(invariant=invariant, mismatch=mismatch, step=1)


@pytest.fixture
def taint() -> Taint:
    """r0 holds blocks 1 and 2, r1 holds block 3, r2 nothing; block 4 is free."""
    ledger = Ledger(SchedulerConfig(blocks_total=4))
    holds = {"r0": (1, 2), "r1": (3,), "r2": ()}
    for name in holds:
        ledger.lives[name] = Life(name, RequestSpec(prompt=(("own", 1),)), name, (1,))
    show(ledger, (4,), **holds)
    return Taint(ledger, SimulatedWorker(ledger))


def show(ledger: Ledger, free: tuple[int, ...], **holds: tuple[int, ...]) -> None:
    ledger.before = ledger.snapshot
    views = {name: RequestView(status=None, block_ids=(ids,)) for name, ids in holds.items()}
    ledger.snapshot = Snapshot(requests=views, free_block_ids=free)


def test_nothing_is_tainted_at_first(taint):
    assert not taint
    assert not taint.reaches(finding("PRG-001/stalled", "r0 r1"))


@pytest.mark.parametrize(
    ("signature", "subject", "expected"),
    [
        ("TOK-001/token-wrong", "r0", True),
        ("SCH-012/waiting-order-changed", "r1 r0", True),
        ("KV-003/free-twice", "block 2", True),
        ("TOK-001/token-wrong", "r1", False),
        ("KV-004/read-foreign", "r1", False),
        ("KV-003/free-twice", "block 3", False),
        ("SCH-002/over-token-budget", "step 0", False),
        ("ENG-001/KeyError-in-schedule", "schedule", False),
    ],
)
def test_a_consequence_names_a_tainted_request_or_one_of_its_blocks(
    taint, signature, subject, expected
):
    taint.spread(finding("REQ-001/new-after-preemption", "r0"))
    assert expected is taint.reaches(finding(signature, subject))


def test_blocks_stay_tainted_and_spoil_memory_alone(taint):
    """Otherwise a request that hits what a spoilt one wrote would be news."""
    taint.spread(finding("SCH-004/tokens-unknown", "r0"))
    show(taint.ledger, (1,), r1=(3,), r2=(2,))
    show(taint.ledger, (1,), r1=(3,), r2=(2,))
    assert taint.reaches(finding("KV-004/read-foreign", "r2"))
    assert taint.reaches(finding("CACHE-001/hit-foreign", "r2"))
    assert not taint.reaches(finding("TOK-001/token-wrong", "r2"))
    assert not taint.reaches(finding("KV-004/read-foreign", "r1"))


def test_blocks_that_a_tainted_request_gets_later_are_tainted_too(taint):
    taint.spread(finding("SCH-004/tokens-unknown", "r2"))
    show(taint.ledger, (), r0=(1, 2), r1=(3,), r2=(4,))
    taint.follow()
    assert {4} == taint.blocks


def test_blocks_that_only_the_workers_take_for_its_own_are_tainted_too(taint):
    """A request sent in the wrong role: its workers go on writing by the table they had."""
    taint.worker.requests["r2"] = WorkerRequest([], [0], tables=[[3]])
    taint.spread(finding("REQ-001/running-after-preemption", "r2"))
    assert taint.reaches(finding("KV-004/read-foreign", "r1"))


def test_what_is_about_everybody_follows_while_something_tainted_keeps_capacity(taint):
    ledger, stall = taint.ledger, finding("PRG-001/stalled", "r1")
    pool = finding("KV-007/blocks-lost", "the block pool")
    taint.spread(finding("KV-001/left-behind", "r0"))
    assert (True, True) == (taint.reaches(stall), taint.reaches(pool))
    ledger.lives["r0"].rejected = True  # it is over, as far as anybody knows
    show(ledger, (4,), r1=(3,))
    assert (True, True) == (taint.reaches(stall), taint.reaches(pool))  # its blocks are lost
    show(ledger, (1, 4), r1=(2, 3))
    assert (False, False) == (taint.reaches(stall), taint.reaches(pool))


def test_what_is_about_a_step_taints_no_request(taint):
    taint.spread(finding("SCH-002/over-token-budget", "step 3"))
    assert taint.reaches(finding("SCH-003/over-running-limit", "step 3"))
    assert not taint.reaches(finding("TOK-001/token-wrong", "r0"))
    assert set() == taint.blocks


# One trace.

SEED_FAULT = (
    Add("r0", RequestSpec(prompt=(("own", 2),), max_tokens=3, remote_tokens=1)),
    Step(),
    FinishTransfer("r0"),
    Step(),
    Step(),
    Preempt("r0"),
    Step(),
    FinishTransfer("r0"),
    Step(),
    Step(),
)
MUTANT = "reference+resumed-as-new"
SEED = Signature("REQ-001", "new-after-preemption")


def play(*actions, target=MUTANT, known=frozenset({SEED}), config=None):
    header = Header(target=target, config=config or SchedulerConfig())
    return play_actions(resolve(target), header, actions, every_invariant(), known=known)


def test_a_known_finding_is_noted_and_the_trace_goes_on():
    played = play(*SEED_FAULT, Drain())
    assert (11, ()) == (len(played.records), played.findings)
    assert ({SEED}, False) == (played.judge.known_seen, played.judge.is_cut_short)


def test_without_a_ledger_nothing_is_dropped():
    played = play(*SEED_FAULT, Drain(), known=frozenset())
    assert [SEED] == [one.signature for one in played.findings]
    assert (set(), set()) == (played.judge.known_seen, played.judge.dropped)


def test_a_known_crash_ends_the_trace_all_the_same():
    target = "reference+answers-nonsense"
    crash = campaign(target, invariants="ENG-*")[-1].seen.signatures
    ended = campaign(target, *crash, invariants="ENG-*")[-1]
    assert ended.known.traces == ended.known.traces_cut > 0
    assert (Verdict.KNOWN, 0) == (verdicts(ended)["ENG-003"], ended.crashes_ignored)


def test_what_oracles_cannot_follow_after_a_known_fault_cuts_the_trace_short(monkeypatch):
    """Before one, it is a fault of our own, and has to be told as one."""
    fold = Ledger.fold

    def fails(self, event):
        if self.lives and self.lives["r0"].times_new > 1:
            raise KeyError("r9")
        fold(self, event)

    monkeypatch.setattr(Ledger, "fold", fails)
    played = play(*SEED_FAULT, Drain())
    assert ((), True) == (played.findings, played.judge.is_cut_short)
    monkeypatch.setattr(Judge, "_without_known", lambda _self, _event, _findings: ())
    with pytest.raises(KeyError):
        play(*SEED_FAULT, Drain())


# A campaign.

ORDER = "REQ-001/running-after-preemption"
WORSE = "reference+resumed-as-running"


def test_a_known_violation_is_counted_told_and_no_violation():
    events = campaign(MUTANT, str(SEED), traces=120)
    ended = events[-1]
    assert [] == [one for one in events if isinstance(one, Found | Shrunk)]
    (told,) = ended.known.results
    assert (str(SEED), "It is.", "unreported") == (told.signature, told.reason, told.link)
    assert told.traces == ended.known.traces > 0
    assert (0, {}) == (ended.known.traces_cut, ended.seen.signatures)
    assert Verdict.KNOWN is verdicts(ended)["REQ-001"]
    assert {Verdict.KNOWN, Verdict.HOLDS} == set(verdicts(ended).values())


def test_traces_go_on_and_what_follows_is_dropped_and_counted():
    without, ended = campaign(WORSE)[-1], campaign(WORSE, ORDER)[-1]
    assert ended.actions > without.actions
    assert "TOK-001/token-wrong" in ended.known.dropped
    assert {} == dict(ended.seen.signatures)
    assert Verdict.KNOWN is verdicts(ended)["TOK-001"]  # it did not hold, whatever the cause


def test_what_follows_from_another_known_finding_is_not_seen_in_its_own_right():
    """Otherwise its entry would stay in the ledger as long as any fault leads to the same."""
    ended = campaign(WORSE, ORDER, "TOK-001/token-wrong")[-1]
    order, token = ended.known.results
    assert (True, 0) == (order.traces > 0, token.traces)
    assert ended.known.dropped["TOK-001/token-wrong"] > 0


def test_what_is_not_known_is_still_found():
    """The mutant hands a block out twice: one way in which that shows does not excuse another."""
    target = "reference+double-free-on-preemption"
    shown = campaign(target)[-1].seen.signatures
    assert {"KV-003/free-and-held", "KV-003/free-twice"} <= set(shown)
    ended = campaign(target, "KV-003/free-twice")[-1]
    assert ended.known.results[0].traces > 0
    assert ended.seen.signatures["KV-003/free-and-held"] > 0
    assert Verdict.VIOLATED is verdicts(ended)["KV-003"]


def test_an_entry_about_an_invariant_that_was_not_chosen_is_not_told():
    ended = campaign(MUTANT, str(SEED), traces=3, invariants="KV-*")[-1]
    assert () == ended.known.results


@pytest.mark.parametrize(
    ("is_full", "tested", "expected"),
    [(True, {"REQ-001"}, True), (False, {"REQ-001"}, False), (True, set(), False)],
)
def test_an_entry_is_missed_where_it_could_be_expected(is_full, tested, expected):
    told = KnownTally().told([issue(str(SEED), MUTANT)], tested=tested, is_full=is_full)
    assert [expected] == [one.is_missed for one in told.results]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [True, False]),
        ({"traces": 59}, [False, False]),
        ({"dialect": Dialect.V1}, [False, False]),
        ({"seconds_max": 0.0}, [False, False]),
    ],
)
def test_a_long_and_wide_run_misses_what_it_does_not_show(monkeypatch, how, expected):
    monkeypatch.setattr("schedcheck.engine.campaign.TRACES_EXPECTED", 60)
    never = "REQ-001/never-seen"
    ended = campaign(WORSE, never, ORDER, invariants="REQ-001", **how)[-1]
    assert expected == [one.is_missed for one in ended.known.results]


def test_an_entry_that_was_seen_is_not_missed():
    tally = KnownTally()
    tally.take(play(*SEED_FAULT).judge)
    told = tally.told([issue(str(SEED), MUTANT)], tested={"REQ-001"}, is_full=True)
    assert [(1, False)] == [(one.traces, one.is_missed) for one in told.results]


def test_only_ci_and_nightly_are_long_enough_to_miss_an_entry():
    long = {one.name for one in PROFILES.values() if one.traces >= TRACES_EXPECTED}
    assert {"ci", "nightly"} == long


def test_a_run_without_known_issues_says_nothing_of_them():
    assert Known() == campaign("reference", traces=2)[-1].known


# What is found beside something known replays, and shrinks.


def beside() -> Trace:
    """Return a trace that shows the seed fault first, and after it, of another request, a crash."""
    equal = RequestSpec(prompt=(("own", 1),), max_tokens=1)
    return Trace(
        header=Header(target=MUTANT, expect=Expectation(signature=OTHER, step=11)),
        actions=(*SEED_FAULT, Add("r1", equal)),
    )


OTHER = Signature("ENG-001", "Boom-in-add")


@pytest.fixture
def both(monkeypatch):
    """A mutant with a second fault: it cannot add a request named r1."""
    target = resolve(MUTANT)
    kind = type(target.open(SchedulerConfig()))
    add = kind.add

    class Boom(Exception):
        pass

    def raises(self, name, spec, tokens):
        if name == "r1":
            raise Boom
        return add(self, name, spec, tokens)

    raises.__name__ = raises.__qualname__ = "add"
    monkeypatch.setattr(kind, "add", raises)
    return target


def test_a_replay_looks_past_what_is_known_on_the_way_to_what_is_expected(both):
    trace = beside()
    with_it = replay(both, MUTANT, trace, known=[issue(str(SEED), MUTANT)])
    expected = Expectation(signature=Signature("ENG-001", _kind(with_it)), step=11)
    trace = evolve(trace, header=evolve(trace.header, expect=expected))
    with_it = replay(both, MUTANT, trace, known=[issue(str(SEED), MUTANT)])
    assert (Outcome.FAILED, (str(SEED),)) == (with_it.outcome, with_it.failure.known_before)
    assert Outcome.OTHER is replay(both, MUTANT, trace).outcome


def _kind(told) -> str:
    return told.failure.complaint.kind


def test_a_replay_never_looks_past_what_the_trace_expects():
    expect = Expectation(signature=SEED, step=9)
    trace = Trace(header=Header(target=MUTANT, expect=expect), actions=SEED_FAULT)
    told = replay(resolve(MUTANT), MUTANT, trace, known=[issue(str(SEED), MUTANT)])
    assert (Outcome.FAILED, ()) == (told.outcome, told.failure.known_before)


def test_a_trace_that_is_to_hold_does_not_hold_because_its_fault_is_known():
    trace = Trace(header=Header(target=MUTANT, witness="REQ-001"), actions=SEED_FAULT)
    told = replay(resolve(MUTANT), MUTANT, trace, known=[issue(str(SEED), MUTANT)])
    assert Outcome.OTHER is told.outcome


def test_a_fixed_trace_says_what_known_it_saw():
    expect = Expectation(signature=Signature("REQ-001", "nothing-like-it"), step=9)
    trace = Trace(header=Header(target=MUTANT, expect=expect), actions=SEED_FAULT)
    told = replay(resolve(MUTANT), MUTANT, trace, known=[issue(str(SEED), MUTANT)])
    assert (Outcome.FIXED, True) == (told.outcome, f"what is known did: {SEED}" in told.reason)


def test_a_known_crash_makes_a_replay_drift(both):
    expect = Expectation(signature=Signature("KV-001", "never"), step=1)
    first = Trace(header=Header(target=MUTANT, expect=expect), actions=beside().actions[-1:])
    crash = _kind(replay(both, MUTANT, first))
    told = replay(both, MUTANT, first, known=[issue(f"ENG-001/{crash}", MUTANT)])
    assert (Outcome.DRIFTED, True) == (told.outcome, "cut it short at action 1" in told.reason)


def test_what_is_found_beside_something_known_is_shrunk_and_replays():
    target = "reference+double-free-on-preemption"
    known = (issue("KV-003/free-twice", target),)
    events: list = []
    Campaign(
        target=resolve(target),
        target_text=target,
        profile=evolve(PROFILES["quick"], traces=30),
        invariants=select("KV-003"),
        seed=0,
        emit=events.append,
        known=known,
    ).run()
    shrunk = [one.failure for one in events if isinstance(one, Shrunk)]
    assert ["KV-003/free-and-held"] == [one.complaint.signature for one in shrunk]
    trace = decode(shrunk[0].trace.encode(), name="t")
    told = replay(resolve(target), target, trace, invariants=select("KV-003"), known=known)
    assert Outcome.FAILED is told.outcome
