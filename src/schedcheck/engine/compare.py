"""Where two playbacks part: the first moment at which something is to be seen otherwise.

What one of the two does not show is not compared, and said to be so. Engines' own counts alone
part nobody (OWN_COUNTS): the first of them to differ is told beside. After the parting nothing is
compared: what follows is its consequence, or cannot be told from one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from attrs import define, field, frozen

from schedcheck.engine.events import Moment
from schedcheck.engine.moments import BLOCK_TOPICS, FOLLOWERS, OWN_COUNTS, VIOLATES, rank


@frozen(kw_only=True)
class Side:
    """One of two playbacks."""

    label: str
    """What to call it: ``vllm 0.13.0``."""
    moments: tuple[Moment, ...]
    unseen: frozenset[str] = frozenset()
    """Topics that its target does not show."""
    drift: str = ""
    """Why it stopped before the end of its trace, empty if it did not or for a violation."""

    @property
    def actions(self) -> int:
        """How many actions were carried out."""
        return self.moments[-1].number if self.moments else 0

    @property
    def topics(self) -> frozenset[str]:
        """What its facts are about."""
        return frozenset(fact.topic for moment in self.moments for fact in moment.facts)


@frozen(kw_only=True)
class Difference:
    """One thing that two sides show otherwise."""

    about: str
    """``r2 sent as``, ``free blocks``."""
    values: tuple[str, str]
    """Empty: nothing."""
    is_own_count: bool = False


@frozen(kw_only=True)
class Parting:
    """Where two playbacks part."""

    number: int
    """Of the action, from 1."""
    action: str
    event: str
    differences: tuple[Difference, ...]


@frozen(kw_only=True)
class Comparison:
    """What comparing two playbacks showed."""

    actions: int
    """How many actions came out alike."""
    parting: Parting | None = None
    drifted: tuple[Side, ...] = ()
    """The sides that drifted before anything differed."""
    aside: Parting | None = None
    """Where the engines' own counts differed first, if nothing else did there."""
    uncompared: tuple[str, ...] = ()
    """Topics that one side does not show, as far as the other side showed them."""


def compare(first: Side, second: Side, *, ignored: frozenset[str] = BLOCK_TOPICS) -> Comparison:
    """Compare two playbacks, but for the ``ignored`` topics, up to where they part."""
    looking = _Looking(first, second, ignored)
    for one, other in zip_longest(first.moments, second.moments):
        side, there = (first, other) if one is None else (second, one)
        if (one is None or other is None) and side.drift and there.number > side.actions:
            break
        parting = looking.parting(one, other)
        if parting is not None:
            return Comparison(
                actions=parting.number - 1,
                parting=parting,
                aside=looking.aside,
                uncompared=looking.skipped(),
            )
    alike = min(first.actions, second.actions)
    return Comparison(
        actions=alike,
        drifted=tuple(one for one in (first, second) if one.drift and one.actions == alike),
        aside=looking.aside,
        uncompared=looking.skipped(),
    )


@define
class _Looking:
    """Compares moments, and remembers what could not be compared."""

    first: Side
    second: Side
    ignored: frozenset[str]
    aside: Parting | None = field(init=False, default=None)
    _skipped: set[str] = field(init=False, factory=set)

    def skipped(self) -> tuple[str, ...]:
        return tuple(sorted(self._skipped))

    def parting(self, one: Moment | None, other: Moment | None) -> Parting | None:
        """Return in what two moments differ; None stands for the end of a playback."""
        if one is None or other is None or one.number != other.number:
            return self._one_is_over(one, other)
        differences = list(self._events(one, other)) or list(self._facts(one, other))
        if not differences:
            return None
        parting = Parting(
            number=one.number,
            action=one.action,
            event=one.event,
            differences=tuple(differences),
        )
        if not all(row.is_own_count for row in differences):
            return parting
        self.aside = self.aside or parting
        return None

    def _events(self, one: Moment, other: Moment) -> Iterator[Difference]:
        """Yield that something else happens: then facts tell no more than what they violate."""
        if one.action != other.action:
            yield Difference(about="action", values=(one.action, other.action))
        elif one.event != other.event:
            yield Difference(about="what happens", values=(one.event, other.event))
            yield from (row for row in self._facts(one, other) if row.about == VIOLATES)

    def _one_is_over(self, one: Moment | None, other: Moment | None) -> Parting:
        """Return the parting where one side has no event that answers the other's."""
        there = min(filter(None, (one, other)), key=lambda moment: moment.number)
        here = self.second if there is one else self.first
        nothing = "nothing more" if there.number <= here.actions else "the trace is over"
        values = (there.event, nothing) if there is one else (nothing, there.event)
        return Parting(
            number=there.number,
            action=there.action,
            event=there.event,
            differences=(Difference(about="what happens", values=values),),
        )

    def _facts(self, one: Moment, other: Moment) -> Iterator[Difference]:
        """Yield what differs: what was done, what that violates, and the scheduler after it."""
        mine, theirs = _by_key(one), _by_key(other)
        implied = _implied(mine, theirs)
        for topic, subject in sorted({**mine, **theirs}, key=lambda key: rank(key[0])):
            key = topic, subject
            if topic in self.ignored or key in implied:
                continue
            values = mine.get(key, ""), theirs.get(key, "")
            if None in values or topic in self.first.unseen or topic in self.second.unseen:
                if any(values):
                    self._skipped.add(topic)
                continue
            if values[0] != values[1]:
                yield Difference(
                    about=f"{subject} {topic}".strip(),
                    values=(values[0] or "", values[1] or ""),
                    is_own_count=topic in OWN_COUNTS,
                )


Facts = dict[tuple[str, str], str | None]
"""Values by topic and subject."""


def _by_key(moment: Moment) -> Facts:
    """Return the values; what is there twice (a request in two rows) has both."""
    values: Facts = {}
    for fact in moment.facts:
        key = fact.topic, fact.subject
        before = values.get(key)
        values[key] = f"{before}, {fact.value}" if before else fact.value
    return values


def _implied(mine: Facts, theirs: Facts) -> set[tuple[str, str]]:
    """Return what need not be told, since it only says that the other side lacks the subject."""
    return {
        (follower, subject)
        for topic, subject in mine.keys() ^ theirs.keys()
        for follower in FOLLOWERS.get(topic, ())
    }
