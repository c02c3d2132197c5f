"""Whole, tail and swap: what a victim gives up, what it keeps, and how it comes back."""

import pytest
from builders import World, alone, client, finals, make_config, run_world

from everbatch.scheduler.config import PreemptionCosts
from everbatch.scheduler.request import FinishReason

# The first request takes a fourth block when the second has just filled its first two.
PAIR = [client("a", 11, 6), client("b", 8, 8)]


def preempted(world):
    return [e for e in world.events if e.kind == "preempted"]


def resumed(world, id):
    return [e for e in world.events if e.kind == "admitted" and e.id == id and e.resumed]


def test_a_tail_frees_the_fewest_blocks_and_only_their_tokens_are_computed_again():
    world = run_world(PAIR, num_blocks=6, preemption_extent="tail")
    first = preempted(world)[0]

    assert (first.id, first.way, first.blocks, first.computed_tokens) == ("b", "tail", 1, 9)
    assert resumed(world, "b")[0].computed_tokens == 8
    assert finals(world)["b"].recomputed_tokens == 1
    assert world.texts == {c.id: alone(c) for c in PAIR}


def test_a_tail_holder_of_whole_blocks_decodes_at_once_when_it_comes_back():
    # `b`, planned first, had just got the last block; `a`, who goes first, lacks it then.
    clients = [client("b", 7, 9, priority=1), client("a", 8, 5, arrival=1)]
    world = run_world(clients, num_blocks=5, preemption_extent="tail", policy="priority")
    first = preempted(world)[0]

    assert (first.id, first.computed_tokens, first.blocks) == ("b", 8, 0)
    assert resumed(world, "b")[0].computed_tokens == 8
    assert finals(world)["b"].recomputed_tokens == 0
    assert world.texts == {c.id: alone(c) for c in clients}


def test_tail_holders_lose_all_newest_first_when_nothing_else_can_run():
    clients = [client("a", 4, 12), client("b", 8, 9), client("c", 8, 9)]
    world = run_world(clients, num_blocks=5, preemption_extent="tail", preemption_trigger="stall")
    stripped = [e.id for e in preempted(world) if e.slot is None]

    assert [(e.t, e.id) for e in preempted(world) if e.slot is not None] == [(1, "c"), (5, "b")]
    assert stripped == ["c"]
    assert world.texts == {c.id: alone(c) for c in clients}
    assert world.engine.stats().num_preemptions == len(preempted(world)) - len(stripped)


def test_a_swapped_request_comes_back_as_a_whole_and_recomputes_nothing():
    world = run_world(PAIR, num_blocks=6, preemption_mode="swap", num_host_blocks=3)
    first = preempted(world)[0]

    assert (first.id, first.way, first.blocks) == ("b", "swap", 3)
    assert resumed(world, "b")[0].computed_tokens == first.computed_tokens
    assert finals(world)["b"].recomputed_tokens == 0
    assert world.texts == {c.id: alone(c) for c in PAIR}
    assert world.engine.scheduler.state.host_pool.num_free == 3


@pytest.mark.parametrize("num_host_blocks", [0, 2])
def test_without_room_in_the_host_tier_a_victim_recomputes(num_host_blocks):
    world = run_world(PAIR, num_blocks=6, preemption_mode="swap", num_host_blocks=num_host_blocks)

    assert preempted(world)[0].way == "recompute"
    assert finals(world)["b"].recomputed_tokens == 9


@pytest.mark.parametrize(("swap_ns", "way"), [(2, "swap"), (3, "recompute")])
def test_auto_swaps_where_that_is_cheaper(swap_ns, way):
    # Three blocks against nine tokens.
    costs = PreemptionCosts(swap_ns_per_block=swap_ns, recompute_ns_per_token=1)
    world = run_world(
        PAIR, num_blocks=6, preemption_mode="auto", num_host_blocks=9, preemption_costs=costs
    )
    first = preempted(world)[0]

    assert (first.way, first.swap_ns, first.recompute_ns) == (way, 3 * swap_ns, 9)


def test_a_victim_whose_swap_the_failed_pass_should_have_made_starts_over():
    world = World(
        make_config(
            num_blocks=6, preemption_mode="swap", num_host_blocks=9, preemption_trigger="stall"
        ),
        [client("a", 12, 8), client("b", 12, 8)],
    )
    world.arrive()
    while not preempted(world):
        world.step()
    world.executor.failing_steps = frozenset({world.executor.num_steps + 1})
    world.step()
    host_pool = world.engine.scheduler.state.host_pool
    b = world.engine.scheduler.state.requests["b"]

    assert (b.host_blocks, host_pool.num_free) == ([], 9)
    world.run()
    for c in world.clients:
        assert world.texts[c.id] == alone(c)


def test_an_abort_of_a_swapped_request_gives_its_host_blocks_back():
    world = World(make_config(num_blocks=6, preemption_mode="swap", num_host_blocks=3), PAIR)
    world.arrive()
    while not preempted(world):
        world.step()
    world.engine.abort("b")

    assert world.engine.scheduler.state.host_pool.num_free == 3
    world.run()
    assert world.texts["a"] == alone(PAIR[0])


def test_what_a_failed_pass_wrote_into_a_tail_holder_s_head_is_not_read():
    # `a` lacks a block when only `b`, who waits, holds some: `b` loses its head to it, but the pass
    # fails. The head has been written, so `b` must compute it again.
    clients = [client("a", 8, 17), client("b", 8, 9)]
    options = {"num_blocks": 6, "preemption_extent": "tail"}
    whole = run_world(clients, **options)
    (strip,) = [e for e in preempted(whole) if e.slot is None]
    world = run_world(clients, failing_steps=[strip.step], **options)

    assert (strip.id, strip.blocks) == ("b", 2)
    for c in clients:
        assert (world.ends[c.id], world.texts[c.id]) == ([FinishReason.STOP], alone(c))


def test_protection_bounds_the_preemptions_of_each_request():
    clients = [client(id, 4, 14) for id in "abcde"]
    unbounded = run_world(clients, num_blocks=6, max_num_seqs=5, admission="now")
    bounded = run_world(clients, num_blocks=6, max_num_seqs=5, admission="now", max_preemptions=1)

    assert max(end.preemptions for end in finals(unbounded).values()) > 1
    assert max(end.preemptions for end in finals(bounded).values()) == 1
    assert bounded.texts == unbounded.texts
