"""The verdict of a run on one invariant."""

from __future__ import annotations

from collections.abc import Container, Mapping

from schedcheck.engine.events import InvariantResult
from schedcheck.invariants.registry import Invariant
from schedcheck.model.capability import Capability
from schedcheck.model.verdict import Verdict


def result_of(
    invariant: Invariant,
    capabilities: frozenset[Capability],
    *,
    witnessed: int,
    violated: Container[str],
    known: Container[str],
    unknown: Mapping[str, str],
) -> InvariantResult:
    """Return what a run says about one invariant.

    ``known`` are those violated as is known, ``unknown`` the checkers that failed.
    """
    missing = sorted(invariant.requires - capabilities)
    if missing:
        verdict, reason = Verdict.NOT_APPLICABLE, f"lacks {', '.join(missing)}"
    elif invariant.id in violated:
        verdict, reason = Verdict.VIOLATED, ""
    elif invariant.id in known:
        verdict, reason = Verdict.KNOWN, ""
    elif invariant.id in unknown:
        verdict, reason = Verdict.UNKNOWN, unknown[invariant.id]
    elif witnessed == 0:
        verdict, reason = Verdict.VACUOUS, f"never: {invariant.witnessed_by}"
    else:
        verdict, reason = Verdict.HOLDS, ""
    return InvariantResult(id=invariant.id, verdict=verdict, witnessed=witnessed, reason=reason)
