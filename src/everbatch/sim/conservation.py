"""What must add up in every run, whatever happened in it: tokens and blocks.

Two counts of the same thing are held against each other: the executor's, which follows plans, that
of the steps' events, and that of the requests. Called by the run loop at reporting points.
"""

from collections.abc import Iterable

from everbatch.base.invariant import check
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.accounts import Accounts
from everbatch.sim.records import RequestRecord


def check_conservation(
    accounts: Accounts, scheduler: Scheduler, num_executed: int, live: Iterable[RequestRecord]
) -> None:
    """Raise if tokens or blocks were lost or found; the accounts are settled.

    `num_executed` are the tokens that went through the executor.
    """
    check(
        num_executed == accounts.counters.scheduled_tokens,
        "the tokens that were computed are not those that were planned",
        computed=num_executed,
        planned=accounts.counters.scheduled_tokens,
    )
    emitted = accounts.output_tokens(live)
    check(
        emitted == accounts.counters.useful_tokens,
        "the requests' outputs are not those that steps emitted",
        of_requests=emitted,
        of_steps=accounts.counters.useful_tokens,
    )
    state = scheduler.state
    requests = state.requests.values()
    _check_pool(state.pool, (request.block_table for request in requests), "device")
    if state.host_pool is not None:
        _check_pool(state.host_pool, (request.host_blocks for request in requests), "host")


def _check_pool(pool: BlockPool, tables: Iterable[Iterable[int]], where: str) -> None:
    """Check that the blocks taken from a pool are those in somebody's table; O(blocks in use)."""
    held = {block for table in tables for block in table}
    check(
        len(held) == pool.num_used,
        "the blocks taken from the pool are not those that live requests hold",
        pool=where,
        taken=pool.num_used,
        held=len(held),
    )
