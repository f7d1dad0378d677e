"""Property-based state-machine verification of the request lifecycle in LLM-serving schedulers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from schedcheck.recording.wrapping import record
    from schedcheck.stateful.machine import machine
    from schedcheck.stateful.verify import verify
    from schedcheck.stateful.violation import Violation

__version__ = "0.1.0"

__all__ = ["Violation", "__version__", "machine", "record", "verify"]

_LAZY: Final = {
    "Violation": "schedcheck.stateful.violation",
    "record": "schedcheck.recording.wrapping",
    "machine": "schedcheck.stateful.machine",
    "verify": "schedcheck.stateful.verify",
}
"""Resolved when asked for: a worker process has neither hypothesis nor the terminal libraries."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "record":  # beside an engine there may be no hypothesis
        return import_module(_LAZY[name]).record
    # The report is above the tests' layer and handed in here, where the package is put together.
    report = import_module("schedcheck.report.text")
    import_module("schedcheck.stateful.violation").render_with(report.failure_lines)
    return getattr(import_module(_LAZY[name]), name)
