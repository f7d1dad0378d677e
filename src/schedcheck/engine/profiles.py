"""Profiles: how long a run is, and what kind of load each of its traces puts on the scheduler.

Profiles decide more than speed does. What makes faults appear on real schedulers: demand of 1.5
to 3 times the pool, every request fits alone, outputs long enough to grow, aborts in 5 to 15 % of
the actions, prompts that share prefixes. A Load with its tiny configuration is drawn for each
trace; half of the traces use the profile's weights as they are, the others scale each one up or
down, but never switch ``add``, ``step`` or ``complete`` off.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from random import Random
from typing import Final

from attrs import evolve, frozen

from schedcheck.model.capability import Capability
from schedcheck.model.config import Dialect, LoadFailurePolicy, Policy, SchedulerConfig
from schedcheck.sut import Refused, Target, TargetError

_WEIGHTS: Final[Mapping[str, int]] = {
    "step": 40,
    "add": 24,
    "schedule": 12,
    "complete": 14,
    "finish_transfer": 14,
    "fail_transfer": 8,
    "finish_send": 8,
    "abort": 8,
    "preempt": 8,
    "reset_prefix_cache": 3,
    "answer_lookup": 12,
    "grammar_ready": 12,
    "add_chunk": 8,
    "pause": 2,
    "resume": 20,
}
"""How likely each kind of action is among those that are eligible."""


_PLAIN_SHARE: Final = 0.33
_FEATURE_SHARE: Final = 0.33
_ASYNC_SHARE: Final = 0.4

_ALWAYS: Final = frozenset({"add", "step", "complete"})
"""Never switched off: without them nothing goes on."""


class Feature(StrEnum):
    """Something that requests of a trace may ask for beyond prompt and output."""

    LOOKUPS = "lookups"
    GRAMMARS = "grammars"
    ADAPTERS = "adapters"
    SALTS = "salts"
    DRAFTS = "drafts"
    MEDIA = "media"
    SESSIONS = "sessions"
    WINDOW = "window"
    PAUSES = "pauses"


_FEATURES: Final[Mapping[Feature, Capability]] = {
    Feature.LOOKUPS: Capability.UNDECIDED_LOOKUPS,
    Feature.GRAMMARS: Capability.STRUCTURED_OUTPUT,
    Feature.ADAPTERS: Capability.ADAPTERS,
    Feature.DRAFTS: Capability.SPEC_DECODE,
    Feature.MEDIA: Capability.ENCODER_INPUTS,
    Feature.SESSIONS: Capability.STREAMING_INPUT,
    Feature.WINDOW: Capability.SLIDING_WINDOW,
    Feature.PAUSES: Capability.PAUSE,
    Feature.SALTS: Capability.CACHE_SALTS,
}
"""What a target must be able to do for a feature. The order is the order of drawing."""

_LIMITS: Final[Mapping[Feature, str]] = {
    Feature.DRAFTS: "num_speculative_tokens",
    Feature.MEDIA: "encoder_cache_size",
    Feature.WINDOW: "sliding_window",
}
"""What a configuration must allow for a feature: a target may take it back in its answer."""


class UnknownProfile(ValueError):
    """There is no profile of that name."""


@frozen(kw_only=True)
class Profile:
    """How long a run is and which loads it draws."""

    name: str
    summary: str
    traces: int
    actions: int
    """Actions of a trace before its quiet tail."""
    weights: Mapping[str, int] = _WEIGHTS
    remote_percent: int = 55
    """Requests whose prompt is partly held outside."""
    sync_percent: int = 40
    """Of these, the ones whose load is synchronous."""
    send_percent: int = 25
    reuse_percent: int = 50
    """Requests that reuse the engine id of one that ended."""
    demand: tuple[float, float] = (1.5, 3.0)
    """Tokens that the requests alive at once may come to need, in pools."""


PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(name="quick", summary="seconds: while you write", traces=500, actions=45),
        Profile(name="ci", summary="a minute or two: on every change", traces=4_000, actions=60),
        Profile(name="nightly", summary="an hour or so: deep traces", traces=60_000, actions=120),
        Profile(
            name="pressure",
            summary="a pool far too small, few aborts: preemption upon preemption",
            traces=1_000,
            actions=80,
            demand=(2.5, 5.0),
            weights={**_WEIGHTS, "abort": 3, "reset_prefix_cache": 1},
        ),
        Profile(
            name="abort-storm",
            summary="clients give up in every state",
            traces=1_000,
            actions=80,
            weights={**_WEIGHTS, "abort": 24, "add": 30},
        ),
        Profile(
            name="transfers",
            summary="nearly every prompt is held outside, loads fail, sends linger",
            traces=1_000,
            actions=80,
            remote_percent=90,
            send_percent=50,
            weights={**_WEIGHTS, "fail_transfer": 16, "finish_transfer": 8, "finish_send": 4},
        ),
    )
}
"""Every profile, by name."""


@frozen(kw_only=True)
class Load:
    """What one trace puts on its scheduler."""

    config: SchedulerConfig
    capabilities: frozenset[Capability]
    weights: Mapping[str, int]
    requests_max: int
    """Requests added in the whole trace."""
    live_max: int
    """Requests unfinished at once."""
    tokens_max: int
    """The most that one request may grow to, in tokens: it fits alone."""
    remote_percent: int
    sync_percent: int
    send_percent: int
    reuse_percent: int
    features: frozenset[Feature] = frozenset()
    common_prompts: bool = False
    """Whether half of the prompts are one of a few that are the same in all of their tokens."""


def get_profile(name: str) -> Profile:
    """Return a profile. Raises UnknownProfile, naming those there are."""
    if name not in PROFILES:
        raise UnknownProfile(f"no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


def draw_load(
    target: Target, profile: Profile, rng: Random, *, dialect: Dialect | None = None
) -> Load:
    """Draw one trace's configuration and traffic.

    Raises TargetError if the target honours no configuration like the one drawn.
    """
    wish = _draw_config(target, rng)
    wish = evolve(wish, dialect=dialect or rng.choice(target.dialects))
    config: object = target.honours(wish)  # a stranger's answer may be anything
    if isinstance(config, Refused):
        raise TargetError(f"{target.name} refuses every configuration offered: {config.reason}")
    if not isinstance(config, SchedulerConfig):
        answer = f"a {type(config).__name__}, not a SchedulerConfig or Refused"
        raise TargetError(f"honours() of {target.name} returns {answer}")
    config, features = _draw_features(target, config, rng)
    tokens_max = min(config.slots_total, config.max_model_len)
    typical = max(2.0, tokens_max * 0.45)
    live = rng.uniform(*profile.demand) * config.slots_total / typical
    weights = _draw_weights(profile.weights, rng)
    if Feature.PAUSES not in features:
        weights = {**weights, "pause": 0}
    return Load(
        config=config,
        capabilities=target.capabilities,
        features=features,
        common_prompts=bool(features) and config.prefix_caching and rng.random() < 0.7,
        weights=weights,
        requests_max=rng.choice((3, 5, 8, 12, 20)),
        live_max=max(2, min(8, round(live))),
        tokens_max=tokens_max,
        remote_percent=profile.remote_percent if rng.random() < 0.8 else 0,
        sync_percent=profile.sync_percent,
        send_percent=profile.send_percent if rng.random() < 0.6 else 0,
        reuse_percent=profile.reuse_percent,
    )


def _draw_features(
    target: Target, config: SchedulerConfig, rng: Random
) -> tuple[SchedulerConfig, frozenset[Feature]]:
    """Draw what a trace's requests ask for, and the limits for it.

    Features crowd one another out, and faults between two of them need both: so a third of the
    traces have none, and the others each feature with one chance in three.
    """
    able = [one for one, needs in _FEATURES.items() if needs in target.capabilities]
    if not able or rng.random() < _PLAIN_SHARE:
        return config, frozenset()
    chosen = frozenset(one for one in able if rng.random() < _FEATURE_SHARE)
    encoder = rng.randint(1, max(1, min(config.slots_total // 2, 6)))
    wish = evolve(
        config,
        num_speculative_tokens=rng.randint(1, 3) if Feature.DRAFTS in chosen else 0,
        max_loras=rng.choice((0, 1, 1, 2, 2)) if Feature.ADAPTERS in chosen else 0,
        encoder_cache_size=encoder + rng.choice((0, 0, 2, 5)) if Feature.MEDIA in chosen else 0,
        max_num_encoder_input_tokens=encoder if Feature.MEDIA in chosen else 0,
        sliding_window=rng.randint(1, 2 * config.block_size + 2) if Feature.WINDOW in chosen else 0,
    )
    honoured = target.honours(wish)
    made = honoured if isinstance(honoured, SchedulerConfig) else config
    refused = {feature for feature, limit in _LIMITS.items() if not getattr(made, limit)}
    return made, chosen - refused


def _draw_config(target: Target, rng: Random) -> SchedulerConfig:
    can = target.capabilities
    block_size = rng.choice((1, 2, 2, 3, 4))
    blocks_total = rng.randint(3, 9)
    slots = block_size * blocks_total
    is_async = Capability.ASYNC_SCHEDULING in can and rng.random() < _ASYNC_SHARE
    return SchedulerConfig(
        async_scheduling=is_async,
        blocks_total=blocks_total,
        block_size=block_size,
        max_num_batched_tokens=rng.choice((2, 4, 6, 8, 12, 16)),
        max_num_seqs=rng.choice((1, 2, 3, 4, 4)),
        max_model_len=max(4, slots if rng.random() < 0.6 else slots // 2),
        max_steps_in_flight=rng.choice((1, 1, 2, 3)) if Capability.PIPELINE in can else 1,
        policy=rng.choice((Policy.FCFS, Policy.FCFS, Policy.PRIORITY))
        if Capability.PRIORITY in can
        else Policy.FCFS,
        chunked_prefill=Capability.CHUNKED_PREFILL in can and rng.random() < 0.8,
        prefix_caching=Capability.PREFIX_CACHING in can and rng.random() < 0.5,
        load_failure_policy=LoadFailurePolicy.FAIL
        if rng.random() < 0.4
        else LoadFailurePolicy.RECOMPUTE,
    )


def _draw_weights(weights: Mapping[str, int], rng: Random) -> Mapping[str, int]:
    if rng.random() < 0.5:
        return weights
    return {
        word: weight * rng.choice((1, 1, 3) if word in _ALWAYS else (0, 1, 1, 3))
        for word, weight in weights.items()
    }
