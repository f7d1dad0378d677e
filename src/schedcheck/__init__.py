"""Property-based state-machine verification of the request lifecycle in LLM-serving schedulers."""

from __future__ import annotations

__version__ = "0.1.0"
