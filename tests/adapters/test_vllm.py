"""The vLLM adapter: refusals anywhere, its translation and its findings where vLLM is prepared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from schedcheck import catalogue
from schedcheck.adapters.vllm import vllm_target
from schedcheck.adapters.vllm.compat import ENVIRONMENT, accepted, status_of, traits_of
from schedcheck.adapters.vllm.compat import RELEASES as RELEASES_KNOWN
from schedcheck.catalogue.exemptions import known_issues
from schedcheck.host.code import code_folder
from schedcheck.host.environments import cache_folder, environment_for
from schedcheck.host.releases import find_release
from schedcheck.model.capability import Capability
from schedcheck.sut import TargetError
from schedcheck.tracefile import read

PROBE = Path(__file__).with_name("probe_vllm.py")
RELEASES = ("0.13.0", "0.14.0", "0.33.0")
NOT_OFFERED = {
    Capability.FORCE_PREEMPT_ONE,
    Capability.EXCLUSIVE_BLOCKS,
    Capability.OWN_STORE,
    # The reference has media; the adapter does not translate them yet.
    Capability.ENCODER_INPUTS,
    Capability.ORDERED_ADMISSION,
    Capability.ORDERED_PREEMPTION,
}
LATER = {Capability.STREAMING_INPUT, Capability.PAUSE}
"""What of these releases only the last can do."""


def need(release: str) -> Path:
    """Return the interpreter of a prepared release, or skip the test."""
    environment = environment_for(find_release(f"vllm=={release}"))
    if not environment.is_ready():
        pytest.skip(f"vllm=={release} is not prepared; schedcheck env vllm=={release} does it")
    return environment.python


@cache
def probe(release: str) -> dict[str, Any]:
    """Return what the adapter answered on a release: one process, asked once."""
    ran = subprocess.run(
        [need(release), PROBE],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(Path.home()),
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(code_folder(cache_folder())),
        },
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ("", 0) == (ran.stderr, ran.returncode), "nothing but the answer is said"
    answer = json.loads(ran.stdout)
    assert isinstance(answer, dict)
    return answer


@pytest.fixture(params=RELEASES)
def asked(request) -> dict[str, Any]:
    """What the adapter answered, for each release that is prepared."""
    need(request.param)
    return probe(request.param)


class TestRefusals:
    """One line each, wherever it runs."""

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch):
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)  # what is set before the import goes with the test

    def refusal(self) -> str:
        with pytest.raises(TargetError) as error:
            vllm_target()
        assert 1 == len(str(error.value).splitlines())
        return str(error.value)

    def test_no_vllm(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "vllm", None)
        assert "vllm is not installed here; vllm==0.33.0 prepares" in self.refusal()

    @pytest.mark.parametrize("version", ["0.9.1", "0.8.5.post1", "0.13.1.dev7", "0.32.1"])
    def test_an_older_release_that_was_not_verified(self, monkeypatch, version):
        stand_in = ModuleType("vllm")
        stand_in.__version__ = version
        monkeypatch.setitem(sys.modules, "vllm", stand_in)
        assert self.refusal().startswith(f"vllm {version} is not among the releases")
        assert ": " + ", ".join(RELEASES_KNOWN) in self.refusal()

    def test_a_checkout_that_has_nothing_of_what_is_needed(self, monkeypatch):
        stand_in = ModuleType("vllm")
        stand_in.__version__ = "0.34.0.dev3"
        monkeypatch.setitem(sys.modules, "vllm", stand_in)
        said = "vllm 0.34.0.dev3 is not one that was verified, and differs from 0.33.0: vllm.v1."
        assert self.refusal().startswith(said)
        assert self.refusal().endswith("(schedcheck doctor vllm says it one by one)")

    def test_an_import_that_fails_whatever_it_raises(self, monkeypatch, tmp_path):
        (tmp_path / "vllm.py").write_text("raise RuntimeError('no\\n  such operator')\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        assert "vllm does not import: RuntimeError: no such operator" == self.refusal()

    def test_a_dependency_that_is_missing_is_named(self, monkeypatch, tmp_path):
        (tmp_path / "vllm.py").write_text("import no_such_dependency\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        said = f"it needs the module no_such_dependency, which {sys.executable} lacks"
        assert said in self.refusal()


class TestTable:
    """What differs between releases."""

    def test_a_local_build_of_a_release_is_that_release(self):
        assert "0.33.0" == traits_of("0.33.0+cpu").version

    @pytest.mark.parametrize(
        "version", ["0.33.1", "0.33.0rc1", "0.34.0.dev7+g0123abc", "1.0", "dev"]
    )
    def test_a_checkout_is_taken_for_the_last_release_and_keeps_its_version(self, version):
        traits = traits_of(version)
        assert (version, "0.33.0", False) == (traits.version, traits.like, traits.is_verified)

    def test_a_status_nobody_knows_is_said_before_a_trace_begins(self):
        with pytest.raises(TargetError, match="status WAITING_FOR_GODOT"):
            status_of("WAITING_FOR_GODOT")

    def test_keywords_that_a_release_does_not_know_are_left_out(self):
        def release(*, old: int) -> int:
            return old

        assert {"old": 1} == accepted(release, old=1, new=2)


class TestTranslation:
    """What the protocol says, on every release."""

    def test_what_it_claims(self, asked):
        every = {one.value for one in Capability}
        lacks = NOT_OFFERED if asked["version"] == "0.33.0" else NOT_OFFERED | LATER
        missing = {one.value for one in lacks}
        assert missing == every - set(asked["capabilities"])
        v2 = ["v1", "v2"] if asked["version"] == "0.33.0" else ["v1"]
        assert v2 == asked["dialects"]

    def test_a_configuration_it_honours_stays_as_it_is_and_can_make_progress(self, asked):
        expected = {"unstable": 0, "cramped": 0, "v2 becomes": asked["dialects"][-1]}
        assert expected == asked["configurations"]

    def test_a_plain_life(self, asked):
        life = asked["plain life"]
        new = ["r0", "NEW", 0, 3, [[1, 2]], "REPLACE", 3]
        running = ["r0", "RUNNING", 3, 1, None, "APPEND", None]
        assert [[new], [running], []] == life["rows"]
        assert [{}, {"r0": "LENGTH"}] == life["finished"]
        assert [[], [], ["r0"]] == life["announced"]
        assert [4, 4, [1, 2, 3, 4]] == life["free"], "the null block is not counted"
        assert life["has_work"] is False

    def test_queues_have_the_engines_names(self, asked):
        added = ["kv_holding_waiting"] if asked["version"] == "0.33.0" else []
        assert [*added, "running", "waiting"] == asked["plain life"]["queues"]

    def test_an_id_used_twice_means_its_owner_of_the_moment(self, asked):
        """Otherwise the end of the first owner is taken for the end of the second."""
        reused = asked["reused id"]
        assert [["r0"], ["r1"]] == reused["second"], "ended and new in one output"
        assert [["r1"], []] == reused["third"]
        assert [[], ["r1"]] == reused["ended"]
        assert "Rejected" == asked["id in use"]

    def test_an_aborted_load_is_reported_once(self, asked):
        load = asked["aborted load"]
        assert [[["r0", 0, 2, True, [[1, 2]]]]] == load["loads"]
        assert [[], [], ["r0"], []] == load["reported"]
        assert (4, []) == (load["free at the end"], load["crashes"])
        keeps = asked["version"] == "0.33.0"
        assert (2 if keeps else 4) == load["free after the abort"], "vllm#32255"

    def test_a_failed_load_counts_up_to_its_bad_block(self, asked):
        assert [["r0", "NEW", 2, 4, [[1, 2, 3]], "REPLACE", 6]] == asked["failed load"]["rows"]
        assert [[], 4] == [asked["failed load"]["left"], asked["failed load"]["free"]]

    def test_a_failed_load_is_about_the_blocks_of_its_own_step(self, asked):
        """A request preempted in flight may load again before the first load has failed."""
        expected, said = asked["failed first of two loads"]
        assert expected == said

    def test_a_load_begins_behind_what_is_cached(self, asked):
        assert [4, 3, True, 4] == asked["first load"]

    def test_a_send_holds_the_blocks_until_it_ends(self, asked):
        send = asked["delayed send"]
        assert [[], ["r0"], [], []] == send["sends"]
        assert [[["r0"]], [[]]] == send["at aborts"], "nothing is sent of what holds no blocks"
        assert [1, 4, []] == [send["held"], send["free"], send["tracked"]]

    def test_a_reset_is_refused_while_blocks_are_used_and_a_forced_one_preempts(self, asked):
        assert ["Rejected", "Accepted", "PREEMPTED"] == asked["resets"]

    @pytest.mark.parametrize("kind", ["drafts", "drafts ahead"])
    def test_of_two_drafts_one_is_right(self, asked, kind):
        """So each verification delivers two tokens; the last one has one token left to sample."""
        drafts, delivered = asked[kind]
        assert [0, 2, 2, 0] == drafts
        assert [1, 2, 2, 0] == delivered

    def test_a_session_goes_on_with_its_next_input(self, asked):
        if "STREAMING_INPUT" not in asked["capabilities"]:
            assert asked["session"] is None
            return
        delivered, told, has_work = asked["session"]
        assert [1, 1, 1, 1, 0] == delivered
        assert [["NEW", 0, 2], ["RUNNING", 2, 1]] == told[:2]
        assert has_work is False

    def test_what_must_come_first_holds_a_request_back(self, asked):
        pause = [[], ["r0"]] if "PAUSE" in asked["capabilities"] else []
        assert {"grammar": [[], ["r0"]], "lookup": [[], ["r0"]], "pause": pause} == asked[
            "held back"
        ]

    def test_one_adapter_at_a_time(self, asked):
        assert [["r0"], ["r0"], ["r1"]] == asked["adapters"]

    def test_blocks_behind_the_window_are_given_back(self, asked):
        assert [2, 2, 2, 2] == asked["window"]

    def test_the_same_seed_shows_the_same(self, asked):
        assert asked["repeated"] is True


def test_the_seed_path_by_release_and_dialect():
    """The fault that the project is about, in ten actions, and its repair."""
    for release in RELEASES:
        need(release)
    seen = {
        (release, dialect): path["rows"][0][1:4] + path["rows"][0][6:]
        for release in RELEASES
        for dialect, path in probe(release)["seed path"].items()
    }
    expected = {
        ("0.13.0", "v1"): ["NEW", 1, 2, 2],
        ("0.14.0", "v1"): ["RESUMED", 1, 2, 3],
        ("0.33.0", "v1"): ["RESUMED", 1, 2, 3],
        ("0.33.0", "v2"): ["NEW", 1, 2, 3],
    }
    assert expected == seen
    told = probe("0.33.0")["seed path"]["v2"]["preempted"]
    assert ["r0"] in told, "in dialect V2 the workers are told to forget it first"


def test_the_seed_fault_is_found_shrunk_and_replayed(schedcheck, tmp_path):
    for release in ("0.13.0", "0.14.0"):
        need(release)
    asked = ("run", "vllm==0.13.0", "--invariants", "REQ-001", "--max-time", "10s")
    ran = schedcheck(*asked, "--known", "none")
    assert 1 == ran.returncode, ran.stderr
    (trace,) = (tmp_path / ".schedcheck" / "traces").glob("REQ-001-*.trace.jsonl")
    header, *actions = trace.read_text().splitlines()
    assert "REQ-001/new-after-preemption" == json.loads(header)["expect"]["signature"]
    assert len(actions) <= 10

    again = schedcheck("replay", trace)
    assert (1, "FAILED") == (again.returncode, again.stdout.split()[0])
    repaired = schedcheck("replay", trace, "--on", "vllm==0.14.0")
    assert (0, "FIXED") == (repaired.returncode, repaired.stdout.split()[0])

    known = schedcheck(*asked)
    assert (0, True) == (known.returncode, "KNOWN        REQ-001/new-after" in known.stdout)


@pytest.mark.parametrize(
    "issue", [one for one in known_issues() if one.trace], ids=lambda issue: issue.signature
)
def test_what_the_ledger_says_of_a_release_is_so(schedcheck, issue):
    """The trace it names shows it there, where that release is prepared."""
    path = catalogue.folder() / issue.trace
    header = read(path).header
    need(header.version)
    told = schedcheck("replay", path)
    assert (1, "FAILED") == (told.returncode, told.stdout.split()[0]), told.stderr


@pytest.mark.parametrize(
    ("release", "dialect", "back"),
    [("0.14.0", "v1", "resumed"), ("0.33.0", "v1", "resumed"), ("0.33.0", "v2", "new")],
)
def test_the_repaired_releases_hold_and_take_the_path(schedcheck, release, dialect, back):
    need(release)
    ran = schedcheck(
        *("run", f"vllm=={release}", "--invariants", "REQ-001", "--dialect", dialect),
        *("--max-time", "10s", "--strict"),
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert f"PREEMPTED -> WAITING_FOR_REMOTE_KVS -> {back} " in ran.stdout
