"""Faults in how a request is presented to the workers."""

from __future__ import annotations

from attrs import evolve

from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import FinishReason, Role, SchedulerOutput, TableUpdate
from schedcheck.model.snapshot import Status
from schedcheck.reference.request import Request
from schedcheck.reference.scheduler import Scheduler
from schedcheck.reference.state import Plan


class ResumedAsNew(Scheduler):
    """The seed fault: after a load a preempted request waits as if it had never run."""

    def status_after_load(self, request: Request) -> Status:
        """Forget that the request was preempted."""
        del request
        return Status.WAITING


class RepairBySet(ResumedAsNew):
    """The seed's other repair: remember in a set which preempted requests are loading."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.preempted_loading: set[str] = set()

    def begin_load(self, plan: Plan, request: Request, hit: list[int], offered: int) -> bool:
        """Remember a preempted request that begins to load."""
        was_preempted = request.status is Status.PREEMPTED
        begun = super().begin_load(plan, request, hit, offered)
        if begun and was_preempted:
            self.preempted_loading.add(request.request_id)
        return begun

    def role_of(self, request: Request) -> Role:
        """Look into the set as well."""
        if request.request_id in self.preempted_loading:
            self.preempted_loading.discard(request.request_id)
            return Role.RESUMED
        return super().role_of(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Clean the set when a request ends."""
        self.preempted_loading.discard(request.request_id)
        super().finish(request, reason)


class LoadingSetNotCleaned(RepairBySet):
    """The same without the cleaning: the next owner of the id comes back though never sent."""

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Leave the set as it is."""
        Scheduler.finish(self, request, reason)


class ResumedAsRunning(Scheduler):
    """A preempted request comes back as a plain running one: its table is appended to."""

    def role_of(self, request: Request) -> Role:
        """Never say RESUMED."""
        role = super().role_of(request)
        return Role.RUNNING if role is Role.RESUMED else role


class ResumedTwice(Scheduler):
    """A resumed request stands twice in one output."""

    def add_row(
        self, plan: Plan, request: Request, role: Role, count: int, blocks: list[int]
    ) -> None:
        """Add the row of a resumed request once more."""
        super().add_row(plan, request, role, count, blocks)
        if role is Role.RESUMED:
            plan.rows.append(plan.rows[-1])
            plan.requests.append(request)


class SkippedAsResumed(Scheduler):
    """A running request that was skipped for a step comes back as resumed."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.last_step: set[str] = set()

    def schedule(self) -> SchedulerOutput:
        """Mistake every request that is not in the step before for a resumed one."""
        output = super().schedule()
        rows = tuple(
            evolve(
                row,
                role=Role.RESUMED,
                block_ids=(tuple(self.requests[row.name].block_ids),),
                table_update=TableUpdate.REPLACE,
            )
            if row.role is Role.RUNNING and row.name not in self.last_step
            else row
            for row in output.rows
        )
        self.last_step = {row.name for row in output.rows}
        return evolve(output, rows=rows)
