"""n > 1: samples share a prompt's blocks, copy a partial tail before they write, end one by one."""

import pytest
from builders import World, client, finals, make_config, run_world, spoken_text

from everbatch.base.sample_ids import request_of_sample, sample_id


def texts_of(c, counts):
    limit = c.output_tokens if c.max_tokens is None else c.max_tokens
    return {
        sample_id(c.id, sample): spoken_text(tuple(c.prompt), sample, min(limit, count))
        for sample, count in enumerate(counts)
    }


def blocks_taken(world):
    return [
        [id for id, blocks in e.blocks for _ in blocks] for e in world.events if e.kind == "step"
    ]


def test_the_last_to_write_keeps_the_partial_tail_and_the_others_copy_it():
    c = client("a", 6, 3, n=3)
    world = run_world([c], num_blocks=16)

    # The prompt takes two blocks once, then two samples of three copy the second of them.
    assert blocks_taken(world)[:2] == [["a/0", "a/0"], ["a/0", "a/1"]]
    assert finals(world)["a"].output_tokens == 9
    assert {id: world.texts[id] for id in c.sample_ids()} == texts_of(c, [3, 3, 3])


def test_a_prompt_of_whole_blocks_has_no_tail_to_copy():
    world = run_world([client("a", 8, 3, n=2)], num_blocks=16)

    assert blocks_taken(world)[:2] == [["a/0", "a/0"], ["a/0", "a/1"]]


@pytest.mark.parametrize("admission", ["prompt", "now", "peak", "reserve"])
def test_samples_fit_exactly_what_their_life_was_reckoned_to_need(admission):
    # One full block of the prompt is shared; then each needs ceil(13 / 4) - 1 = 3 of its own.
    c = client("a", 6, 8, n=3)
    world = run_world([c], num_blocks=10, admission=admission)

    assert {id: world.texts[id] for id in c.sample_ids()} == texts_of(c, [8, 8, 8])
    assert finals(world)["a"].preemptions == 0
    assert run_world([c], num_blocks=9, admission=admission).rejected


def test_with_lives_reserved_samples_never_lack_a_block_for_their_copies():
    clients = [client("a", 6, 8, n=3), client("b", 5, 9, n=2), client("c", 5, 9)]
    world = run_world(clients, num_blocks=17, max_num_seqs=6, admission="reserve")

    assert not [e for e in world.events if e.kind == "preempted"]
    assert not [e for e in world.events if e.kind == "deferred" and request_of_sample(e.id)]


def test_ids_of_samples_are_taken_while_they_live():
    world = World(make_config(), [client("a/1", 4, 4), client("a", 4, 4, n=2), client("b", 4, 4)])
    world.arrive()

    assert "id 'a/1' is being served" in world.rejected["a"]
    assert "a" not in world.engine.scheduler.state.groups


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("extent", ["whole", "tail"])
def test_samples_that_wait_for_their_prompt_yield_with_it_and_come_back(mode, extent):
    # The second prompt is in prefill, its sample waits for it, when the first lacks a block.
    clients = [client("a", 4, 12), client("b", 20, 3, n=2, arrival=1)]
    options = {"preemption_mode": mode, "preemption_extent": extent, "num_host_blocks": 9}
    world = run_world(clients, num_blocks=8, max_num_batched_tokens=3, admission="now", **options)
    victims = [e for e in world.events if e.kind == "preempted" and e.id == "b/0"]

    assert victims[0].computed_tokens < 20
    assert {id: world.texts[id] for id in ("b/0", "b/1")} == texts_of(clients[1], [3, 3])


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("extent", ["whole", "tail"])
def test_a_sample_that_was_to_copy_its_tail_may_yield_in_the_same_step(mode, extent):
    # In step 3 `b/0` and `b/1` copy the tail that all share; then `a` lacks two blocks. What the
    # copy of `b/1` would have held still stands in the shared tail, from where it is swapped out.
    clients = [client("a", 12, 1), client("b", 5, 4, n=3, priority=1)]
    world = run_world(
        clients,
        policy="priority",
        num_blocks=9,
        block_size=2,
        admission="now",
        long_prefill_token_threshold=4,
        preemption_mode=mode,
        preemption_extent=extent,
        num_host_blocks=20,
    )
    victims = [(e.step, e.id) for e in world.events if e.kind == "preempted"]

    assert victims[:2] == [(3, "b/2"), (3, "b/1")]
    assert {id: world.texts[id] for id in clients[1].sample_ids()} == texts_of(clients[1], [4] * 3)


@pytest.mark.parametrize("sample", [0, 1, 2])
@pytest.mark.parametrize("boundary", range(7))
def test_one_sample_may_leave_at_any_boundary(sample, boundary):
    c = client("a", 6, 5, n=3)
    world = World(make_config(max_num_batched_tokens=3), [c])
    world.arrive()
    for _ in range(boundary):
        world.step()
    world.engine.abort(sample_id("a", sample))
    world.run()
    ends = {id: world.ends[id][0].value for id in c.sample_ids()}

    assert ends.pop(sample_id("a", sample)) == ("abort" if boundary < 6 else "stop")
    assert set(ends.values()) == {"stop"}
    assert len(world.ends["a"]) == 1
    # The prompt is read once, whoever reads it.
    assert sum(sum(record.scheduled.values()) for record in world.records) == 6


def leaving_at(boundary, ids, clients, **options):
    """A world in which samples leave at a boundary, and the ids of the others."""
    world = World(make_config(**options), clients)
    while world.boundary < boundary:
        world.arrive()
        world.step()
    world.arrive()
    live = [id for id in ids if id in world.engine.scheduler.state.requests]
    for id in live:
        world.engine.abort(id)
    world.run()
    return world, live


@pytest.mark.parametrize("ids", [["b/0"], ["b/1"], ["b/0", "b/1"], ["b/2", "b/0"]])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("extent", ["whole", "tail"])
def test_samples_go_on_in_every_state_when_others_of_them_leave(ids, mode, extent):
    # The samples wait, read their prompt, yield for want of blocks, wait again, and decode.
    clients = [client("a", 4, 12), client("b", 20, 3, n=3, arrival=1)]
    options = {"preemption_mode": mode, "preemption_extent": extent, "num_host_blocks": 9}
    options |= {"num_blocks": 8, "max_num_batched_tokens": 3, "admission": "now"}
    for boundary in range(1, 40):
        world, left = leaving_at(boundary, ids, clients, **options)
        ends = {id: world.ends[id][0].value for id in clients[1].sample_ids()}
        expected = {id: "abort" if id in left else "stop" for id in ends}
        whole = texts_of(clients[1], [3, 3, 3])

        assert ends == expected
        assert {id: world.texts[id] for id in ends if id not in left} == {
            id: text for id, text in whole.items() if id not in left
        }


def test_who_goes_on_with_a_prompt_keeps_its_place_and_its_blocks():
    clients = [client("a", 8, 2, n=2), client("b", 8, 2), client("c", 4, 2)]
    options = {"max_num_seqs": 3, "max_num_batched_tokens": 3, "num_blocks": 64}
    world, left = leaving_at(2, ["a/0"], clients, **options)
    chunks = [chunk for e in world.events if e.kind == "step" for chunk in e.chunks]

    assert left == ["a/0"]
    assert chunks[:5] == [("a/0", 0, 3), ("a/0", 3, 3), ("a/1", 6, 2), ("b", 0, 1), ("b", 1, 2)]
    assert finals(world)["a"].output_tokens == 2


def test_a_sample_that_leaves_the_queue_leaves_its_place_to_the_next():
    clients = [
        client("a", 8, 6, n=2),
        client("b", 4, 2, n=2, tenant="x", arrival=1),
        client("c", 4, 2, tenant="y", arrival=1),
    ]
    for policy in ("fcfs", "priority", "srpt", "vtc"):
        world, _ = leaving_at(2, ["b/0"], clients, max_num_seqs=2, policy=policy)
        told = [e for e in world.events if e.kind == "deferred" and e.id in ("b", "c")]
        admitted = [e.id for e in world.events if e.kind == "admitted"]

        assert world.ends["b/1"][0].value == "stop"
        assert len(told) == len({(e.id, e.reason) for e in told})
        assert admitted == ["a/0", "a/1", "b/1", "c"]
        assert world.engine.scheduler.state.num_fresh_waiting == 0


def test_the_deadline_of_a_request_ends_all_samples_that_are_left():
    clients = [client("a", 8, 9, n=2), client("b", 4, 2, n=4, deadline=3)]
    world, _ = leaving_at(1, ["b/0"], clients)
    ends = {id: world.ends[id][0].value for id in clients[1].sample_ids()}

    assert ends.pop("b/0") == "abort"
    assert set(ends.values()) == {"deadline"}
    assert world.ends["b"][0].value == "abort"


@pytest.mark.parametrize("boundary", range(9))
def test_a_member_of_a_static_batch_may_leave_its_prompt_to_another_sample(boundary):
    clients = [client("a", 9, 3, n=2), client("b", 3, 5)]
    options = {"batching": "static", "max_num_batched_tokens": 4}
    world, left = leaving_at(boundary, ["a/0"], clients, **options)

    assert [reason.value for reason in world.ends["a/1"]] == ["stop"]
    assert world.texts["a/1"] == texts_of(clients[0], [3, 3])["a/1"]
    assert world.ends["a/0"][0].value == ("abort" if left else "stop")


@pytest.mark.parametrize(("failing", "end"), [({2}, "stop"), ({2, 3}, "error")])
def test_a_pass_that_fails_after_a_sample_took_over_is_tried_again(failing, end):
    config = make_config(max_num_batched_tokens=3)
    world = World(config, [client("a", 9, 3, n=3)], frozenset(failing))
    world.arrive()
    world.step()
    world.engine.abort("a/0")
    world.run()

    ends = {id: [reason.value for reason in world.ends[id]] for id in world.ends}
    whole = "error" if end == "error" else "abort"
    assert ends == {"a": [whole], "a/0": ["abort"], "a/1": [end], "a/2": [end]}


def test_a_sample_ends_by_itself_and_its_request_with_the_last():
    c = client("a", 4, 6, n=2)
    world = World(make_config(), [c])
    world.executor.output_lengths["a/1"] = 2
    world.run()

    assert [len(world.texts[id]) for id in c.sample_ids()] == [6, 2]
    assert world.ends["a/1"][0].value == "stop"
    assert finals(world)["a"].output_tokens == 8
