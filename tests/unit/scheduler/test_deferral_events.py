"""Reasons to wait are told when they change, once."""

from builders import World, client, deferrals, make_config, run_world


def of(world, id):
    return [(step, reason) for step, who, reason, _, _ in deferrals(world) if who == id]


def test_a_reason_that_stays_is_told_once():
    clients = [client("a", 4, 30), client("b", 4, 2)]
    world = run_world(clients, max_num_seqs=1)

    assert len(world.records) == 32
    assert of(world, "b") == [(1, "sequence_budget")]


def test_a_new_reason_is_told():
    # `b` waits for tokens first, for blocks later.
    clients = [client("x", 16, 1), client("a", 16, 8, arrival=0), client("b", 16, 1, arrival=1)]
    world = run_world(clients, max_num_batched_tokens=16, num_blocks=7)

    assert of(world, "b") == [(2, "token_budget"), (3, "kv_budget")]


def test_those_behind_the_head_are_told_so_once_and_again_when_they_are_head():
    clients = [client(id, 4, 5) for id in "abc"]
    world = run_world(clients, max_num_seqs=1)

    assert of(world, "c") == [(1, "behind_head"), (6, "sequence_budget")]


def test_a_newcomer_behind_a_waiting_head_is_told():
    clients = [client("a", 4, 9), client("b", 4, 1), client("c", 4, 1, arrival=4)]
    world = run_world(clients, max_num_seqs=1)

    assert of(world, "c")[0] == (5, "behind_head")


def test_when_the_head_leaves_the_next_one_is_told():
    clients = [client("a", 4, 9), client("b", 4, 1, abort_at=3), client("c", 4, 1)]
    world = run_world(clients, max_num_seqs=1)

    assert of(world, "c") == [(1, "behind_head"), (4, "sequence_budget")]


def test_a_victim_that_is_head_cools_down_and_the_head_it_displaced_is_behind_it():
    clients = [client("a", 4, 9), client("b", 4, 9), client("c", 4, 1)]
    world = run_world(clients, num_blocks=3, max_num_seqs=2)
    (preempted,) = [e for e in world.events if e.kind == "preempted"]

    assert (preempted.step, preempted.id) == (2, "b")
    assert of(world, "b")[:2] == [(2, "cooldown"), (3, "kv_budget")]
    assert of(world, "c")[:2] == [(1, "sequence_budget"), (2, "behind_head")]


def test_a_call_that_only_preempts_has_that_one_event():
    clients = [client("a", 4, 7), client("b", 6, 7)]
    world = World(make_config(num_blocks=4, preemption_trigger="stall"), clients)
    world.arrive()
    results = [world.step() for _ in range(6)]
    (call,) = [result for result in results if result.plan is None]

    assert [event.kind for event in call.events] == ["preempted"]


def test_who_runs_has_no_reason():
    world = run_world([client("a", 4, 9), client("b", 40, 9)], max_num_batched_tokens=8)

    assert len(world.records) > 10
    assert deferrals(world) == []
