"""The prefix cache as other engines' users and tests met it. Blocks of 16, 10 of them, unless said.

Each docstring names the report or the test that it answers.
"""

import pytest
from builders import World, client, make_config, run_world
from command_line import request, run_scenario

SIZES = {"block_size": 16, "num_blocks": 10, "enable_prefix_caching": True}


def sharing(id, shared, own, output_tokens=1, text="common", **fields):
    pieces = [{"text": text, "tokens": shared}, *([{"tokens": own}] if own else [])]
    return request(id, prompt=pieces, output_tokens=output_tokens, **fields)


@pytest.mark.parametrize("prompt_tokens", [16, 32, 33, 47, 48])
def test_a_full_hit_leaves_at_least_one_token_to_compute(prompt_tokens):
    """vllm#30320, #53706: a hit of the whole prompt made a grant of 0."""
    run = run_scenario(
        sharing("a", prompt_tokens, 0), sharing("b", prompt_tokens, 0, arrival=2), **SIZES
    )
    hits = 16 * ((prompt_tokens - 1) // 16)

    assert run.request("b")["cached_tokens"] == hits
    assert run.chunks("b") == [prompt_tokens - hits]
    assert run.request("b")["output_tokens"] == 1


def test_a_full_hit_within_one_step_leaves_a_token_too():
    """vllm#30320: equal prompts that arrive together share the work of the first."""
    run = run_scenario(sharing("a", 48, 0), sharing("b", 48, 0), **SIZES)

    assert run.lines[1]["scheduled"] == {"a": 48, "b": 16}
    assert run.request("b")["cached_tokens"] == 32


def test_a_second_prompt_reads_three_blocks_and_takes_one():
    """vLLM's prefix tests: a prompt of 55, then one that shares 48 and has 5 of its own."""
    run = run_scenario(sharing("a", 48, 7, 9), sharing("b", 48, 5, 9, arrival=1), **SIZES)

    assert run.lines[1]["used_blocks"] == 4
    assert run.request("b")["cached_tokens"] == 48
    assert run.lines[2]["scheduled"]["b"] == 5
    assert (run.lines[2]["used_blocks"], run.lines[2]["free_blocks"]) == (5, 5)


def test_a_shared_block_stays_until_its_last_reader_leaves():
    """vLLM's prefix tests: both readers leave; then a third hits the same 48."""
    run = run_scenario(
        sharing("a", 48, 7, 3),
        sharing("b", 48, 5, 9, arrival=1),
        sharing("c", 48, 3, 1, arrival=15),
        **SIZES,
    )

    # a has left, its three full blocks are b's; its partial block is free.
    assert run.lines[4]["used_blocks"] == 4
    assert run.lines[10]["cached_blocks"] == 3
    assert run.request("c")["cached_tokens"] == 48


def test_decoding_takes_a_block_when_the_last_is_full_and_indexes_that():
    """vLLM's prefix tests: from 55, four tokens more need no block, nineteen more one."""
    run = run_scenario(request("a", 55, 30), **SIZES)
    used = {step: line["used_blocks"] for step, line in run.lines.items()}

    # After step s the cache holds 55 + s - 1 tokens.
    assert [used[s] for s in (1, 5, 10)] == [4, 4, 4]
    assert [used[s] for s in (11, 24, 26)] == [5, 5, 5]
    assert run.lines[30]["cached_blocks"] == 84 // 16


def test_a_block_that_is_used_again_is_not_found_any_more():
    """kvcached#362: an evicted block kept its old hash. vLLM's tests: reuse for a partial block."""
    run = run_scenario(
        sharing("a", 48, 0),
        request("filler", 150, 1, arrival=1),
        sharing("again", 48, 0, arrival=2),
        **SIZES,
    )

    assert run.lines[1]["cached_blocks"] == 3
    assert run.request("again")["cached_tokens"] == 0


def test_blocks_that_hit_but_leave_no_room_are_given_back_untouched():
    """vLLM's prefix tests: six blocks hit, the rest does not fit: reference counts as before."""
    run = run_scenario(
        sharing("a", 96, 0),
        request("holder", 32, 17, arrival=1),
        sharing("b", 96, 60, 1, arrival=2),
        **SIZES,
    )
    before, after = run.lines[2], run.lines[3]

    assert after["deferred"] == {"b": "kv_budget"}
    assert [before[key] for key in ("free_blocks", "cached_blocks", "used_blocks")] == [
        after[key] + change
        for key, change in (("free_blocks", 1), ("cached_blocks", 0), ("used_blocks", -1))
    ]
    assert run.request("b")["cached_tokens"] == 96


def test_a_conversation_hits_what_it_answered():
    """vLLM's tests of several turns: 100 + 200 tokens, then all 300 as a prompt: 12 to compute."""
    first = client("first", 100, 200)
    sizes = {"block_size": 16, "num_blocks": 64, "enable_prefix_caching": True}
    world = World(make_config(**sizes), [first]).run()
    second = client("second", 0, 3)
    second.prompt = [*first.prompt, *world.texts["first"]]
    world.clients, world.boundary = [second], 0
    world.executor.output_lengths["second"] = 3
    world.run()

    admitted = [event for event in world.events if event.kind == "admitted"]
    assert admitted[-1].cached_tokens == 288
    assert world.records[-3].scheduled == {"second": 12}


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_lookup_counts_once_however_often_it_was_deferred(enable_prefix_caching):
    """vLLM's tests of connectors: deferred three times; 48 tokens asked for once, 32 found."""
    world = run_world(
        [
            client("a", 32, 1, stream=1),
            client("holder", 70, 5, arrival=1),
            client("b", 48, 1, stream=1, arrival=2),
        ],
        block_size=16,
        num_blocks=7,
        enable_prefix_caching=enable_prefix_caching,
    )
    waited = [e for e in world.events if e.kind == "deferred" and e.id == "b"]
    stats = world.engine.stats()

    assert waited
    assert stats.prefix_cache_queries == 32 + 70 + 48
    assert stats.prefix_cache_hits == (32 if enable_prefix_caching else 0)


@pytest.mark.parametrize(("prompt_tokens", "later"), [(9, 1), (8, 4), (13, 1)])
def test_the_same_prompt_again_computes_its_last_tokens_only(prompt_tokens, later):
    """OpenVINO's tests: the first run computes the prompt, each later one a token.

    Here whole blocks are shared, so a prompt of exactly two computes its second block.
    """
    run = run_scenario(
        *(sharing(f"r{n}", prompt_tokens, 0, arrival=2 * n) for n in range(3)),
        enable_prefix_caching=True,
    )

    assert [run.chunks(f"r{n}") for n in range(3)] == [[prompt_tokens], [later], [later]]


def test_the_least_recently_used_is_evicted_first():
    """OpenVINO's and TGI's tests: the oldest content goes when nothing is free."""
    run = run_scenario(
        *(sharing(text, 32, 0, arrival=2 * n, text=text) for n, text in enumerate("abc")),
        sharing("a again", 32, 0, arrival=6, text="a"),
        request("filler", 100, 1, arrival=8),
        sharing("a third", 32, 0, arrival=10, text="a"),
        sharing("b again", 32, 0, arrival=12, text="b"),
        **SIZES,
    )

    assert run.request("a again")["cached_tokens"] == 16
    # The filler took 4 free blocks and the three oldest: a's second and those of b.
    assert run.request("a third")["cached_tokens"] == 16
    assert run.request("b again")["cached_tokens"] == 0


def test_overlapping_prompts_share_within_a_run():
    """SGLang's simulator tests: 150 and 150 tokens with 100 in common are 200."""
    run = run_scenario(
        sharing("a", 100, 50), sharing("b", 100, 50), block_size=10, enable_prefix_caching=True
    )

    assert run.summary["scheduled_tokens"] == 200


def test_salts_keep_equal_prompts_apart():
    """The kind behind all of these: what may not be shared is not found."""
    run = run_scenario(
        sharing("a", 48, 0, cache_salt="x"),
        sharing("b", 48, 0, arrival=2, cache_salt="y"),
        sharing("c", 48, 0, arrival=4, cache_salt="x"),
        **SIZES,
    )

    assert [run.request(id)["cached_tokens"] for id in "abc"] == [0, 0, 32]


def test_a_prompt_read_from_the_cache_gives_the_text_it_gives_without():
    """vllm#8268 and its kind: a warm cache changes nothing but the work."""
    clients = [client(str(n), 30, 6, arrival=7 * n, stream=1) for n in range(4)]
    warm, cold = (
        run_world(clients, block_size=4, num_blocks=64, enable_prefix_caching=cached)
        for cached in (True, False)
    )

    assert warm.texts == cold.texts
    assert warm.engine.stats().prefix_cache_hits > 0
