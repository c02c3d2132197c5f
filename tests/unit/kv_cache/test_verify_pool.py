"""The pool's verifier notices what it is there for."""

import pytest

from everbatch.base.errors import InvariantViolation
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.kv_cache.verify import verify_pool


def test_tables_that_name_all_readers_pass():
    pool = BlockPool(4)
    table = pool.allocate(2)
    verify_pool(pool, [table])


@pytest.mark.parametrize("tables", [[], [[0]], [[0, 1], [1]], [[0, 1, 2]], [[0, 0, 1]]])
def test_tables_that_do_not_fit_the_reference_counts_fail(tables):
    pool = BlockPool(4)
    pool.allocate(2)

    with pytest.raises(InvariantViolation):
        verify_pool(pool, tables)
