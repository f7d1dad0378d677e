"""A trace in pictures: a page of its own, a drawing, and a timeline for Perfetto.

``view`` makes one plain value of a replay, from which the three are written. All that is in it is
printable text: a stranger's words have been cleaned, and are never markup.
"""

from __future__ import annotations

from schedcheck.report.page.drawing import drawing_svg
from schedcheck.report.page.html import page_html
from schedcheck.report.page.timeline import timeline_json
from schedcheck.report.page.view import View, view_of

__all__ = ["View", "drawing_svg", "page_html", "timeline_json", "view_of"]
