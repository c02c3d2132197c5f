"""More decodes than tokens in a step: they take turns, and prompts may have a share."""

from collections import Counter

import pytest
from builders import World, client, make_config, run_world


def served_in(world, num_steps):
    """Who got an output in each of the next steps."""
    served = []
    for _ in range(num_steps):
        result = world.step()
        served.append([output.request_id for output in result.outputs])
    return served


def decoding_world(num_decodes, limit):
    """All decode; then the budget is below their number for ever."""
    clients = [client(f"r{n}", 1, 300) for n in range(num_decodes)]
    config = make_config(
        max_num_seqs=num_decodes,
        max_num_batched_tokens=limit,
        min_prefill_tokens=1,
        num_blocks=999,
    )
    world = World(config, clients)
    world.arrive()
    while len([t for t in world.texts.values() if t]) < num_decodes:
        world.step()
    return world


@pytest.mark.parametrize(("num_decodes", "limit"), [(3, 2), (5, 2), (5, 4), (7, 3), (4, 1)])
def test_decodes_that_do_not_fit_are_served_equally_often(num_decodes, limit):
    world = decoding_world(num_decodes, limit)
    world.step()
    rounds = 12
    counts = Counter(id for ids in served_in(world, rounds * num_decodes) for id in ids)

    assert set(counts.values()) == {rounds * limit}


@pytest.mark.parametrize(("num_decodes", "limit"), [(3, 2), (5, 2), (7, 3), (4, 1)])
def test_nobody_waits_longer_than_one_round(num_decodes, limit):
    world = decoding_world(num_decodes, limit)
    longest = -(-num_decodes // limit)
    unserved = Counter()
    for ids in served_in(world, 60):
        for id in world.texts:
            unserved[id] = 0 if id in ids else unserved[id] + 1
            assert unserved[id] < longest


def test_a_share_serves_prompts_beside_decodes_that_would_fill_every_step():
    clients = [client(f"r{n}", 1, 40) for n in range(4)] + [client("late", 12, 1, arrival=6)]
    options = {"max_num_seqs": 5, "max_num_batched_tokens": 4}
    without = run_world(clients, **options)
    shared = run_world(clients, min_prefill_tokens=2, **options)
    aged = run_world(clients, prefill_aging_steps=3, **options)

    def first_token(world):
        return next(r.step for r in world.records if "late" in r.emitted)

    assert first_token(without) > 40
    # Six steps with two tokens each, from the step after its arrival.
    assert first_token(shared) == 12
    # Four tokens once every three steps.
    assert first_token(aged) <= 6 + 3 * 4


def test_a_share_that_nobody_can_use_holds_nobody_up():
    # The victim's rebuild may not use the share, and the fresh prompt behind it may not pass.
    clients = [client("a", 5, 9), client("b", 8, 6), client("c", 4, 4, arrival=3)]
    world = run_world(clients, num_blocks=4, max_num_batched_tokens=8, min_prefill_tokens=8)

    assert all(ends[0].value == "stop" for ends in world.ends.values())
