"""The prefix cache from outside: what is hit, what never is, and that texts do not change."""

import pytest
from builders import World, alone, client, finals, make_config, run_world

from everbatch.kv_cache.content import hash_block

CACHED = {"enable_prefix_caching": True}


def admissions(world, id):
    return [e.cached_tokens for e in world.events if e.kind == "admitted" and e.id == id]


def same(id, prompt_tokens, output_tokens, **options):
    """A client whose prompt is the start of one common stream."""
    return client(id, prompt_tokens, output_tokens, stream=0, **options)


@pytest.mark.parametrize(
    ("prompt_tokens", "hits"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
)
def test_at_least_one_token_is_left_to_compute(prompt_tokens, hits):
    second = same("b", prompt_tokens, 3, arrival=9)
    world = run_world([same("a", 16, 1), second], **CACHED)

    assert admissions(world, "b") == [hits]
    assert world.records[-3].scheduled == {"b": prompt_tokens - hits}
    assert finals(world)["b"].cached_tokens == hits
    assert world.texts["b"] == alone(second)


def test_nothing_is_hit_with_the_cache_off():
    world = run_world([same("a", 16, 1), same("b", 16, 1, arrival=2)])

    assert admissions(world, "b") == [0]


def test_later_requests_of_one_plan_hit_what_earlier_ones_fill():
    clients = [same("a", 12, 2), same("b", 12, 2), same("c", 10, 2)]
    world = run_world(clients, **CACHED)

    assert world.records[0].scheduled == {"a": 12, "b": 4, "c": 2}
    assert world.records[0].free_blocks == 64 - 3 - 1 - 1
    for c in clients:
        assert world.texts[c.id] == alone(c)


def test_a_plan_hits_only_what_its_chunks_fill():
    world = run_world(
        [same("a", 20, 1), same("b", 20, 1)], long_prefill_token_threshold=10, **CACHED
    )

    assert admissions(world, "b") == [8]


def test_a_waiting_request_looks_again_when_it_is_admitted():
    options = {"max_num_seqs": 1, **CACHED}
    world = run_world([same("a", 16, 2), same("b", 16, 2)], **options)

    assert admissions(world, "b") == [12]


def test_outputs_are_found_once_consumed():
    first = same("a", 6, 7)
    world = World(make_config(**CACHED), [first]).run()
    # Consumed: 6 + 6 tokens, 3 blocks; the last output is not.
    prompt = [*first.prompt, *world.texts["a"]]
    again = client("b", 0, 2, arrival=world.boundary)
    again.prompt = [*prompt, 7, 7, 7]
    world.add(again)
    while world.engine.has_work:
        world.step()

    assert admissions(world, "b") == [12]


def test_salts_part_the_cache():
    salted = same("b", 16, 2, arrival=4, cache_salt="b")
    twin = same("c", 16, 2, arrival=8, cache_salt="b")
    world = run_world([same("a", 16, 1), salted, twin], **CACHED)

    assert admissions(world, "b") == [0]
    assert admissions(world, "c") == [12]
    assert world.texts["b"] == alone(salted)


def test_a_rebuild_hits_what_is_still_cached():
    clients = [client("a", 4, 7), client("b", 6, 7)]
    cold = run_world(clients, num_blocks=4)
    warm = run_world(clients, num_blocks=4, **CACHED)

    assert admissions(cold, "b") == [0, 0]
    assert admissions(warm, "b") == [0, 4]
    assert finals(warm)["b"].recomputed_tokens == 4
    assert finals(warm)["b"].cached_tokens == 0
    assert warm.texts == cold.texts


def test_cached_blocks_are_evicted_before_anybody_is_preempted():
    clients = [client("old", 32, 1), client("a", 4, 20, arrival=1), client("b", 4, 20, arrival=1)]
    world = run_world(clients, num_blocks=12, **CACHED)

    assert "preempted" not in {e.kind for e in world.events}


def test_a_hit_block_is_not_taken_for_the_rest_of_its_reader():
    # Four blocks, all cached; the reader of two needs two more and must get the other two.
    second = client("b", 0, 1, arrival=2)
    first = client("a", 16, 1)
    second.prompt = [*first.prompt[:8], *range(8)]
    world = run_world([first, second], num_blocks=4, **CACHED)

    assert admissions(world, "b") == [8]
    assert world.texts["b"] == alone(second)


def test_c5_decoding_takes_a_block_at_the_end_of_one_and_indexes_the_full_one():
    world = World(make_config(block_size=16, num_blocks=10, **CACHED), [client("a", 55, 24)])
    free = []
    world.arrive()
    while world.engine.has_work:
        world.step()
        free.append(world.records[-1].free_blocks)

    # 55 tokens; after 9 decodes 64, so the tenth takes block 5.
    assert free[:11] == [6] * 10 + [5]
    assert world.engine.stats().num_cached_blocks == 4


def test_c9_a_refused_admission_leaves_the_readers_as_they_were():
    # `b` hits 6 blocks of `a` but would need more than there are.
    holder, other = client("a", 24, 9), client("b", 0, 1, arrival=1)
    other.prompt = [*holder.prompt, *range(12)]
    world = World(make_config(num_blocks=9, **CACHED), [holder, other])
    world.arrive()
    world.step()
    world.arrive()
    pool = world.engine.scheduler.state.pool
    readers = [pool.ref_count(block) for block in range(9)]
    world.step()

    assert readers == [1] * 6 + [0] * 3
    assert [pool.ref_count(block) for block in range(9)] == [1] * 7 + [0] * 2
    assert admissions(world, "b") == []

    world.run()

    assert world.texts["b"] == alone(other)


@pytest.mark.parametrize(
    "hasher", [lambda parent, tokens: b"", lambda parent, tokens: hash_block(parent, tokens)[:1]]
)
def test_colliding_hashes_change_no_text(hasher):
    clients = [
        client(id, length, 5, stream=stream, arrival=at)
        for at, (id, length, stream) in enumerate(
            [("a", 9, 0), ("b", 13, 0), ("c", 9, 1), ("d", 12, 1), ("e", 8, 2), ("f", 17, 0)]
        )
    ]
    world = World(make_config(num_blocks=10, **CACHED), clients)
    while world.boundary < 6 or world.engine.has_work:
        world.arrive()
        for request in world.engine.scheduler.state.requests.values():
            request.chain.hasher = hasher
        world.step()

    assert world.texts == {c.id: alone(c) for c in clients}


def test_a_failed_row_leaves_nothing_behind_to_be_hit():
    bad, next_one = same("a", 16, 4), same("b", 16, 2, arrival=6)
    world = World(make_config(**CACHED), [bad, next_one])
    world.executor.failing_outputs = {"a": 3}
    world.run()

    assert len(world.texts["a"]) == 2
    assert finals(world)["a"].reason == "error"
    assert finals(world)["a"].output_tokens == 2
    assert admissions(world, "b") == [0]
    assert world.texts["b"] == alone(next_one)


def test_a_block_that_a_failed_row_has_just_filled_is_not_hit():
    # With output 5 four outputs are consumed, and block 5 is full.
    bad = same("a", 16, 9)
    world = World(make_config(**CACHED), [bad])
    world.executor.failing_outputs = {"a": 5}
    world.run()

    assert len(world.texts["a"]) == 4
    assert world.engine.stats().num_free_blocks == 64


def test_hits_that_are_computed_after_all_count_as_recomputed():
    # `b` hits what `first` left, yields to `a`, and finds its blocks taken when it comes back.
    clients = [
        same("first", 8, 1),
        client("a", 3, 16, arrival=1),
        same("b", 12, 3, arrival=1),
    ]
    world = run_world(clients, num_blocks=5, **CACHED)

    assert admissions(world, "b") == [8, 0]
    assert finals(world)["b"].cached_tokens == 8
    # It had two outputs: 13 tokens of history, 8 of which it had not computed itself.
    assert finals(world)["b"].recomputed_tokens == 13
