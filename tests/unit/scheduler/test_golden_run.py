"""The contract's golden run: two requests, a pool of four blocks, one of them must yield."""

from builders import client, run_world

CLIENTS = [client("a", 4, 7), client("b", 6, 7)]


def preempted_at(world):
    return [(e.t, e.id, e.computed_tokens) for e in world.events if e.kind == "preempted"]


def test_shortage_preempts_the_newer_request_when_a_decode_lacks_a_block():
    world = run_world(CLIENTS, num_blocks=4)

    assert len(world.records) == 12
    assert preempted_at(world) == [(3, "b", 8)]
    assert [r.emitted for r in world.records[:3]] == [["a", "b"]] * 3
    assert [r.emitted for r in world.records[3:7]] == [["a"]] * 4
    assert world.records[6].finished == {"a": "stop"}
    assert world.records[7].scheduled == {"b": 8}
    assert world.records[7].emitted == []
    assert [r.emitted for r in world.records[8:]] == [["b"]] * 4
    ends = {e.id: e for e in world.events if e.kind == "finished"}
    assert ends["b"].recomputed_tokens == 8
    assert ends["b"].preemptions == 1


def test_stall_preempts_only_when_nothing_else_can_run():
    world = run_world(CLIENTS, num_blocks=4, preemption_trigger="stall")

    assert len(world.records) == 12
    assert preempted_at(world) == [(5, "b", 8)]
    assert [r.emitted for r in world.records[3:5]] == [["a"]] * 2
    deferred = [(e.t, e.id, e.reason, e.available) for e in world.events if e.kind == "deferred"]
    assert (3, "b", "kv_budget", 0) in deferred
    assert world.records[6].finished == {"a": "stop"}
    assert world.records[7].scheduled == {"b": 8}
    assert [r.emitted for r in world.records[8:]] == [["b"]] * 4


def test_preemption_is_invisible_in_the_text():
    crowded = run_world(CLIENTS, num_blocks=4)
    roomy = run_world(CLIENTS, num_blocks=64)

    assert crowded.texts == roomy.texts
