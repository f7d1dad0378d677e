"""The known-issue ledger: what it says, and that nothing wrong in it passes unseen."""

from __future__ import annotations

import tomllib

import pytest

from schedcheck.catalogue.exemptions import LedgerError, known_issues, read_ledger, shipped
from schedcheck.model.known import KnownIssue, covering, release_of

ENTRY = """
[[known]]
engine = "vllm"
releases = { from = "0.9.2", to = "0.13.0" }
signature = "REQ-001/new-after-preemption"
reason = "A preempted request comes back as new."
link = "https://github.com/vllm-project/vllm/pull/31583"
"""
ISSUE = KnownIssue(
    engine="vllm",
    first="0.9.2",
    last="0.13.0",
    signature="REQ-001/new-after-preemption",
    reason="A preempted request comes back as new.",
    link="https://github.com/vllm-project/vllm/pull/31583",
)


@pytest.fixture
def ledger(tmp_path):
    """Return what writes a ledger."""

    def write(text: str):
        path = tmp_path / "exemptions.toml"
        path.write_text(text)
        return path

    return write


def test_an_entry_is_read_as_it_is_written(ledger):
    assert (ISSUE,) == read_ledger(ledger(ENTRY))


def test_a_ledger_without_entries_knows_nothing(ledger):
    assert () == read_ledger(ledger("# nothing\n"))


def test_the_one_in_the_catalogue_can_be_read_and_is_the_default():
    assert read_ledger(shipped()) == known_issues()
    assert len(tomllib.loads(shipped().read_text("utf-8"))["known"]) == len(known_issues())


def test_none_takes_no_ledger():
    assert () == known_issues("none")


def without(key: str) -> str:
    return "\n".join(line for line in ENTRY.splitlines() if not line.startswith(key))


SAYS = "entry 1 (vllm REQ-001/new-after-preemption): "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[issue]]", "unknown key 'issue'; entries are tables [[known]]"),
        ("[known]", "'known' is one table; write [[known]] before each entry"),
        ("known = [3]", "entry 1 is 3; write [[known]] before it"),
        (f"{ENTRY}reson = 'x'", f"{SAYS}unknown key 'reson'; did you mean reason?"),
        (f"{ENTRY}severity = 'x'", f"{SAYS}unknown key 'severity'; there are engine, releases,"),
        (without("reason"), f"{SAYS}lacks 'reason'; an entry has engine, releases, signature,"),
        (without("releases"), f"{SAYS}lacks 'releases'"),
        (without("link"), f"{SAYS}lacks 'link'"),
        (without("engine"), "entry 1 (REQ-001/new-after-preemption): lacks 'engine'"),
        (without("signature"), "entry 1 (vllm): lacks 'signature'"),
        (ENTRY.replace("A preempted", " " * 9 + "A" * 300), "'reason' has 3"),
        (ENTRY.replace('"A preempted request comes back as new."', '" "'), "'reason' is ' '"),
        (ENTRY.replace('"A preempted request comes back as new."', "7"), "'reason' is 7; it is a"),
        (ENTRY.replace("comes back", "comes\\nback"), "it is one line of printable text"),
        (ENTRY.replace("REQ-001/", "REQ-099/"), "'signature' names no invariant, 'REQ-099'; did"),
        (ENTRY.replace("REQ-001/", "XYZ/"), "'XYZ'; schedcheck list invariants shows them all"),
        (ENTRY.replace("REQ-001/new", "REQ-001"), "'REQ-001-after-preemption' is no signature"),
        (ENTRY.replace("new-after", "new after"), "a signature has no spaces"),
        (ENTRY.replace("REQ-001/new", "ENG-002/hung"), "an engine that hangs or dies ends the run"),
        (ENTRY.replace('{ from = "0.9.2", to = "0.13.0" }', '"0.9.2"'), "'releases' is '0.9.2'"),
        (ENTRY.replace('from = "0.9.2", ', ""), f"{SAYS}lacks 'releases.from'"),
        (ENTRY.replace("to =", "till ="), "unknown key 'releases.till'; there are from and to"),
        (ENTRY.replace('"0.9.2"', "0.9"), "'releases.from' is 0.9; a release looks like '0.13.0'"),
        (ENTRY.replace("0.9.2", "0.14.0"), "'releases.to' is '0.13.0', which is before '0.14.0'"),
        (ENTRY.replace("https://", "http://"), "'link' is 'http://github.com/"),
        (f"{ENTRY}trace = '/a.trace.jsonl'", "'trace' is '/a.trace.jsonl'; it is a file"),
        (f"{ENTRY}trace = '../a.trace.jsonl'", "'trace' is '../a.trace.jsonl'; it is a file"),
        (f"{ENTRY}trace = 'a.json'", "'trace' is 'a.json'; it is a file *.trace.jsonl"),
        (ENTRY * 2, "entry 2 (vllm REQ-001/new-after-preemption): 'releases' overlap those of ent"),
        ("[[known]", "not TOML: "),
    ],
)
def test_what_is_wrong_is_one_line_that_names_file_entry_and_key(ledger, text, said):
    path = ledger(text)
    with pytest.raises(LedgerError) as error:
        read_ledger(path)
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)
    assert 1 == len(str(error.value).splitlines())


def test_a_ledger_that_is_not_there_is_no_empty_one(tmp_path):
    with pytest.raises(LedgerError, match=r"none\.toml: cannot read it: No such file"):
        known_issues(tmp_path / "none.toml")


def test_the_same_signature_may_be_known_of_releases_that_do_not_overlap(ledger):
    later = ENTRY.replace('from = "0.9.2", to = "0.13.0"', 'from = "0.13.1"')
    assert ["0.9.2", "0.13.1"] == [one.first for one in read_ledger(ledger(ENTRY + later))]
    with pytest.raises(LedgerError, match="overlap"):
        read_ledger(ledger(later + ENTRY.replace("0.13.0", "0.14.0")))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.9.1", False),
        ("0.9.2", True),
        ("0.10.0", True),  # as numbers, not as text
        ("0.13", True),
        ("0.13.0+cpu", True),
        ("0.13.0rc1", True),
        ("0.13.1.dev4", False),
        ("0.14.0", False),
        ("dev", False),
        ("", False),
    ],
)
def test_the_releases_are_inclusive(version, expected):
    assert expected is ISSUE.covers("vllm", version)


def test_another_engine_is_not_covered():
    assert () == covering([ISSUE], "sglang", "0.10.0")
    assert (ISSUE,) == covering([ISSUE], "vllm", "0.10.0")


def test_without_an_end_every_later_release_is_covered(ledger):
    (issue,) = read_ledger(ledger(ENTRY.replace(', to = "0.13.0"', "")))
    assert [False, True] == [issue.covers("vllm", one) for one in ("0.9.1", "99.0")]


def test_all_releases_are_also_those_that_are_not_said(ledger):
    (issue,) = read_ledger(ledger(ENTRY.replace('{ from = "0.9.2", to = "0.13.0" }', '"all"')))
    assert [True, True] == [issue.covers("vllm", one) for one in ("", "0.1")]


def test_zeros_at_the_end_of_a_version_say_nothing():
    assert (0, 13) == release_of("0.13.0") == release_of("v0.13")
    assert () == release_of("0.0")
