"""What surrounds a call of ``verify``: the options of a test runner, and who wants to hear of it.

A runner that has options (the pytest plugin) leaves a Context here around each test; ``verify``
and the machine's TestCase read it. Nobody has to: without one, arguments and defaults decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from schedcheck.engine.events import Ended, Failure

PROFILE: Final = "quick"
"""The profile of a ``verify`` that names none, where no runner says otherwise."""
SEED: Final = 0
"""The seed of a ``verify`` that names none: the same run every time."""


def _ignore(*_: object) -> None:
    """Hear nothing."""


class Context(NamedTuple):  # not attrs: in a session without schedcheck this is all there is
    """Options of the runner. What is *forced* wins over an argument, a default over nothing."""

    profile_forced: str = ""
    profile_default: str = PROFILE
    seed_forced: int | None = None
    on_begin: Callable[[str, str, int], None] = _ignore
    """Is told the target, the profile and the seed of a run."""
    on_end: Callable[[Ended], None] = _ignore
    """Is told what a run that found nothing reached."""
    on_violation: Callable[[Failure, Path | None], None] = _ignore
    """Is told what a run found, and where its trace was saved."""

    def profile(self, asked: str | None) -> str:
        """Return the name of the profile to use."""
        return self.profile_forced or asked or self.profile_default

    def seed(self, asked: int | None) -> int:
        """Return the seed to use."""
        if self.seed_forced is not None:
            return self.seed_forced
        return SEED if asked is None else asked


_current: ContextVar[Context] = ContextVar("schedcheck")


def current() -> Context:
    """Return what surrounds this call."""
    return _current.get(Context())


@contextmanager
def surround(context: Context) -> Iterator[None]:
    """Let a context surround what happens within."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
