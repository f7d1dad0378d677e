"""The reference scheduler: the executable definition of a request's life.

Each module of this package holds one concern and builds on the one before: ``state`` (queues,
ends), ``prefix`` (the prefix cache), ``loading`` (KV from outside), ``planning``, ``results``.

Rules
-----
Planning a step (``planning``)
  1. Running requests come first, in the order in which they began to run; then waiting ones. A
     step spends at most ``max_num_batched_tokens`` tokens and at most ``max_num_seqs`` run.
  2. A running request gets as many tokens as are known and not computed, and the drafts that the
     workers proposed for it. One whose tokens are all in flight, or that loads KV in a step in
     flight, is skipped until that step returns.
  3. A running request that needs a block when none is free preempts: the last of the running
     requests (under the priority policy the least urgent, then the latest), itself perhaps, that
     has no step in flight and is not in this step. If there is none, it waits for a step to return.
  4. The tokens of a medium are computed only when its encoder output is cached: it is encoded in
     the same step if the encoder budget and the cache have room, else the request's part of the
     step ends before it. What no running request needs any more goes when room is needed.
  5. A step that preempted admits nobody. Waiting requests that hold KV come before those that hold
     none. Among equals: first come first served, or the more urgent first. A request that does not
     fit stops the scan: nobody overtakes it. Requests that wait for something else than room (a
     load, a grammar, a chunk, an answer, a step in flight), and those whose adapter would be one
     too many, are passed over.
  6. Without chunked prefill a request is admitted only with all its tokens at once.
  7. A request is admitted as NEW the first time and when its session goes on, and as RESUMED,
     with every token known, after a preemption. (Dialect V2: as NEW with every token known, after
     ``preempted`` named it.)

Preemption and the sliding window
  8. Blocks go back, nothing counts as computed, drafts are dropped, and the request waits in front
     of those that have never run. A token of it that is in flight is kept when it returns, and it
     is not admitted before that.
  9. Blocks that lie wholly before what the next token looks at are given back. What may still be
     taken back, drafts and a load in a step in flight, moves nothing.

The prefix cache (``prefix``)
 10. A request without blocks shares the full blocks that hold the beginning of its tokens. At least
     one token is always left to compute.
 11. Blocks are shared only within one adapter and one salt.
 12. A full block can be hit as soon as the step that fills it is planned; one that a load fills,
     once the load has ended well.
 13. The cache is emptied only while no block is in use. By force, whatever runs is preempted first.

Loading KV from outside (``loading``)
 14. A request with nothing computed whose prompt is partly held outside is offered the tokens
     behind those that it hits. At least one token is always left to compute.
 15. Loading asynchronously, it waits in WAITING_FOR_REMOTE_KVS with its blocks. So that loads can
     never block each other for ever, a load begins only if all requests that hold KV while not
     running could grow to their full length side by side.
 16. The first step planned after the end of the load is reported makes it WAITING, or PREEMPTED if
     it was preempted before: that is what makes it come back as RESUMED.
 17. A failed load counts up to the bad block (policy ``recompute``; it is not tried again), or
     ends the request (policy ``fail``). What a step sampled from a failed load is discarded.

The end, and pauses (``state``)
 18. A request ends by its stop token, by ``max_tokens``, by an abort in any state, or by a failed
     load. Its end is announced in the next step planned, once. Its output in flight is ignored.
 19. Its blocks are freed when nothing can write or read them any more: no step in flight, no
     load, no send. Once no load and no send is open it is forgotten, and its id may be used again.
 20. While paused nothing is scheduled; if only admission is paused, what runs goes on.

Results (``results``)
 21. Sampled tokens are delivered in the step that returns them, up to the request's end.
 22. Drafts that were refused do not count as computed.
 23. A session that has answered goes on at once if its next chunk has arrived, else it waits for
     it in WAITING_FOR_STREAMING_REQ. Its new prompt is all that was said, without the last token of
     the answer, of which no KV exists. It keeps its KV if rule 15 allows it.
 24. The client is told once, with the first token, how many tokens were hit and loaded.
"""

from __future__ import annotations

from schedcheck.reference.results import Results


class Scheduler(Results):
    """Plans steps for requests known by their ids. See the rules at the top of this file."""

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Empty the prefix cache; by force preempt whatever runs first (rule 13)."""
        if reset_running_requests:
            for request in reversed(list(self.running)):
                self.preempt(request)
        return self.reset_cache()
