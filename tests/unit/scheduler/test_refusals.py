"""What can never run is refused when it arrives: both sides of every limit."""

import pytest
from builders import World, client, make_config

from everbatch.scheduler.admission import RejectReason, most_output_tokens, refusal

CHAT = {"num_blocks": 4096, "block_size": 16, "max_model_len": 100}


def refused(prompt_tokens, max_tokens, **options):
    return refusal(prompt_tokens, max_tokens, make_config(**options))


def test_a_prompt_that_fills_the_pool_is_accepted_with_one_output_and_refused_with_two():
    pool = {"num_blocks": 4, "block_size": 4}

    assert refused(16, 1, **pool) is None
    rejection = refused(16, 2, **pool, max_model_len=100)
    assert rejection.reason is RejectReason.KV_POOL
    assert (rejection.needed, rejection.limit) == (5, 4)


def test_without_a_context_limit_the_pool_is_the_limit():
    pool = {"num_blocks": 4, "block_size": 4}

    assert refused(1, 16, **pool) is None
    assert refused(1, 17, **pool) is not None
    assert refused(17, 1, **pool) is not None


@pytest.mark.parametrize("watermark", [0.0, 0.9])
def test_watermark_and_cache_do_not_enter(watermark):
    options = {"num_blocks": 4, "watermark": watermark, "enable_prefix_caching": True}

    assert refused(12, 5, **options) is None


def test_the_request_that_fills_the_pool_runs_to_its_end():
    world = World(make_config(num_blocks=4), [client("a", 16, 1), client("b", 1, 16)]).run()

    assert len(world.texts["a"]) == 1
    assert len(world.texts["b"]) == 16


def test_prompt_and_outputs_must_fit_the_context():
    assert refused(60, 40, **CHAT) is None
    rejection = refused(60, 41, **CHAT)
    assert rejection.reason is RejectReason.CONTEXT_LIMIT
    assert (rejection.needed, rejection.limit) == (101, 100)
    assert "60" in rejection.message
    assert "41" in rejection.message
    assert "max_model_len 100" in rejection.message
    assert "lower max_tokens to 40 or raise max_model_len, if the model" in rejection.message


def test_a_prompt_must_leave_room_for_one_output():
    assert refused(99, 1, **CHAT) is None
    rejection = refused(100, 1, **CHAT)
    assert rejection.reason is RejectReason.CONTEXT_LIMIT
    assert (rejection.needed, rejection.limit) == (101, 100)
    assert "prompt has 100 tokens, max_model_len is 100" in rejection.message
    assert "shorten it or raise max_model_len, if the model takes more" in rejection.message


@pytest.mark.parametrize("max_model_len", [0, 33])
def test_a_context_as_long_as_the_pool_is_no_model_s_limit(max_model_len):
    rejection = refused(33, 1, num_blocks=2, block_size=16, max_model_len=max_model_len)

    assert "prompt has 33 tokens, max_model_len is 33" in rejection.message
    assert "shorten it or make the KV cache larger (num_blocks)" in rejection.message


def test_one_is_told_as_one():
    assert (
        "prompt has 1 token and max_tokens is 40"
        in refused(1, 40, **CHAT | {"max_model_len": 9}).message
    )


def test_the_pool_s_refusal_names_value_limit_and_way_out():
    message = refused(9_000, 2_000, num_blocks=256, block_size=16, max_model_len=20_000).message

    assert "9,000 tokens and max_tokens 2,000" in message
    assert "need 688 KV blocks of 16, the pool has 256" in message
    assert "make the KV cache larger (num_blocks)" in message


def test_without_chunks_a_prompt_must_fit_one_step():
    options = {"max_num_batched_tokens": 32, "enable_chunked_prefill": False}

    assert refused(32, 5, **options) is None
    rejection = refused(33, 5, **options)
    assert rejection.reason is RejectReason.TOKEN_BUDGET
    assert (rejection.needed, rejection.limit) == (33, 32)
    assert "33 tokens, max_num_batched_tokens is 32" in rejection.message
    assert "switch enable_chunked_prefill on" in rejection.message


def test_with_chunks_a_longer_prompt_is_accepted():
    assert refused(33, 5, max_num_batched_tokens=32) is None


def test_empty_prompts_and_limits_below_one_are_refused():
    assert refused(0, 5).reason is RejectReason.EMPTY_PROMPT
    assert refused(1, 1) is None
    rejection = refused(5, 0)
    assert rejection.reason is RejectReason.MAX_TOKENS
    assert "max_tokens is 0, it must be at least 1" in rejection.message


@pytest.mark.parametrize("prompt_tokens", [1, 15, 16, 17, 98, 99])
@pytest.mark.parametrize("num_blocks", [2, 7, 4096])
def test_the_most_outputs_are_accepted_and_one_more_is_refused(prompt_tokens, num_blocks):
    options = {**CHAT, "num_blocks": num_blocks}
    most = most_output_tokens(prompt_tokens, make_config(**options))
    if most >= 1:
        assert refused(prompt_tokens, most, **options) is None
    assert refused(prompt_tokens, max(1, most + 1), **options) is not None


def test_a_refused_request_enters_no_queue_and_has_one_event():
    world = World(make_config(num_blocks=4), [client("a", 40, 1)]).run()

    assert [e.kind for e in world.events] == ["rejected"]
    assert world.engine.stats().num_waiting == 0
    assert world.engine.stats().num_rejected == 1
    assert world.engine.has_work is False


def test_an_id_that_is_being_served_is_refused_and_may_come_again_after_its_end():
    first, other = client("a", 4, 3, stream=1), client("a", 6, 3, stream=2)
    world = World(make_config(), [first])
    world.arrive()
    world.add(other)

    assert "a request with id 'a' is being served: use another id" in world.rejected["a"]

    world.run()
    text = world.texts["a"]
    again = World(make_config(enable_prefix_caching=True), [first]).run()
    again.add(other)
    while again.engine.has_work:
        again.step()

    assert len(text) == 3
    assert again.texts["a"] == World(make_config(), [other]).run().texts["a"]
