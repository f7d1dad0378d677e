"""The pool of blocks: who may have what, and when it comes back."""

from __future__ import annotations

from schedcheck.reference.block_pool import BlockPool


def test_hands_out_blocks_from_one_to_the_total():
    # Block 0 is the null block of real engines: the reference must never hand it out.
    pool = BlockPool(3)
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.blocks_free == 0


def test_hands_out_the_block_that_was_freed_first():
    # Reusing the latest block at once would hide faults that need an old block to be reused.
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.free([second])
    pool.free([first])
    assert [3, second, first] == pool.allocate(3)


def test_allocating_nothing_changes_nothing():
    pool = BlockPool(2)
    assert pool.allocate(0) == []
    assert list(pool.free_blocks) == [1, 2]


def test_a_fenced_block_is_not_free_before_its_step_has_returned():
    # A load could otherwise write a block that an older step in flight still writes.
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.free(blocks, after_step=5)
    pool.step_returned(4)
    assert pool.blocks_free == 0
    pool.step_returned(5)
    assert pool.blocks_free == 2
    assert pool.fenced == []


def test_a_step_frees_what_waited_for_an_earlier_one_too():
    pool = BlockPool(3)
    one, two, three = pool.allocate(3)
    pool.free([one], after_step=1)
    pool.free([two], after_step=2)
    pool.free([three], after_step=3)
    pool.step_returned(2)
    assert [one, two] == list(pool.free_blocks)
    assert [(3, [three])] == pool.fenced


def test_fencing_no_blocks_leaves_no_fence():
    # An empty fence would keep the scheduler awake for nothing.
    pool = BlockPool(1)
    pool.free([], after_step=7)
    assert pool.fenced == []


def test_a_block_freed_twice_stands_twice():
    # The pool shows faults and never hides them: the invariants must be able to see a double free.
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.free(blocks)
    pool.free(blocks)
    assert list(pool.free_blocks) == [1, 1]
