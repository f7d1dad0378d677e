"""What a target is made with beyond its name: a user's own pieces, and its engine's options."""

from __future__ import annotations

import math
import re
from typing import Final

from attrs import frozen

Value = bool | int | float | str
"""What an engine's option may be given."""

_INTEGER: Final = re.compile(r"[+-]?\d{1,18}")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d{1,3})?")
_WORDS: Final = {"true": True, "false": False}


class BadOption(ValueError):
    """An option is not written as one is; the message shows it and how it should look."""


@frozen(kw_only=True)
class Options:
    """A user's own pieces, each as ``package.module:Class``, and the options of an engine."""

    scheduler: str = ""
    """A subclass of the engine's scheduler; empty: the engine's own."""
    connector: str = ""
    """The KV connector behind it; empty: ours, which does what the trace says."""
    config: tuple[tuple[str, Value], ...] = ()
    """The engine's options by name, each once, in order of their names."""

    @property
    def imports(self) -> tuple[str, ...]:
        """What has to be imported: code that a trace must not choose."""
        return tuple(one for one in (self.scheduler, self.connector) if one)

    @property
    def words(self) -> tuple[str, ...]:
        """The same as on a command line."""
        found: list[str] = []
        if self.scheduler:
            found += ["--scheduler", self.scheduler]
        if self.connector:
            found += ["--connector", self.connector]
        for key, value in self.config:
            found += ["--config", f"{key}={written(value)}"]
        return tuple(found)


NO_OPTIONS: Final = Options()
"""The engine as it is."""


def options_of(
    *, scheduler: str | None = None, connector: str | None = None, config: tuple[str, ...] = ()
) -> Options:
    """Return the options that were typed, each of ``config`` as ``key=value``.

    Raises BadOption for what is not ``package.module:Class``, not ``key=value``, or said twice.
    """
    values: dict[str, Value] = {}
    for text in config:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.]{0,99}", key):
            raise BadOption(f"--config {text!r} is not of the form key=value")
        if key in values:
            raise BadOption(f"--config gives {key} twice")
        values[key] = value_of(value)
    return Options(
        scheduler=_class_name("--scheduler", scheduler),
        connector=_class_name("--connector", connector),
        config=tuple(sorted(values.items())),
    )


def _class_name(option: str, text: str | None) -> str:
    if text is None:
        return ""
    module, colon, name = text.partition(":")
    if not (colon and name.isidentifier() and all(map(str.isidentifier, module.split(".")))):
        raise BadOption(f"{option} {text!r} is not of the form package.module:Class")
    return text


def value_of(text: str) -> Value:
    """Return a value as it is meant: true and false, an integer, a number, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def written(value: Value) -> str:
    """Return a value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)
