"""Finding the scheduler that a name on a command line means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

from schedcheck.model.check import Check
from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.sut import Target, TargetError

REFERENCE: Final = "reference"


def _reference(rest: str, options: Options) -> Target:
    _take_none("the reference", options)
    from schedcheck.reference.target import reference_target  # noqa: PLC0415  only if asked for

    return reference_target(rest)


def _vllm(rest: str, options: Options) -> Target:
    if rest:
        raise TargetError(f"vllm{rest!r} names nothing; a release is chosen as vllm==0.33.0")
    from schedcheck.adapters.vllm import vllm_target  # noqa: PLC0415  imports the engine

    return vllm_target(options)


def _take_none(who: str, options: Options) -> None:
    if options != NO_OPTIONS:
        raise TargetError(f"{who} takes no {options.words[0]}: that is for the target vllm")


ENGINES: Final[dict[str, tuple[Callable[[str, Options], Target], str]]] = {
    REFERENCE: (_reference, "the executable definition, in this process"),
    "vllm": (_vllm, "vLLM's V1 scheduler on a CPU, no model; vllm==RELEASE prepares its own"),
}
"""Targets known by name: how to make one, and what to say about it."""


def surface_of(text: str) -> Iterable[Check]:
    """Return what is to be said of the parts of an engine that its adapter relies on.

    Nothing for a target that has no engine of its own behind it. Raises TargetError.
    """
    if text != "vllm":
        return ()
    from schedcheck.adapters.vllm import vllm_surface  # noqa: PLC0415  imports the engine

    return vllm_surface()


def resolve(text: str, options: Options = NO_OPTIONS) -> Target:
    """Return the target that a name means: ``reference+MUTANT``, ``vllm``, ``pkg.mod:Adapter``.

    Raises TargetError, in one line, for what does not exist or does not import, and for options
    that it does not take.
    """
    name, plus, rest = text.partition("+")
    if plus and not rest:
        raise TargetError(f"{text!r} names no mutant; schedcheck list mutants shows them all")
    if name in ENGINES:
        return ENGINES[name][0](rest if plus else "", options)
    if ":" in text:
        _take_none(f"the adapter {text}", options)
        return _adapter(text)
    raise TargetError(
        f"no target {text!r}; there are {', '.join(ENGINES)}, reference+MUTANT, vllm==RELEASE and "
        f"package.module:Adapter"
    )


def _adapter(text: str) -> Target:
    module, _, attribute = text.partition(":")
    try:
        found: object = getattr(import_module(module), attribute)
    except Exception as error:  # a stranger's module may raise anything
        raise TargetError(
            f"adapter {text!r} does not import: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    return as_target(found, name=text)


def as_target(thing: object, *, name: str) -> Target:
    """Return a target made from an adapter: an instance, or a class or function that makes one.

    Raises TargetError if calling it fails or the result is no Target.
    """
    if isinstance(thing, type) or (callable(thing) and not isinstance(thing, Target)):
        try:
            thing = thing()
        except Exception as error:  # a stranger's constructor may raise anything
            raise TargetError(
                f"adapter {name!r} cannot be made: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
    if not isinstance(thing, Target):
        missing = [one for one in _TARGET_MEMBERS if not hasattr(thing, one)]
        raise TargetError(
            f"adapter {name!r} is no Target: it lacks {', '.join(missing)} (schedcheck.sut.Target)"
        )
    return thing


_TARGET_MEMBERS: Final = ("name", "version", "capabilities", "dialects", "honours", "open")
