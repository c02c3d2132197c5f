"""A plan commits as a whole or not at all."""

import pytest
from builders import World, alone, client, make_config

from everbatch.base.errors import ExecutorError
from everbatch.scheduler.digest import state_digest
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.request import FinishReason

CROWD = [
    client("a", 7, 12, stream=0),
    client("b", 9, 12, stream=0),
    client("c", 6, 9, arrival=1),
    client("d", 9, 5, stream=0, arrival=2),
    client("e", 5, 7, arrival=3),
]
OPTIONS = {"num_blocks": 9, "max_num_batched_tokens": 12, "enable_prefix_caching": True}


def crowded(trigger, **options):
    return World(make_config(preemption_trigger=trigger, **{**OPTIONS, **options}), CROWD)


@pytest.mark.parametrize("trigger", ["shortage", "stall"])
@pytest.mark.parametrize("admission", ["now", "prompt"])
def test_rolling_back_every_plan_changes_nothing(trigger, admission):
    world = crowded(trigger, admission=admission)
    scheduler = world.engine.scheduler
    num_plans = 0
    while world.boundary < 3 or world.engine.has_work:
        world.arrive()
        before = state_digest(scheduler)
        plan = scheduler.schedule(world.clock.now_ns())
        if isinstance(plan, StepPlan):
            scheduler.rollback(plan)
            num_plans += 1
            assert state_digest(scheduler) == before
        world.step()

    assert num_plans > 20
    assert world.engine.stats().num_preemptions > 0
    assert world.texts == {c.id: alone(c) for c in CROWD}


def test_the_same_state_plans_the_same_step():
    world = crowded("shortage")
    scheduler = world.engine.scheduler
    for _ in range(6):
        world.arrive()
        plans = []
        for _ in range(2):
            plan = scheduler.schedule(world.clock.now_ns())
            plans.append(repr(plan))
            scheduler.rollback(plan)
        world.step()

        assert plans[0] == plans[1]


def test_a_plan_must_be_applied_or_rolled_back_before_the_next():
    world = crowded("shortage")
    world.arrive()
    world.engine.scheduler.schedule(0)

    with pytest.raises(AssertionError, match="neither applied nor rolled back"):
        world.engine.scheduler.schedule(0)


def test_an_abort_that_came_while_a_plan_was_rolled_back_holds_at_the_next_boundary():
    world = World(make_config(), [client("a", 8, 3), client("b", 8, 3)])
    scheduler = world.engine.scheduler
    world.arrive()
    plan = scheduler.schedule(0)
    scheduler.abort("a", FinishReason.ABORT, 0)
    scheduler.rollback(plan)
    world.step()

    assert world.records[0].scheduled == {"b": 8}
    assert world.ends["a"] == [FinishReason.ABORT]


class FailingStore:
    """A token store that fails at its Nth read."""

    def __init__(self, tokens, failing_read):
        self._tokens = tokens
        self._failing_read = failing_read
        self.num_reads = 0

    def read(self, *which):
        self.num_reads += 1
        if self.num_reads == self._failing_read:
            raise ExecutorError("the token store was told to fail")
        return self._tokens.read(*which)


@pytest.mark.parametrize("failing_read", range(1, 40))
def test_a_token_store_that_fails_leaves_the_state_and_the_next_call_goes_on(failing_read):
    world = crowded("shortage")
    store = world.checker.store = FailingStore(world.executor.tokens, failing_read)
    scheduler = world.engine.scheduler
    num_failures = 0
    while world.boundary < 3 or world.engine.has_work:
        world.arrive()
        before = state_digest(scheduler)
        try:
            world.step()
        except ExecutorError:
            num_failures += 1
            assert state_digest(scheduler) == before

    assert num_failures == int(store.num_reads >= failing_read)
    assert world.texts == {c.id: alone(c) for c in CROWD}


def test_applying_reads_no_tokens():
    world = crowded("shortage", block_size=2, num_blocks=18)
    store = world.checker.store = FailingStore(world.executor.tokens, None)
    scheduler = world.engine.scheduler
    reads_while_applying = 0
    while world.boundary < 3 or world.engine.has_work:
        world.arrive()
        plan = scheduler.schedule(world.clock.now_ns())
        if isinstance(plan, StepPlan):
            outcome = world.executor.execute(plan)
            before = store.num_reads
            scheduler.apply(plan, outcome, world.clock.now_ns())
            reads_while_applying += store.num_reads - before
        world.boundary += 1

    assert store.num_reads > 10
    assert reads_while_applying == 0
