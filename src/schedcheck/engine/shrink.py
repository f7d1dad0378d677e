"""The reducer: makes a failing trace small without letting it slip to another fault.

Rules
-----
- A candidate counts only if it shows the *same signature*; how that is found out (a lenient replay
  in this process, a replay in a fresh worker) is the caller's ``reproduce``, which returns the
  candidate cut down to what was really carried out.
- The order that worked best on real traces: truncate at the violation, drop whole requests, ddmin
  over actions, smaller numbers and configuration, merges, pairs; again until nothing changes.
- The result is 1-minimal unless the budget ended the search: no single action can be removed.
- Smaller means fewer actions first, then smaller numbers. It is a total order, so the reducer
  ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from attrs import Factory, define, evolve, fields_dict, frozen

from schedcheck.model.actions import (
    Action,
    Add,
    Complete,
    Drain,
    FailTransfer,
    FinishTransfer,
    Pause,
    ResetPrefixCache,
    Schedule,
    Step,
    requests_of,
)
from schedcheck.model.config import Dialect, LoadFailurePolicy, Policy, SchedulerConfig
from schedcheck.model.request import OWN, RequestSpec
from schedcheck.model.trace import Trace

T = TypeVar("T", RequestSpec, SchedulerConfig)

Reproduce = Callable[[Trace], Trace | None]
"""Return the part of a candidate that shows the signature, or None if it does not."""


class BudgetSpent(Exception):
    """No further candidate may be tried."""


@define
class Budget:
    """How much shrinking may cost. Executions make it repeatable, seconds make it bearable."""

    executions_max: int = 3_000
    seconds_max: float | None = None
    executions: int = 0
    _began: float = Factory(time.monotonic)

    def spend(self) -> None:
        """Count one candidate. Raises BudgetSpent when there is nothing left."""
        if self.executions >= self.executions_max:
            raise BudgetSpent
        if self.seconds_max is not None and time.monotonic() - self._began > self.seconds_max:
            raise BudgetSpent
        self.executions += 1


@frozen(kw_only=True)
class Reduction:
    """What the reducer made of a trace."""

    trace: Trace
    executions: int
    is_minimal: bool
    """No single action can be removed without losing the signature."""


def reduce(
    trace: Trace,
    reproduce: Reproduce,
    *,
    budget: Budget,
    on_smaller: Callable[[Trace], None] = lambda _trace: None,
) -> Reduction:
    """Return the smallest trace found that still shows the signature of ``trace``.

    ``on_smaller`` is called with each smaller trace as soon as it is known. Raises ValueError if
    the trace does not reproduce its signature to begin with.
    """
    first = reproduce(trace)
    if first is None:
        raise ValueError("the trace does not show its signature when it is replayed")
    reducer = _Reducer(first, reproduce, budget, on_smaller)
    try:
        reducer.run()
    except BudgetSpent:
        return Reduction(trace=reducer.best, executions=budget.executions, is_minimal=False)
    return Reduction(trace=reducer.best, executions=budget.executions, is_minimal=True)


def size_of(trace: Trace) -> tuple[int, int]:
    """Return what the reducer makes smaller: actions first, then the numbers in them."""
    numbers = sum(_weight_of(action) for action in trace.actions)
    return len(trace.actions), numbers + _weight_of_config(trace.header.config)


def _weight_of(action: Action) -> int:
    match action:
        case Add(spec=spec):
            return (
                2 * spec.prompt_tokens_count
                + 2 * spec.max_tokens
                + len(spec.prompt)
                + spec.priority
                + spec.remote_tokens
                + 3 * (spec.stop_at is not None)
                + (not spec.load_async)
                + 3 * spec.send_kv
                + 5 * (spec.engine_id_of is not None)
                + _weight_of_features(spec)
            )
        case Pause(admission_only=admission_only):
            return int(admission_only)
        case FailTransfer(bad_block=ordinal):
            return ordinal
        case ResetPrefixCache(running=running):
            return int(not running)
        case Schedule():
            # Two of them in a row are never better than one Step, which is listed as plainer.
            return 1
        case _:
            return 0


def _weight_of_features(spec: RequestSpec) -> int:
    return (
        3 * spec.lookup_undecided
        + 3 * spec.grammar
        + _weight_of_name(spec.adapter)
        + _weight_of_name(spec.salt)
        + sum(2 + proposed + abs(proposed - accepted) for proposed, accepted in spec.drafts)
        + sum(3 + 2 * length for length in spec.chunks)
        + sum(1 + 2 * limit for limit in spec.chunk_max_tokens)
        + 3 * len(spec.media)
    )


def _weight_of_name(name: str | None) -> int:
    """Return what an adapter or salt costs; the first of the alphabet are the plainest."""
    return 0 if name is None else 3 + min(ord(name[0]), 200)


def _weight_of_config(config: SchedulerConfig) -> int:
    return (
        config.blocks_total
        + config.block_size
        + config.max_num_batched_tokens
        + config.max_num_seqs
        + config.max_model_len
        + 8 * config.max_steps_in_flight
        + 4 * (config.policy is not Policy.FCFS)
        + 4 * (not config.chunked_prefill)
        + 4 * config.prefix_caching
        + 4 * (config.load_failure_policy is not LoadFailurePolicy.RECOMPUTE)
        + 4 * (config.dialect is not Dialect.V1)
        + 4 * config.num_speculative_tokens
        + 4 * config.max_loras
        + 2 * config.encoder_cache_size
        + 2 * config.max_num_encoder_input_tokens
        + 4 * (config.sliding_window > 0)
        + min(config.sliding_window, 8)
    )


@define
class _Reducer:
    best: Trace
    reproduce: Reproduce
    budget: Budget
    on_smaller: Callable[[Trace], None]
    _tried: set[Trace] = Factory(set)

    def run(self) -> None:
        size = None
        while size != size_of(self.best):
            size = size_of(self.best)
            self._drop_requests()
            self._ddmin()
            self._take_all(_smaller_numbers)
            self._take_all(_merges)
            self._take_all(_pairs)
        self._ddmin()

    def _try(self, candidate: Trace) -> bool:
        """Take a candidate if it shows the signature and is smaller."""
        if candidate in self._tried or size_of(candidate) >= size_of(self.best):
            return False
        self._tried.add(candidate)
        self.budget.spend()
        found = self.reproduce(candidate)
        if found is None or size_of(found) >= size_of(self.best):
            return False
        self.best = found
        self.on_smaller(found)
        return True

    def _with_actions(self, actions: tuple[Action, ...]) -> Trace:
        return evolve(self.best, actions=actions)

    def _drop_requests(self) -> None:
        for name in list(self.best.specs):
            if name in self.best.specs:
                kept = tuple(a for a in map(_without(name), self.best.actions) if a is not None)
                self._try(self._with_actions(kept))

    def _ddmin(self) -> None:
        length = max(1, len(self.best.actions) // 2)
        while True:
            self._drop_runs(length)
            if length == 1:
                return
            length = max(1, length // 2)

    def _drop_runs(self, length: int) -> None:
        """Try to drop each run of so many actions, from the last to the first."""
        end = len(self.best.actions)
        while end > 0:
            actions = self.best.actions
            self._try(self._with_actions(actions[: max(0, end - length)] + actions[end:]))
            end = min(end - (1 if length == 1 else length), len(self.best.actions))

    def _take_all(self, candidates: Callable[[Trace], Iterator[Trace]]) -> None:
        """Try candidates made from the best trace, anew after each success."""
        progress = True
        while progress:
            progress = any(self._try(candidate) for candidate in candidates(self.best))


def _without(name: str) -> Callable[[Action], Action | None]:
    """Return what takes a request out of an action; None if nothing is left of it."""

    def strip(action: Action) -> Action | None:
        if isinstance(action, Step | Complete):
            return evolve(
                action, finish_loads=tuple(one for one in action.finish_loads if one != name)
            )
        return None if name in requests_of(action) else action

    return strip


def _smaller_numbers(trace: Trace) -> Iterator[Trace]:
    if trace.header.config.block_size > 1:
        yield _with_blocks_of_one(trace)
    for index, action in enumerate(trace.actions):
        for smaller in _smaller_actions(action):
            actions = (*trace.actions[:index], smaller, *trace.actions[index + 1 :])
            yield evolve(trace, actions=actions)
    for config in _smaller_configs(trace.header.config):
        yield evolve(trace, header=evolve(trace.header, config=config))


def _with_blocks_of_one(trace: Trace) -> Trace:
    """Count everything in blocks: what no single smaller number can reach."""
    config = trace.header.config
    blocks = config.blocks_for

    def scaled(action: Action) -> Action:
        if not isinstance(action, Add):
            return action
        spec = action.spec
        prompt = tuple((stream, blocks(length)) for stream, length in spec.prompt)
        return Add(
            action.request,
            evolve(
                spec,
                prompt=prompt,
                max_tokens=blocks(spec.max_tokens),
                remote_tokens=blocks(spec.remote_tokens),
                stop_at=None if spec.stop_at is None else spec.stop_at // config.block_size,
            ),
        )

    smaller = evolve(
        config, block_size=1, max_num_batched_tokens=blocks(config.max_num_batched_tokens)
    )
    return evolve(
        trace,
        header=evolve(trace.header, config=smaller),
        actions=tuple(map(scaled, trace.actions)),
    )


def _smaller_actions(action: Action) -> Iterator[Action]:
    match action:
        case Add(request=name, spec=spec):
            for smaller in _smaller_specs(spec):
                yield Add(name, smaller)
        case FailTransfer(request=name, bad_block=ordinal) if ordinal:
            yield FailTransfer(name, 0)
        case ResetPrefixCache(running=False):
            yield ResetPrefixCache(running=True)
        case Pause(admission_only=True):
            yield Pause()
        case _:
            return


def _smaller_specs(spec: RequestSpec) -> Iterator[RequestSpec]:
    plain = {
        "priority": 0,
        "stop_at": None,
        "send_kv": False,
        "engine_id_of": None,
        "lookup_undecided": False,
        "grammar": False,
        "adapter": None,
        "salt": None,
        "drafts": (),
        "chunk_max_tokens": (),
    }
    for name, value in plain.items():
        if getattr(spec, name) != value:
            yield _changed(spec, name, value)
    if spec.chunks:
        yield evolve(spec, chunks=(), chunk_max_tokens=())
    if spec.remote_tokens:
        yield evolve(spec, remote_tokens=0, load_async=True)
    if not spec.load_async:
        yield evolve(spec, load_async=True)
    for tokens in _below(spec.remote_tokens, 1):
        yield evolve(spec, remote_tokens=tokens)
    if len(spec.prompt) > 1:
        yield evolve(spec, prompt=((OWN, spec.prompt_tokens_count),))
    for index, (stream, length) in enumerate(spec.prompt):
        for shorter in _below(length, 1):
            prompt = (*spec.prompt[:index], (stream, shorter), *spec.prompt[index + 1 :])
            total = sum(tokens for _, tokens in prompt)
            yield evolve(spec, prompt=prompt, remote_tokens=min(spec.remote_tokens, total))
    for tokens in _below(spec.max_tokens, 1):
        yield evolve(spec, max_tokens=tokens)
    yield from _plainer_features(spec)


def _plainer_features(spec: RequestSpec) -> Iterator[RequestSpec]:
    for field, names in (("adapter", ("a", "b")), ("salt", ("a",))):
        for name in names:
            if getattr(spec, field) not in (None, name):
                yield _changed(spec, field, name)
    if len(spec.drafts) > 1:
        yield evolve(spec, drafts=spec.drafts[:1])
    for index, (proposed, accepted) in enumerate(spec.drafts):
        for pair in ((1, 0), (1, 1), (proposed - 1, min(accepted, proposed - 1))):
            if pair[0] >= 1 and pair != (proposed, accepted):
                drafts = (*spec.drafts[:index], pair, *spec.drafts[index + 1 :])
                yield evolve(spec, drafts=drafts)
    if spec.chunks:
        fewer = spec.chunks[:-1]
        yield evolve(spec, chunks=fewer, chunk_max_tokens=spec.chunk_max_tokens[: len(fewer)])
    for index, length in enumerate(spec.chunks):
        for shorter in _below(length, 1):
            yield evolve(spec, chunks=(*spec.chunks[:index], shorter, *spec.chunks[index + 1 :]))
    limits = spec.chunk_max_tokens
    for index, limit in enumerate(limits):
        for lower in _below(limit, 1):
            yield evolve(spec, chunk_max_tokens=(*limits[:index], lower, *limits[index + 1 :]))


def _smaller_configs(config: SchedulerConfig) -> Iterator[SchedulerConfig]:
    defaults = fields_dict(SchedulerConfig)
    for name in ("policy", "chunked_prefill", "prefix_caching", "load_failure_policy", "dialect"):
        if getattr(config, name) != defaults[name].default:
            yield _changed(config, name, defaults[name].default)
    for name, least in (
        ("max_steps_in_flight", 1),
        ("block_size", 1),
        ("blocks_total", 1),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("max_model_len", 2),
        ("num_speculative_tokens", 0),
        ("max_loras", 0),
        ("encoder_cache_size", 0),
        ("max_num_encoder_input_tokens", 0),
        ("sliding_window", 0),
        ("sliding_window", 1),
    ):
        for value in _below(getattr(config, name), least):
            yield _changed(config, name, value)


def _changed(thing: T, name: str, value: object) -> T:
    """Return a copy with one field changed, whose name is only known at run time."""
    changed: T = evolve(thing, **{name: value})  # type: ignore[arg-type]
    return changed


def _below(value: int, least: int) -> Iterator[int]:
    """Yield a few smaller values, the smallest first."""
    seen: set[int] = set()
    for smaller in (least, (least + value) // 2, value - 2, value - 1):
        if least <= smaller < value and smaller not in seen:
            seen.add(smaller)
            yield smaller


def _merges(trace: Trace) -> Iterator[Trace]:
    """Put two actions into one that does the same."""
    actions = trace.actions
    for index in range(len(actions) - 1):
        first, second = actions[index], actions[index + 1]
        merged: Action | None = None
        if isinstance(first, FinishTransfer) and isinstance(second, Step | Complete):
            merged = evolve(second, finish_loads=(*second.finish_loads, first.request))
        elif isinstance(first, Schedule) and isinstance(second, Complete):
            merged = Step(second.finish_loads)
        if merged is not None:
            yield evolve(trace, actions=(*actions[:index], merged, *actions[index + 2 :]))


def _pairs(trace: Trace) -> Iterator[Trace]:
    """Leave out two actions that do not stand side by side, or replace two by a plainer one."""
    actions = trace.actions
    if len(actions) > 24:  # quadratic: only worth it near the end
        return
    for first in range(len(actions)):
        for second in range(first + 1, len(actions)):
            kept = actions[:first] + actions[first + 1 : second] + actions[second + 1 :]
            yield evolve(trace, actions=kept)
            if not isinstance(actions[second], Add | Drain):
                for at in {first, second - 1}:
                    yield evolve(trace, actions=(*kept[:at], Step(), *kept[at:]))
