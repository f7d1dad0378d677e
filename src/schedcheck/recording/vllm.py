"""Recording vLLM's own Scheduler, in production.

    vllm serve MODEL --scheduler-cls schedcheck.recording.vllm.RecordingScheduler

``RecordingScheduler`` is vLLM's Scheduler and, where asynchronous scheduling is on, its
AsyncScheduler; ``AsyncRecordingScheduler`` is the latter by name. Both are made when they are first
asked for, so that importing this module imports no vLLM. For an engine that exists already, see
``schedcheck.record``.

Options stand in vLLM's ``additional_config`` under ``schedcheck``, or in the environment as
SCHEDCHECK_RECORD_FOLDER, _NAME, _BYTES_MAX, _FILES_MAX, _TOKENS and _CHECK: ``recording.Options``
says what they mean.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from attrs import fields

from schedcheck.recording.hooks import Hooks
from schedcheck.recording.writing import Options

_VARIABLE: Final = "SCHEDCHECK_RECORD_"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})


def __getattr__(name: str) -> Any:
    if name == "RecordingScheduler":
        return _scheduler_class()
    if name == "AsyncRecordingScheduler":
        return _async_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _scheduler_class() -> Any:
    base = import_module("vllm.v1.core.sched.scheduler").Scheduler

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        kind = cls
        if cls is made and _is_async(args, kwargs):
            kind = _async_class()
        return base.__new__(kind)

    made = _recorded(base, "RecordingScheduler", __new__=new)
    return made


@cache
def _async_class() -> Any:
    try:
        base = import_module("vllm.v1.core.sched.async_scheduler").AsyncScheduler
    except ImportError:
        raise AttributeError("this release of vLLM has no AsyncScheduler") from None
    # Below RecordingScheduler, so that what that makes is an instance of it and is initialised.
    return _recorded(base, "AsyncRecordingScheduler", above=(_scheduler_class(),))


def _is_async(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    config = kwargs.get("vllm_config", args[0] if args else None)
    return bool(getattr(getattr(config, "scheduler_config", None), "async_scheduling", False))


def _recorded(base: Any, name: str, *, above: tuple[Any, ...] = (), **more: Any) -> Any:
    """Return a subclass whose instances are recorded."""

    @wraps(base.__init__)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        self._schedcheck = Hooks(self, options_of(self))

    hooks = {one: _hooked(base, one) for one in HOOKED if hasattr(base, one)}
    body = {
        "__init__": init,
        "__module__": __name__,
        "__doc__": f"vLLM's {base.__name__}, recorded.",
    }
    made: Any = type(name, (*above, base), {**hooks, **body, **more})
    made.__signature__ = inspect.signature(base)
    return made


def _hooked(base: Any, name: str) -> Any:
    original = getattr(base, name)

    @wraps(original)
    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._schedcheck, name)(partial(original, self), args, kwargs)

    return hook


HOOKED: Final = (
    "add_request", "schedule", "update_from_output", "finish_requests", "reset_prefix_cache",
    "set_pause_state", "shutdown",
)  # fmt: skip
"""The calls of vLLM's Scheduler that are recorded."""


@cache
def _wrapping(kind: Any) -> Any:
    return _recorded(kind, f"Recorded{kind.__name__}")


def recorded(scheduler: Any, options: Options) -> Any:
    """Return a Scheduler that is recorded and has its state in common with one that exists.

    The one that exists is left as it is; its calls are not recorded, and need not be made any more.
    """
    kind: Any = _wrapping(type(scheduler))  # type: ignore[arg-type]
    made = object.__new__(kind)
    made.__dict__ = scheduler.__dict__
    made._schedcheck = Hooks(made, options)
    return made


def options_of(scheduler: Any) -> Options:
    """Return what ``additional_config`` or the environment says about recording.

    Raises ValueError, which names the option, before anything is recorded.
    """
    additional = getattr(getattr(scheduler, "vllm_config", None), "additional_config", None)
    said = additional.get("schedcheck", {}) if isinstance(additional, dict) else {}
    values: dict[str, Any] = {}
    for one in fields(Options):
        value = said.get(one.name, os.environ.get(_VARIABLE + one.name.upper()))
        if value is not None:
            values[one.name] = _converted(one.name, value)
    return Options(**values)


def _converted(name: str, value: Any) -> Any:
    try:
        if name in ("tokens", "check"):
            return str(value).lower() in _TRUE
        if name == "folder":
            return Path(value)
        return str(value) if name == "name" else int(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"schedcheck: {name} of a recording cannot be {value!r}") from error
