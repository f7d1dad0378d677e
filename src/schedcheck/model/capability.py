"""What an adapter can do, and what it can show."""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """One thing a target can do or show; invariants and actions ask for the ones they need.

    An invariant whose capabilities a target lacks is NOT_APPLICABLE there, and an action is never
    drawn. Claim one only if the adapter really has it: a claim that is false gives false alarms.
    """

    # What the scheduler can be asked to do.
    SPLIT_STEP = "SPLIT_STEP"
    """``schedule()`` and ``complete()`` are separate calls; without it only Step is drawn."""
    PIPELINE = "PIPELINE"
    """Several steps may be in flight."""
    ASYNC_SCHEDULING = "ASYNC_SCHEDULING"
    """A step may be planned before the samples of those in flight are known."""
    ABORT = "ABORT"
    ID_REUSE = "ID_REUSE"
    """An engine id may be given to a new request after its former owner ended."""
    PRIORITY = "PRIORITY"
    CHUNKED_PREFILL = "CHUNKED_PREFILL"
    PREFIX_CACHING = "PREFIX_CACHING"
    CACHE_SALTS = "CACHE_SALTS"
    """Requests may have a salt, across which no prefix is shared."""
    ASYNC_LOADS = "ASYNC_LOADS"
    """KV may be loaded from outside while other requests run."""
    SYNC_LOADS = "SYNC_LOADS"
    """KV may be loaded from outside within the step that admits the request."""
    TRANSFER_FAULTS = "TRANSFER_FAULTS"
    """A load may fail."""
    DELAYED_FREE = "DELAYED_FREE"
    """A finished request's KV may be sent elsewhere, its blocks staying until the send ends."""
    FORCE_PREEMPT_ONE = "FORCE_PREEMPT_ONE"
    RESET_PREFIX_CACHE = "RESET_PREFIX_CACHE"
    RESET_RUNNING = "RESET_RUNNING"
    """``reset_prefix_cache`` may preempt everything that runs."""
    SPEC_DECODE = "SPEC_DECODE"
    """Drafts that the workers propose are verified in the next step."""
    STRUCTURED_OUTPUT = "STRUCTURED_OUTPUT"
    """A request may wait for its grammar to be compiled."""
    STREAMING_INPUT = "STREAMING_INPUT"
    """A session may get further chunks of input after it has answered the first."""
    ENCODER_INPUTS = "ENCODER_INPUTS"
    """Prompts may hold media, whose encoder outputs are cached."""
    ADAPTERS = "ADAPTERS"
    """Requests may use adapters (LoRA), of which few fit into one step."""
    SLIDING_WINDOW = "SLIDING_WINDOW"
    """Blocks behind the attention window are given back while the request runs."""
    OWN_STORE = "OWN_STORE"
    """The KV store outside is the user's own: what it holds, and whether KV is sent, is what it
    answers, whatever the requests ask for."""
    UNDECIDED_LOOKUPS = "UNDECIDED_LOOKUPS"
    """A KV store outside may not know yet how much it holds."""
    PAUSE = "PAUSE"
    """Scheduling can be paused and resumed."""

    # What the scheduler shows.
    SHOWS_ROLES = "SHOWS_ROLES"
    """Its output itself says which rows are new, resumed and running."""
    SHOWS_STATUS = "SHOWS_STATUS"
    SHOWS_QUEUES = "SHOWS_QUEUES"
    SHOWS_STARTS = "SHOWS_STARTS"
    """Every row carries the position its tokens start at."""
    SHOWS_BLOCK_TABLES = "SHOWS_BLOCK_TABLES"
    SHOWS_FREE_BLOCKS = "SHOWS_FREE_BLOCKS"
    """Which blocks are free, not only how many."""
    EXCLUSIVE_BLOCKS = "EXCLUSIVE_BLOCKS"
    """Its blocks are exclusive: each has one owner at most."""
    ORDERED_ADMISSION = "ORDERED_ADMISSION"
    """Waiting requests are admitted in order: nobody overtakes a request that could run."""
    ORDERED_PREEMPTION = "ORDERED_PREEMPTION"
    """The last of the running requests gives way, or under the priority policy the least urgent."""
    SHOWS_REF_COUNTS = "SHOWS_REF_COUNTS"
    """How many references each block has."""
    SHOWS_CACHED_TOKENS = "SHOWS_CACHED_TOKENS"
    """How many tokens of a prompt were hit or loaded, told once to the client."""
    ANNOUNCES_FINISH = "ANNOUNCES_FINISH"
    ANNOUNCES_PREEMPTION = "ANNOUNCES_PREEMPTION"
