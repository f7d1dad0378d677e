"""vLLM's V1 scheduler: the real one, on a CPU, with no model and a simulated KV connector.

``compat`` holds whatever differs between releases, ``connector`` what stands in for a KV store,
``engine`` makes a scheduler, ``system`` translates.
"""

from __future__ import annotations

import sys

from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.sut import Target, TargetError


def vllm_target(options: Options = NO_OPTIONS) -> Target:
    """Return the target for the vLLM that this interpreter has.

    Raises TargetError, in one line, if there is none, it does not import, its release is not
    supported, or it cannot be made with the options.
    """
    from schedcheck.adapters.vllm.compat import prepare_import, traits_of  # noqa: PLC0415

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
    version = str(getattr(vllm, "__version__", "of no version"))
    traits = traits_of(version)
    try:
        from schedcheck.adapters.vllm.target import make_target  # noqa: PLC0415
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(_does_not_import(f"vllm {version}", error)) from error
    return make_target(options, traits)


def _does_not_import(what: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"{what} does not import: it needs the module {error.name}, which {sys.executable} "
            f"lacks (schedcheck env says which releases are prepared with all they need)"
        )
    return f"{what} does not import: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
