"""What is read off vLLM's requests and outputs for a recording."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from attrs import define

from schedcheck.adapters.vllm.compat import status_of
from schedcheck.model.output import FinishReason, Role
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.tracefile.recorded import LifeForm, LoadForm, RowForm, ViewForm
from schedcheck.tracefile.recording import body_of_spec


@define
class Known:
    """What is kept of one request that the scheduler still has."""

    name: str
    request: Any
    spec: RequestSpec | None
    """None: it is a session, or was there before; its history is unknown."""
    status: Any
    """vLLM's own, as it was last told."""
    form: LifeForm

    def take_role(self, role: Role) -> None:
        """Take in that it is scheduled as new or resumed."""
        form = self.form
        form.news += role is Role.NEW
        form.resumes += role is Role.RESUMED
        form.preempted = form.forgot = False
        form.path, form.load = [], None

    def take_status(self) -> Status | None:
        """Return what its status has become; None if that is what was told."""
        if self.request.status is self.status:
            return None
        status, before = status_of(self.request.status.name), status_of(self.status.name)
        self.status, form = self.request.status, self.form
        if before is Status.RUNNING and status is not Status.RUNNING:
            form.preemptions += 1
            form.preempted = True
        is_news = status is not Status.RUNNING and form.path[-1:] != [status]
        if is_news and Status.WAITING_FOR_REMOTE_KVS not in form.path:
            form.path = [*form.path, status]
        return status

    def told(self) -> LifeForm:
        """Return all that is known of it, for a file that goes on from here."""
        form = self.form
        if self.spec is not None:
            form.spec = body_of_spec(self.spec)
        form.delivered = min(getattr(self.request, "num_output_tokens", 0), 10**6)
        return form


Shape = tuple[list[str], list[int], list[int | None]]
"""Names, counts and starts of the rows of a step."""
NO_STEP: Final[tuple[int, Shape, list[RowForm]]] = (-1, ([], [], []), [])
NEW_TOKENS: Final = attrgetter("new_token_ids")


def starts_of(raw: Any, ids: list[str]) -> list[int | None]:
    """Return where the rows of a step begin, in the order of ``ids``."""
    cached = raw.scheduled_cached_reqs
    known = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    known |= {one.req_id: one.num_computed_tokens for one in raw.scheduled_new_reqs}
    return [known.get(one) for one in ids]


def has_roles(raw: Any) -> bool:
    """Return whether any row of a step is more than a running one."""
    cached = raw.scheduled_cached_reqs
    if raw.scheduled_new_reqs:
        return True
    resumed = getattr(cached, "resumed_req_ids", None)
    return bool(resumed) if resumed is not None else any(cached.resumed_from_preemption)


def view_of(request: Any) -> ViewForm:
    """Return what is shown of a request."""
    return ViewForm(status=status_of(request.status.name))


def load_of(name: str, request: Any) -> LoadForm:
    """Return the load that a request has begun, as far as the scheduler says."""
    end = max(0, request.num_computed_tokens)
    count = getattr(request, "num_external_computed_tokens", 0) or end
    return LoadForm(name=name, start=max(0, end - count), count=count)


def reason_of(request: Any) -> FinishReason:
    """Return why a request ended of which no client was told."""
    return {
        Status.FINISHED_ABORTED: FinishReason.ABORTED,
        Status.FINISHED_ERROR: FinishReason.ERROR,
        Status.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    }.get(status_of(request.status.name), FinishReason.STOPPED)
