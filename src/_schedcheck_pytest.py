"""The pytest plugin: trace files are tests, and a failing ``verify`` shows its table.

It stands outside the package, so that pytest loads it without importing schedcheck: that happens
when the first test runs. ``-p no:schedcheck`` leaves it out.

- A trace file (``*.trace.jsonl``) under ``invariants/`` or ``tests/traces/`` is an item named after
  its invariant. It passes if a replay shows what its header expects, at the step it says.
- A trace whose engine is not there is skipped, with the reason. A trace runs only targets that
  schedcheck itself knows and adapters that ``schedcheck_adapters`` allows, since it may come from a
  stranger.
- ``--schedcheck-profile`` and ``--schedcheck-seed`` win over what a test asks for; the ini value
  ``schedcheck_profile`` is for tests that ask for nothing.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Protocol

import pytest

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr, TracebackStyle
    from pluggy import Result

    from schedcheck.engine.events import Ended, Failure, Replayed
    from schedcheck.model.trace import Trace
    from schedcheck.sut import Target


class _Worker(Protocol):
    """What pytest-xdist shows of one of its processes."""

    config: pytest.Config
    workerinput: dict[str, object]


_SUFFIX: Final = ".trace.jsonl"
_COVERAGE: Final = "schedcheck"
"""Name of the report section that carries what a verify reached, also across processes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and ini values."""
    group = parser.getgroup("schedcheck", "schedcheck: the request lifecycle of schedulers")
    group.addoption(
        "--schedcheck-profile",
        metavar="NAME",
        default="",
        help="Profile of every verify, whatever it asks for: quick, ci, nightly, pressure, ...",
    )
    group.addoption(
        "--schedcheck-seed",
        metavar="N",
        type=_seed,
        default=None,
        help="Seed of every verify, whatever it asks for; 'random' chooses one and shows it.",
    )
    parser.addini(
        "schedcheck_profile", "Profile of a verify that names none (default: quick).", default=""
    )
    parser.addini(
        "schedcheck_traces",
        "Folders, relative to the root, whose trace files are tests.",
        type="args",
        default=["invariants", "tests/traces"],
    )
    parser.addini(
        "schedcheck_adapters",
        "Adapters that trace files may run, as patterns: my_pkg.my_mod:MyAdapter, my_pkg.*.",
        type="args",
        default=[],
    )


def _seed(text: str) -> int | str:
    return text if text == "random" else int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, choose a random seed once for all processes, check the profile."""
    config.addinivalue_line("markers", "schedcheck: a trace file that is replayed as a test")
    if config.getoption("schedcheck_seed") == "random":
        chosen = getattr(config, "workerinput", {}).get("schedcheck_seed")
        config.option.schedcheck_seed = secrets.randbelow(2**31) if chosen is None else chosen
    profile = config.getoption("schedcheck_profile") or config.getini("schedcheck_profile")
    if profile:
        from schedcheck.engine.profiles import UnknownProfile, get_profile  # noqa: PLC0415

        try:
            get_profile(str(profile))
        except UnknownProfile as error:
            raise pytest.UsageError(f"schedcheck: {error}") from error


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: _Worker) -> None:
    """Tell a process of pytest-xdist the seed: it reads the command line anew."""
    node.workerinput["schedcheck_seed"] = node.config.getoption("schedcheck_seed")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which options are in force, so that a run can be repeated."""
    profile, seed = config.getoption("schedcheck_profile"), config.getoption("schedcheck_seed")
    words = [f"profile {profile}"] if profile else []
    words += [f"seed {seed}"] if seed is not None else []
    return f"schedcheck: {', '.join(words)}" if words else None


# What verify is told, and tells.


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Surround a test with the options, and note what its verifies say."""
    from schedcheck.stateful import context  # noqa: PLC0415  see the top

    config = item.config

    def note(**facts: object) -> None:
        item.user_properties += [(f"schedcheck_{word}", fact) for word, fact in facts.items()]

    def on_begin(target: str, profile: str, seed: int) -> None:
        note(target=target, profile=profile, seed=seed)

    def on_end(ended: Ended) -> None:
        from schedcheck.report.text import summary_lines  # noqa: PLC0415

        name = f"{ended.target} {ended.version}".strip()
        text = "\n".join(summary_lines(ended, name=name))
        item.add_report_section("call", _COVERAGE, text)

    def on_violation(failure: Failure, saved: Path | None) -> None:
        complaint = failure.complaint
        note(invariant=complaint.invariant, signature=complaint.signature)
        note(trace=str(saved or "not saved"))

    around = context.Context(
        profile_forced=str(config.getoption("schedcheck_profile")),
        profile_default=str(config.getini("schedcheck_profile")) or context.PROFILE,
        seed_forced=config.getoption("schedcheck_seed"),
        on_begin=on_begin,
        on_end=on_end,
        on_violation=on_violation,
    )
    with context.surround(around):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Result[pytest.TestReport]]:
    """Show a violation as its table, and a target that cannot be loaded as one line."""
    outcome = yield
    report = outcome.get_result()
    if call.excinfo is None:
        return
    error = call.excinfo.value
    if isinstance(item, TraceItem):
        if report.skipped:  # at the trace, not at the line of this file that skips it
            report.longrepr = (str(item.path), 1, f"Skipped: {error}")
        return
    if not report.failed:
        return
    if _is_a(error, "schedcheck.stateful.violation", "Violation"):
        failure: Failure = error.failure  # type: ignore[attr-defined]  # a Violation has one
        headline = f"{failure.complaint.signature}: {failure.complaint.found}"
        tracebacks = {"the engine's traceback": failure.traceback}
        report.longrepr = _told(call.excinfo, item, headline=headline, sections=tracebacks)
    elif _is_a(error, "schedcheck.sut", "TargetError") or _is_a(
        error, "schedcheck.stateful.verify", "Vacuous"
    ):
        report.longrepr = _told(call.excinfo, item, headline=str(error))


def _is_a(error: BaseException, module: str, name: str) -> bool:
    """Whether an exception is of a class that is only there if somebody imported its module."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(error, kind)


def _told(
    excinfo: pytest.ExceptionInfo[BaseException],
    item: pytest.Item,
    *,
    headline: str,
    sections: Mapping[str, str] | None = None,
    place: tuple[Path, int] | None = None,
) -> TerminalRepr:
    """Return an exception's own text, with a headline for the short summary."""
    told = excinfo.getrepr(style="value", chain=False)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from schedcheck.report.github import defused  # noqa: PLC0415  see the top

        for entry in told.reprtraceback.reprentries:
            entry.lines = [defused(line) for line in entry.lines]
    if told.reprcrash is not None:
        told.reprcrash.message = headline
        if place is not None:
            told.reprcrash.path, told.reprcrash.lineno = str(place[0]), place[1]
    for title, text in (sections or {}).items():
        if text and item.config.getoption("verbose") > 0:
            told.addsection(title, text)
    return told


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the verifies reached that found nothing: coverage belongs to a green run.

    In a GitHub workflow, put violations on its page as well.
    """
    if os.environ.get("GITHUB_ACTIONS") == "true":
        _tell_the_workflow(terminalreporter)
    if terminalreporter.config.getoption("verbose") < 0:
        return
    told = sorted(
        (report.nodeid, text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.sections
        if name == f"Captured {_COVERAGE} call"
    )
    if told:
        terminalreporter.section("schedcheck coverage")
    for nodeid, text in told:
        terminalreporter.write_line(nodeid, bold=True)
        for line in text.splitlines():
            terminalreporter.write_line(f"  {line}")


def _tell_the_workflow(terminal: pytest.TerminalReporter) -> None:
    """Annotate each test that failed with a violation, and add its table to the step's summary."""
    from schedcheck.report.export.issue import fenced  # noqa: PLC0415  see the top
    from schedcheck.report.github import append_to_summary, workflow_command  # noqa: PLC0415

    fences: list[str] = []
    for report in terminal.stats.get("failed", []):
        facts = dict(report.user_properties)
        if "schedcheck_invariant" not in facts:
            continue
        file, line, name = report.location
        told = str(facts.get("schedcheck_signature", facts["schedcheck_invariant"]))
        text = report.longreprtext
        first = text.splitlines()[:1]
        command = workflow_command(
            "error", name, *first, title=told, file=file, line=(line or 0) + 1
        )
        terminal.ensure_newline()
        terminal.write_line(command)
        fences += ["", *fenced(text.splitlines(), "text")]
    if fences:
        append_to_summary("\n".join(["## schedcheck", *fences, ""]))


# Trace files.


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> TraceFile | None:
    """Collect a trace file that lies in one of the folders, or was asked for by name."""
    if not file_path.name.endswith(_SUFFIX):
        return None
    if not (parent.session.isinitpath(file_path) or _is_in_folders(file_path, parent.config)):
        return None
    found: TraceFile = TraceFile.from_parent(parent, path=file_path)
    return found


def _is_in_folders(path: Path, config: pytest.Config) -> bool:
    folders: Sequence[str] = config.getini("schedcheck_traces")
    return any(path.is_relative_to(config.rootpath / PurePath(folder)) for folder in folders)


class TraceFile(pytest.File):
    """One trace file."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield its one item."""
        from schedcheck.tracefile import TraceError, read  # noqa: PLC0415  see the top

        try:
            trace = read(self.path)
        except TraceError as error:
            shown = _shown_path(self.path, self.config)
            problem = str(TraceError(shown, error.line, error.problem))
            yield TraceItem.from_parent(self, name="unreadable", problem=problem)
            return
        expect = trace.header.expect
        name = (expect.signature.invariant if expect else trace.header.witness) or "holds"
        yield TraceItem.from_parent(self, name=name, trace=trace)


class TraceUnexpected(Exception):
    """A trace does not show what it is expected to show; the text tells what it shows."""

    def __init__(
        self, headline: str, text: str = "", *, step: int = 0, traceback: str = ""
    ) -> None:
        super().__init__(f"{headline}\n\n{text}".rstrip())
        self.headline, self.step, self.traceback = headline, step, traceback


class TraceItem(pytest.Item):
    """The replay of one trace."""

    def __init__(self, *, trace: Trace | None = None, problem: str = "", **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]  # pytest's own: name and parent
        self.trace, self.problem = trace, problem
        self.add_marker("schedcheck")

    def runtest(self) -> None:
        """Replay the trace. Raises TraceUnexpected, or skips."""
        from schedcheck.catalogue.exemptions import known_issues  # noqa: PLC0415  see the top
        from schedcheck.engine.replay import replay  # noqa: PLC0415
        from schedcheck.model.known import covering  # noqa: PLC0415
        from schedcheck.sut import TargetError  # noqa: PLC0415

        if self.trace is None:
            raise TraceUnexpected(self.problem)
        header = self.trace.header
        self.user_properties += [
            ("schedcheck_target", f"{header.target} {header.version}".strip()),
            ("schedcheck_invariant", self.name),
            ("schedcheck_trace", _shown_path(self.path, self.config)),
        ]
        try:
            target = _target_of(self.trace, self.config)
        except TargetError as error:
            raise TraceUnexpected(str(error)) from None
        known = covering(known_issues(), target.name, target.version)
        told = replay(target, header.target, self.trace, known=known)
        problem = _what_is_wrong(self.trace, told)
        if problem:
            failure = told.failure
            raise TraceUnexpected(
                f"{told.outcome}: {problem}",
                "\n".join(_lines(told, _shown_path(self.path, self.config))),
                step=len(told.story),
                traceback=failure.traceback if failure else "",
            )

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: TracebackStyle | None = None
    ) -> str | TerminalRepr:
        """Tell what a trace shows as the command line does."""
        error = excinfo.value
        if not isinstance(error, TraceUnexpected):
            return super().repr_failure(excinfo, style)
        return _told(
            excinfo,
            self,
            headline=error.headline,
            sections={"the engine's traceback": error.traceback},
            place=(self.path, 1 + error.step),  # line 1 is the header
        )

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the item is and what it is called."""
        return self.path, 0, f"{self.name} {self.path.name}"


def _shown_path(path: Path, config: pytest.Config) -> str:
    root = config.rootpath
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _target_of(trace: Trace, config: pytest.Config) -> Target:
    """Return a trace's own target. Skips where it is not there; raises TargetError if broken."""
    from schedcheck.engine.targets import ENGINES, REFERENCE, resolve  # noqa: PLC0415
    from schedcheck.sut import TargetError  # noqa: PLC0415

    wanted, version = trace.header.target, trace.header.version
    engine, _, release = wanted.partition("==")
    name = engine.partition("+")[0]
    if name not in ENGINES and ":" not in engine:
        pytest.skip(f"no target {wanted!r} here")
    allowed: Sequence[str] = config.getini("schedcheck_adapters")
    if name not in ENGINES and not any(fnmatchcase(engine, pattern) for pattern in allowed):
        pytest.skip(f"a trace may not run {engine!r} unless schedcheck_adapters allows it")
    options = trace.header.options
    for one in options.imports:
        if not any(fnmatchcase(one, pattern) for pattern in allowed):
            pytest.skip(f"a trace may not run {one!r} unless schedcheck_adapters allows it")
    try:
        target = resolve(engine, options)
    except TargetError as error:
        if name == REFERENCE or not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        pytest.skip(str(error))
    if (release or version) not in ("", target.version):
        pytest.skip(
            f"found on {engine} {release or version}, and {target.version} is what is here; "
            f"schedcheck replay takes --on {engine}=={release or version}"
        )
    return target


def _what_is_wrong(trace: Trace, told: Replayed) -> str:
    """Return in which way a replay differs from what the trace expects; empty if it does not."""
    from schedcheck.engine.events import Outcome  # noqa: PLC0415

    expect = trace.header.expect
    if expect is None:
        return "" if told.outcome is Outcome.HOLDS else told.reason
    if told.outcome is not Outcome.FAILED:
        way_out = "; a trace that must hold from now on has no 'expect' in its header"
        return told.reason + (way_out if told.outcome is Outcome.FIXED else "")
    step = len(told.story)
    if step != expect.step:
        return f"{expect.signature} shows at action {step}, not at {expect.step}"
    return ""


def _lines(told: Replayed, path: str) -> Iterator[str]:
    from schedcheck.report.text import failure_lines, story_lines  # noqa: PLC0415

    if told.failure is not None:
        yield from failure_lines(told.failure, path=path)
    else:
        yield from story_lines(told.story)
