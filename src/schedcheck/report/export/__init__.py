"""Handing a trace over: a bug report's body, or a regression test in the target's own idiom.

Rules
-----
- What stands in a trace is data, whoever wrote it. In a test it appears as a literal (``repr``) and
  never as code, a name or a comment; in a report within a fence that it cannot close.
- A test for an engine stands alone: it needs that engine, and nothing of schedcheck.
"""

from __future__ import annotations

from schedcheck.report.export.issue import issue_lines
from schedcheck.report.export.own_test import own_test
from schedcheck.report.export.template import CannotExport
from schedcheck.report.export.vllm_test import vllm_test

__all__ = ["CannotExport", "issue_lines", "own_test", "vllm_test"]
