"""vLLM's V1 scheduler: the real one, on a CPU, with no model and a simulated KV connector.

``compat`` holds whatever differs between releases, ``connector`` what stands in for a KV store,
``engine`` makes a scheduler, ``system`` translates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from schedcheck.adapters.vllm.compat import Traits, prepare_import, traits_of
from schedcheck.model.check import Check
from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.sut import Target, TargetError


def vllm_target(options: Options = NO_OPTIONS) -> Target:
    """Return the target for the vLLM that this interpreter has.

    Raises TargetError, in one line, if there is none, it does not import, its release is not
    supported, or it cannot be made with the options.
    """
    traits = _traits_here()
    from schedcheck.adapters.vllm.surface import why_not  # noqa: PLC0415

    if lacks := why_not(traits):
        raise TargetError(
            f"vllm {traits.version} is not one that was verified, and differs from "
            f"{traits.like}: {lacks} (schedcheck doctor vllm says it one by one)"
        )
    try:
        from schedcheck.adapters.vllm.target import make_target  # noqa: PLC0415
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(_does_not_import(f"vllm {traits.version}", error)) from error
    return make_target(options, traits)


def vllm_surface() -> Iterator[Check]:
    """Yield what of vLLM the adapter relies on is as it was, and what is not.

    Raises TargetError if there is no vLLM here, or none that imports.
    """
    traits = _traits_here()
    from schedcheck.adapters.vllm.surface import examine  # noqa: PLC0415

    return examine(traits)


def _traits_here() -> Traits:
    """Import vLLM and return what its release is like. Raises TargetError."""
    prepare_import()
    try:
        import vllm  # noqa: PLC0415  takes seconds, and only whoever asks for it pays
    except Exception as error:  # a release beside foreign dependencies may raise anything
        if isinstance(error, ImportError) and error.name == "vllm":
            raise TargetError(
                "vllm is not installed here; vllm==0.33.0 prepares a release of its own, "
                "--python PATH uses an interpreter that has it"
            ) from error
        raise TargetError(_does_not_import("vllm", error)) from error
    return traits_of(str(getattr(vllm, "__version__", "of no version")))


def _does_not_import(what: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"{what} does not import: it needs the module {error.name}, which {sys.executable} "
            f"lacks (schedcheck env says which releases are prepared with all they need)"
        )
    return f"{what} does not import: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
