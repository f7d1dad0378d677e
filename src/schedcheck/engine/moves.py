"""What can happen next: which actions are eligible, and how one integer chooses among them.

The machine, the campaign and exploration all ask here, so that there is one definition. Replay
asks ``why_not``, which says in words why an action of a trace cannot happen now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Final

from attrs import evolve, frozen

from schedcheck.engine.profiles import Feature, Load
from schedcheck.model.actions import (
    Abort,
    Action,
    Add,
    AddChunk,
    AnswerLookup,
    Complete,
    Drain,
    FailTransfer,
    FinishSend,
    FinishTransfer,
    GrammarReady,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Schedule,
    Step,
)
from schedcheck.model.capability import Capability
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.output import Load as KVLoad
from schedcheck.model.request import MEDIA, OWN, RequestSpec
from schedcheck.model.snapshot import Status
from schedcheck.model.tokens import UnknownStream, prompt_tokens
from schedcheck.oracles.ledger import Ledger

INTEGER_BITS: Final = 64
"""How many bits the integer has that chooses an action."""
_SHARED: Final = "s0"
"""The stream that generated prompts share a prefix of."""


def why_not(action: Action, ledger: Ledger, capabilities: frozenset[Capability]) -> str | None:
    """Return why an action is not eligible now, in words; None if it is."""
    missing = sorted(action.needs - capabilities)
    if missing:
        return f"the target lacks {', '.join(missing)}"
    match action:
        case Add():
            return _why_no_add(action, ledger)
        case Schedule():
            return _why_no_schedule(ledger)
        case Complete(finish_loads=loads):
            return (None if ledger.in_flight else "no step is in flight") or _first(
                loads, lambda name: _why_no_load(name, ledger)
            )
        case Step(finish_loads=loads):
            return _why_no_schedule(ledger) or _first(
                loads, lambda name: _why_no_load(name, ledger)
            )
        case FinishTransfer(request=name):
            return _why_no_load(name, ledger)
        case FailTransfer(request=name, bad_block=ordinal):
            return _why_no_failure(name, ordinal, ledger)
        case FinishSend(request=name):
            sending = {life.name for life in ledger.open_sends()}
            return None if name in sending else f"no KV of {name} is being sent"
        case Abort(request=name):
            known = name in ledger.lives and ledger.lives[name].is_live
            return None if known else f"{name} is not an unfinished request"
        case Preempt(request=name):
            known = name in ledger.lives and ledger.lives[name].status is Status.RUNNING
            return None if known else f"{name} does not run"
        case ResetPrefixCache(running=running):
            return _why_no_reset(ledger, capabilities, running=running)
        case AnswerLookup(request=name):
            known = name in ledger.lives and ledger.lives[name].is_live
            awaits = known and ledger.lives[name].awaits_lookup
            return None if awaits else f"no answer about {name} is awaited"
        case GrammarReady(request=name):
            known = name in ledger.lives and ledger.lives[name].is_live
            awaits = known and ledger.lives[name].awaits_grammar
            return None if awaits else f"no grammar of {name} is being compiled"
        case AddChunk(request=name):
            return _why_no_chunk(name, ledger)
        case Pause():
            return "scheduling is paused" if ledger.paused else None
        case Resume():
            return None if ledger.paused else "scheduling is not paused"
        case Drain():
            return None


def _why_no_failure(name: str, ordinal: int, ledger: Ledger) -> str | None:
    step = ledger.sync_load_in_flight(name)
    if step is not None and name not in step.bad_blocks:
        load = next(one for one in step.output.loads if one.name == name)
    else:
        reason = _why_no_load(name, ledger)
        open_load = ledger.lives[name].load if name in ledger.lives else None
        if reason or open_load is None:
            return reason
        load = open_load.load
    blocks = _blocks_in(load)
    return None if ordinal < blocks else f"the load of {name} has {blocks} block(s)"


def _blocks_in(load: KVLoad) -> int:
    """Return how many blocks of a load can fail; where they are not shown, one."""
    return max(1, min((len(group) for group in load.block_ids or ()), default=1))


def _why_no_chunk(name: str, ledger: Ledger) -> str | None:
    life = ledger.lives.get(name)
    if life is None or not life.is_live:
        return f"{name} is not an unfinished request"
    left = len(life.spec.chunks) - life.chunks_given
    return None if left > 0 else f"no chunk of {name} is left"


def _first(names: Sequence[str], why: Callable[[str], str | None]) -> str | None:
    return next((reason for reason in map(why, names) if reason), None)


def _why_no_add(action: Add, ledger: Ledger) -> str | None:
    if action.request in ledger.lives:
        return f"{action.request} was added before"
    former = action.spec.engine_id_of
    if former is not None and (former not in ledger.lives or ledger.lives[former].rejected):
        return f"{action.request} reuses the engine id of {former}, which never had one"
    if former is not None and _id_in_use(former, ledger):
        return f"the engine id of {former} is still in use"
    known = {one.key: one.tokens for life in ledger.lives.values() for one in life.spec.media}
    for item in action.spec.media:
        if known.setdefault(item.key, item.tokens) != item.tokens:
            return f"the medium {item.key} has {known[item.key]} tokens, not {item.tokens}"
    never = ledger.config.why_never(action.spec)
    if never:
        return f"{action.request} can never finish: {never}"
    try:
        prompt_tokens(action.request, {**ledger.specs(), action.request: action.spec})
    except UnknownStream as error:
        return str(error)
    return None


def _id_in_use(name: str, ledger: Ledger) -> bool:
    """Whether a request with the same engine id is tracked, or computed by a step in flight."""
    engine_id = ledger.lives[name].engine_id
    return any(
        life.engine_id == engine_id
        and (life.is_live or life.in_flight > 0 or life.name in ledger.snapshot.requests)
        for life in ledger.lives.values()
    )


def _why_no_schedule(ledger: Ledger) -> str | None:
    if len(ledger.in_flight) >= ledger.config.max_steps_in_flight:
        return f"{len(ledger.in_flight)} step(s) are in flight, as many as may be"
    return None


def _why_no_load(name: str, ledger: Ledger) -> str | None:
    life = ledger.lives.get(name)
    if life is None or life.load is None:
        return f"{name} loads nothing"
    return f"the load of {name} has ended before" if life.load.ended else None


def _why_no_reset(
    ledger: Ledger, capabilities: frozenset[Capability], *, running: bool
) -> str | None:
    if not running:
        return None
    if Capability.RESET_RUNNING not in capabilities:
        return f"the target lacks {Capability.RESET_RUNNING}"
    if any(life.load is not None for life in ledger.lives.values()):
        # Documented of real engines: a forced reset during a load is the caller's error.
        return "a forced reset is not allowed while KV is being loaded"
    return None


@frozen
class Choice:
    """One kind of action that is eligible, with the requests it can be about."""

    word: str
    weight: int
    build: Callable[[int], Action]
    """Makes the action from what is left of the integer."""


def choices(ledger: Ledger, load: Load) -> list[Choice]:
    """Return what is eligible now, the plainest first, so that small integers are plain traces."""
    found: list[Choice] = []

    def offer(word: str, build: Callable[[int], Action], *, needs: frozenset[Capability]) -> None:
        weight = load.weights.get(word, 0)
        if weight and needs <= load.capabilities:
            found.append(Choice(word, weight, build))

    room = _why_no_schedule(ledger) is None
    split = ledger.config.max_steps_in_flight > 1
    if room:
        offer("step", lambda _: Step(), needs=Step.needs)
    if ledger.in_flight:
        offer("complete", lambda _: Complete(), needs=Complete.needs)
    if room and (split or not ledger.in_flight):
        offer("schedule", lambda _: Schedule(), needs=Schedule.needs)
    if len(ledger.lives) < load.requests_max and len(ledger.live()) < load.live_max:
        offer("add", lambda number: draw_add(number, ledger, load), needs=Add.needs)
    _offer_transfers(ledger, offer)
    live = [life.name for life in ledger.live()]
    loading = [name for name in live if ledger.lives[name].load is not None]
    if live:
        offer("abort", lambda n: Abort(_one_of(live, loading, n)), needs=Abort.needs)
    running = [name for name in live if ledger.lives[name].status is Status.RUNNING]
    if running:
        offer("preempt", lambda n: Preempt(running[n % len(running)]), needs=Preempt.needs)
    forced = _why_no_reset(ledger, load.capabilities, running=True) is None
    offer(
        "reset_prefix_cache",
        lambda n: ResetPrefixCache(running=forced and n % 4 > 0),
        needs=ResetPrefixCache.needs,
    )
    _offer_what_is_awaited(ledger, offer)
    if ledger.paused:
        offer("resume", lambda _: Resume(), needs=Resume.needs)
    else:
        offer("pause", lambda n: Pause(admission_only=n % 3 > 0), needs=Pause.needs)
    return found


def _one_of(names: Sequence[str], preferred: Sequence[str], number: int) -> str:
    """Return a name that a number chooses; every third time one of those preferred, if any."""
    number, third = divmod(number, 3)
    chosen = preferred if preferred and third == 0 else names
    return chosen[number % len(chosen)]


def _offer_what_is_awaited(ledger: Ledger, offer: Callable[..., None]) -> None:
    live = ledger.live()
    lookups = [life.name for life in live if life.awaits_lookup]
    grammars = [life.name for life in live if life.awaits_grammar]
    chunks = [life.name for life in live if life.chunks_given < len(life.spec.chunks)]
    if lookups:
        offer(
            "answer_lookup",
            lambda n: AnswerLookup(lookups[n % len(lookups)]),
            needs=AnswerLookup.needs,
        )
    if grammars:
        offer(
            "grammar_ready",
            lambda n: GrammarReady(grammars[n % len(grammars)]),
            needs=GrammarReady.needs,
        )
    if chunks:
        offer("add_chunk", lambda n: AddChunk(chunks[n % len(chunks)]), needs=AddChunk.needs)


def _offer_transfers(ledger: Ledger, offer: Callable[..., None]) -> None:
    loads = [life.name for life in ledger.open_loads()]
    sends = [life.name for life in ledger.open_sends()]
    if loads:
        offer(
            "finish_transfer",
            lambda n: FinishTransfer(loads[n % len(loads)]),
            needs=FinishTransfer.needs,
        )
    failing = [life.load.load for life in ledger.open_loads() if life.load] + [
        load
        for step in ledger.in_flight
        for load in step.output.loads
        if not load.is_async and load.name not in step.bad_blocks
    ]
    if failing:
        offer("fail_transfer", lambda n: _fail(n, failing), needs=FailTransfer.needs)
    if sends:
        offer("finish_send", lambda n: FinishSend(sends[n % len(sends)]), needs=FinishSend.needs)


def _fail(number: int, loads: Sequence[KVLoad]) -> FailTransfer:
    number, which = divmod(number, len(loads))
    return FailTransfer(loads[which].name, number % _blocks_in(loads[which]))


def decode(number: int, ledger: Ledger, load: Load) -> Action:
    """Return the eligible action that an integer chooses; a drain if nothing else is left."""
    offered = choices(ledger, load)
    total = sum(choice.weight for choice in offered)
    if not total:
        return drain_for(ledger)
    number, ticket = divmod(number, total)
    for choice in offered:
        if ticket < choice.weight:
            return choice.build(number)
        ticket -= choice.weight
    raise AssertionError("a ticket is smaller than the sum of the weights")


def draw_add(number: int, ledger: Ledger, load: Load) -> Add:
    """Return a request that fits alone, made from the digits of an integer."""

    def digit(base: int) -> int:
        nonlocal number
        number, value = divmod(number, base)
        return value

    can = load.capabilities
    longest_prompt = max(1, load.tokens_max - 1)
    prompt = 1 + digit(longest_prompt)
    output = 1 + digit(max(1, min(load.tokens_max - prompt, 12)))
    shared = digit(prompt) if digit(3) == 0 else 0
    remote, is_async = 0, True
    if digit(100) < load.remote_percent and can & {Capability.ASYNC_LOADS, Capability.SYNC_LOADS}:
        remote = 1 + digit(prompt)
        sync = Capability.SYNC_LOADS in can and digit(100) < load.sync_percent
        is_async = Capability.ASYNC_LOADS in can and not sync
    former = [
        name
        for name, life in ledger.lives.items()
        if not life.rejected and not _id_in_use(name, ledger)
    ]
    reuse = Capability.ID_REUSE in can and former and digit(100) < load.reuse_percent
    plain = RequestSpec(
        prompt=((_SHARED, shared), (OWN, prompt - shared)) if shared else ((OWN, prompt),),
        max_tokens=output,
        stop_at=digit(output) if digit(5) == 0 else None,
        priority=digit(3) if Capability.PRIORITY in can else 0,
        remote_tokens=remote,
        load_async=is_async,
        send_kv=Capability.DELAYED_FREE in can and digit(100) < load.send_percent,
        engine_id_of=former[-1 - digit(min(3, len(former)))] if reuse else None,
    )
    return Add(f"r{len(ledger.lives)}", _with_features(plain, ledger, load, digit))


def _with_features(
    spec: RequestSpec, ledger: Ledger, load: Load, digit: Callable[[int], int]
) -> RequestSpec:
    """Return the request with what this load asks for beyond prompt and output."""
    config, wants = load.config, load.features
    if load.common_prompts and digit(2) == 0:
        spec = _with_common_prompt(spec, ledger, load, digit)
    if Feature.LOOKUPS in wants and spec.remote_tokens:
        spec = evolve(spec, lookup_undecided=digit(2) == 0)
    if Feature.GRAMMARS in wants:
        spec = evolve(spec, grammar=digit(3) == 0)
    if Feature.ADAPTERS in wants:
        spec = evolve(spec, adapter=(None, "a", "b", "c")[digit(4)])
    if Feature.SALTS in wants:
        # Named like adapters: what is told apart by name alone must not be mixed up.
        spec = evolve(spec, salt=(None, "a", "b")[digit(3)])
    if Feature.DRAFTS in wants and digit(4):
        proposed = 1 + digit(config.num_speculative_tokens)
        plan = tuple((proposed, digit(proposed + 1)) for _ in range(1 + digit(2)))
        spec = evolve(spec, drafts=plan)
    if Feature.MEDIA in wants and digit(4):
        wish = _with_medium(spec, config, digit)
        spec = spec if config.why_never(wish) else wish
    if Feature.SESSIONS in wants and digit(4):
        spec = _with_chunks(spec, load, digit)
    return spec


def _with_common_prompt(
    spec: RequestSpec, ledger: Ledger, load: Load, digit: Callable[[int], int]
) -> RequestSpec:
    """Take the prompt of an earlier request, or one that others will share."""
    former = [one.spec.prompt for one in ledger.lives.values() if OWN not in dict(one.spec.prompt)]
    if former and digit(3):
        prompt = former[-1 - digit(min(4, len(former)))]
        wish = evolve(spec, prompt=prompt)
        if wish.total_tokens_max <= load.tokens_max:
            return evolve(wish, remote_tokens=min(spec.remote_tokens, wish.prompt_tokens_count))
    return evolve(spec, prompt=((f"s{digit(2)}", spec.prompt_tokens_count),))


def _with_medium(
    spec: RequestSpec, config: SchedulerConfig, digit: Callable[[int], int]
) -> RequestSpec:
    """Let the beginning or the end of a prompt be a medium that the encoder can take."""
    most = min(config.encoder_cache_size, config.max_num_encoder_input_tokens)
    length = min(1 + digit(most), spec.prompt_tokens_count)
    rest = spec.prompt_tokens_count - length
    also = min(rest, 1 + digit(most)) if digit(2) else 0
    # What a medium is called says how long it is: the same medium is as long everywhere.
    medium = (f"{MEDIA}{'ab'[digit(2)]}{length}", length)
    second = (f"{MEDIA}{'cd'[digit(2)]}{also}", also)
    own = (OWN, rest - also)
    parts = (medium, own, second) if digit(2) else (own, medium, second)
    return evolve(spec, prompt=tuple(part for part in parts if part[1]))


def _with_chunks(spec: RequestSpec, load: Load, digit: Callable[[int], int]) -> RequestSpec:
    """Let a request be a session, as long as what it grows to still fits."""
    for _ in range(1 + digit(2)):
        limit = spec.max_tokens if digit(3) else 1 + digit(max(2, spec.max_tokens))
        room = load.tokens_max - spec.total_tokens_max - limit
        if room < 1:
            break
        chunks = (*spec.chunks, 1 + digit(min(room, 4)))
        spec = evolve(spec, chunks=chunks, chunk_max_tokens=(*spec.chunk_max_tokens, limit))
    if set(spec.chunk_max_tokens) == {spec.max_tokens}:
        return evolve(spec, chunk_max_tokens=())
    return spec


def drain_for(ledger: Ledger) -> Drain:
    """Return the quiet tail with a bound computed from the work left.

    Once nothing new arrives the first in line is not preempted again, so one after the other is
    computed from its start, at worst one token a step; transfers take a round or two each. Three
    times that is slack for engines that order otherwise.
    """
    work = [life.spec.total_tokens_max for life in ledger.live()]
    return Drain(steps_max=20 + 4 * len(work) + 3 * sum(work))


def every_action(
    ledger: Ledger,
    capabilities: frozenset[Capability],
    menu: Sequence[RequestSpec],
    *,
    adds_max: int,
) -> list[Action]:
    """Return every eligible action, where a request is one of ``menu`` and few may be added.

    Loads may end with the step that reports them, in every combination. Drains are left out.
    """
    loads = [life.name for life in ledger.open_loads()]
    ends = [subset for size in range(len(loads) + 1) for subset in combinations(loads, size)]
    offered: list[Action] = [Step(names) for names in ends]
    offered += [Schedule(), *(Complete(names) for names in ends)]
    if len(ledger.lives) < adds_max:
        offered += [Add(f"r{len(ledger.lives)}", spec) for spec in menu]
    for life in ledger.lives.values():
        offered += [Abort(life.name), Preempt(life.name), FinishTransfer(life.name)]
        offered += [FinishSend(life.name), FailTransfer(life.name)]
        offered += [AnswerLookup(life.name), GrammarReady(life.name), AddChunk(life.name)]
    offered += [Pause(), Pause(admission_only=True), Resume()]
    offered += [ResetPrefixCache(running=True), ResetPrefixCache(running=False)]
    return [action for action in offered if why_not(action, ledger, capabilities) is None]
