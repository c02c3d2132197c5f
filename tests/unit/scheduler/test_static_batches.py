"""Static batching: batches form and end as a whole; the closed form of their steps."""

from random import Random

import pytest
from builders import client, finals, run_world


def admitted(world):
    return {e.id: e.step for e in world.events if e.kind == "admitted"}


def closed_form(lengths, num_slots):
    """Steps at which each request ends: batch after batch, each as long as its longest.

    One step reads all prompts and emits the first outputs.
    """
    ends, start = [], 0
    for at in range(0, len(lengths), num_slots):
        batch = lengths[at : at + num_slots]
        ends += [start + length for length in batch]
        start += max(batch)
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_static_equals_its_closed_form(seed):
    draw = Random(seed)
    num_slots = draw.randint(1, 5)
    lengths = [draw.randint(1, 12) for _ in range(draw.randint(1, 17))]
    clients = [client(f"r{n}", draw.randint(1, 9), length) for n, length in enumerate(lengths)]
    world = run_world(clients, batching="static", max_num_seqs=num_slots, num_blocks=64)
    ends = finals(world)

    expected = closed_form(lengths, num_slots)
    assert [ends[c.id].step for c in clients] == expected
    assert len(world.records) == max(expected)


def test_nobody_joins_a_batch_and_its_slots_stay_taken():
    clients = [client("a", 4, 9), client("b", 4, 2), client("late", 4, 2, arrival=1)]
    world = run_world(clients, batching="static", max_num_seqs=4)

    assert admitted(world) == {"a": 1, "b": 1, "late": 10}
    reasons = [(e.id, e.reason) for e in world.events if e.kind == "deferred"]
    assert reasons == [("late", "static_batch")]


def test_a_batch_takes_who_fits_with_its_whole_life():
    # Each life takes 3 blocks; the pool has 7.
    clients = [client(id, 6, 6) for id in "abc"]
    world = run_world(clients, batching="static", num_blocks=7)

    assert admitted(world) == {"a": 1, "b": 1, "c": 7}
    assert not [e for e in world.events if e.kind == "preempted"]


def test_who_ends_gives_its_blocks_back_at_once():
    clients = [client("a", 4, 9), client("b", 8, 2)]
    world = run_world(clients, batching="static", num_blocks=8)

    # After `b` ended in step 2 only `a` holds blocks: two, of 5 tokens.
    assert world.records[1].free_blocks == 6


def test_a_batch_forms_when_the_last_member_was_aborted():
    clients = [client("a", 4, 30, abort_at=3), client("b", 4, 2), client("c", 4, 2)]
    world = run_world(clients, batching="static", max_num_seqs=2)

    assert admitted(world)["c"] == 4
    assert world.texts["c"]


def test_samples_of_a_static_batch_are_masked_one_by_one():
    world = run_world([client("a", 5, 4, n=3), client("b", 4, 9)], batching="static")

    assert finals(world)["a"].step == 4
    assert finals(world)["b"].step == 9
