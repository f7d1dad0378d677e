"""Write the pages of the families and the state diagrams from what the code says.

    python docs/generate.py            writes docs/*.md
    python docs/generate.py --check    says which of them are not what they should be

The prose of a family is in FAMILIES below; the tables come from the registries of invariants and
mutants, the diagrams from the table of transitions in ``schedcheck.model.lifecycle``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Final

from attrs import frozen

from schedcheck import catalogue
from schedcheck.invariants.registry import Invariant, every_invariant
from schedcheck.model.capability import Capability
from schedcheck.model.lifecycle import TRANSITIONS, Transition
from schedcheck.model.snapshot import Status
from schedcheck.reference.mutants.registry import MUTANTS

HERE: Final = Path(__file__).parent
_SHORT: Final = {
    Status.WAITING_FOR_REMOTE_KVS: "LOADING",
    Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR: "AWAITS_GRAMMAR",
    Status.WAITING_FOR_STREAMING_REQ: "AWAITS_CHUNK",
    Status.FINISHED_STOPPED: "STOPPED",
    Status.FINISHED_LENGTH_CAPPED: "LENGTH_CAPPED",
    Status.FINISHED_ABORTED: "ABORTED",
    Status.FINISHED_ERROR: "ERROR",
}
"""What a diagram calls the statuses whose names would make it too wide."""

Edges = Callable[[Transition], bool]


@frozen
class Family:
    """What is said about a family, and which transitions its diagram shows."""

    name: str
    title: str
    prose: str
    shows: Edges


def _touches(*statuses: Status) -> Edges:
    return lambda edge: edge.before in statuses or edge.after in statuses


def _ends(edge: Transition) -> bool:
    return edge.after is not None and edge.after.is_finished


def _is_plain(edge: Transition) -> bool:
    return not edge.needs


FAMILIES: Final = (
    Family(
        "REQ",
        "classification and life of a request",
        "What a request is to the workers (new, resumed, running), which statuses it goes "
        "through, in which queue it stands, and that its end is told once to everybody whom "
        "it concerns. The diagram is the whole table of lawful transitions; whatever is not "
        "in it is REQ-006.",
        lambda _: True,
    ),
    Family(
        "SCH",
        "budgets, and the shape of a step",
        "What one step may hold: tokens, sequences, adapters, drafts, encoder inputs; that "
        "the workers can do what they are asked; that a pause and the order of waiting are "
        "respected. The diagram shows where a step moves a request.",
        lambda edge: Status.RUNNING in (edge.before, edge.after) and not _ends(edge),
    ),
    Family(
        "KV",
        "blocks, who owns them and what they hold",
        "Every block is free or owned, steps and transfers in flight included; none is lost, "
        "none is given away too early; and what a step reads from memory was written for "
        "exactly that prefix. The diagram shows where blocks are given and taken: into "
        "RUNNING and LOADING, out of them by preemption and at every end.",
        lambda edge: _touches(Status.RUNNING, Status.WAITING_FOR_REMOTE_KVS)(edge) or _ends(edge),
    ),
    Family(
        "TOK",
        "the tokens that reach the client",
        "The client gets the continuation of its prompt, each token once, as soon as it is "
        "sampled, up to the end and not beyond. The diagram shows where tokens are sampled "
        "and where they end.",
        lambda edge: edge.before in (Status.RUNNING, Status.PREEMPTED),
    ),
    Family(
        "XFER",
        "transfers of KV between the engine and the outside",
        "A load is begun once, waited for, and reported once; a send begins when its request "
        "has ended. The diagram shows the life of a request that loads.",
        _touches(Status.WAITING_FOR_REMOTE_KVS),
    ),
    Family(
        "CACHE",
        "the prefix cache",
        "What is shared was computed for exactly that prefix, adapter and salt, after the "
        "last reset, and stays what it is while it is shared. A hit happens on the way into "
        "RUNNING or LOADING.",
        lambda edge: edge.after in (Status.RUNNING, Status.WAITING_FOR_REMOTE_KVS),
    ),
    Family(
        "PRG",
        "progress",
        "Once nothing outside is open, every request finishes, the engine does not fall "
        "asleep, and preemptions serve somebody. The diagram leaves out what only comes from "
        "outside: each of its paths has to lead to an end.",
        _is_plain,
    ),
    Family(
        "DET",
        "determinism",
        "The same actions lead to the same behaviour, and looking changes nothing. Without "
        "this a failing trace cannot be shrunk or replayed. These are judged by playing a "
        "trace twice, whatever transitions it takes; the diagram shows the plain life.",
        _is_plain,
    ),
    Family(
        "ENG",
        "faults of an engine as such",
        "It raised, it did not return, or it answered outside the protocol. From every status "
        "of the plain life a call can go wrong.",
        _is_plain,
    ),
)


def page(family: Family) -> str:
    """Return the page of a family."""
    return "\n".join(_lines(family)) + "\n"


def _lines(family: Family) -> Iterator[str]:
    members = [one for one in every_invariant() if one.family == family.name]
    yield f"# {family.name}: {family.title}"
    yield ""
    yield fill(family.prose, 100)
    yield ""
    yield "<!-- Written by docs/generate.py from the code: change it there. -->"
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield from (f"    {line}" for line in diagram(family.shows))
    yield "```"
    yield ""
    yield "| invariant | what it promises | severity | kills |"
    yield "|---|---|---|---|"
    for one in members:
        yield _row(one)
    yield ""
    needed = sorted({need for one in members for need in one.requires})
    yield (
        f"What an engine must show or be able to do for all of them: {', '.join(needed)}."
        if needed
        else "They ask nothing special of an engine."
    )


def _row(one: Invariant) -> str:
    folder = catalogue.entry(one.id).folder.name
    kills = ", ".join(f"`{m.name}`" for m in MUTANTS if one.id in m.must_kill) or "none in process"
    link = f"[{one.id}](../invariants/{folder}/invariant.md)"
    return f"| {link} | {one.title} | {one.severity.value} | {kills} |"


def diagram(shows: Edges) -> Iterator[str]:
    """Yield a state diagram of the transitions chosen, edges between two states as one arrow."""
    for edge in filter(shows, TRANSITIONS):
        needs = ", ".join(sorted(_word(need) for need in edge.needs))
        label = "; ".join(filter(None, (edge.why, f"needs {needs}" if needs else "")))
        arrow = f"{_state(edge.before)} --> {_state(edge.after)}"
        yield f"{arrow} : {label}" if label else arrow
    for status in Status:
        if status.is_finished and any(edge.after is status for edge in filter(shows, TRANSITIONS)):
            yield f"{_state(status)} --> [*]"


def _word(capability: Capability) -> str:
    return capability.value.lower().replace("_", " ")


def _state(status: Status | None) -> str:
    return "[*]" if status is None else _SHORT.get(status, status.value)


def index() -> str:
    """Return the page that lists the families."""
    lines = ["# The catalogue by family", "", "<!-- Written by docs/generate.py. -->", ""]
    for family in FAMILIES:
        count = sum(one.family == family.name for one in every_invariant())
        lines.append(f"- [{family.name}]({family.name}.md), {count} invariants: {family.title}")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return every page by the file it belongs into."""
    return {HERE / f"{one.name}.md": page(one) for one in FAMILIES} | {HERE / "README.md": index()}


def main() -> int:
    """Write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if any is stale"
    )
    check = parser.parse_args().check
    stale = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in stale:
        if check:
            print(f"{path.name} is stale: run python docs/generate.py")  # noqa: T201  its output
        else:
            path.write_text(pages()[path], "utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
