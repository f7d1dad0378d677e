"""The reference as a target: the smallest complete adapter, and so the one to copy from."""

from __future__ import annotations

from typing import Final

from attrs import evolve, frozen

from schedcheck.model.actions import (
    Abort,
    Action,
    AddChunk,
    AnswerLookup,
    GrammarReady,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
)
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.output import (
    NO_BLOCK,
    Accepted,
    EngineOutput,
    Rejected,
    SchedulerOutput,
    WorkerResult,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import RequestView, Snapshot, Status
from schedcheck.model.tokens import chunk_tokens
from schedcheck.reference.mutants.registry import find
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.sut import Names, Refused, SystemUnderTest

CAPABILITIES: Final = frozenset(Capability) - {
    Capability.ASYNC_SCHEDULING,
    Capability.OWN_STORE,
}
"""What the reference can do and show: everything but planning ahead of the samples."""


@frozen
class ReferenceTarget:
    """The reference scheduler, or a scheduler class on top of it."""

    name: str = "reference"
    scheduler_class: type[Scheduler] = Scheduler
    version: str = ""
    capabilities: frozenset[Capability] = CAPABILITIES
    dialects: tuple[Dialect, ...] = (Dialect.V1, Dialect.V2)

    def honours(self, config: SchedulerConfig) -> SchedulerConfig | Refused:
        """Take all of it; but without chunks a whole request must fit into one step."""
        budget = config.max_num_batched_tokens
        if not config.chunked_prefill:
            budget = max(budget, config.max_model_len)
        return evolve(config, max_num_batched_tokens=budget)

    def open(self, config: SchedulerConfig) -> SystemUnderTest:
        """Return a fresh scheduler."""
        return ReferenceSystem(self.scheduler_class(config))


def reference_target(variant: str = "") -> ReferenceTarget:
    """Return the reference, or the mutant or variant of that name. Raises TargetError."""
    if not variant:
        return ReferenceTarget()
    found = find(variant)
    return ReferenceTarget(f"reference+{found.name}", found.scheduler_class)


class ReferenceSystem:
    """Translates between symbolic names and the scheduler's request ids."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.names = Names()
        self.announced: dict[str, int] = {}
        """For each engine id how many of its owners were announced as finished."""

    def add(self, name: str, spec: RequestSpec, tokens: tuple[int, ...]) -> Accepted | Rejected:
        """Queue a request, unless it can never fit or its id is in use."""
        never = self.scheduler.config.why_never(spec)
        if never:
            return Rejected(never)
        try:
            engine_id = name if spec.engine_id_of is None else self.names.id_of(spec.engine_id_of)
        except KeyError:
            return Rejected(f"{spec.engine_id_of} was never accepted, so it has no id")
        if engine_id in self.scheduler.requests:
            return Rejected(f"the id {engine_id} is in use")
        self.scheduler.add_request(self.names.add(name, spec), spec, tokens)
        return Accepted()

    def schedule(self) -> SchedulerOutput:
        """Plan one step."""
        output = self.scheduler.schedule()
        # Ends first: an id may be announced as ended and be new in the same output.
        finished = tuple(self._ended(engine_id) for engine_id in output.finished)
        return evolve(
            output,
            rows=tuple(evolve(row, name=self.names.name_of(row.name)) for row in output.rows),
            scheduled_spec_decode_tokens={
                self.names.name_of(one): drafts
                for one, drafts in output.scheduled_spec_decode_tokens.items()
            },
            scheduled_encoder_inputs={
                self.names.name_of(one): places
                for one, places in output.scheduled_encoder_inputs.items()
            },
            preempted=tuple(self.names.name_of(one) for one in output.preempted or ()),
            finished=finished,
            loads=tuple(evolve(one, name=self.names.name_of(one.name)) for one in output.loads),
        )

    def _ended(self, engine_id: str) -> str:
        """Return which owner of an engine id an announcement is about: each in its turn."""
        owners = self.names.history_of(engine_id)
        number = self.announced.get(engine_id, 0)
        self.announced[engine_id] = number + 1
        return owners[min(number, len(owners) - 1)]

    def complete(self, step_id: int, result: WorkerResult) -> EngineOutput:
        """Process the result of the oldest step."""
        del step_id  # steps return in order, so it is the oldest one
        ids = self.names.id_of
        # The failed load of a former owner is not the load of the request that has its id now.
        failed = {
            ids(name): block for name, block in result.loads_failed.items() if self.names.owns(name)
        }
        output = self.scheduler.update_from_output(
            WorkerResult(
                sampled={ids(name): tokens for name, tokens in result.sampled.items()},
                drafts={ids(name): tokens for name, tokens in result.drafts.items()},
                loads_finished=tuple(map(ids, result.loads_finished)),
                sends_finished=tuple(map(ids, result.sends_finished)),
                loads_failed=failed,
            )
        )
        names = self.names.name_of
        return EngineOutput(
            delivered={names(one): tokens for one, tokens in output.delivered.items()},
            finished={names(one): reason for one, reason in output.finished.items()},
            sends=tuple(map(names, output.sends)),
            cached_tokens={names(one): counts for one, counts in output.cached_tokens.items()},
        )

    def control(self, action: Action) -> Accepted | Rejected:
        """Do whatever is neither a request nor a result."""
        scheduler = self.scheduler
        match action:
            case Abort(request=name):
                if self.names.owns(name):
                    scheduler.finish_requests([self.names.id_of(name)])
                sends, scheduler.sends_begun = scheduler.sends_begun, []
                return Accepted(sends=tuple(map(self.names.name_of, sends)))
            case Preempt(request=name):
                owns = self.names.owns(name)
                request = scheduler.requests.get(self.names.id_of(name)) if owns else None
                if request is None or request.status is not Status.RUNNING:
                    return Rejected(f"{name} does not run")
                scheduler.preempt(request)
                return Accepted()
            case ResetPrefixCache(running=running):
                done = scheduler.reset_prefix_cache(reset_running_requests=running)
                return Accepted() if done else Rejected("blocks are in use")
            case Pause(admission_only=admission_only):
                scheduler.pause(admission_only=admission_only)
                return Accepted()
            case Resume():
                scheduler.resume()
                return Accepted()
            case GrammarReady(request=name) | AnswerLookup(request=name) | AddChunk(request=name):
                owns = self.names.owns(name)
                request = scheduler.requests.get(self.names.id_of(name)) if owns else None
                if request is None or request.is_finished:
                    return Rejected(f"{name} has ended")
                self._arrived(action, request, name)
                return Accepted()
            case _:
                return Rejected(f"the reference knows no {action.do}")

    def _arrived(self, action: Action, request: Request, name: str) -> None:
        """Hand a request what it waits for."""
        if isinstance(action, GrammarReady):
            request.grammar_ready = True
        elif isinstance(action, AnswerLookup):
            request.lookup_answered = True
        else:
            number = request.turn + len(request.chunks)
            self.scheduler.add_chunk(request, chunk_tokens(name, request.spec, number))

    def snapshot(self) -> Snapshot:
        """Show every request that is tracked, the queues and the pool."""
        scheduler = self.scheduler
        name_of = self.names.name_of
        return Snapshot(
            requests={
                name_of(one.request_id): _view(one)
                for one in sorted(scheduler.requests.values(), key=lambda one: one.arrival)
            },
            queues={
                "waiting": tuple(name_of(one.request_id) for one in scheduler.waiting),
                "running": tuple(name_of(one.request_id) for one in scheduler.running),
            },
            blocks_free=scheduler.pool.blocks_free,
            blocks_total=scheduler.pool.blocks_total,
            free_block_ids=tuple(sorted(scheduler.pool.free_blocks)),
            block_refs=dict(sorted(scheduler.pool.refs.items())),
        )

    def has_work(self) -> bool:
        """Return whether the scheduler would go on stepping."""
        return self.scheduler.has_work()

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


def _view(request: Request) -> RequestView:
    return RequestView(
        status=request.status,
        num_computed_tokens=request.num_computed_tokens,
        num_tokens=request.num_tokens,
        num_preemptions=request.num_preemptions,
        block_ids=(tuple(block for block in request.block_ids if block != NO_BLOCK),),
    )
