"""A regression test for vLLM from a failing trace: it stands alone, with no import of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import define, field

from schedcheck.engine.events import Failure
from schedcheck.invariants.registry import UnknownInvariant, get
from schedcheck.model.actions import (
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
)
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.request import RequestSpec
from schedcheck.model.tokens import (
    STOP_TOKEN,
    WRONG_DRAFT,
    extend,
    next_token,
    prompt_tokens,
    root_of,
    state_of,
)
from schedcheck.model.trace import Trace
from schedcheck.report.export.template import CannotExport, filled_in, literal, template
from schedcheck.report.words import clean

_WIDTH: Final = 96
_FIRST_TOKEN: Final = 100
"""Tokens are numbered anew, in the order in which they appear: readable, and equal where equal."""

_ON: Final = {
    "on-schedule": (
        "REQ-001/new-after-preemption", "REQ-001/running-after-preemption", "REQ-002/new-twice",
        "REQ-002/cached-before-new", "REQ-003/resumed-without-preemption",
        "REQ-007/ended-but-scheduled", "SCH-001/scheduled-twice", "SCH-001/no-tokens",
        "SCH-002/over-token-budget", "SCH-003/over-running-limit",
        "SCH-005/scheduled-but-preempted", "SCH-006/beyond-model-length",
        "XFER-001/scheduled-while-loading",
    ),
    "on-look": (
        "REQ-005/in-no-queue", "REQ-005/in-two-queues", "REQ-005/forgotten",
        "REQ-005/ended-but-queued", "KV-002/freed-while-loading", "KV-002/reused-while-loading",
        "KV-003/free-twice", "KV-003/free-and-held", "KV-007/blocks-lost",
        "KV-008/too-few-references", "PRG-002/asleep-with-unfinished", "PRG-002/asleep-with-send",
        "PRG-002/asleep-with-load", "KV-002/freed-while-sending",
    ),
    "on-drain": (
        "PRG-001/stalled", "PRG-001/not-finished-in-time", "KV-001/blocks-not-returned",
        "KV-001/left-behind",
    ),
    "on-end": ("REQ-009/reported-twice", "TOK-001/finished-short"),
    "on-delivery": (
        "TOK-001/token-repeated", "TOK-001/token-lost", "TOK-001/token-wrong",
        "TOK-002/delivered-after-end", "TOK-002/beyond-its-end",
    ),
    "on-counts": ("CACHE-004/impossible-counts", "CACHE-004/wrong-counts"),
    "on-completion": ("TOK-005/not-ended",),
    "": (
        "SCH-012/waiting-order-changed", "SCH-004/unknown-request", "SCH-004/tokens-unknown",
        "KV-005/table-too-short", "TOK-004/sampled-not-delivered",
    ),
}  # fmt: skip
"""Signatures that the template has an assertion for, by the moment at which it is made."""

SIGNATURES: Final = frozenset(one for some in _ON.values() for one in some)
"""What a test that stands alone can assert, besides that nothing raises (ENG-001)."""
_NEEDING_BLOCKS: Final = ("KV-001", "KV-002", "KV-003", "KV-007", "KV-008")


def vllm_test(trace: Trace, *, failure: Failure | None = None) -> str:
    """Return the source of a test module; ``failure`` is what the trace shows, if it was replayed.

    Raises CannotExport, in one line, where there is no assertion for what the trace shows, and for
    actions that the test's small worker does not know.
    """
    signature = _signature(trace)
    _check_actions(trace)
    wanted = _features(trace) | _moment(signature)
    lines = filled_in(
        template("vllm_test.txt"),
        wanted=wanted,
        inserts={
            "docstring": _docstring(signature, trace),
            "constants": list(_constants(trace, signature, failure)),
            "test": list(_Test(trace).lines(signature)),
        },
    )
    return "\n".join(lines) + "\n"


def _signature(trace: Trace) -> str:
    expect = trace.header.expect
    if expect is None:
        raise CannotExport("the trace is not expected to violate anything, so nothing is to assert")
    signature = str(expect.signature)
    try:
        get(expect.signature.invariant)
    except UnknownInvariant as error:
        raise CannotExport(str(error)) from error
    if expect.signature.invariant == "ENG-001":
        return "ENG-001"  # what raises fails a test by itself
    if signature not in SIGNATURES and not _is_change(signature):
        raise CannotExport(
            f"there is no assertion for {signature} that stands alone; "
            "--as issue and --as jsonl hand it over all the same"
        )
    return signature


def _is_change(signature: str) -> bool:
    """Return whether this is one unlawful change of status, which can be looked for as it is."""
    return re.fullmatch(r"REQ-006/[a-z_()]+-to-[a-z_()]+", signature) is not None


def _moment(signature: str) -> set[str]:
    invariant = signature.partition("/")[0]
    moments = {moment for moment, some in _ON.items() if signature in some}
    if invariant in ("REQ-006", "ENG-001"):
        moments.add("on-look")
    if invariant in _NEEDING_BLOCKS:
        moments.add("blocks")
    return {signature, invariant, *moments}


def _check_actions(trace: Trace) -> None:
    config = trace.header.config
    if trace.header.options.words:
        raise CannotExport("a test that stands alone knows vLLM's own scheduler and options alone")
    for action in trace.actions:
        if isinstance(action, Preempt | AddChunk) or (
            isinstance(action, Add) and action.spec.chunks
        ):
            raise CannotExport(f"a test that stands alone knows no {_what(action)}")
        if isinstance(action, Add) and action.spec.media:
            raise CannotExport("a test that stands alone knows no media")
    if config.num_speculative_tokens and config.async_scheduling:
        raise CannotExport("a test that stands alone knows no drafts under async scheduling")


def _what(action: Action) -> str:
    return "preemption of one request" if isinstance(action, Preempt) else "streaming sessions"


def _features(trace: Trace) -> set[str]:
    """Return which optional parts of the template a trace needs.

    A KV store is always there, as it was when the trace was found: without one a scheduler may go
    another way.
    """
    config, specs, actions = trace.header.config, trace.specs.values(), trace.actions
    asked = {
        "adapters": any(one.adapter is not None for one in specs) or config.max_loras > 0,
        "grammar": any(one.grammar for one in specs),
        "drafts": config.num_speculative_tokens > 0,
        "no-drafts": config.num_speculative_tokens == 0,
        "window": config.sliding_window > 0,
        "no-window": config.sliding_window == 0,
        "undecided": any(one.lookup_undecided for one in specs),
        "pause": any(isinstance(one, Pause | Resume) for one in actions),
        "sync-faults": any(isinstance(one, FailTransfer) for one in actions),
    }
    return {feature for feature, is_needed in asked.items() if is_needed}


def _docstring(signature: str, trace: Trace) -> list[str]:
    """Return the first lines; all words are our own, none a stranger's."""
    invariant = get(signature.partition("/")[0])
    count = len(trace.actions)
    return [
        f'"""{invariant.id}: {invariant.title}.',
        "",
        *(f"See {link}" for link in invariant.evidence[:1]),
        f"From a trace of {count} action{'' if count == 1 else 's'}.",
        "It needs vLLM alone, and runs on a CPU without a model.",
        '"""',
        "",
    ]


def _constants(trace: Trace, signature: str, failure: Failure | None) -> Iterator[str]:
    header, config = trace.header, trace.header.config
    seen_on = clean(f"{header.target} {header.version}".strip())
    yield from _assigned("SEEN_ON", seen_on)
    if failure is not None:
        yield from _assigned("EXPECTED", clean(failure.complaint.expected))
        yield from _assigned("FOUND", clean(failure.complaint.found))
    yield ""
    yield f"BLOCK_SIZE = {config.block_size}"
    yield f"NUM_BLOCKS = {config.blocks_total + 1}  # the first is the null block"
    yield f"MAX_MODEL_LEN = {config.max_model_len}"
    yield f"MAX_NUM_SEQS = {config.max_num_seqs}"
    yield f"MAX_NUM_BATCHED_TOKENS = {config.max_num_batched_tokens}"
    yield f"STEPS_IN_FLIGHT = {config.max_steps_in_flight}"
    yield f"CHUNKED_PREFILL = {config.chunked_prefill}"
    yield f"PREFIX_CACHING = {config.prefix_caching}"
    yield f"ASYNC_SCHEDULING = {config.async_scheduling}"
    yield f"POLICY = {literal(config.policy.value)}"
    yield f"LOAD_FAILURE_POLICY = {literal(config.load_failure_policy.value)}"
    yield f"V2_MODEL_RUNNER = {literal('1' if config.dialect is Dialect.V2 else '0')}"
    yield from _optional_constants(trace, config)
    if _is_change(signature):
        yield from _assigned("UNLAWFUL_CHANGE", signature.partition("/")[2])
    yield f"STOP_TOKEN, WRONG_DRAFT, NONSENSE_TOKEN = {STOP_TOKEN}, {WRONG_DRAFT}, 9"


def _optional_constants(trace: Trace, config: SchedulerConfig) -> Iterator[str]:
    if config.num_speculative_tokens:
        yield f"NUM_SPECULATIVE_TOKENS = {config.num_speculative_tokens}"
    if config.sliding_window:
        yield f"SLIDING_WINDOW = {config.sliding_window}"
    adapters = {one.adapter for one in trace.specs.values() if one.adapter is not None}
    if adapters or config.max_loras:
        yield f"MAX_LORAS = {config.max_loras}"
        yield from _assigned("ADAPTERS", sorted(adapters))


def _assigned(name: str, value: object) -> Iterator[str]:
    """Yield an assignment; a literal too long for a line stands on lines of its own."""
    text = f"{name} = {literal(value)}"
    if len(text) <= _WIDTH or not isinstance(value, str):
        yield text
        return
    yield f"{name} = ("
    for part in re.findall(r".{1,76}", value, re.DOTALL):
        yield f"    {literal(part)}"
    yield ")"


@define
class _Test:
    """Writes the test function of a trace."""

    trace: Trace
    ids: dict[str, str] = field(init=False, factory=dict)
    """The engine's id of each request."""
    owners: dict[str, str] = field(init=False, factory=dict)
    """Who has each id now."""
    numbers: dict[int, int] = field(init=False, factory=dict)
    specs: dict[str, RequestSpec] = field(init=False, factory=dict)

    def lines(self, signature: str) -> Iterator[str]:
        """Yield the function. What it asserts is in the driver, which looks after each call."""
        words = re.sub(r"[^a-z0-9]+", "_", signature.lower()).strip("_")
        yield f"def test_{words}():"
        yield "    driver = Driver()"
        for number, action in enumerate(self.trace.actions, 1):
            for line in self._action(action):
                yield f"    {line}"
            expect = self.trace.header.expect
            if expect is not None and expect.step == number:
                yield "    # That was where it showed."

    def _action(self, action: Action) -> Iterator[str]:
        match action:
            case Add():
                yield from self._add(action)
            case Schedule():
                yield "driver.schedule()"
            case Complete(finish_loads=loads):
                yield from (self._call("finish_transfer", name) for name in loads)
                yield "driver.complete()"
            case Step(finish_loads=loads):
                yield "driver.schedule()"
                yield from (self._call("finish_transfer", name) for name in loads)
                yield "driver.complete()"
            case FailTransfer(request=name, bad_block=bad):
                yield self._call("finish_transfer", name, f", bad_block={bad}")
            case ResetPrefixCache(running=running):
                yield f"driver.reset_prefix_cache({'running=True' if running else ''})"
            case Pause(admission_only=only):
                yield f"driver.pause({'admission_only=True' if only else ''})"
            case Resume():
                yield "driver.resume()"
            case Drain(steps_max=most):
                yield f"driver.drain({most})"
            case Abort(request=name):
                if self.owners.get(self._id(name)) == name:  # else nothing would happen
                    yield self._call("abort", name)
            case FinishTransfer() | FinishSend() | GrammarReady() | AnswerLookup():
                yield self._call(action.do, action.request)
            case _:
                raise CannotExport(f"a test that stands alone knows no {action.do}")

    def _call(self, method: str, name: str, more: str = "") -> str:
        return f"driver.{method}({literal(self._id(name))}{more})"

    def _id(self, name: str) -> str:
        return self.ids.get(name, name)

    def _add(self, action: Add) -> Iterator[str]:
        name, spec = action.request, action.spec
        self.specs[name] = spec
        former = spec.engine_id_of
        self.ids[name] = name if former is None else self._id(former)
        self.owners[self._id(name)] = name
        prompt = prompt_tokens(name, self.specs)
        options: dict[str, object] = {
            "prompt": self._numbered(prompt),
            "outputs": self._numbered(self._outputs(spec, prompt)),
            "max_tokens": spec.max_tokens,
            **_given(spec),
        }
        line = ", ".join(f"{key}={literal(value)}" for key, value in options.items())
        whole = f"driver.add({literal(self._id(name))}, {line})"
        if len(whole) <= _WIDTH:
            yield whole
            return
        yield "driver.add("
        yield f"    {literal(self._id(name))},"
        yield from (f"    {key}={literal(value)}," for key, value in options.items())
        yield ")"

    def _outputs(self, spec: RequestSpec, prompt: Sequence[int]) -> list[int]:
        """Return what the model goes on with: as many tokens as could ever be asked for."""
        state, tokens = state_of(prompt, root=root_of(spec)), list[int]()
        for index in range(spec.max_tokens + self.trace.header.config.num_speculative_tokens + 1):
            tokens.append(next_token(spec, state=state, output_index=index))
            state = extend(state, tokens[-1])
        return tokens

    def _numbered(self, tokens: Sequence[int]) -> list[int]:
        return [
            token
            if token in (STOP_TOKEN, WRONG_DRAFT)
            else self.numbers.setdefault(token, _FIRST_TOKEN + len(self.numbers))
            for token in tokens
        ]


def _given(spec: RequestSpec) -> Mapping[str, object]:
    """Return what else a request asks for, where it is not the default."""
    options: dict[str, tuple[object, object]] = {
        "priority": (spec.priority, 0),
        "salt": (spec.salt, None),
        "adapter": (spec.adapter, None),
        "grammar": (spec.grammar, False),
        "remote_tokens": (spec.remote_tokens, 0),
        "load_async": (spec.load_async, True),
        "send_kv": (spec.send_kv, False),
        "undecided": (spec.lookup_undecided, False),
        "drafts": (list(spec.drafts), []),
    }
    return {key: value for key, (value, plain) in options.items() if value != plain}
