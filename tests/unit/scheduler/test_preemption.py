"""Who yields when blocks run out, when it comes back, and what it costs."""

import pytest
from builders import alone, client, deferrals, finals, run_world


def preemptions(world):
    return [(e.step, e.id) for e in world.events if e.kind == "preempted"]


def step_of(world, id, kind):
    return [e.step for e in world.events if e.kind == kind and e.id == id]


@pytest.mark.parametrize("trigger", ["shortage", "stall"])
@pytest.mark.parametrize("caching", [False, True])
def test_texts_do_not_tell_who_was_preempted(trigger, caching):
    clients = [client(id, 5, 12) for id in "abcd"]
    world = run_world(
        clients, num_blocks=8, preemption_trigger=trigger, enable_prefix_caching=caching
    )

    assert preemptions(world)
    assert world.texts == {c.id: alone(c) for c in clients}


def test_the_newest_yields_whoever_asks():
    # `a` needs a block first; `c` came last.
    clients = [client("a", 8, 6), client("b", 6, 6), client("c", 6, 6)]
    world = run_world(clients, num_blocks=6)

    assert preemptions(world)[0] == (2, "c")


def test_the_requester_yields_if_it_is_the_newest():
    clients = [client("a", 5, 9), client("b", 8, 6)]
    world = run_world(clients, num_blocks=4)

    assert preemptions(world)[0] == (2, "b")
    assert step_of(world, "a", "preempted") == []


def test_the_oldest_never_yields():
    clients = [client(id, 4, 12) for id in "abcd"]
    world = run_world(clients, num_blocks=5, admission="now")

    assert "a" not in {id for _, id in preemptions(world)}


def test_nobody_is_admitted_in_a_step_that_preempted():
    # When `b` goes its blocks would do for `c`.
    clients = [client("a", 4, 9), client("b", 7, 9), client("c", 1, 1, arrival=1)]
    world = run_world(clients, num_blocks=4, max_num_seqs=2)
    (step, victim), *_ = preemptions(world)

    assert victim == "b"
    assert all(e.step != step for e in world.events if e.kind == "admitted")


def test_who_waits_while_others_yield_cools_down():
    # `b` decodes into the last block in step 2; `c` waits for a slot.
    clients = [client("a", 4, 9), client("b", 4, 9), client("c", 4, 1)]
    world = run_world(clients, num_blocks=3, max_num_seqs=2)
    (step, victim), *_ = preemptions(world)

    assert (step, victim) == (2, "b")
    assert [d for d in deferrals(world) if d[0] == 2] == [
        (2, "b", "cooldown", 0, 0),
        (2, "c", "behind_head", 0, 0),
    ]


def test_a_victim_comes_back_before_those_who_arrived_after_it():
    clients = [client("a", 4, 7), client("b", 6, 7), client("c", 4, 2, arrival=2)]
    world = run_world(clients, num_blocks=4)

    assert step_of(world, "b", "admitted")[1] <= step_of(world, "c", "admitted")[0]


def test_a_victim_without_outputs_comes_back_as_a_fresh_prompt():
    # `b` is in the middle of its prompt when `a` needs a block.
    clients = [client("a", 4, 6), client("b", 12, 2)]
    world = run_world(clients, num_blocks=4, long_prefill_token_threshold=4, admission="now")

    assert preemptions(world)[0][1] == "b"
    assert [e.emitted for e in world.events if e.kind == "decoding" and e.id == "b"] == [True]
    assert world.texts["b"] == alone(clients[1])


def test_a_rebuild_emits_nothing_and_decodes_its_pending_output_later():
    clients = [client("a", 4, 7), client("b", 6, 7)]
    world = run_world(clients, num_blocks=4)
    rebuilt = next(r for r in world.records if r.step == 8)

    assert rebuilt.scheduled == {"b": 8}
    assert rebuilt.emitted == []
    assert [e.emitted for e in world.events if e.kind == "decoding" and e.id == "b"] == [
        True,
        False,
    ]


@pytest.mark.parametrize("chunking", [False, True])
def test_a_rebuild_longer_than_a_step_comes_back_in_chunks(chunking):
    clients = [client("a", 4, 9), client("b", 4, 13)]
    world = run_world(
        clients, num_blocks=5, max_num_batched_tokens=5, enable_chunked_prefill=chunking
    )
    chunks = [r.scheduled["b"] for r in world.records if "b" in r.scheduled]

    assert preemptions(world)[0][1] == "b"
    assert len(chunks) > 2
    assert max(chunks) <= 5
    assert world.texts["b"] == alone(clients[1])


def test_recomputed_tokens_are_those_computed_before():
    clients = [client("a", 4, 7), client("b", 6, 7)]
    world = run_world(clients, num_blocks=4)

    assert finals(world)["a"].recomputed_tokens == 0
    assert finals(world)["b"].recomputed_tokens == 8
    assert world.engine.stats().recomputed_tokens == 8
    assert world.engine.stats().num_preemptions == 1


def test_stall_lets_the_others_go_on():
    clients = [client("a", 4, 7), client("b", 6, 7)]
    world = run_world(clients, num_blocks=4, preemption_trigger="stall")

    assert (4, "b", "kv_budget", 1, 0) in deferrals(world)
    assert [r.emitted for r in world.records[3:5]] == [["a"], ["a"]]


def test_a_stalled_decode_goes_on_when_blocks_come_back():
    clients = [client("a", 4, 4), client("b", 8, 9)]
    world = run_world(clients, num_blocks=4, preemption_trigger="stall")

    assert preemptions(world) == []
    assert (2, "b", "kv_budget", 1, 0) in deferrals(world)
    assert world.texts["b"] == alone(clients[1])


def test_a_block_that_comes_back_goes_to_the_most_senior_who_lacks_one():
    # `a` stalls in step 2; in step 3 `b` is full too, and `c` has left one block.
    clients = [client("a", 4, 4), client("b", 3, 4), client("c", 3, 2)]
    world = run_world(clients, num_blocks=3, preemption_trigger="stall")

    assert [r.emitted for r in world.records[1:3]] == [["b", "c"], ["a"]]
    assert [d[:3] for d in deferrals(world)] == [(2, "a", "kv_budget"), (3, "b", "kv_budget")]


def test_a_victim_gives_back_the_block_that_the_plan_gave_it():
    # In step 2 `b` decodes into the last block; then `a`, whose prompt is older, lacks one.
    clients = [client("a", 12, 1), client("b", 4, 3)]
    world = run_world(clients, num_blocks=3, long_prefill_token_threshold=4, admission="now")

    assert preemptions(world)[0] == (2, "b")
    assert world.records[1].scheduled == {"a": 4}
    assert world.records[1].decodes == 0
    assert world.records[1].free_blocks == 1
    assert world.texts == {c.id: alone(c) for c in clients}


def test_deferred_calls_in_a_row_are_at_most_the_slots():
    clients = [client(id, 4, 8) for id in "abcd"]
    world = run_world(clients, num_blocks=4, preemption_trigger="stall")
    ran = {e.t for e in world.events if e.kind == "step"}
    per_boundary = {}
    for e in world.events:
        if e.kind == "preempted":
            per_boundary[e.t] = per_boundary.get(e.t, 0) + 1

    assert per_boundary
    assert max(per_boundary.values()) <= 4
    assert set(per_boundary) <= ran


def test_openvino_o1_the_newest_of_three_yields_and_is_rebuilt_whole():
    # OpenVINO GenAI, scheduler.cpp: 6 blocks of 4, three prompts of 8.
    clients = [client(id, 8, 3) for id in "abc"]
    world = run_world(clients, num_blocks=6, max_num_batched_tokens=32)

    assert world.records[0].scheduled == {"a": 8, "b": 8, "c": 8}
    assert world.records[1].emitted == ["a", "b"]
    assert preemptions(world) == [(2, "c")]
    assert [r.scheduled["c"] for r in world.records if "c" in r.scheduled] == [8, 8]
    assert finals(world)["c"].recomputed_tokens == 8


def test_a_request_aborted_when_its_blocks_are_full_takes_no_block():
    clients = [client("a", 4, 9), client("b", 4, 9, abort_at=5), client("c", 4, 9)]
    world = run_world(clients, num_blocks=12)

    assert [r.free_blocks for r in world.records[3:6]] == [6, 6, 6]
    assert len(world.texts["b"]) == 5
    assert world.texts["c"] == alone(clients[2])
