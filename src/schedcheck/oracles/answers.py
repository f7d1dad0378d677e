"""What is only known from the answers of a KV store that is not ours.

Our own store holds what the requests say. A user's (capability OWN_STORE) holds what it holds:
each load and each send that an engine begins is then taken for what the request had asked for, so
that the rest of the house judges it as any other.
"""

from __future__ import annotations

from attrs import evolve

from schedcheck.model.output import Accepted
from schedcheck.model.trace import AnyEvent, Completed, Controlled, Scheduled
from schedcheck.oracles.ledger import Ledger


def believe(event: AnyEvent, ledger: Ledger) -> None:
    """Write what an event shows of the store into what the ledger knows of its requests."""
    sends: tuple[str, ...] = ()
    match event:
        case Scheduled(output=output):
            for load in output.loads:
                life = ledger.lives.get(load.name)
                if life is not None:
                    held = max(0, load.start + load.count)
                    life.spec = evolve(life.spec, remote_tokens=held, load_async=load.is_async)
        case Completed(output=output):
            sends = output.sends
        case Controlled(answer=Accepted(sends=begun)):
            sends = begun
        case _:
            pass
    for name in sends:
        life = ledger.lives.get(name)
        if life is not None:
            life.spec = evolve(life.spec, send_kv=True)
