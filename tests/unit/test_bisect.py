"""Searching releases for those on which a trace fails, and what is told of it."""

from __future__ import annotations

import sys
from random import Random

import pytest

from schedcheck import cli
from schedcheck.cli import compare, traces
from schedcheck.engine.bisect import FEW, Bisection, Tried
from schedcheck.engine.events import Fault, Outcome
from schedcheck.host.releases import RELEASES
from schedcheck.host.supervisor import InProcess
from schedcheck.report.bisect import bisect_lines
from schedcheck.sut import TargetError
from telling import HOSTILE, replayed

OUTCOMES = {
    "F": Outcome.FAILED,
    "-": Outcome.FIXED,
    "d": Outcome.DRIFTED,
    "o": Outcome.OTHER,
    "e": Outcome.ERROR,
}
"""A letter a release, oldest first: ``ddFF--``."""


def names(count: int) -> list[str]:
    return [f"0.{number}.0" for number in range(count)]


def search(shown: str, *, own: int, every: bool = False) -> Bisection:
    """Search made-up releases, on each of which the trace shows what its letter says."""
    truth = dict(zip(names(len(shown)), shown, strict=True))
    asked = []

    def attempt(release: str) -> Tried:
        asked.append(release)
        outcome = OUTCOMES[truth[release]]
        return Tried(release=release, outcome=outcome, reason=f"it is {outcome.value}")

    found = Bisection(names(len(shown)), attempt)
    found.run(f"0.{own}.0", every=every)
    assert len(set(asked)) == len(asked), "no release is asked twice"
    return found


def ends(found: Bisection) -> tuple[str, str, str]:
    """Return the three last lines' releases: first failing, last failing, first fixed."""
    told = {line[:15].strip(): line[15:].split() for line in bisect_lines(found)}
    return tuple(told[label][0] for label in ("first failing", "last failing", "first fixed"))


@pytest.mark.parametrize("seed", range(200))
def test_a_fault_with_a_beginning_and_an_end_is_found_exactly_among_releases_that_do_not_tell(seed):
    random = Random(seed)
    count = random.randint(2, 30)
    first = random.randrange(count)
    last = random.randrange(first, count)
    letters = ["F" if first <= place <= last else "-" for place in range(count)]
    own = random.randint(first, last)
    for place in range(count):
        if place != own and random.random() < 0.3:
            letters[place] = random.choice("doe")
    failing = [place for place, letter in enumerate(letters) if letter == "F"]
    fixed = [place for place in range(failing[-1], count) if letters[place] == "-"]
    expected = (
        f"0.{failing[0]}.0",
        f"0.{failing[-1]}.0",
        f"0.{fixed[0]}.0" if fixed else "none",
    )
    assert expected == ends(search("".join(letters), own=own))


def test_few_are_asked():
    """Thirty releases at half a minute each would be a quarter of an hour."""
    found = search("-" * 8 + "F" * 6 + "-" * 16, own=12)
    assert ("0.8.0", "0.13.0", "0.14.0") == ends(found)
    assert len(found.tried) <= 12


def test_a_fault_that_is_there_on_the_newest_release_is_not_fixed():
    found = search("----FFFFFFFF", own=5)
    assert ("0.4.0", "0.11.0", "none") == ends(found)
    assert "first fixed    none     nothing newer was asked about" in bisect_lines(found)


@pytest.mark.parametrize(
    ("shown", "own", "every"), [("F-F-F-"[:FEW], 2, False), ("--F--F--F---", 5, True)]
)
def test_where_every_release_is_tried_a_fault_that_comes_and_goes_shows(shown, own, every):
    found = search(shown, own=own, every=every)
    assert len(shown) == len(found.tried)
    failing = [place for place, letter in enumerate(shown) if letter == "F"]
    assert tuple(f"0.{place}.0" for place in failing) == found.failing
    within = [f"0.{place}.0" for place in range(failing[0], failing[-1]) if shown[place] == "-"]
    (line,) = (line for line in bisect_lines(found) if line.startswith("also fixed"))
    assert f"also fixed     {'  '.join(within)}  (it comes and goes)" == line


@pytest.mark.parametrize("own", [3, 99], ids=["does not fail there", "not asked about"])
def test_without_a_release_known_to_fail_every_one_is_tried(own):
    shown = "-------F----"
    assert ("0.7.0", "0.7.0", "0.8.0") == ends(search(shown, own=own))
    assert len(shown) == len(search(shown, own=own).tried)


@pytest.mark.parametrize("shown", ["-----", "ddddd", "--d-o-e-----"])
def test_a_fault_that_is_nowhere(shown):
    assert ("none", "none", "none") == ends(search(shown, own=1))


def test_what_is_told():
    expected = """\
release  outcome
0.0.0    DRIFTED  it is DRIFTED
0.3.0    FIXED
0.4.0    OTHER    it is OTHER
0.5.0    DRIFTED  it is DRIFTED
0.6.0    FAILED
0.8.0    FAILED
0.11.0   FAILED
0.12.0   FAILED
0.13.0   DRIFTED  it is DRIFTED
0.14.0   DRIFTED  it is DRIFTED
0.15.0   FIXED
0.19.0   FIXED

first failing  0.6.0    0.3.0 does not fail, 2 passed over in between
last failing   0.12.0
first fixed    0.15.0   2 passed over in between
not tried      0.1.0  0.2.0  0.7.0  0.9.0  0.10.0  0.16.0  0.17.0  0.18.0
               (taken to be like their neighbours; --every tries them)
"""
    found = search("ddd-odFFFFFFFdd-----", own=8)
    assert expected == "".join(f"{line}\n" for line in bisect_lines(found))


def test_a_strangers_text_moves_no_cursor_and_long_reasons_are_wrapped():
    def attempt(release: str) -> Tried:
        return Tried(release=release, outcome=Outcome.ERROR, reason=f"{HOSTILE} " + "word " * 60)

    found = Bisection([HOSTILE, "0.2.0"], attempt)
    found.run("")
    for line in bisect_lines(found):
        assert (True, True) == (line.isprintable(), len(line) <= 100), line


# The command.


@pytest.fixture
def bisect(tmp_path, monkeypatch, capsys):
    """Return what types ``bisect`` with an engine in whose place hand-made outcomes stand."""
    path = tmp_path / "a.trace.jsonl"
    path.write_text(
        '{"expect":{"signature":"REQ-001/new-after-preemption","step":1},"format":"1.0",'
        '"target":"vllm","version":"0.13.0"}\n{"do":"step"}\n'
    )
    asked = []

    def place_for(target, **_more):
        asked.append(target)
        return target, InProcess()

    def run(shown, *arguments, trace=path):
        def perform(job, emit, *, place):
            event = shown(job.target.partition("==")[2])
            if isinstance(event, BaseException):
                raise event
            emit(replayed(event, "so it is") if isinstance(event, Outcome) else event)

        monkeypatch.setattr(traces, "place_for", place_for)
        monkeypatch.setattr(traces, "perform", perform)
        monkeypatch.setattr(sys, "argv", ["schedcheck", "bisect", *map(str, arguments), str(trace)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        said = capsys.readouterr()
        return leaving.value.code, said.out, said.err

    run.asked = asked
    return run


def seed_fault(version: str) -> Outcome:
    minor = int(version.split(".")[1])
    return Outcome.DRIFTED if minor < 11 else Outcome.FAILED if minor < 14 else Outcome.FIXED


def test_a_trace_is_bisected_from_its_own_release_outward(bisect):
    code, out, err = bisect(seed_fault)
    assert (1, "") == (code, err)
    assert "REQ-001/new-after-preemption · 1 action(s) · 29 release(s) of vllm, 0.9.2 to " in out
    assert "\nfirst failing  0.11.0   nothing older tells: 4 passed over\n" in out
    assert "\nlast failing   0.13.0\nfirst fixed    0.14.0\n" in out
    assert ["vllm==0.13.0", "vllm==0.33.0"] == bisect.asked[:2]


def test_a_range_is_kept_to(bisect):
    code, out, _err = bisect(seed_fault, "--from", "0.14.0", "--to", "vllm==0.16.0")
    assert (0, ["vllm==0.14.0", "vllm==0.15.1", "vllm==0.16.0"]) == (code, bisect.asked)
    assert out.endswith("first failing  none\nlast failing   none\nfirst fixed    none\n")


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (Outcome.FIXED, 0),
        (Outcome.DRIFTED, 3),
        (Outcome.OTHER, 3),
        (Outcome.ERROR, 2),
        (Fault(message="it does not import"), 2),
        (TargetError("cannot prepare it"), 2),
        (Fault(message="broken", is_ours=True), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes_where_it_fails_nowhere(bisect, event, code):
    assert code == bisect(lambda _version: event)[0]


def test_a_release_that_cannot_be_loaded_is_named_with_the_reason(bisect):
    def shown(version):
        bad = version == "0.33.0"
        return Fault(message="no module \x1b[2J") if bad else seed_fault(version)

    code, out, _err = bisect(shown)
    assert (1, True) == (code, "\n0.33.0   ERROR    no module ?[2J\n" in out)
    assert "\nfirst fixed    0.14.0\n" in out


def test_an_interrupt_tells_what_was_seen(bisect):
    def shown(version):
        return KeyboardInterrupt() if version == "0.33.0" else seed_fault(version)

    code, out, err = bisect(shown)
    assert (130, "interrupted") == (code, err.strip())
    assert "\n0.13.0   FAILED\n" in out


def test_only_prepared_releases_if_so_asked(bisect, monkeypatch):
    class Environment:
        def __init__(self, release):
            self.release = release

        def is_ready(self):
            return self.release.version in ("0.13.0", "0.14.0")

    monkeypatch.setattr(compare, "environment_for", Environment)
    code, out, _err = bisect(seed_fault, "--prepared")
    assert (1, {"vllm==0.13.0", "vllm==0.14.0"}) == (code, set(bisect.asked))
    assert "\nlast failing   0.13.0\nfirst fixed    0.14.0\n" in out
    code, out, err = bisect(seed_fault, "--prepared", "--to", "0.12.0")
    assert (2, "") == (code, out)
    assert "no release of vllm asked about is prepared" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "0.12.9"), "release '0.12.9' of vllm cannot be prepared"),
        (("--to", "sglang==1"), "release 'sglang==1' of vllm cannot be prepared"),
        (("--from", "0.14.0", "--to", "0.13.0"), "--from 0.14.0 is newer than --to 0.13.0"),
        (("--target", "sglang"), "no engine 'sglang' can be prepared, only vllm"),
        (("--target", "reference", "--from", "1"), "no engine 'reference' can be prepared"),
        (("--target", "vllm==0.13.0"), "--target vllm==0.13.0 names one release"),
    ],
)
def test_wrong_options_get_one_clear_line(bisect, arguments, said):
    code, out, err = bisect(seed_fault, *arguments)
    assert (2, "", []) == (code, out, bisect.asked)
    assert said in err
    assert 1 == len(err.splitlines())


def test_a_trace_that_violates_nothing_is_refused(bisect, tmp_path):
    path = tmp_path / "b.trace.jsonl"
    path.write_text('{"format":"1.0","target":"vllm"}\n{"do":"step"}\n')
    code, out, err = bisect(seed_fault, trace=path)
    assert (2, "") == (code, out)
    assert "is not expected to violate anything" in err
    code, out, err = bisect(seed_fault, trace=tmp_path / "nowhere")
    assert (2, True) == (code, "nowhere: cannot read it" in err)


def test_the_releases_are_ordered_oldest_first():
    """Bisecting rests on it, and a table is easily added to at the wrong place."""
    versions = [tuple(map(int, one.version.split("."))) for one in RELEASES.values()]
    assert sorted(versions) == versions
