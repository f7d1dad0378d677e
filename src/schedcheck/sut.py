"""The protocol: what an adapter implements so that a scheduler can be driven and watched.

A Target is a scheduler that can be opened as often as one likes; a SystemUnderTest is one such
scheduler, used for one trace and then closed. An adapter only translates: sampling, draft
acceptance and the bookkeeping of transfers live in the simulated worker, so that every engine is
asked the same questions. Requests are known by symbolic names (``r0``, ``r1``, ...) on this side
of the protocol and by the engine's own ids on the other; Names translates between them.

Every collection that comes from an engine's set is sorted by the adapter. Exceptions that an
engine raises are let through: they are findings.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from attrs import Factory, define, frozen

from schedcheck.model.actions import Action
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    Rejected,
    SchedulerOutput,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Snapshot


class TargetError(Exception):
    """A target cannot be loaded or opened; the message names it, the cause and the way out."""


class PieceFault(Exception):
    """A user's own piece behind an engine raised, or broke its contract; the engine did neither.

    An adapter raises it out of the call in which that happened.
    """

    def __init__(
        self,
        *,
        piece: str,
        method: str,
        clause: str = "",
        problem: str = "",
        error: Exception | None = None,
    ) -> None:
        super().__init__(f"the {piece}'s {method} {problem or f'raises {error!r}'}")
        self.piece, self.method, self.clause, self.problem = piece, method, clause, problem
        self.error = error
        """What it raised; None: it broke the clause, which ``problem`` says in words."""


@frozen
class Refused:
    """A target cannot honour a configuration, not even one close to it."""

    reason: str


@runtime_checkable
class SystemUnderTest(Protocol):
    """One scheduler, driven through one trace."""

    def add(self, name: str, spec: RequestSpec, tokens: tuple[int, ...]) -> Accepted | Rejected:
        """Hand a request with this prompt to the scheduler."""
        ...

    def schedule(self) -> SchedulerOutput:
        """Plan one step. Its ``step_id`` is this adapter's own, rising by one from 0."""
        ...

    def complete(self, step_id: int, result: WorkerResult) -> EngineOutput:
        """Process the result of a step. Steps are completed first in, first out."""
        ...

    def control(self, action: Action) -> Accepted | Rejected:
        """Carry out whatever is neither a request nor a step: an Abort, a Pause, a GrammarReady.

        An abort of a request that the engine no longer knows is accepted and does nothing. The
        tokens of an AddChunk are ``model.tokens.chunk_tokens``, chunks counted from 0.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Return what the scheduler looks like now, changing nothing."""
        ...

    def has_work(self) -> bool:
        """Return whether the engine would go on stepping if no client said anything more."""
        ...

    def close(self) -> None:
        """Let go of everything. Called once, also after a crash."""
        ...


@runtime_checkable
class Target(Protocol):
    """A scheduler that can be opened again and again."""

    @property
    def name(self) -> str:
        """What is typed to choose it: ``reference``, ``vllm``, ``my_pkg.my_mod:MyAdapter``."""
        ...

    @property
    def version(self) -> str:
        """The engine's own version, empty if it has none."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do and show."""
        ...

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """The ways it can speak to its workers, its default first."""
        ...

    def honours(self, config: SchedulerConfig) -> SchedulerConfig | Refused:
        """Return the nearest configuration that this engine can really be given, or a reason.

        It must be stable: what it returns, it returns unchanged when asked again.
        """
        ...

    def open(self, config: SchedulerConfig) -> SystemUnderTest:
        """Return a fresh scheduler. ``config`` is one that ``honours`` returned."""
        ...


@define
class Names:
    """Translates between symbolic names and engine ids, also when an id is used twice.

    An engine id belongs to the request that was added under it last. An engine may still speak of
    an earlier owner (a finish announced late): ``history_of`` lists the candidates.
    """

    _ids: dict[str, str] = Factory(dict)
    _owners: dict[str, list[str]] = Factory(dict)

    def add(self, name: str, spec: RequestSpec) -> str:
        """Register a request and return its engine id."""
        engine_id = name if spec.engine_id_of is None else self._ids[spec.engine_id_of]
        self._ids[name] = engine_id
        self._owners.setdefault(engine_id, []).append(name)
        return engine_id

    def id_of(self, name: str) -> str:
        """Return the engine id of a request. Raises KeyError for a name never added."""
        return self._ids[name]

    def owns(self, name: str) -> bool:
        """Return whether the name's engine id has not been given to a later request."""
        engine_id = self._ids.get(name)
        return engine_id is not None and self._owners[engine_id][-1] == name

    def name_of(self, engine_id: str) -> str:
        """Return the request that has this engine id now. Raises KeyError for an unknown id."""
        return self._owners[engine_id][-1]

    def history_of(self, engine_id: str) -> tuple[str, ...]:
        """Return every request that ever had this engine id, oldest first."""
        return tuple(self._owners[engine_id])
