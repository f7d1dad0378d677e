"""Hand-made values for tests of the judging side, where no scheduler is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedcheck.judge import Judge
from schedcheck.model.actions import Abort, Action
from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, SchedulerConfig
from schedcheck.model.output import (
    Accepted,
    EngineOutput,
    FinishReason,
    Load,
    Role,
    Row,
    SchedulerOutput,
    TableUpdate,
)
from schedcheck.model.request import RequestSpec
from schedcheck.model.snapshot import RequestView, Snapshot, Status
from schedcheck.model.tokens import prompt_tokens
from schedcheck.model.trace import (
    Added,
    AnyEvent,
    Completed,
    Controlled,
    Drained,
    Scheduled,
    Transfer,
    TransferEnded,
)
from schedcheck.model.verdict import Finding

EVERYTHING = frozenset(Capability) - {Capability.OWN_STORE}


class Bench:
    """A judge that is shown events one by one; keeps step ids and the last snapshot."""

    def __init__(
        self,
        *,
        dialect: Dialect = Dialect.V1,
        block_size: int = 2,
        own_store: bool = False,
        **config: Any,
    ) -> None:
        self.config = SchedulerConfig(
            blocks_total=8,
            block_size=block_size,
            max_steps_in_flight=3,
            dialect=dialect,
            **config,
        )
        self.judge = Judge(
            self.config, EVERYTHING | {Capability.OWN_STORE} if own_store else EVERYTHING
        )
        self.snapshot = Snapshot()
        self.has_work = True
        self.number = 0
        self.step_id = -1

    @property
    def ledger(self):
        return self.judge.ledger

    def show(self, event: AnyEvent) -> list[str]:
        """Judge an event and return the signatures of what is wrong with it."""
        self.number += 1
        return sorted({str(one.signature) for one in self.findings(event)})

    def findings(self, event: AnyEvent) -> tuple[Finding, ...]:
        return self.judge.observe(event, step=self.number)

    def look(self, **statuses: Status | RequestView) -> None:
        """Set what the next events' snapshot shows: a status or a view for each request."""
        views = {
            name: one if isinstance(one, RequestView) else RequestView(status=one)
            for name, one in statuses.items()
        }
        running = tuple(n for n, v in views.items() if v.status is Status.RUNNING)
        waiting = tuple(
            n
            for n, v in views.items()
            if v.status is not None and not v.status.is_finished and n not in running
        )
        self.snapshot = Snapshot(requests=views, queues={"waiting": waiting, "running": running})

    def add(self, name: str, *, prompt: int = 2, **spec: object) -> list[str]:
        made = RequestSpec(
            prompt=(("own", prompt),), **{"remote_tokens": prompt, "send_kv": True, **spec}
        )
        views = dict(self.snapshot.requests) | {name: RequestView(status=Status.WAITING)}
        self.look(**views)
        tokens = prompt_tokens(name, self.ledger.specs() | {name: made})
        return self.show(
            Added(name=name, spec=made, tokens=tokens, answer=Accepted(), snapshot=self.snapshot)
        )

    def schedule(
        self,
        *rows: Row,
        finished: tuple[str, ...] = (),
        preempted: tuple[str, ...] = (),
        loads: tuple[Load, ...] = (),
    ) -> list[str]:
        self.step_id += 1
        output = SchedulerOutput(
            step_id=self.step_id, rows=rows, finished=finished, preempted=preempted, loads=loads
        )
        return self.show(Scheduled(output=output, snapshot=self.snapshot, has_work=self.has_work))

    def complete(
        self,
        delivered: Mapping[str, tuple[int, ...]] | None = None,
        *,
        finished: Mapping[str, FinishReason] | None = None,
        sends: tuple[str, ...] = (),
    ) -> list[str]:
        """Complete the oldest step; by default what the worker sampled is delivered."""
        result = self.judge.worker.answer()
        output = EngineOutput(
            delivered=result.sampled if delivered is None else delivered,
            finished=finished or {},
            sends=sends,
        )
        step_id = self.ledger.in_flight[0].output.step_id
        return self.show(
            Completed(
                step_id=step_id,
                result=result,
                output=output,
                snapshot=self.snapshot,
                has_work=self.has_work,
            )
        )

    def abort(self, name: str, *, sends: tuple[str, ...] = ()) -> list[str]:
        return self.control(Abort(name), sends=sends)

    def control(self, action: Action, *, sends: tuple[str, ...] = ()) -> list[str]:
        return self.show(
            Controlled(
                action=action,
                answer=Accepted(sends=sends),
                snapshot=self.snapshot,
                has_work=self.has_work,
            )
        )

    def glance(self) -> list[str]:
        """Show the current snapshot with an event that changes nothing else."""
        return self.schedule()

    def end_load(self, name: str, *, bad_block: int | None = None) -> list[str]:
        return self.show(
            TransferEnded(
                name=name, transfer=Transfer.LOAD, bad_block=bad_block, snapshot=self.snapshot
            )
        )

    def end_send(self, name: str) -> list[str]:
        return self.show(TransferEnded(name=name, transfer=Transfer.SEND, snapshot=self.snapshot))

    def drained(self, *unfinished: str, idle_rounds: int = 0) -> list[str]:
        return self.show(
            Drained(
                rounds=9, idle_rounds=idle_rounds, unfinished=unfinished, snapshot=self.snapshot
            )
        )


def new(name: str, count: int, *, blocks: tuple[int, ...] = (1, 2, 3), start: int = 0) -> Row:
    return Row(
        name=name,
        role=Role.NEW,
        start=start,
        count=count,
        block_ids=(blocks,),
        table_update=TableUpdate.REPLACE,
    )


def running(name: str, start: int, count: int = 1, *, blocks: tuple[int, ...] = ()) -> Row:
    return Row(
        name=name,
        role=Role.RUNNING,
        start=start,
        count=count,
        block_ids=(blocks,) if blocks else None,
    )


def resumed(
    name: str,
    count: int,
    *,
    known: tuple[int, ...] | None = None,
    blocks: tuple[int, ...] = (1, 2, 3),
    start: int = 0,
) -> Row:
    return Row(
        name=name,
        role=Role.RESUMED,
        start=start,
        count=count,
        known_tokens=known,
        block_ids=(blocks,),
        table_update=TableUpdate.REPLACE,
    )
