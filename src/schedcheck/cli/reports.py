"""What else a run leaves behind: JUnit XML, SARIF, and what a GitHub workflow shows."""

from __future__ import annotations

from pathlib import Path

from attrs import define, field

from schedcheck import __version__
from schedcheck.cli.console import complain, in_workflow, put_command
from schedcheck.engine.events import Ended, Failure
from schedcheck.report.github import annotation, append_to_summary, step_summary
from schedcheck.report.junit import Told, junit_xml
from schedcheck.report.sarif import sarif_json
from schedcheck.tracefile import write_bytes


@define(kw_only=True)
class Reports:
    """Collects what a run told, and writes the reports that were asked for."""

    junit: Path | None = None
    sarif: Path | None = None
    github: bool = False
    told: dict[str, Told] = field(init=False, factory=dict)
    """The last word on each signature."""
    ended: Ended | None = field(init=False, default=None)

    def tell(self, failure: Failure, path: str) -> None:
        """Take note of a violation, and where its trace is."""
        self.told[failure.complaint.signature] = Told(failure, path)

    def write(self) -> None:
        """Write all of it. Raises TraceUnwritable for a file that cannot be written."""
        told = list(self.told.values())
        if self.github or in_workflow():
            for one in told:
                put_command(annotation(one))
            problem = append_to_summary(step_summary(self.ended, told))
            if problem:
                complain(problem)
        if self.ended is None:
            return  # what is known of a lost run is no result
        if self.junit is not None:
            write_bytes(self.junit, junit_xml(self.ended, told))
        if self.sarif is not None:
            write_bytes(self.sarif, sarif_json(self.ended, told, schedcheck=__version__))
