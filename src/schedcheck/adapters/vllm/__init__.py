"""vLLM's V1 scheduler: the real one, on a CPU, with no model and a simulated KV connector.

``compat`` holds whatever differs between releases, ``connector`` what stands in for a KV store,
``engine`` makes a scheduler, ``system`` translates.
"""

from __future__ import annotations

from schedcheck.sut import Target, TargetError


def vllm_target() -> Target:
    """Return the target for the vLLM that this interpreter has.

    Raises TargetError, in one line, if there is none, it does not import, or its release is not
    supported.
    """
    from schedcheck.adapters.vllm.compat import prepare_import, traits_of  # noqa: PLC0415

    prepare_import()
    try:
        import vllm  # noqa: PLC0415  takes seconds, and only whoever asks for it pays
    except ImportError as error:
        if error.name == "vllm":
            raise TargetError(
                "vllm is not installed here; vllm==0.33.0 prepares a release of its own, "
                "--python PATH uses an interpreter that has it"
            ) from error
        raise TargetError(f"vllm does not import: {error}") from error
    traits = traits_of(str(vllm.__version__))
    try:
        from schedcheck.adapters.vllm.target import VllmTarget  # noqa: PLC0415
    except ImportError as error:
        raise TargetError(f"vllm {vllm.__version__} does not import: {error}") from error
    return VllmTarget(traits)
