"""Whether everything in the catalogue is what it says, each problem with its fix.

Rules
-----
- A page has the five headings, its title, the evidence, and nothing left to write.
- A minimal trace shows its signature at its last action on its mutant, nothing that the mutant does
  not declare, and no longer if any one action is left out; the reference is silent on it.
- A control holds on the reference and its witness fires; a trace under ``controls/`` shows a lawful
  behaviour, so nothing may fire.
- Each mutant is killed within the quick profile by all that must kill it, and by nothing that it
  does not declare; nothing kills a variant; each invariant must kill something.
- The known-issue ledger can be read, and each trace that it names expects just that signature on
  just such a release. Whether the release still shows it is seen where that release is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from schedcheck import catalogue
from schedcheck.catalogue import Entry
from schedcheck.catalogue.exemptions import FILE, LedgerError, read_ledger
from schedcheck.engine.events import Outcome
from schedcheck.engine.hunt import QUICK, Kills, declared_by, kills_of, target_text_of
from schedcheck.engine.replay import replay
from schedcheck.engine.smallest import plays
from schedcheck.engine.targets import REFERENCE, resolve
from schedcheck.invariants.registry import Invariant, every_invariant
from schedcheck.model.known import KnownIssue
from schedcheck.model.trace import Trace
from schedcheck.reference.mutants.registry import MUTANTS, Mutant
from schedcheck.tracefile import SUFFIX, TraceError, read

WITHOUT_MUTANT: Final = {"ENG-002": "a scheduler that hangs cannot be replayed in this process"}
"""Invariants that no mutant in this process can break, hence without traces, and why."""
HEADINGS: Final = (
    "## Statement",
    "## Why it matters",
    "## How it is checked",
    "## Upstream evidence",
    "## Not covered",
)
"""What a page consists of, in this order."""
UNFINISHED: Final = "TODO"
"""The word that begins what is still to be written on a page."""
CONTROLS: Final = "controls"
"""The folder of traces that show lawful behaviours."""
_LAWFUL_FIX: Final = "mend the checker, or the trace if it is unlawful"


@frozen(kw_only=True)
class Problem:
    """Something in the catalogue that is not as it must be."""

    where: str
    what: str
    fix: str


TraceCheck = Callable[[Trace, str], Iterator[Problem]]
"""Takes a trace and what it is called: the id of an invariant, or a file's name."""


@frozen(kw_only=True)
class Checked:
    """What checking the whole catalogue showed."""

    kills: tuple[Kills, ...]
    """One for each mutant and variant."""
    problems: tuple[Problem, ...]
    minimal: int
    """Minimal traces there are."""
    controls: int
    """Controls of an invariant."""
    lawful: int
    """Traces under ``controls/``."""
    known: int
    """Entries of the known-issue ledger."""


def check_everything(tell: Callable[[str], None]) -> Checked:
    """Check the whole catalogue and hunt every mutant. Raises CatalogueMissing.

    ``tell`` is told what is being done. The result is always the same for the same catalogue.
    """
    problems = list(of_folder())
    entries, lawful = catalogue.entries(), lawful_traces()
    for invariant in every_invariant():
        tell(f"replaying {invariant.id}")
        problems += of_invariant(invariant)
    for path in lawful:
        tell(f"replaying {path.name}")
        problems += _in_file(
            path, path.name, (of_lawful,), where=f"{CONTROLS}/{path.name}", fix=_LAWFUL_FIX
        )
    issues, wrong = of_ledger()
    problems += wrong
    kills = []
    for mutant in MUTANTS:
        tell(f"hunting {mutant.name}")
        kills.append(kills_of(mutant))
        problems += of_kills(kills[-1])
    problems += of_columns()
    return Checked(
        kills=tuple(kills),
        problems=tuple(problems),
        minimal=sum(entry.minimal.is_file() for entry in entries),
        controls=sum(entry.control.is_file() for entry in entries),
        lawful=len(lawful),
        known=len(issues),
    )


def of_folder() -> Iterator[Problem]:
    """Yield entries that no invariant has."""
    known, seen = {one.id for one in every_invariant()}, set[str]()
    for entry in catalogue.entries():
        if entry.id in seen:
            what = f"{entry.id} has a folder already"
            yield Problem(where=shown(entry.folder), what=what, fix="remove one of the two")
        seen.add(entry.id)
        if entry.id not in known:
            yield Problem(
                where=shown(entry.folder),
                what=f"no invariant {entry.id} is registered",
                fix="register its checker, or remove the folder",
            )


def of_invariant(invariant: Invariant) -> Iterator[Problem]:
    """Yield what is wrong with the page and the traces of an invariant."""
    entry = next((one for one in catalogue.entries() if one.id == invariant.id), None)
    if entry is None:
        yield Problem(where=invariant.id, what="has no page", fix=_new(invariant.id))
        return
    yield from of_page(invariant, entry)
    if invariant.id in WITHOUT_MUTANT:
        return
    fix = _new(invariant.id)
    where, checks = f"{entry.id} minimal", (of_minimal, of_removals, of_silence)
    yield from _in_file(entry.minimal, entry.id, checks, where=where, fix=fix)
    where = f"{entry.id} control"
    yield from _in_file(entry.control, entry.id, (of_control,), where=where, fix=fix)


def of_page(invariant: Invariant, entry: Entry) -> Iterator[Problem]:
    """Yield what is wrong with a page."""
    where, lines = f"{invariant.id} page", entry.page.read_text("utf-8").splitlines()
    title = f"# {invariant.id} {invariant.title}"
    if lines[:1] != [title]:
        yield Problem(where=where, what="its first line is not the title", fix=f"write {title!r}")
    if [line for line in lines if line.startswith("## ")] != list(HEADINGS):
        headings = ", ".join(one.removeprefix("## ") for one in HEADINGS)
        yield Problem(where=where, what="its headings are others", fix=f"have {headings}")
    for link in invariant.evidence:
        if not any(link in line for line in lines):
            yield Problem(where=where, what=f"lacks the evidence {link}", fix="say what it shows")
    heading = ""
    for line in lines:
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        if line.startswith(UNFINISHED):
            yield Problem(where=where, what=f"{heading!r} is unfinished", fix="write it")


def of_minimal(trace: Trace, id_: str) -> Iterator[Problem]:
    """Yield what a minimal trace shows otherwise than it says."""
    where, fix = f"{id_} minimal", _new(id_)
    mutant, expect = _mutant_of(trace), trace.header.expect
    if mutant is None or id_ not in mutant.must_kill:
        what = f"{trace.header.target} is no mutant that {id_} must kill"
        yield Problem(where=where, what=what, fix=fix)
        return
    if expect is None or expect.signature.invariant != id_:
        what = f"it expects {expect.signature if expect else 'nothing'}"
        yield Problem(where=where, what=what, fix=fix)
        return
    told = replay(resolve(trace.header.target), trace.header.target, trace)
    if told.outcome is not Outcome.FAILED or told.failure is None:
        yield Problem(where=where, what=f"{told.outcome}: {told.reason}", fix=fix)
        return
    complaint, length = told.failure.complaint, len(trace.actions)
    if not expect.step == complaint.step == length:
        what = f"expected at action {expect.step}, shown at {complaint.step} of {length}"
        yield Problem(where=where, what=what, fix=fix)
    fired = {complaint.invariant, *(one.invariant for one in told.failure.others)}
    for other in sorted(fired - declared_by(mutant)):
        what = f"{other} fires too, which {mutant.name} does not declare"
        yield Problem(where=where, what=what, fix=f"{fix}, or add {other} to may_kill")


def of_removals(trace: Trace, id_: str) -> Iterator[Problem]:
    """Yield each action without which a minimal trace shows its signature all the same."""
    expect = trace.header.expect
    if expect is None or _mutant_of(trace) is None:
        return  # of_minimal says so
    target = resolve(trace.header.target)
    for index, action in enumerate(trace.actions):
        shorter = evolve(trace, actions=trace.actions[:index] + trace.actions[index + 1 :])
        playback = plays(target, shorter)
        if playback and expect.signature in {one.signature for one in playback.findings}:
            what = f"action {index + 1} ({action.do}) can be removed"
            yield Problem(where=f"{id_} minimal", what=what, fix=_new(id_))


def of_silence(trace: Trace, id_: str) -> Iterator[Problem]:
    """Yield what the correct reference violates on a minimal trace."""
    playback = plays(resolve(REFERENCE), trace)
    for signature in sorted({one.signature for one in playback.findings} if playback else ()):
        what = f"the reference itself shows {signature}"
        yield Problem(where=f"{id_} minimal", what=what, fix="mend the checker or the reference")


def of_control(trace: Trace, id_: str) -> Iterator[Problem]:
    """Yield why a control is none: it is about something else, does not hold, or is vacuous."""
    where, header = f"{id_} control", trace.header
    if (header.target, header.witness) != (REFERENCE, id_):
        what = f"it exercises {header.witness or 'nothing'} on {header.target}"
        yield Problem(where=where, what=what, fix=_new(id_))
        return
    told = replay(resolve(REFERENCE), REFERENCE, trace)
    if told.outcome is not Outcome.HOLDS:
        yield Problem(where=where, what=f"{told.outcome}: {told.reason}", fix=_new(id_))


def of_lawful(trace: Trace, name: str) -> Iterator[Problem]:
    """Yield why a lawful behaviour is not shown: something fires, or an action is not eligible."""
    text, where = trace.header.target, f"{CONTROLS}/{name}"
    # A mutant too: its fault may be lawful where nothing makes it one.
    if text not in {REFERENCE, *map(target_text_of, MUTANTS)}:
        fix = "use the reference, or a mutant or variant of it"
        yield Problem(where=where, what=f"its target is {text}", fix=fix)
        return
    told = replay(resolve(text), text, trace)
    if told.outcome is not Outcome.HOLDS:
        yield Problem(where=where, what=f"{told.outcome}: {told.reason}", fix=_LAWFUL_FIX)


def of_kills(kills: Kills) -> Iterator[Problem]:
    """Yield what should have killed a mutant and did not, and what did and should not have."""
    name, traces = kills.mutant.name, kills.traces
    for id_ in kills.missing:
        what = f"{id_} must kill it and did not, in {traces} traces of the {QUICK.name} profile"
        yield Problem(where=name, what=what, fix="mend the checker, or make the fault likelier")
    for id_ in kills.undeclared:
        fix = (
            "mend the checker" if kills.mutant.is_variant else f"mend it, or add {id_} to may_kill"
        )
        yield Problem(where=name, what=f"{id_} is violated but not declared", fix=fix)


def of_columns() -> Iterator[Problem]:
    """Yield each invariant that no mutant says it must kill, and each excuse that is none."""
    killing = {id_ for mutant in MUTANTS for id_ in mutant.must_kill}
    for id_ in sorted({one.id for one in every_invariant()} - killing - set(WITHOUT_MUTANT)):
        yield Problem(where=id_, what="must kill no mutant", fix="add a mutant that breaks it")
    for id_ in sorted(killing & set(WITHOUT_MUTANT)):
        yield Problem(
            where=id_, what="is excused, yet a mutant breaks it", fix="take the excuse away"
        )
    for id_ in sorted(killing - {one.id for one in every_invariant()}):
        yield Problem(where=id_, what="must kill a mutant, yet is no invariant", fix="mend the id")


def of_ledger() -> tuple[tuple[KnownIssue, ...], tuple[Problem, ...]]:
    """Return the known issues, and what is wrong with the ledger or with a trace it names."""
    path = catalogue.folder() / FILE
    try:
        issues = read_ledger(path)
    except LedgerError as error:
        what = str(error).removeprefix(f"{path}: ")
        return (), (Problem(where=shown(path), what=what, fix="mend the file"),)
    return issues, tuple(problem for issue in issues for problem in of_known(issue))


def of_known(issue: KnownIssue) -> Iterator[Problem]:
    """Yield what is wrong with the trace that a known issue names."""
    if not issue.trace:
        return
    path = catalogue.folder() / issue.trace
    where, fix = f"{FILE} {issue.engine} {issue.signature}", "mend the trace, or the entry"

    def of_trace(trace: Trace, _key: str) -> Iterator[Problem]:
        header, expect = trace.header, trace.header.expect
        if expect is None or str(expect.signature) != issue.signature:
            what = f"{issue.trace} expects {expect.signature if expect else 'nothing'}"
            yield Problem(where=where, what=what, fix=fix)
        elif expect.step != len(trace.actions):
            what = f"{issue.trace} expects it at action {expect.step} of {len(trace.actions)}"
            yield Problem(where=where, what=what, fix=fix)
        if not issue.covers(header.target, header.version):
            what = f"{issue.trace} is of {header.target} {header.version}".rstrip()
            yield Problem(where=where, what=f"{what}, which the entry does not cover", fix=fix)

    yield from _in_file(path, issue.trace, (of_trace,), where=where, fix=fix)


def lawful_traces() -> tuple[Path, ...]:
    """Return the files of the lawful behaviours, sorted; there may be none."""
    return tuple(sorted((catalogue.folder() / CONTROLS).glob(f"*{SUFFIX}")))


def shown(path: Path) -> str:
    """Return a path of the catalogue as it is called there: ``invariants/KV-001-.../...``."""
    return path.relative_to(catalogue.folder().parent).as_posix()


def _in_file(
    path: Path, key: str, checks: Iterable[TraceCheck], *, where: str, fix: str
) -> Iterator[Problem]:
    """Yield what checks say of a trace file, or that it cannot be read."""
    try:
        trace = read(path)
    except TraceError as error:
        what = f"line {error.line}: {error.problem}" if path.exists() else "is missing"
        yield Problem(where=where, what=what, fix=fix)
        return
    for check in checks:
        yield from check(trace, key)


def _mutant_of(trace: Trace) -> Mutant | None:
    return next((one for one in MUTANTS if target_text_of(one) == trace.header.target), None)


def _new(id_: str) -> str:
    return f"schedcheck catalogue --new {id_}"
