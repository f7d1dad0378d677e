"""``schedcheck.record``: wrap what is given, so that it is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve

from schedcheck.recording.systems import RecordedTarget
from schedcheck.recording.writing import Options
from schedcheck.sut import Target


def record(
    thing: Any,
    *,
    folder: str | Path | None = None,
    name: str = "recording",
    bytes_max: int = 64 * 2**20,
    files_max: int = 8,
    tokens: bool = False,
    check: bool = False,
) -> Any:
    """Return a scheduler, or a Target, that does what it did and is recorded on the way.

    For vLLM: ``engine_core.scheduler = schedcheck.record(engine_core.scheduler)``. What it already
    holds has an unknown history, so that nothing wrong is said about it.

    Files ``NAME.0001.trace.jsonl`` and so on go into ``folder``, ``.schedcheck/recordings`` by
    default, of ``bytes_max`` bytes each, the newest ``files_max`` of them. Prompts and token ids
    are left out unless ``tokens`` asks for them. With ``check``, invariants are checked at once and
    a violation is logged. Raises TypeError for what is neither, ValueError for wrong options.
    """
    options = Options(
        name=name, bytes_max=bytes_max, files_max=files_max, tokens=tokens, check=check
    )
    if folder is not None:
        options = evolve(options, folder=Path(folder))
    if isinstance(thing, Target):
        return RecordedTarget(thing, options)
    if hasattr(thing, "update_from_output") and hasattr(thing, "vllm_config"):
        from schedcheck.recording.vllm import recorded  # noqa: PLC0415  only beside vLLM

        return recorded(thing, options)
    raise TypeError(
        f"a {type(thing).__name__} cannot be recorded: it is neither vLLM's Scheduler nor a "
        f"schedcheck.sut.Target"
    )
