"""What a scheduler holds, and how requests come, wait and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import Factory, define, frozen

from schedcheck.model.config import Policy, SchedulerConfig
from schedcheck.model.output import FinishReason, Load, Row, SchedulerOutput
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.reference.block_pool import BlockPool
from schedcheck.reference.encoder_cache import EncoderCache
from schedcheck.reference.request import Request

_STATUS_OF = {
    FinishReason.STOPPED: Status.FINISHED_STOPPED,
    FinishReason.LENGTH: Status.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORTED: Status.FINISHED_ABORTED,
    FinishReason.ERROR: Status.FINISHED_ERROR,
}


@frozen
class InFlight:
    """A planned step, with the requests its rows are about: an id may mean another one later."""

    output: SchedulerOutput
    requests: tuple[Request, ...]


@define
class Plan:
    """A step while it is being planned."""

    budget: int
    encoder_budget: int = 0
    rows: list[Row] = Factory(list)
    requests: list[Request] = Factory(list)
    """Whom the rows are about."""
    loads: list[Load] = Factory(list)
    drafts: dict[str, tuple[int, ...]] = Factory(dict)
    encoder_inputs: dict[str, tuple[int, ...]] = Factory(dict)
    preempted: bool = False

    def has(self, request: Request) -> bool:
        """Return whether the request is in this step."""
        return request in self.requests


class State:
    """Requests, queues, blocks and steps in flight. Rule numbers are those of ``scheduler``."""

    pool_class = BlockPool

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = self.pool_class(config.blocks_total)
        self.encoder = EncoderCache(config.encoder_cache_size)
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.in_flight: deque[InFlight] = deque()
        self.finished_req_ids: list[str] = []
        """Ends that the workers have not been told yet."""
        self.preempted_req_ids: list[str] = []
        self.sends_begun: list[str] = []
        """Sends that began since they were last asked for."""
        self.is_paused = False
        self.admits = True
        """Whether waiting requests may be admitted."""
        self.arrivals = 0
        self.next_step_id = 0

    def add_request(self, request_id: str, spec: RequestSpec, tokens: tuple[int, ...]) -> None:
        """Queue a request. The caller has made sure that its id is free and that it can fit."""
        request = Request(request_id, spec, tokens, self.arrivals)
        if spec.grammar:
            request.status = Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self.arrivals += 1
        self.requests[request_id] = request
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Put a request where the order of admission wants it (rules 5 and 8)."""
        self.waiting.append(request)
        self.waiting.sort(key=self.admission_key)

    def admission_key(self, request: Request) -> tuple[int, ...]:
        """Return what the waiting queue is sorted by; a tie does not exist."""
        never_ran = int(request.num_preemptions == 0)
        if self.config.policy is Policy.PRIORITY:
            return (request.spec.priority, request.arrival)
        return (never_ran, request.arrival)

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests, in whatever state they are; ids that are not known are passed over."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None and not request.is_finished:
                self.finish(request, FinishReason.ABORTED)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request (rules 18 and 19)."""
        must_wait = request.is_loading and request.tokens_loaded is None
        self.leave_queues(request)
        request.status = _STATUS_OF[reason]
        self.finished_req_ids.append(request.request_id)
        if request.request_id in self.preempted_req_ids:
            self.preempted_req_ids.remove(request.request_id)
        self.release_media(request)
        if must_wait:
            return  # its blocks stay until the end of the load is reported
        if request.spec.send_kv and request.block_ids and request.num_computed_tokens:
            request.is_sending = True
            self.sends_begun.append(request.request_id)
            return
        self.forget(request)

    def leave_queues(self, request: Request) -> None:
        """Take a request out of whatever queue it stands in."""
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def forget(self, request: Request) -> None:
        """Free what a request holds; its id may be used again from here on."""
        self.free_blocks(request)
        self.requests.pop(request.request_id, None)

    def free_blocks(self, request: Request) -> None:
        """Give a request's blocks back, once no step in flight writes them.

        The last ones first: the beginning of a prompt is what others are likeliest to hit.
        """
        blocks = reversed(request.block_ids) if self.config.prefix_caching else request.block_ids
        self.pool.free(blocks, after_step=self.last_step_of(request))
        request.block_ids = []

    def last_step_of(self, request: Request) -> int | None:
        """Return the id of the last step in flight, if one computes something of a request."""
        return self.in_flight[-1].output.step_id if request.steps_in_flight else None

    def release_media(self, request: Request) -> None:
        """Let the encoder outputs of a request go."""
        for item in request.spec.media:
            self.encoder.release(item.key, request.request_id)

    def pause(self, *, admission_only: bool) -> None:
        """Stop scheduling, or only admitting (rule 20)."""
        self.is_paused, self.admits = not admission_only, False

    def resume(self) -> None:
        """Go on as before a pause."""
        self.is_paused, self.admits = False, True

    def has_work(self) -> bool:
        """Return whether stepping on could change anything."""
        return bool(self.requests or self.finished_req_ids or self.pool.fenced)
