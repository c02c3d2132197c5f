"""From wishes to an engine's sizes: what is chosen, and what is refused with which words."""

from typing import Any

import pytest

from everbatch.assemble.options import (
    DEFAULT_KV_CACHE_BYTES,
    EngineOptions,
    ResolvedOptions,
    scheduler_config,
)
from everbatch.base.errors import ConfigError
from everbatch.scheduler.config import SchedulerConfig

MODEL_MAX_LEN = 1_000
BLOCK_BYTES = 1 << 20
FREE_BYTES = 1 << 40


def resolve(*, free_bytes: int = FREE_BYTES, **options: Any) -> SchedulerConfig:
    return scheduler_config(EngineOptions(**options), MODEL_MAX_LEN, BLOCK_BYTES, free_bytes)


def test_default_pool_holds_the_longest_requests_of_all_slots() -> None:
    # 1,000 tokens take 63 blocks of 16.
    assert resolve(max_num_seqs=3).num_blocks == 3 * 63
    assert resolve(max_num_seqs=3, max_model_len=33).num_blocks == 3 * 3


def test_default_pool_is_bounded_in_bytes_and_by_a_quarter_of_what_is_free() -> None:
    assert resolve(max_num_seqs=1_000).num_blocks == DEFAULT_KV_CACHE_BYTES // BLOCK_BYTES
    assert resolve(free_bytes=400 * BLOCK_BYTES).num_blocks == 100
    assert resolve(free_bytes=0).num_blocks == 1


def test_memory_that_is_given_is_used_in_whole_blocks() -> None:
    assert resolve(kv_cache_memory=BLOCK_BYTES).num_blocks == 1
    assert resolve(kv_cache_memory=8 * BLOCK_BYTES - 1).num_blocks == 7
    assert resolve(kv_cache_memory=FREE_BYTES, max_num_seqs=1).num_blocks == 1 << 20
    assert resolve(num_blocks=5, kv_cache_memory=1).num_blocks == 5


def test_context_limit_is_the_model_s_or_what_the_pool_holds() -> None:
    assert resolve().max_model_len == MODEL_MAX_LEN
    assert resolve(num_blocks=10).max_model_len == 160


def test_context_limit_of_the_pool_and_one_beyond() -> None:
    # The last output is never consumed: 10 blocks of 16 hold 161 tokens.
    assert resolve(num_blocks=10, max_model_len=161).max_model_len == 161
    with pytest.raises(ConfigError, match=r"needs 11 KV blocks .*the pool has 10 .*to 161 or"):
        resolve(num_blocks=10, max_model_len=162)


def test_step_takes_whole_prompts_without_chunks() -> None:
    assert resolve().max_num_batched_tokens == 512
    assert resolve(enable_chunked_prefill=False).max_num_batched_tokens == MODEL_MAX_LEN
    short = resolve(enable_chunked_prefill=False, max_model_len=100)
    assert short.max_num_batched_tokens == 512
    assert (
        resolve(enable_chunked_prefill=False, max_num_batched_tokens=9).max_num_batched_tokens == 9
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block_size": 0}, r"block_size must lie in \[1, 4096\], got 0"),
        ({"block_size": 4097}, "got 4097"),
        ({"block_size": "16"}, "block_size must be an integer"),
        ({"max_num_seqs": 0}, "max_num_seqs .* got 0"),
        ({"max_num_seqs": -1}, "max_num_seqs .* got -1"),
        ({"max_num_seqs": 10**9}, r"max_num_seqs must lie in \[1, 65536\], got 1000000000"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 10**12}, "max_num_batched_tokens"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"num_blocks": 10**9}, "num_blocks"),
        ({"kv_cache_memory": 0}, "kv_cache_memory must be at least 1 byte, got 0"),
        ({"kv_cache_memory": 1.5}, "kv_cache_memory must be an integer"),
        ({"max_model_len": 1}, "max_model_len must be at least 2, a token in and a token out"),
        ({"max_model_len": 1 << 40}, "max_model_len"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"watermark": float("nan")}, r"watermark must lie in \[0, 1\), got nan"),
        ({"watermark": 2}, "watermark"),
        ({"admission": "later"}, "admission must be one of now, prompt"),
        ({"preemption_trigger": ""}, "preemption_trigger"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 1 << 64}, "seed must lie in"),
        ({"seed": True}, "seed must be an integer"),
    ],
)
def test_impossible_wish_is_refused_before_there_is_a_model(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineOptions(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_cache_memory": FREE_BYTES + 1}, r"more than the 1,024.0 GiB of memory .* ask for"),
        ({"kv_cache_memory": BLOCK_BYTES - 1}, r"holds no block: one block .* 1.0 MiB .*raise it"),
        ({"num_blocks": (1 << 20) + 1}, r"--num-blocks 1,048,577 .* at most 1,048,576"),
        ({"max_model_len": 1_001}, r"1,001 is more than the 1,000 tokens .* lower it"),
    ],
)
def test_wish_that_model_or_machine_cannot_meet_is_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(**options)


def test_description_tells_model_memory_and_budgets() -> None:
    config = resolve(num_blocks=10)
    resolved = ResolvedOptions(
        model_path="/models/x",
        model_name="x",
        dtype="float32",
        num_parameters=1_000_000,
        model_bytes=4_000_000,
        kv_cache_bytes=10 * BLOCK_BYTES,
        kv_bytes_per_block=BLOCK_BYTES,
        scheduler=config,
        seed=3,
    )
    told = dict(resolved.describe())

    assert told["model"] == "x  (/models/x)"
    assert told["parameters"] == "1,000,000 as float32, 3.8 MiB"
    assert told["kv blocks"] == (
        "10 of 16 tokens = 160 tokens, 10.0 MiB when all are used (1.0 MiB each)"
    )
    assert (told["max_model_len"], told["max_num_batched_tokens"]) == ("160", "512")
    assert resolved.header()["config"]["num_blocks"] == 10
