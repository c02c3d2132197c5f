"""The Nth allocation, step, read or copy fails, for N = 1, 2, … until none does.

Every time the state stays consistent, everybody is answered, and everything comes back.
"""

import pytest
from builders import World, client, make_config, spoken_text
from crowd import FailingStore

from everbatch.base.errors import ExecutorError
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.kv_cache.verify import verify_pool
from everbatch.scheduler.digest import state_digest
from everbatch.scheduler.request import FinishReason
from everbatch.scheduler.verify import verify_scheduler

MAX_CALLS = 2_000
CLIENTS = [
    client("a", 7, 14, stream=1),
    client("b", 10, 6, stream=1, n=2),
    client("c", 9, 12, arrival=2),
    client("d", 5, 16, arrival=3),
]
MODES = {
    "recompute": {},
    "tail": {"preemption_extent": "tail"},
    "swap": {"preemption_mode": "swap", "num_host_blocks": 6},
    "stall": {"preemption_trigger": "stall", "preemption_mode": "swap", "num_host_blocks": 6},
}


def tight_world(mode):
    config = make_config(num_blocks=7, admission="now", enable_prefix_caching=True, **MODES[mode])
    return World(config, CLIENTS)


def check_answers(world):
    """Everybody has one end and, unless it failed, its text; all blocks are back."""
    for c in CLIENTS:
        assert len(world.ends[c.id]) == 1
        for sample, id in enumerate(c.sample_ids()):
            whole, text = spoken_text(tuple(c.prompt), sample, c.output_tokens), world.texts[id]
            if world.ends[id] == [FinishReason.ERROR]:
                assert text == whole[: len(text)]
            else:
                assert (world.ends[id], text) == ([FinishReason.STOP], whole)
    state = world.engine.scheduler.state
    assert state.pool.num_allocatable == state.pool.num_blocks
    assert state.host_pool is None or state.host_pool.num_free == state.host_pool.num_blocks


@pytest.mark.parametrize("mode", MODES)
def test_the_nth_pass_fails(mode):
    num_preemptions = 0
    for failing in range(1, MAX_CALLS):
        world = tight_world(mode)
        world.executor.failing_steps = frozenset({failing})
        world.run()
        check_answers(world)
        num_preemptions += world.engine.stats().num_preemptions
        if world.executor.num_steps < failing:
            break

    assert failing > 15
    assert num_preemptions > failing / 2


@pytest.mark.parametrize("mode", MODES)
def test_the_nth_read_of_tokens_fails(mode):
    for failing in range(1, MAX_CALLS):
        world = tight_world(mode)
        store = FailingStore(world.executor.tokens, failing)
        world.checker.store = store
        failed = run_retrying(world, ExecutorError)
        check_answers(world)
        assert {ends[0] for ends in world.ends.values()} == {FinishReason.STOP}
        if not failed:
            break

    assert failing > 5


def run_retrying(world, kind):
    """Run to the end; a call that raises must leave no traces, and is made again."""
    scheduler, failed = world.engine.scheduler, False
    for _ in range(MAX_CALLS):
        world.arrive()
        if world.boundary >= 3 and not world.engine.has_work:
            return failed
        before = state_digest(scheduler)
        try:
            world.step()
        except kind:
            failed = True
            assert state_digest(scheduler) == before
            verify_scheduler(scheduler)
    raise AssertionError("no end")


class NoRoom(Exception):
    """What a pool raises that was told to fail."""


class FailingPool(BlockPool):
    """A pool whose Nth allocation within a plan fails midway, after it took a block."""

    allocations_left = 0

    def allocate(self, count):
        if self._journal is not None:
            self.allocations_left -= 1
            if self.allocations_left == 0:
                super().allocate(min(1, self.num_allocatable))
                raise NoRoom
        return super().allocate(count)


@pytest.mark.parametrize("mode", ["recompute", "tail", "swap"])
@pytest.mark.parametrize("tier", ["device", "host"])
def test_the_nth_allocation_fails(mode, tier):
    for failing in range(1, MAX_CALLS):
        world = tight_world(mode)
        state = world.engine.scheduler.state
        pool = state.pool if tier == "device" else state.host_pool
        if pool is None:
            return
        pool.__class__ = FailingPool
        pool.allocations_left = failing
        failed = run_retrying(world, NoRoom)
        check_answers(world)
        verify_pool(pool, [])
        if not failed:
            break

    assert failing > 2 + 2 * (tier == "device")


def test_the_nth_copy_of_a_block_fails():
    """Copies between blocks and tiers are part of a pass: the pass fails, and is rolled back."""
    for failing in range(1, MAX_CALLS):
        world = tight_world("swap")
        world.executor.failing_copy = failing
        world.run()
        check_answers(world)
        if world.executor.num_copies < failing:
            break

    assert failing > 10
