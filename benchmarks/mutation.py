"""Automated mutation testing of the reference: which small changes would nobody notice?

    pip install -e '.[bench]' && python benchmarks/mutation.py

Every mutation operator of cosmic-ray is applied at every place in the modules of the reference
(its seeded mutants and its target apart). A mutation that changes only annotations or docstrings
is no mutation. Each is killed by a search as ``schedcheck run`` makes it: random traces of a
profile under every invariant, until the first finding; as ``--strict`` has it, an invariant that
is put to the test no more counts as a finding too. What an endless loop is cut off for counts as
killed. Survivors are listed one by one; those in ``mutation_reviewed.toml`` were looked at and
are equivalent (no trace can tell) or lawful (another way of being right), each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import multiprocessing
import resource
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from importlib.machinery import ModuleSpec
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Final

from attrs import evolve, frozen

# Imported before the reference is, so that each mutant's process need not.
from schedcheck.engine.campaign import Campaign
from schedcheck.engine.events import Ended, Found
from schedcheck.engine.profiles import PROFILES
from schedcheck.invariants.registry import every_invariant
from schedcheck.model.verdict import Verdict

PACKAGE: Final = "schedcheck.reference"
HERE: Final = Path(__file__).parent
SOURCES: Final = HERE.parent / "src" / "schedcheck" / "reference"
REVIEWED: Final = HERE / "mutation_reviewed.toml"
CPU_SECONDS_MAX: Final = 30
"""Beyond this a mutant is in an endless loop."""


@frozen
class Mutation:
    """One small change of one module."""

    module: str
    function: str
    operator: str
    before: str
    after: str
    """The lines that change, without indentation, joined by one blank."""
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what names it whatever else changes in its file."""
        return (self.module, self.function, self.before, self.after)

    def __str__(self) -> str:
        where = f"{self.module}.{self.function}" if self.function else self.module
        return f"{where}  [{self.operator}]\n    - {self.before}\n    + {self.after}"


def mutations() -> Iterator[Mutation]:
    """Yield every mutation that changes something that runs, each change once."""
    from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415  only this command needs it
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415

    for path in sorted(SOURCES.glob("*.py")):
        if path.name in ("__init__.py", "target.py"):
            continue
        source = path.read_text("utf-8")
        nodes = list(ast_nodes(get_ast(source)))
        seen = {_what_runs(source)}
        for name in operator_names():
            if get_operator(name).arguments():
                continue  # these replace variables that a configuration names
            operator = get_operator(name)()
            places = sum(1 for node in nodes for _ in operator.mutation_positions(node))
            for occurrence in range(places):
                mutated = mutate_code(source, operator, occurrence)
                runs = _what_runs(mutated) if mutated is not None else None
                if runs is None or runs in seen:
                    continue
                seen.add(runs)
                yield _mutation(path.stem, name.removeprefix("core/"), source, mutated)


def _what_runs(source: str) -> str | None:
    """Return the code without annotations and docstrings; None if it does not compile."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _mutation(module: str, operator: str, source: str, mutated: str) -> Mutation:
    lines = list(unified_diff(source.splitlines(), mutated.splitlines(), n=0, lineterm=""))[2:]
    number = int(lines[0].split()[1].partition(",")[0].lstrip("-"))
    return Mutation(
        module=module,
        function=_function_at(source, number),
        operator=operator,
        before=" ".join(line[1:].strip() for line in lines if line.startswith("-")),
        after=" ".join(line[1:].strip() for line in lines if line.startswith("+")),
        source=mutated,
    )


def _function_at(source: str, number: int) -> str:
    """Return the innermost function or class that a line belongs to."""
    best = ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= number <= (node.end_lineno or first):
                best = node.name
    return best


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from other source."""

    def __init__(self, mutation: Mutation) -> None:
        self.name, self.source = f"{PACKAGE}.{mutation.module}", mutation.source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say that the module is ours, if it is."""
        del path, target
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutated source."""
        exec(compile(self.source, self.name, "exec"), module.__dict__)  # noqa: S102  its task


def killer(mutation: Mutation | None, traces: int, seed: int) -> str:
    """Search the reference, mutated or not, in this process; return who killed it, or nothing."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    if mutation is not None:
        sys.meta_path.insert(0, _Mutated(mutation))
    try:
        from schedcheck.engine.targets import resolve  # noqa: PLC0415

        target = resolve("reference")
    except Exception as error:  # noqa: BLE001  the mutant does not even import
        return f"import: {type(error).__name__}"
    by: list[str] = []

    class Killed(Exception):
        pass

    def emit(event: object) -> None:
        if isinstance(event, Found):
            by.append(event.failure.complaint.invariant)
            raise Killed
        if isinstance(event, Ended):
            bad = (Verdict.UNKNOWN, Verdict.VACUOUS)
            by.extend(f"{one.verdict.value}" for one in event.results if one.verdict in bad)

    profile = evolve(PROFILES["quick"], traces=traces)
    campaign = Campaign(
        target=target,
        target_text="reference",
        profile=profile,
        invariants=every_invariant(),
        seed=seed,
        emit=emit,
        executions_max=0,
    )
    try:
        campaign.run()
    except Killed:
        pass
    except Exception as error:  # noqa: BLE001  it broke our own code
        return f"our own: {type(error).__name__}"
    return by[0] if by else ""


def judge(mutation: Mutation | None, traces: int, seed: int) -> str:
    """Run ``killer`` in a process of its own."""
    context = multiprocessing.get_context("fork")
    answers, ours = context.Pipe(duplex=False)

    def work() -> None:
        ours.send(killer(mutation, traces, seed))
        ours.close()

    process = context.Process(target=work)
    process.start()
    ours.close()
    try:
        return str(answers.recv())
    except EOFError:
        return "cut off"
    finally:
        process.join()
        answers.close()


def main() -> int:
    """Mutate, search, and print the score and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="how many mutations; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the searches")
    parser.add_argument("--traces", type=int, default=200, help="for each mutation")
    parser.add_argument("--only", default="", help="only mutations whose text holds this")
    arguments = parser.parse_args()
    everything = [one for one in mutations() if arguments.only in str(one)]
    chosen = everything
    if 0 < arguments.sample < len(everything):
        chosen = Random(arguments.seed).sample(everything, arguments.sample)
    if by := judge(None, arguments.traces, arguments.seed):
        print(f"the unmutated reference is killed as well: {by}")
        return 1
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda one: judge(one, arguments.traces, arguments.seed), chosen))
    seconds = time.monotonic() - began
    return report(everything, chosen, outcomes, seconds=seconds)


def report(
    everything: list[Mutation], chosen: list[Mutation], outcomes: list[str], *, seconds: float
) -> int:
    """Print the table and the survivors; return 1 if one of them was not looked at."""
    reviewed = {
        (one["module"], one["function"], one["before"], one["after"]): one
        for one in tomllib.loads(REVIEWED.read_text("utf-8"))["survivor"]
    }
    survivors = [one for one, by in zip(chosen, outcomes, strict=True) if not by]
    excused = [one for one in survivors if one.key in reviewed]
    open_ones = [one for one in survivors if one.key not in reviewed]
    counted = len(chosen) - len(excused)
    killed = len(chosen) - len(survivors)
    print(f"{len(everything)} mutations, {len(chosen)} tried, {killed} killed")
    print(f"{len(excused)} survivors are equivalent or lawful, {len(open_ones)} are open")
    print(f"score {100 * killed / max(1, counted):.1f} % of {counted}")
    print(
        "killed by  "
        + "  ".join(f"{k} {n}" for k, n in Counter(filter(None, outcomes)).most_common())
    )
    for one in open_ones:
        print(f"\nsurvives  {one}")
    for one in excused:
        found = reviewed[one.key]
        print(f"\n{found['verdict']}  {one}\n    {found['reason']}")
    known = {one.key for one in everything}
    for key in sorted(set(reviewed) - known):
        print(f"\nstale in {REVIEWED.name}: {' / '.join(key)}")
    print(f"{seconds / max(1, len(chosen)) * 2:.1f} s a mutation", file=sys.stderr)
    return int(bool(open_ones))


if __name__ == "__main__":
    sys.exit(main())
