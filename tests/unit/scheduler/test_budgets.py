"""The three budgets and the reasons they give: slots, query tokens, KV blocks."""

from builders import World, client, deferrals, make_config, run_world

from everbatch.scheduler.planner import Planner


def started(*clients, steps=1, **options):
    """A world after its first `steps` calls."""
    world = World(make_config(**options), clients)
    for _ in range(steps):
        world.arrive()
        world.leave()
        world.step()
    return world


def many(count, prompt_tokens, output_tokens, **options):
    return [client(f"d{i}", prompt_tokens, output_tokens, **options) for i in range(count)]


def test_a_fifth_request_waits_for_one_of_four_slots():
    world = started(*many(5, 4, 3))

    assert list(world.records[0].scheduled) == ["d0", "d1", "d2", "d3"]
    assert deferrals(world) == [(1, "d4", "sequence_budget", 1, 0)]


def test_a_slot_freed_at_a_boundary_is_taken_in_the_next_step():
    world = run_world([*many(3, 4, 9), client("short", 4, 3), client("next", 4, 1)])

    assert world.records[2].finished == {"short": "stop"}
    assert world.records[3].scheduled == {"next": 4}


def test_without_chunks_a_prompt_waits_for_all_its_tokens():
    world = run_world(
        [client("a", 480, 2), client("b", 50, 1)], num_blocks=256, enable_chunked_prefill=False
    )

    assert world.records[0].scheduled == {"a": 480}
    assert deferrals(world) == [(1, "b", "token_budget", 50, 32)]
    assert world.records[1].scheduled == {"b": 50}


def test_with_chunks_a_prompt_takes_what_is_left():
    world = run_world([client("a", 480, 2), client("b", 50, 1)], num_blocks=256)

    assert world.records[0].scheduled == {"a": 480, "b": 32}
    assert world.records[1].scheduled == {"b": 18}
    assert deferrals(world) == []


def test_a_prompt_waits_for_four_blocks_when_two_are_free():
    world = started(client("a", 24, 1, max_tokens=2), client("b", 16, 1), num_blocks=8)

    assert world.records[0].scheduled == {"a": 24}
    assert deferrals(world) == [(1, "b", "kv_budget", 4, 2)]


def test_a_prompt_of_four_blocks_is_admitted_when_ten_are_free():
    world = started(client("a", 24, 2), client("b", 16, 2), num_blocks=16)

    assert world.records[0].scheduled == {"a": 24, "b": 16}
    assert world.records[0].free_blocks == 6


def test_decodes_take_new_blocks_only_at_block_ends():
    clients = [client("a", 28, 5), client("b", 15, 5), client("c", 35, 5, arrival=1)]
    world = started(*clients, steps=2, block_size=16, num_blocks=9)

    first, second = world.records
    assert first.scheduled == {"a": 28, "b": 15}
    assert first.free_blocks == 6
    assert (second.scheduled, second.decodes) == ({"c": 35}, 2)
    assert second.free_blocks == 3


def test_the_head_that_does_not_fit_ends_the_scan():
    # vLLM's V3: the later short ones may not overtake.
    clients = [client("a", 800, 1), client("b", 800, 1), client("c", 10, 1), client("d", 10, 1)]
    options = {"max_num_batched_tokens": 1024, "num_blocks": 1024}
    whole = started(*clients, enable_chunked_prefill=False, **options)
    chunked = started(*clients, **options)

    assert whole.records[0].scheduled == {"a": 800}
    assert deferrals(whole) == [
        (1, "b", "token_budget", 800, 224),
        (1, "c", "behind_head", 0, 0),
        (1, "d", "behind_head", 0, 0),
    ]
    assert chunked.records[0].scheduled == {"a": 800, "b": 224}


def test_the_whole_prompt_must_fit_though_its_first_chunk_would():
    clients = [client("a", 16, 8), client("b", 16, 1)]
    options = {"num_blocks": 7, "max_num_batched_tokens": 24, "long_prefill_token_threshold": 0}
    gated = started(*clients, **options)
    at_once = started(*clients, admission="now", **options)

    assert gated.records[0].scheduled == {"a": 16}
    assert deferrals(gated) == [(1, "b", "kv_budget", 4, 3)]
    assert at_once.records[0].scheduled == {"a": 16, "b": 8}


def test_the_gate_counts_what_admitted_prompts_still_need():
    # Each prompt of 4 blocks fits the 7, both do not; the first chunk of `a` takes only one.
    clients = [client("a", 16, 1), client("b", 16, 1)]
    options = {"num_blocks": 7, "long_prefill_token_threshold": 4}
    world = started(*clients, **options)

    assert world.records[0].scheduled == {"a": 4}
    assert deferrals(world) == [(1, "b", "kv_budget", 7, 6)]


def test_the_watermark_holds_while_somebody_runs_and_only_then():
    options = {"num_blocks": 10, "watermark": 0.3}
    alone = started(client("a", 40, 1), **options)
    second = started(client("a", 16, 2), client("b", 16, 2), **options)
    third = started(client("a", 16, 2), client("b", 12, 2), **options)

    assert alone.records[0].scheduled == {"a": 40}
    assert second.records[0].scheduled == {"a": 16}
    assert deferrals(second) == [(1, "b", "kv_budget", 7, 6)]
    assert third.records[0].scheduled == {"a": 16, "b": 12}


def test_a_waiting_prompt_takes_what_500_decodes_leave():
    clients = [*many(500, 1, 6), client("p", 30, 1, arrival=1)]
    world = run_world(clients, max_num_seqs=501, num_blocks=2048)
    chunks = [record.scheduled for record in world.records[1:4]]

    assert chunks == [{"p": 12}, {"p": 12}, {"p": 6}]
    assert [record.decodes for record in world.records[1:4]] == [500] * 3


def test_without_chunks_it_waits_until_at_most_482_decode():
    clients = [*many(17, 1, 3), client("x", 1, 5), *many_long(482), client("p", 30, 1, arrival=1)]
    world = run_world(clients, max_num_seqs=501, num_blocks=2048, enable_chunked_prefill=False)

    assert [record.decodes for record in world.records[1:6]] == [500, 500, 483, 483, 482]
    assert [record.scheduled for record in world.records[1:6]] == [{}, {}, {}, {}, {"p": 30}]
    assert [d for d in deferrals(world) if d[1] == "p"] == [(2, "p", "token_budget", 30, 12)]


def many_long(count):
    return [client(f"l{i}", 1, 8) for i in range(count)]


def test_512_decodes_leave_nothing_for_a_prompt():
    clients = [*many(512, 1, 4), client("p", 30, 1, arrival=1)]
    world = run_world(clients, max_num_seqs=513, num_blocks=2048)

    assert [record.scheduled for record in world.records[1:4]] == [{}, {}, {}]
    assert deferrals(world) == [(2, "p", "token_budget", 30, 0)]
    assert world.records[4].scheduled == {"p": 30}


def test_decodes_that_fill_the_token_budget_keep_the_queue_waiting():
    clients = [client("a", 1, 4), client("b", 1, 6), client("c", 1, 2)]
    world = run_world(clients, max_num_batched_tokens=2)

    assert deferrals(world) == [(1, "c", "token_budget", 1, 0)]
    assert [r.emitted for r in world.records[3:5]] == [["a", "b"], ["c", "b"]]


def test_when_not_all_decodes_fit_the_longest_unserved_go_first():
    # Admission never lets so many in that they do not fit, so a smaller budget is put in later.
    world = started(*(client(id, 1, 9) for id in "abc"), steps=2)
    state = world.engine.scheduler.state
    known = world.engine.scheduler.deferrals.current
    planner = Planner(make_config(max_num_batched_tokens=2), state, world.executor.tokens, known)
    state.pool.begin()
    draft = planner.plan()
    state.pool.rollback()

    assert draft.num_decodes == 2
    assert [request.id for request in draft.left] == ["c"]
    assert {r.id: d.reason.value for r, d in draft.deferred.items()} == {"c": "token_budget"}


def test_slots_are_taken_lowest_first():
    clients = [
        client("a", 4, 2),
        client("b", 4, 4),
        client("c", 4, 3),
        client("d", 4, 1, arrival=3),
    ]
    world = run_world(clients)
    slots = {e.id: e.slot for e in world.events if e.kind == "admitted"}

    assert slots == {"a": 0, "b": 1, "c": 2, "d": 0}
