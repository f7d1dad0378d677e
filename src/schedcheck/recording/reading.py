"""What is read off vLLM's requests and outputs for a recording."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from attrs import define

from schedcheck.adapters.vllm.compat import status_of
from schedcheck.model.output import FinishReason
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.tracefile.recorded import LifeForm, LoadForm, RowForm, ViewForm


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
