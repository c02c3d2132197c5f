"""The scheduler's verifiers notice what they are there for."""

import pytest
from builders import World, client, make_config

from everbatch.base.errors import InvariantViolation
from everbatch.scheduler.plan import Admission
from everbatch.scheduler.request import RequestStatus
from everbatch.scheduler.verify import verify_plan, verify_scheduler


def running():
    """A world with a decode, a prompt that has begun and a request that waits."""
    clients = [client("a", 4, 9), client("b", 40, 9), client("c", 4, 9)]
    world = World(make_config(max_num_batched_tokens=16, max_num_seqs=2), clients)
    world.arrive()
    world.step()
    return world.engine.scheduler


def corrupted(change):
    scheduler = running()
    requests = scheduler.state.requests
    change(scheduler.state, requests["a"], requests["b"], requests["c"])
    return scheduler


def test_a_sound_state_passes():
    verify_scheduler(running())


@pytest.mark.parametrize(
    "change",
    [
        lambda state, a, b, c: a.block_table.pop(),
        lambda state, a, b, c: state.pool.allocate(1),
        lambda state, a, b, c: state.policy.queue.remove(c),
        lambda state, a, b, c: state.prefilling.update({a: None}),
        lambda state, a, b, c: state.policy.queue.push(b),
        lambda state, a, b, c: state.slots.__setitem__(0, None),
        lambda state, a, b, c: setattr(c, "slot", 1),
        lambda state, a, b, c: setattr(a, "num_output_tokens", 9),
        lambda state, a, b, c: setattr(a, "num_computed_tokens", 3),
        lambda state, a, b, c: setattr(b, "num_computed_tokens", 40),
        lambda state, a, b, c: state.free_slots.append(1),
        lambda state, a, b, c: state.masked.update({0: "a"}),
        lambda state, a, b, c: state.tail_holders.update({c: None}),
        lambda state, a, b, c: c.host_blocks.append(0),
        lambda state, a, b, c: state.handed_over.update({a: None}),
    ],
)
def test_each_corruption_is_seen(change):
    with pytest.raises(InvariantViolation):
        verify_scheduler(corrupted(change))


def test_a_sound_plan_passes():
    scheduler = running()
    verify_plan(scheduler, scheduler.schedule(1))


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: setattr(plan, "num_tokens", plan.num_tokens + 1),
        lambda plan: setattr(plan, "num_decodes", plan.num_decodes + 1),
        lambda plan: plan.chunks.append(plan.chunks[0]),
        lambda plan: plan.joined.clear(),
        lambda plan: plan.joined.append(plan.chunks[0].slot),
        lambda plan: plan.preempted.append(3),
        lambda plan: plan.released.extend([3, 3]),
        lambda plan: plan.masked.append(1),
        lambda plan: plan.admitted.append(Admission(3, "x", None, 0, (), 0)),
        lambda plan: plan.copies.append((0, 0, 0)),
        lambda plan: plan.copies.append((0, 0, 63)),
        lambda plan: plan.copies.append((0, 1, plan.chunks[0].new_blocks[0])),
        lambda plan: plan.swap_in.append((0, plan.chunks[0].new_blocks[0])),
        lambda plan: plan.swap_out.append((0, 0)),
    ],
)
def test_each_broken_plan_is_seen(change):
    scheduler = running()
    plan = scheduler.schedule(1)
    change(plan)

    with pytest.raises(InvariantViolation):
        verify_plan(scheduler, plan)


def test_the_facts_are_told():
    scheduler = corrupted(lambda state, a, b, c: state.pool.allocate(1))

    with pytest.raises(InvariantViolation, match="ref_count=1, tables=0"):
        verify_scheduler(scheduler)


def test_more_rights_than_blocks_are_seen():
    # Two lives of 3 blocks are reserved in a pool of 6; then somebody takes one of them.
    clients = [client("a", 4, 9), client("b", 4, 9)]
    world = World(make_config(num_blocks=6, admission="reserve"), clients)
    world.arrive()
    world.step()
    state = world.engine.scheduler.state
    first = state.requests["a"]
    first.block_table += state.pool.allocate(1)
    with pytest.raises(InvariantViolation, match="the sum of rights is not that of the holders"):
        verify_scheduler(world.engine.scheduler)
    state.rights.note(first)
    verify_scheduler(world.engine.scheduler)

    first.max_tokens += 8
    state.rights.note(first)
    with pytest.raises(InvariantViolation, match="more blocks are reserved than there are"):
        verify_scheduler(world.engine.scheduler)


def test_a_sample_in_another_state_than_its_leader_is_seen():
    world = World(make_config(), [client("a", 4, 9, n=2)])
    world.arrive()
    sample = world.engine.scheduler.state.requests["a/1"]
    verify_scheduler(world.engine.scheduler)

    sample.status = RequestStatus.PREEMPTED
    with pytest.raises(InvariantViolation, match="another state than the one that reads"):
        verify_scheduler(world.engine.scheduler)


def test_a_protected_request_that_is_not_known_to_be_is_seen():
    world = World(make_config(max_preemptions=1), [client("a", 4, 9)])
    world.arrive()
    world.step()
    world.engine.scheduler.state.requests["a"].num_preemptions = 1

    with pytest.raises(InvariantViolation, match="yielded as often as allowed"):
        verify_scheduler(world.engine.scheduler)
