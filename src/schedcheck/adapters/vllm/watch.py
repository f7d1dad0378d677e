"""A user's KV connector behind the real scheduler, watched from within.

What is made here is a subclass of the user's class: every method answers as the user's does. The
calls that the scheduler makes are looked at on their way back: what begins, for the simulated
worker, which moves nothing and decides when a transfer ends; and whether the answer is one that
vLLM's ``KVConnectorBase_V1`` allows. What is raised, or answered otherwise, is the connector's
fault and not the engine's. The worker's side of a connector is never made, nor called.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from attrs import Factory, define
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

from schedcheck.adapters.vllm.compat import place_of
from schedcheck.adapters.vllm.connector import BegunLoad
from schedcheck.adapters.vllm.pieces import said
from schedcheck.model.request import RequestSpec
from schedcheck.sut import PieceFault, TargetError

MODULE: Final = __name__
_NOTES: Final = "_schedcheck_notes"
_PIECE: Final = "connector"


@define
class Notes:
    """What one connector was asked and answered in one trace, by engine id."""

    can_wait: bool
    """Whether this release understands that a lookup takes more time."""
    specs: dict[str, RequestSpec] = Factory(dict)
    begun: list[BegunLoad] = Factory(list)
    sends: list[str] = Factory(list)
    offered: dict[str, tuple[int, int, bool]] = Factory(dict)
    """The last answer about each request: behind which token, how many, whether async."""
    loading: Counter[str] = Factory(Counter)
    """How many asynchronous loads under each id were not reported to be over yet."""
    is_inside: bool = False
    """Whether a call is under way: what a connector calls of itself is its own affair."""

    def adopt(self, engine_id: str, spec: RequestSpec) -> None:
        """Take note of a new request under an id."""
        self.specs[engine_id] = spec

    def decide(self, engine_id: str) -> None:
        """Do nothing: a user's store decides by itself when it knows."""

    def loads_reported(self, request_ids: Iterable[str]) -> None:
        """Take note that the ends of asynchronous loads have been reported to the scheduler."""
        self.loading.subtract(request_ids)


def notes_of(connector: Any) -> Any:
    """Return what stands for a connector in translating: our own itself, or the notes on it."""
    return getattr(connector, _NOTES, connector)


def watched(kind: Any, *, typed: str, can_wait: bool) -> str:
    """Make the watched subclass of a user's connector, and return its name in this module."""
    body = {
        name: _looked_at(name, getattr(kind, name))
        for name in sorted({*vars(KVConnectorBase_V1), "request_finished_all_groups"})
        if not name.startswith("_") and inspect.isfunction(getattr(kind, name, None))
    }
    body["__init__"] = _made(kind.__init__, typed, can_wait=can_wait)
    made = type(kind)(kind.__name__, (kind,), {**body, "__module__": kind.__module__})
    name = f"Watched{kind.__name__}"
    globals()[name] = made  # where vLLM looks for a connector that is not its own
    return name


def supports_all_groups(kind: Any) -> bool:
    """Return whether a connector knows of several KV cache groups, which are then left on."""
    group_aware = place_of("SupportsHMA")
    return group_aware is None or issubclass(kind, group_aware)


def _made(constructor: Callable[..., None], typed: str, *, can_wait: bool) -> Callable[..., None]:
    @functools.wraps(constructor)  # vLLM looks at which parameters it has
    def make(self: Any, *arguments: Any, **more: Any) -> None:
        setattr(self, _NOTES, Notes(can_wait=can_wait, is_inside=True))
        try:
            constructor(self, *arguments, **more)
        except Exception as error:  # a stranger's constructor may raise anything
            raise TargetError(f"--connector {typed} cannot be made: {said(error)}") from error
        getattr(self, _NOTES).is_inside = False

    return make


def _looked_at(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    look = _LOOKS.get(name)

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        notes: Notes = getattr(self, _NOTES)
        if notes.is_inside:
            return method(self, *arguments, **more)
        notes.is_inside = True
        try:
            answer = method(self, *arguments, **more)
        except Exception as error:
            raise PieceFault(piece=_PIECE, method=name, error=error) from error
        finally:
            notes.is_inside = False
        if look is not None:
            look(notes, answer, *arguments, *more.values())
        return answer

    return call


def _broken(method: str, clause: str, problem: str) -> PieceFault:
    return PieceFault(piece=_PIECE, method=method, clause=clause, problem=problem)


def _shown(value: object) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value)[:60] if plain else f"a {type(value).__name__}"


def _pair(method: str, answer: object, what: str) -> tuple[Any, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise _broken(method, "no-pair", f"answers {_shown(answer)}, not {what}")
    return answer[0], answer[1]


def _look_at_match(notes: Notes, answer: object, request: Any, computed: int) -> None:
    method, form = "get_num_new_matched_tokens", "(int | None, bool)"
    count, is_async = _pair(method, answer, form)
    about = f"for {request.request_id}"
    if type(is_async) is not bool or not (count is None or type(count) is int):
        told = f"({_shown(count)}, {_shown(is_async)})"
        raise _broken(method, "wrong-types", f"answers {told} {about}, not {form}")
    if count is None:
        if not notes.can_wait:
            problem = f"answers None {about}, which this release does not understand: say 0"
            raise _broken(method, "undecided", problem)
        return
    left = request.num_tokens - computed
    if count < 0:
        problem = f"answers {count} tokens {about}: it must be 0 or more, or None"
        raise _broken(method, "negative", problem)
    if count > left:
        raise _broken(
            method,
            "beyond-the-prompt",
            f"answers {count} tokens {about}, beyond its prompt: of {request.num_tokens} tokens "
            f"{computed} are computed, so {left} at most",
        )
    if is_async and not count:
        problem = f"answers (0, True) {about}: without tokens the second must be False"
        raise _broken(method, "async-without-tokens", problem)
    if count == left and count and not is_async:
        raise _broken(
            method,
            "nothing-left-to-compute",
            f"answers all {count} tokens {about} to be loaded within the step: one must be left "
            f"to compute",
        )
    notes.offered[request.request_id] = (computed, count, is_async)


def _look_at_allocation(
    notes: Notes, _answer: object, request: Any, _blocks: Any, count: int
) -> None:
    if count:
        start, _, is_async = notes.offered[request.request_id]
        notes.begun.append(BegunLoad(request.request_id, start, count, is_async))
        notes.loading[request.request_id] += is_async


def _look_at_end(
    method: str, notes: Notes, answer: object, request: Any, _blocks: Any = None
) -> None:
    form = "(bool, dict | None)"
    delays, parameters = _pair(method, answer, form)
    if type(delays) is not bool or not (parameters is None or isinstance(parameters, dict)):
        told = f"({_shown(delays)}, {_shown(parameters)})"
        raise _broken(method, "wrong-types", f"answers {told}, not {form}")
    if delays and notes.loading[request.request_id] > 0:
        problem = f"keeps the blocks of {request.request_id} for a send while its load is open"
        raise _broken(method, "sends-while-loading", problem)
    if delays:
        notes.sends.append(request.request_id)


def _look_at_metadata(_notes: Notes, answer: object, *_: Any) -> None:
    if not isinstance(answer, KVConnectorMetadata):
        problem = f"answers {_shown(answer)}, not a KVConnectorMetadata"
        raise _broken("build_connector_meta", "no-metadata", problem)


def _look_at_output(notes: Notes, _answer: object, output: Any) -> None:
    """Look at what the scheduler goes on with after the connector has had it in its hands."""
    for field in ("finished_recving", "finished_sending"):
        for one in sorted(map(str, getattr(output, field, None) or ())):
            if one not in notes.specs:
                problem = f"puts {_shown(one)} into {field}, a request it was never given"
                raise _broken("update_connector_output", "unknown-request", problem)


_LOOKS: Final[dict[str, Callable[..., None]]] = {
    "get_num_new_matched_tokens": _look_at_match,
    "update_state_after_alloc": _look_at_allocation,
    "request_finished": functools.partial(_look_at_end, "request_finished"),
    "request_finished_all_groups": functools.partial(_look_at_end, "request_finished_all_groups"),
    "build_connector_meta": _look_at_metadata,
    "update_connector_output": _look_at_output,
}
