"""A user's own scheduler, and options, behind vLLM: where a release is prepared."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from schedcheck.host.code import code_folder
from schedcheck.host.environments import cache_folder, environment_for
from schedcheck.host.releases import find_release

PROBE = Path(__file__).with_name("probe_pieces.py")
PIECES = Path(__file__).with_name("user_pieces.py")
RELEASES = ("0.13.0", "0.14.0", "0.33.0")


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


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no module", "--scheduler no_such.module:X: there is no module no_such, neither in"),
        ("no class", "the module user_pieces has no Sane; did you mean user_pieces:Same?"),
        ("no scheduler", "is no subclass of vllm.v1.core.sched.scheduler.Scheduler"),
        (
            "cannot be made",
            "vllm cannot be made with --scheduler user_pieces:CannotBeMade: RuntimeError: no way",
        ),
        ("not ahead", "user_pieces:Same is no subclass of AsyncScheduler"),
        ("unknown", "the nearest are max_num_seqs, "),
        ("wrong type", "wants int for it"),
        ("wrong kind", "--config max_num_seqs=few is no integer"),
        ("too small", "--config max_num_seqs=0 is too small"),
        ("no connector", "kv_connector.v1.base.KVConnectorBase_V1"),
        ("incomplete", "user_pieces:Incomplete lacks build_connector_meta, "),
        ("unmakeable", "user_pieces:Unmakeable cannot be made: ConnectionError: no store at"),
        ("not its option", "--config kv_connector_extra_config.least=7 is for a --connector"),
        ("no policy", "--config policy=lifo is no policy; there are fcfs, priority"),
        ("another way", "--config scheduler_cls=a.b: --scheduler chooses it"),
        ("no room", "has no room for a token of each request (max_num_seqs=3)"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(asked, what, said):
    assert said in asked["refusals"][what]
    assert 1 == len(asked["refusals"][what].splitlines())


def test_an_option_reaches_the_engine(asked):
    assert [[5, 3], [2, 2]] == asked["counts"]


def test_what_is_pinned_is_the_same_in_every_trace_and_the_rest_makes_room(asked):
    budgets, seqs, policies, blocks = asked["pins"]
    assert ([3], ["priority"], [4]) == (budgets, policies, blocks)
    assert max(seqs) <= 3


@pytest.mark.parametrize(("scheduler", "is_ahead"), [("Same", False), ("Ahead", True)])
def test_a_users_scheduler_is_driven_in_the_engines_place(asked, scheduler, is_ahead):
    expected = {
        "class": scheduler,
        "ahead": is_ahead,
        "claims": is_ahead,
        "finished": ["LENGTH"],
        "crashes": [],
    }
    assert expected == asked[scheduler]


def test_what_it_raises_is_a_finding(asked):
    assert ["too much"] == asked["Chokes"]["crashes"]


# What the adapter relies on.


def test_a_verified_release_has_all_that_the_adapter_relies_on(asked):
    parts = ("functions", "fields", "enumerations", "a scheduler")
    assert [[f"surface: {part}", "ok"] for part in parts] == asked["surface"][0]


def test_a_checkout_that_lost_something_is_refused_and_what_is_said(asked):
    _, lost, (_, refused) = asked["surface"]
    gone = "NewRequestData has no prompt_token_ids, block_ids, num_computed_tokens, "
    assert ["surface: NewRequestData", "missing", f"{gone}prefill_token_ids"] in lost
    assert gone in refused
    assert "(schedcheck doctor vllm says it one by one)" in refused


def test_a_checkout_newer_than_what_was_verified_runs_if_nothing_was_lost(asked):
    """Here the last release, or an older one, calls itself newer than all."""
    refused = asked["surface"][2][0]
    assert ("" if asked["version"] == "0.33.0" else "vllm 99.0.dev1") == refused[:14]


# A connector.


def test_what_a_users_store_holds_is_not_what_requests_say(asked):
    assert [["OWN_STORE"], ["UNDECIDED_LOOKUPS"]] == asked["claims"]


def test_a_users_connector_loads_and_sends_and_is_told_of_the_ends(asked):
    expected = {
        "loads": [["r1", 0, 5, True]],
        "sends": ["r0"],
        "told": [["r0"], ["r1"]],
        "finished": ["r0", "r1"],
        "findings": [],
    }
    assert expected == asked["connectors"]["a load"]
    within = {**expected, "loads": [["r1", 0, 5, False]], "told": [["r0"]]}
    assert within == asked["connectors"]["a load within the step"]


def test_an_option_reaches_the_connector(asked):
    assert [] == asked["connectors"]["too few held"]["loads"]


def test_a_lookup_that_takes_its_time_is_no_fault(asked):
    assert {"finished": ["r1"], "findings": []} == {
        key: asked["connectors"]["undecided"][key] for key in ("finished", "findings")
    }


@pytest.mark.parametrize(
    ("what", "signature", "said"),
    [
        (
            "raises",
            "ENG-001/KeyError-in-get_num_new_matched_tokens",
            "the connector, not the engine, raises KeyError: 'r1'",
        ),
        (
            "no pair",
            "ENG-003/connector-no-pair",
            "the connector's get_num_new_matched_tokens answers 0, not (int | None, bool)",
        ),
        ("negative", "ENG-003/connector-negative", "answers -3 tokens for r1: it must be 0 or"),
        ("beyond the prompt", "ENG-003/connector-beyond-the-prompt", "answers 7 tokens for r1"),
        ("wrong type", "ENG-003/connector-wrong-types", "answers (1.5, False) for r1"),
        ("no bool", "ENG-003/connector-wrong-types", "answers (0, 2) for r1"),
        (
            "async without tokens",
            "ENG-003/connector-async-without-tokens",
            "answers (0, True) for r1: without tokens the second must be False",
        ),
        ("nothing left", "ENG-003/connector-nothing-left-to-compute", "answers all 6 tokens"),
        (
            "no metadata",
            "ENG-003/connector-no-metadata",
            "the connector's build_connector_meta answers None, not a KVConnectorMetadata",
        ),
        (
            "no end",
            "ENG-003/connector-no-pair",
            "the connector's request_finished answers None, not (bool, dict | None)",
        ),
        (
            "strangers",
            "ENG-003/connector-unknown-request",
            "the connector's update_connector_output puts 'nobody' into finished_recving",
        ),
        (
            "loading and sending",
            "ENG-003/connector-sends-while-loading",
            "the connector's request_finished keeps the blocks of r1 for a send while its load",
        ),
    ],
)
def test_the_clause_that_a_connector_breaks_is_named_with_its_method(asked, what, signature, said):
    ((found, told),) = asked["connectors"][what]["findings"]
    assert signature == found
    assert told.startswith("the connector")
    assert said in told


def test_a_connector_of_vllms_own_is_driven_like_any_other(schedcheck, tmp_path):
    """It keeps its tokens in files, and loads within the step."""
    need("0.33.0")
    module = "vllm.distributed.kv_transfer.kv_connector.v1.example_connector"
    ran = schedcheck(
        *("run", "vllm==0.33.0", "--connector", f"{module}:ExampleConnector"),
        *("--config", f"kv_connector_extra_config.shared_storage_path={tmp_path / 'kv'}"),
        *("--invariants", "ENG-*,REQ-001", "--max-time", "4s"),
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert ran.stdout.startswith("vllm 0.33.0 --connector vllm.distributed.")


def test_a_trace_of_a_users_scheduler_is_replayed_with_it_and_never_unasked(schedcheck, tmp_path):
    need("0.33.0")
    (tmp_path / "user_pieces.py").write_text(PIECES.read_text() + "open('ran', 'a').close()\n")
    pieces = ("--scheduler", "user_pieces:Chokes", "--config", "max_num_seqs=1")
    ran = schedcheck(
        *("run", "vllm==0.33.0", *pieces, "--invariants", "ENG-001", "--max-time", "5s")
    )
    assert 1 == ran.returncode, ran.stderr
    assert "ValueError: too much" in ran.stdout
    (trace,) = (tmp_path / ".schedcheck" / "traces").glob("ENG-001-*.trace.jsonl")
    name = trace.relative_to(tmp_path)
    assert f"schedcheck replay {name} {' '.join(pieces)}" in ran.stdout
    (tmp_path / "ran").unlink()

    unasked = schedcheck("replay", trace)
    assert 2 == unasked.returncode
    assert f"say {' '.join(pieces)}" in unasked.stderr
    assert not (tmp_path / "ran").exists()
    again = schedcheck("replay", trace, *pieces)
    assert (1, "FAILED") == (again.returncode, again.stdout.split()[0])
    assert (tmp_path / "ran").exists()
