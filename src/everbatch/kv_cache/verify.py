"""All invariants of the block pool in one O(n) function, called by verify_scheduler and by tests.

The numbers are those of docs/invariants.md. Serving does not call it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from everbatch.base.invariant import check
from everbatch.kv_cache.block_pool import BlockPool


def verify_pool(pool: BlockPool, tables: Iterable[Sequence[int]]) -> None:
    """Check the pool against the block tables of all requests; raises InvariantViolation.

    `tables` are the blocks each reader holds; a block read by two requests stands in two tables.
    """
    readers = Counter(block for table in tables for block in table)
    num_used = sum(pool.ref_count(block) > 0 for block in range(pool.num_blocks))
    # I1: free + cached + used = all.
    check(
        pool.num_free + pool.num_cached + num_used == pool.num_blocks,
        "free + cached + used blocks are not all blocks",
        free=pool.num_free,
        cached=pool.num_cached,
        used=num_used,
        all=pool.num_blocks,
    )
    # I2: a block has as many readers as tables name it.
    for block in range(pool.num_blocks):
        check(
            pool.ref_count(block) == readers[block],
            "a block's readers are not those whose tables name it",
            block=block,
            ref_count=pool.ref_count(block),
            tables=readers[block],
        )
    for table in tables:
        check(len(set(table)) == len(table), "a table names a block twice", table=list(table))
