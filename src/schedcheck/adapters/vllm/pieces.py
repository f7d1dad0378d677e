"""A user's own pieces and options, as the vLLM that is here takes them.

Options are fields of its SchedulerConfig and CacheConfig. Those that a trace draws anew (PINNED)
are then the same in every trace; all others are handed to vLLM, whose own checks they pass.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from attrs import evolve, frozen
from vllm.config import CacheConfig
from vllm.config import SchedulerConfig as VllmSchedulerConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.core.sched.scheduler import Scheduler

from schedcheck.adapters.vllm.compat import Traits, place_of
from schedcheck.model.config import Policy, SchedulerConfig
from schedcheck.model.options import NO_OPTIONS, Options, Value, written
from schedcheck.sut import TargetError

PINNED: Final[Mapping[str, str]] = {
    "async_scheduling": "async_scheduling",
    "block_size": "block_size",
    "enable_chunked_prefill": "chunked_prefill",
    "enable_prefix_caching": "prefix_caching",
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "num_gpu_blocks_override": "blocks_total",
    "policy": "policy",
    "sliding_window": "sliding_window",
}
"""vLLM's names of what a trace draws, and ours. Its number of blocks counts the null block."""

FOR_CONNECTOR: Final = "kv_connector_extra_config."
"""What an option begins with that is handed to the user's connector."""

_NOT_GIVEN: Final[Mapping[str, str]] = {
    "scheduler_cls": "--scheduler chooses it",
    "num_gpu_blocks": "num_gpu_blocks_override says it",
}

Values = tuple[tuple[str, Value], ...]


@frozen(kw_only=True)
class Pieces:
    """What a target is made with, checked against the vLLM that is here."""

    scheduler: Any = None
    """The user's subclass of Scheduler, or None."""
    connector: Any = None
    """The user's subclass of KVConnectorBase_V1, or None."""
    connector_config: Values = ()
    """Its ``kv_connector_extra_config``."""
    pinned: tuple[tuple[str, Any], ...] = ()
    """Fields of our SchedulerConfig that are the same in every trace."""
    scheduler_config: Values = ()
    """Fields of vLLM's SchedulerConfig, and of its CacheConfig."""
    cache_config: Values = ()
    typed: Options = NO_OPTIONS

    @property
    def is_ahead(self) -> bool | None:
        """Whether the user's scheduler plans ahead of the samples; None: there is none."""
        ahead = place_of("AsyncScheduler")
        return None if self.scheduler is None else bool(ahead and issubclass(self.scheduler, ahead))

    def pin(self, config: SchedulerConfig) -> SchedulerConfig:
        """Return a configuration with what is pinned, and the rest so that there is room for it."""
        pinned = dict(self.pinned)
        if self.is_ahead is not None:
            pinned["async_scheduling"] = self.is_ahead
        config = evolve(config, **pinned)
        room = pinned.get("max_num_batched_tokens")
        if room is None:
            return config
        if not config.chunked_prefill and config.max_model_len > room:
            keeps = "chunked_prefill" in pinned
            config = evolve(
                config, **({"max_model_len": room} if keeps else {"chunked_prefill": True})
            )
        seqs = config.max_num_seqs if "max_num_seqs" in pinned else 1
        drafts = min(config.num_speculative_tokens, room // seqs - 1)
        return evolve(
            config,
            num_speculative_tokens=drafts,
            max_num_seqs=min(config.max_num_seqs, room // (1 + drafts)),
        )


AS_IT_IS: Final = Pieces()
"""vLLM without anything of a user's."""


def pieces_of(options: Options, traits: Traits) -> Pieces:
    """Return what was asked for. Raises TargetError, in one line, for what is not to be had."""
    made = Pieces(
        scheduler=class_in("--scheduler", options.scheduler, Scheduler),
        connector=class_in("--connector", options.connector, KVConnectorBase_V1),
        connector_config=tuple(
            (key.removeprefix(FOR_CONNECTOR), value)
            for key, value in options.config
            if key.startswith(FOR_CONNECTOR)
        ),
        pinned=tuple(_pinned(key, value) for key, value in options.config if key in PINNED),
        scheduler_config=_taken_by(VllmSchedulerConfig, options),
        cache_config=_taken_by(CacheConfig, options),
        typed=options,
    )
    for key, value in options.config:
        if key.startswith(FOR_CONNECTOR):
            if made.connector is None:
                raise TargetError(f"--config {key}={written(value)} is for a --connector")
        elif key not in PINNED:
            _check(key, value, traits)
    _check_pins(made, traits)
    return made


def class_in(option: str, text: str, base: type) -> Any:
    """Return the class that a user named, which must be a concrete subclass; None for no text."""
    if not text:
        return None
    module, _, name = text.partition(":")
    try:
        found = import_module(module)
    except Exception as error:  # a stranger's module may raise anything
        if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "\0"):
            raise TargetError(
                f"{option} {text}: there is no module {error.name}, neither in the current folder "
                f"nor in what {sys.executable} has"
            ) from error
        raise TargetError(f"{option} {text} does not import: {said(error)}") from error
    thing = getattr(found, name, None)
    if thing is None:
        near = get_close_matches(name, dir(found), n=1)
        hint = f"; did you mean {module}:{near[0]}?" if near else ""
        raise TargetError(f"{option} {text}: the module {module} has no {name}{hint}")
    wanted = f"{base.__module__}.{base.__qualname__}"
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise TargetError(f"{option} {text} is no subclass of {wanted}")
    if inspect.isabstract(thing):
        lacks = ", ".join(sorted(getattr(thing, "__abstractmethods__", ())))
        raise TargetError(f"{option} {text} lacks {lacks}, which {wanted} demands")
    return thing


def said(error: BaseException) -> str:
    """Return what an exception says, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _pinned(key: str, value: Value) -> tuple[str, Any]:
    """Return a field of ours with its value. Raises TargetError for a value it cannot have."""
    ours = PINNED[key]
    wish: Any = value
    if key == "num_gpu_blocks_override" and type(value) is int:
        wish = value - 1
    if key == "policy" and value in set(Policy):
        wish = Policy(str(value))
    kind = type(getattr(SchedulerConfig(), ours))
    if type(wish) is not kind:
        raise TargetError(f"--config {key}={written(value)} is no {_kind_in_words(kind)}")
    try:
        evolve(SchedulerConfig(), **{ours: wish})
    except ValueError as error:
        raise TargetError(f"--config {key}={written(value)} is too small") from error
    return ours, wish


def _kind_in_words(kind: type) -> str:
    if kind is Policy:
        return f"policy; there are {', '.join(Policy)}"
    return {bool: "boolean (true or false)", int: "integer"}[kind]


def _check_pins(made: Pieces, traits: Traits) -> None:
    """Raise TargetError for pins that exclude one another, or this release."""
    pinned = dict(made.pinned)
    ahead = pinned.get("async_scheduling")
    if ahead and not traits.schedules_ahead:
        raise TargetError(f"--config async_scheduling=true: vllm {traits.version} has none")
    if None not in (ahead, made.is_ahead) and ahead != made.is_ahead:
        is_one = "a" if made.is_ahead else "no"
        raise TargetError(
            f"--config async_scheduling={written(bool(ahead))}: {made.typed.scheduler} is {is_one} "
            f"subclass of AsyncScheduler"
        )
    room = pinned.get("max_num_batched_tokens")
    least = {"max_num_seqs": "a token of each request"}
    if pinned.get("chunked_prefill") is False:
        least["max_model_len"] = "a whole request, which is not computed in chunks"
    for field, what in least.items():
        if room is not None and pinned.get(field, 0) > room:
            raise TargetError(
                f"--config max_num_batched_tokens={room} has no room for {what} "
                f"({field}={pinned[field]})"
            )


def _taken_by(kind: type, options: Options) -> Values:
    known = _settable(kind)
    return tuple((key, value) for key, value in options.config if key in known)


def _settable(kind: type) -> frozenset[str]:
    """Return the fields that this release's class can be given and a trace does not draw."""
    every = {one.name for one in fields(kind) if one.init}
    return frozenset(every - PINNED.keys() - _NOT_GIVEN.keys())


def _check(key: str, value: Value, traits: Traits) -> None:
    """Raise TargetError for an option that this release does not have, or not with such a value."""
    typed, release = f"--config {key}={written(value)}", f"vllm {traits.version}"
    if key in _NOT_GIVEN:
        raise TargetError(f"{typed}: {_NOT_GIVEN[key]}")
    kinds = [one for one in (VllmSchedulerConfig, CacheConfig) if key in _settable(one)]
    if not kinds:
        known = _settable(VllmSchedulerConfig) | _settable(CacheConfig) | PINNED.keys()
        near = get_close_matches(key, sorted(known), n=3, cutoff=0.0)
        raise TargetError(
            f"{typed}: neither SchedulerConfig nor CacheConfig of {release} has it; the nearest "
            f"are {', '.join(near)}"
        )
    for kind in kinds:
        hint = _hints(kind).get(key, Any)
        if not _takes(hint, value):
            shown = getattr(hint, "__name__", None) if isinstance(hint, type) else None
            raise TargetError(f"{typed}: {kind.__name__} of {release} wants {shown or hint} for it")


def _hints(kind: type) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001  names that only a type checker sees: vLLM's checks remain
        return {}


def _takes(hint: Any, value: Value) -> bool:
    """Return whether a value is of an annotated type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_takes(one, value) for one in arguments)
    if origin is Annotated:
        return _takes(arguments[0], value)
    if origin is Literal:
        return value in arguments
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint
