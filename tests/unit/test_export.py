"""Traces handed over: what stands in a trace stays data, and never becomes code or markup."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from markdown_it import MarkdownIt

from schedcheck.catalogue import entry
from schedcheck.model.actions import (
    Abort,
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
)
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.options import options_of
from schedcheck.model.request import RequestSpec
from schedcheck.model.trace import Expectation, Header, Trace
from schedcheck.model.verdict import Signature
from schedcheck.report.export import CannotExport, issue_lines, own_test, vllm_test
from schedcheck.report.export.vllm_test import SIGNATURES
from schedcheck.tracefile import decode, encode, read
from telling import FAILURE, HOSTILE

HOSTILE_NAMES = [
    "'); import os; os.abort() #",
    '"""\nimport os\n"""',
    "'''",
    "\\",
    "```\n# heading",
    "`" * 40,
    "@somebody",
    "</script><script>alert(1)</script>",
    "<!-- -->",
    "\x00",
    "\u202egnp.exe\u2066",
    "\u2028\u2029",
    "{0}%s$(reboot)",
    "#endif\n#insert test",
    HOSTILE,
]


def trace_of(name: str, *, target: str = "vllm", text: str | None = None) -> Trace:
    """Return a trace with a stranger's name wherever there is room for one."""
    text = name if text is None else text
    spec = RequestSpec(
        prompt=(("own", 2), (name, 1)), max_tokens=2, salt=name, adapter=name, remote_tokens=1
    )
    return Trace(
        header=Header(
            target=target,
            version=text,
            seed=text,
            schedcheck=text,
            config=SchedulerConfig(max_loras=1),
            expect=Expectation(signature=Signature("REQ-001", "new-after-preemption"), step=3),
        ),
        actions=(
            Add(name, spec),
            Schedule(),
            Complete((name,)),
            FailTransfer(name),
            FinishSend(name),
            Abort(name),
        ),
    )


def shape(source: str) -> str:
    """Return a module's syntax, every string and every line break taken out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


# Tests for vLLM.


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_does_not_become_code_in_a_test_for_vllm(name):
    plain, hostile = (vllm_test(trace_of(one, text="x")) for one in ("r0", name))
    assert shape(plain) == shape(hostile)
    assert plain.count("\n") == hostile.count("\n")
    assert hostile.isascii()


@pytest.mark.parametrize("text", [*HOSTILE_NAMES, "\ud800"])
def test_what_an_engine_said_does_not_become_code_either(text):
    complaint = evolve(FAILURE.complaint, expected=text, found=text, subject=text)
    source = vllm_test(trace_of("r0", text=text), failure=evolve(FAILURE, complaint=complaint))
    assert shape(vllm_test(trace_of("r0"), failure=FAILURE)) == shape(source)


def test_a_test_for_vllm_needs_nothing_of_ours():
    tree = ast.parse(vllm_test(trace_of("r0")))
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {"vllm", "torch", "numpy"} < imported
    assert not imported & {"schedcheck", "attrs", "msgspec", "hypothesis"}


@pytest.mark.parametrize("signature", [*sorted(SIGNATURES), "REQ-006/running-to-waiting"])
def test_every_signature_has_one_assertion_that_is_called(signature):
    """A test without its assertion would pass on every release."""
    invariant, kind = signature.split("/")
    trace = trace_of("r0")
    expect = Expectation(signature=Signature(invariant, kind), step=3)
    tree = ast.parse(vllm_test(evolve(trace, header=evolve(trace.header, expect=expect))))
    (driver,) = (one for one in tree.body if getattr(one, "name", "") == "Driver")
    checks = [one.name for one in driver.body if getattr(one, "name", "").startswith("check")]
    called = [
        node.func.attr
        for node in ast.walk(driver)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("check")
    ]
    assert checks == called
    asserted = [
        node
        for method in driver.body
        if getattr(method, "name", "") in (*checks, "compute")
        for node in ast.walk(method)
        if isinstance(node, ast.Assert)
    ]
    assert asserted


def test_what_raised_is_looked_for_where_the_engine_was_looked_at():
    """A queue that raises when it is read raises in no call of its own."""
    header = trace_of("r0").header
    expect = Expectation(signature=Signature("ENG-001", "TypeError-in-__iter__"), step=3)
    trace = evolve(trace_of("r0"), header=evolve(header, expect=expect))
    source = vllm_test(trace)
    assert "def test_eng_001():" in source
    assert "        self.queues()\n" in source
    used, made = names_used(source)
    assert set() == used - made


def names_used(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a module reads and those that it or Python defines."""
    tree = ast.parse(source)
    read_, made = set(), set(dir(__builtins__)) | set(__builtins__) | {"__name__"}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read_.add(name)
            case ast.Name(id=name):
                made.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                made.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                made |= {one.asname or one.name for one in names}
            case _:
                pass
    return read_, made


RICH = SchedulerConfig(
    num_speculative_tokens=2, sliding_window=4, max_loras=2, dialect=Dialect.V2, blocks_total=9
)


@pytest.mark.parametrize(
    ("config", "spec", "actions"),
    [
        (SchedulerConfig(), {}, (Step(), Drain())),
        (RICH, {"grammar": True, "drafts": ((2, 1),)}, (GrammarReady("r0"), Step())),
        (SchedulerConfig(), {"lookup_undecided": True}, (AnswerLookup("r0"), Step())),
        (SchedulerConfig(), {}, (Pause(admission_only=True), Resume(), ResetPrefixCache())),
        (SchedulerConfig(async_scheduling=True, max_steps_in_flight=2), {}, (Schedule(), Drain())),
        (SchedulerConfig(), {"remote_tokens": 1, "load_async": False}, (Step(), Step())),
        (SchedulerConfig(), {"remote_tokens": 1, "send_kv": True}, (FinishTransfer("r0"),)),
        (SchedulerConfig(), {"adapter": "a", "priority": 2}, (Step(),)),
    ],
)
def test_whatever_a_trace_holds_every_name_is_defined(config, spec, actions):
    """The parts of the template are chosen one by one: none may lean on one that is left out."""
    add = Add("r0", RequestSpec(prompt=(("own", 2),), **spec))
    expect = Expectation(signature=Signature("TOK-001", "token-lost"), step=1)
    trace = Trace(
        header=Header(target="vllm", config=config, expect=expect), actions=(add, *actions)
    )
    used, made = names_used(vllm_test(trace))
    assert set() == used - made
    left = [line for line in vllm_test(trace).splitlines() if line[:1] == "#" != line[1:2]]
    assert [] == [line for line in left if not line.startswith("# ")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"expect": None}, "not expected to violate anything"),
        ({"expect": ("KV-004", "read-failed-load")}, "no assertion for KV-004/read-failed"),
        ({"expect": ("REQ-999", "'); print(1)")}, "no invariant"),
        ({"actions": (Preempt("r0"),)}, "knows no preemption of one request"),
        ({"actions": (AddChunk("r0"),)}, "knows no streaming sessions"),
        ({"media": True}, "knows no media"),
        ({"config": SchedulerConfig(num_speculative_tokens=1, async_scheduling=True)}, "drafts"),
    ],
)
def test_what_cannot_stand_alone_is_one_line(change, said):
    trace = trace_of("r0")
    header = trace.header
    if "expect" in change:
        wanted = change["expect"]
        expect = wanted and Expectation(signature=Signature(*wanted), step=1)
        header = evolve(header, expect=expect)
    if "config" in change:
        header = evolve(header, config=change["config"])
    actions = (*trace.actions, *change.get("actions", ()))
    if "media" in change:
        actions = (Add("r1", RequestSpec(prompt=(("media:cat", 2),))), *actions)
    with pytest.raises(CannotExport) as error:
        vllm_test(Trace(header=header, actions=actions))
    assert said in str(error.value)
    assert 1 == len(str(error.value).splitlines())


def test_a_scheduler_of_ones_own_does_not_stand_alone():
    trace = trace_of("r0")
    options = options_of(connector="mine.module:Connector")
    with pytest.raises(CannotExport, match="vLLM's own scheduler and options alone"):
        vllm_test(evolve(trace, header=evolve(trace.header, options=options)))


def test_an_id_that_is_used_again_is_used_again():
    """Actions are about names; an engine only knows ids."""
    spec = RequestSpec(prompt=(("own", 1),))
    trace = trace_of("r0")
    reuse = Add("r1", evolve(spec, engine_id_of="r0"))
    actions = (Add("r0", spec), Abort("r0"), reuse, Abort("r0"), Abort("r1"))
    source = vllm_test(evolve(trace, actions=actions))
    body = source.partition("driver = Driver()")[2].partition("\n\n")[0]
    assert ["add", "abort", "add", "abort"] == [
        line.strip().removeprefix("driver.").partition("(")[0]
        for line in body.splitlines()
        if "driver." in line
    ]
    assert 4 == body.count("('r0'")


# Tests for the reference and for adapters.


@pytest.fixture
def minimal() -> Trace:
    return read(entry("REQ-001").minimal)


def renamed(trace: Trace, name: str) -> Trace:
    """Return a trace whose one request has another name, as its file would have it."""
    actions = [
        evolve(one, request=name) if hasattr(one, "request") else one for one in trace.actions
    ]
    actions = [
        evolve(one, finish_loads=(name,)) if getattr(one, "finish_loads", ()) else one
        for one in actions
    ]
    return Trace(header=trace.header, actions=tuple(actions))


def run_in(source: str) -> None:
    """Run the one test of a module."""
    names: dict[str, Callable[[], None]] = {}
    exec(compile(source, "generated", "exec"), names)  # noqa: S102  it is what is tested
    (test,) = (thing for name, thing in names.items() if name.startswith("test_"))
    test()


@pytest.mark.parametrize("name", ["r0", *HOSTILE_NAMES[:1], "'''", '"""', "`@x`<b>", "\\"])
def test_a_test_that_replays_fails_on_the_mutant_and_passes_on_the_reference(minimal, name):
    trace = renamed(minimal, name.replace(" ", ""))
    assert trace == decode(encode(trace), name="what a reader lets pass")
    with pytest.raises(AssertionError, match="VIOLATED  REQ-001"):
        run_in(own_test(trace, target=trace.header.target))
    run_in(own_test(trace, target="reference"))


def test_a_test_whose_trace_no_longer_fits_does_not_pass(minimal):
    """A regression test that tests nothing any more would be green for ever."""
    trace = evolve(minimal, actions=(Abort("r7"), *minimal.actions))
    with pytest.raises(AssertionError, match="was not eligible"):
        run_in(own_test(trace, target="reference"))


@pytest.mark.parametrize("name", [one for one in HOSTILE_NAMES if one.isprintable()])
def test_a_name_does_not_become_code_in_a_test_that_replays(name):
    plain = own_test(trace_of("r0", target="reference"), target="reference")
    hostile = own_test(trace_of(name, target="reference"), target=name)
    heads = [source.partition("TRACE = (")[0] for source in (plain, hostile)]
    assert shape(heads[0]) == shape(heads[1])
    tree = ast.parse(hostile)
    assert [ast.Assign, ast.Assign, ast.FunctionDef] == [type(one) for one in tree.body[-3:]]
    assert isinstance(tree.body[-2].value, ast.Constant)
    assert encode(trace_of(name, target="reference")).decode() == tree.body[-2].value.value


# Bug reports.


def issue(trace: Trace, failure: object = None) -> str:
    return "\n".join(issue_lines(trace, failure, schedcheck="0.1.0")) + "\n"


def outside_of_fences(text: str) -> str:
    """Return what a reader of Markdown takes for text, markup or HTML."""
    tokens = MarkdownIt().parse(text)
    return "\n".join(one.content for one in tokens if one.type != "fence")


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_strangers_words_stay_in_their_fences(name):
    complaint = evolve(FAILURE.complaint, subject=name, expected=name, found=name)
    failure = evolve(FAILURE, complaint=complaint, target=name, version=name, config=name)
    plain, hostile = (
        outside_of_fences(issue(trace_of(one, target=one), FAILURE if one == "r0" else failure))
        for one in ("r0", name)
    )
    assert plain == hostile
    text = issue(trace_of(name, target=name), failure)
    assert text.replace("\n", "").isprintable()


def test_the_trace_in_an_issue_is_the_trace():
    """What could turn a line round is escaped, and means the same."""
    trace = renamed(trace_of("r0", text="x"), "`<b>@x")
    (told,) = (one.content for one in MarkdownIt().parse(issue(trace)) if one.info == "json")
    assert told.isascii()
    assert trace == decode(told.encode(), name="the issue")


def test_an_issue_says_all_there_is_to_say():
    text = issue(trace_of("r0", text="0.13.0"), FAILURE)
    for part in (
        "# REQ-001: a preempted request comes back as resumed, never as new\n",
        "## Expected\n",
        "## Found\n",
        "VIOLATED  REQ-001",
        "engine      vllm 0.13.0",
        "schedcheck  0.1.0, trace format 1.0",
        "schedcheck replay REQ-001.trace.jsonl --on vllm==0.13.0",
    ):
        assert part in text


def test_an_issue_of_a_trace_that_was_not_replayed_has_its_actions():
    text = issue(trace_of("r0"))
    assert "   2  schedule" in text
    assert "## Found" not in text


@pytest.mark.parametrize("target", ["$(reboot)", "a;b", "x y", "--help --on=`id`"])
def test_a_target_is_no_shell_command(target):
    text = issue(trace_of("r0", target=target, text=""))
    (commands,) = (one.content for one in MarkdownIt().parse(text) if one.info == "sh")
    assert target not in commands
    assert "--on TARGET" in commands


def test_templates_are_shipped():
    """An installed schedcheck has to find them."""
    import schedcheck.report.export

    assert (Path(schedcheck.report.export.__file__).parent / "vllm_test.txt").is_file()
