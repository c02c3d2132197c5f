"""From wishes to an engine's sizes: what is chosen, and what is refused with which words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everbatch.assemble.options import (
    DEFAULT_KV_CACHE_BYTES,
    MAX_SWAP_SPACE_GIB,
    EngineOptions,
    scheduler_config,
)
from everbatch.assemble.resolved import ResolvedOptions
from everbatch.base.errors import ConfigError
from everbatch.scheduler.config import PreemptionCosts, SchedulerConfig, TenantConfig
from everbatch.workload.engine_section import DEFAULTS

MODEL_MAX_LEN = 1_000
BLOCK_BYTES = 1 << 20
FREE_BYTES = 1 << 40
LOG = Path("log")


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


def test_context_limit_is_the_model_s_or_what_the_pool_holds() -> None:
    assert resolve().max_model_len == MODEL_MAX_LEN
    # The last output is never consumed.
    assert resolve(num_blocks=10).max_model_len == 161


def test_context_limit_of_the_pool_and_one_beyond() -> None:
    assert resolve(num_blocks=10, max_model_len=161).max_model_len == 161
    with pytest.raises(ConfigError, match=r"needs 11 .*has 10 .*to 161 or raise --num-blocks"):
        resolve(num_blocks=10, max_model_len=162)
    with pytest.raises(ConfigError, match="to 161 or raise --kv-cache-memory"):
        resolve(kv_cache_memory=10 * BLOCK_BYTES, max_model_len=162)


def test_step_takes_whole_prompts_without_chunks() -> None:
    assert resolve().max_num_batched_tokens == 512
    assert resolve(enable_chunked_prefill=False).max_num_batched_tokens == MODEL_MAX_LEN
    short = resolve(enable_chunked_prefill=False, max_model_len=100)
    assert short.max_num_batched_tokens == 512
    assert (
        resolve(enable_chunked_prefill=False, max_num_batched_tokens=9).max_num_batched_tokens == 9
    )


def test_every_option_of_a_scenario_is_one_of_ours_with_the_same_default() -> None:
    ours, resolved = EngineOptions(), resolve(max_num_seqs=4, num_blocks=8)
    # Sizes that a server finds by itself, and what it has always switched on.
    own = {"max_model_len", "enable_prefix_caching", "num_host_blocks"}

    assert [name for name in DEFAULTS if not hasattr(ours, name)] == []
    assert {name: getattr(ours, name) for name in DEFAULTS if name not in own} == {
        name: value for name, value in DEFAULTS.items() if name not in own
    }
    assert resolved.num_host_blocks == DEFAULTS["num_host_blocks"]


def test_every_option_reaches_the_scheduler() -> None:
    wished: dict[str, Any] = {
        "batching": "static",
        "num_host_blocks": 3,
        "min_prefill_tokens": 5,
        "prefill_aging_steps": 6,
        "policy": "priority",
        "aging_steps": 7,
        "backfill": "safe",
        "admission": "reserve",
        "watermark": 0.5,
        "preemption_trigger": "stall",
        "preemption_mode": "swap",
        "preemption_extent": "tail",
        "preemption_victim": "largest",
        "max_preemptions": 8,
        "max_queue_requests": 9,
        "max_queue_tokens": 10,
        "tenants": {"a": TenantConfig(1.0, 30)},
    }
    config = resolve(**wished)

    assert {name: getattr(config, name) for name in wished} == wished
    assert config.preemption_costs is None


def test_host_tier_is_sized_in_bytes_or_blocks() -> None:
    assert resolve(host_cache_memory=BLOCK_BYTES).num_host_blocks == 1
    assert resolve(host_cache_memory=8 * BLOCK_BYTES - 1).num_host_blocks == 7
    assert resolve().num_host_blocks == 0


def test_swap_space_is_the_host_tier_in_gib() -> None:
    assert resolve(swap_space=1).num_host_blocks == (1 << 30) // BLOCK_BYTES
    assert resolve(swap_space=0.5, preemption_mode="swap").num_host_blocks == 512
    assert resolve(swap_space=0).num_host_blocks == 0


def test_swap_space_at_its_limit_and_beyond() -> None:
    at_limit = EngineOptions(swap_space=MAX_SWAP_SPACE_GIB)

    assert at_limit.host_cache_bytes == MAX_SWAP_SPACE_GIB << 30
    with pytest.raises(ConfigError, match=r"--swap-space must be .* in \[0, 1,048,576\], got 1"):
        EngineOptions(swap_space=MAX_SWAP_SPACE_GIB + 1)


def test_host_tier_may_take_all_that_the_kv_cache_leaves_and_no_more() -> None:
    free = 100 * BLOCK_BYTES

    assert resolve(free_bytes=free, num_blocks=60, num_host_blocks=40).num_host_blocks == 40
    with pytest.raises(ConfigError, match=r"--num-host-blocks wants .* 41 host blocks.* ask for"):
        resolve(free_bytes=free, num_blocks=60, num_host_blocks=41)
    with pytest.raises(ConfigError, match=r"--host-cache-memory wants .*lower --kv-cache-memory"):
        resolve(free_bytes=free, num_blocks=60, host_cache_memory=41 * BLOCK_BYTES)


@pytest.mark.parametrize("mode", ["swap", "auto"])
def test_swapping_without_a_host_tier_is_refused(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"{mode} moves KV blocks to a host tier.*--num-host-bl"):
        EngineOptions(preemption_mode=mode)

    assert resolve(preemption_mode=mode, num_host_blocks=1).preemption_mode == mode


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
        ({"kv_cache_memory": "512MiB"}, "must be a number of bytes, an integer, not '512MiB'"),
        ({"kv_cache_memory": 1 << 20, "num_blocks": 1}, "--kv-cache-memory and --num-blocks say"),
        ({"host_cache_memory": 1 << 20, "num_host_blocks": 1}, "say the same: give one of them"),
        ({"event_log": LOG, "event_log_max_size": 65_535}, "at least 65536 bytes, got 65535"),
        ({"event_log": LOG, "event_log_max_size": 1e9}, "must be a number of bytes, an integer"),
        ({"event_log_max_size": 65_536}, "give --event-log, too"),
        ({"swap_space": 1, "num_host_blocks": 1}, "--num-host-blocks and --swap-space say"),
        ({"aging_steps": 3}, "aging_steps is 3, but the policy is fcfs .* --policy priority"),
        ({"policy": "vtc", "aging_steps": 3}, "aging_steps is 3, but the policy is vtc"),
        ({"tenants": {"a": TenantConfig()}}, "weight 1, but the policy is fcfs .* --policy vtc"),
        ({"tenants": {"a": TenantConfig(2.0, 9)}}, "tenant a has the weight 2, but the policy"),
        ({"max_model_len": 1}, "max_model_len must be at least 2, a token in and a token out"),
        ({"max_model_len": 1 << 40}, "max_model_len"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"watermark": float("nan")}, r"watermark must lie in \[0, 1\), got nan"),
        ({"watermark": 2}, "watermark"),
        ({"admission": "later"}, "admission must be one of now, prompt"),
        ({"preemption_trigger": ""}, "preemption_trigger"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching"),
        ({"num_host_blocks": -1}, r"num_host_blocks must lie in \[0, "),
        ({"swap_space": -0.5}, r"--swap-space must be a number of GiB in \[0, .*got -0.5"),
        ({"swap_space": float("nan")}, "--swap-space must be a number of GiB.*got nan"),
        ({"swap_space": "4"}, "swap_space must be a number of GiB, not '4'"),
        ({"swap_space": True}, "swap_space must be a number of GiB, not True"),
        ({"swap_space": 1, "host_cache_memory": 1}, "--host-cache-memory and --swap-space say"),
        ({"host_cache_memory": 0}, "host_cache_memory must be at least 1 byte, got 0"),
        ({"min_prefill_tokens": 513}, "min_prefill_tokens 513 is above max_num_batched_tokens 512"),
        ({"batching": "dynamic"}, "batching must be one of continuous, static, got 'dynamic'"),
        ({"policy": "lifo"}, "policy must be one of fcfs, priority, srpt, vtc"),
        ({"backfill": True}, "backfill must be one of"),
        ({"preemption_mode": "drop"}, "preemption_mode must be one of recompute, swap, auto"),
        ({"preemption_victim": "oldest"}, "preemption_victim must be one of"),
        ({"max_queue_requests": -1}, "max_queue_requests"),
        ({"tenants": ["a"]}, "tenants must be a mapping"),
        ({"tenants": {"a": 2.0}}, "tenants must map names to TenantConfig, not 'a' to 2.0"),
        ({"tenants": {"": TenantConfig()}}, "tenants must map names"),
        ({"kernels": "numpy"}, "kernels must be one of auto, native, reference, not 'numpy'"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"threads": 1025}, "threads must be at most 1,024, got 1,025"),
        ({"threads": 1.5}, "threads must be an integer"),
        ({"pin_threads": 1}, "pin_threads must be True or False, not 1"),
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
        ({"swap_space": 0.0001}, r"--swap-space .* holds no block.*raise it"),
        (
            {"host_cache_memory": BLOCK_BYTES - 1},
            r"--host-cache-memory .* holds no block.*raise it",
        ),
        ({"max_model_len": 1_001}, r"1,001 is more than the 1,000 tokens .* lower it"),
    ],
)
def test_wish_that_model_or_machine_cannot_meet_is_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(**options)


def resolved_options(config: SchedulerConfig) -> ResolvedOptions:
    return ResolvedOptions(
        model_path="/models/x",
        model_name="x",
        dtype="float32",
        kernels="reference (numpy)",
        num_parameters=1_000_000,
        model_bytes=4_000_000,
        kv_cache_bytes=10 * BLOCK_BYTES,
        kv_bytes_per_block=BLOCK_BYTES,
        model_max_len=MODEL_MAX_LEN,
        scheduler=config,
        seed=3,
    )


def test_description_tells_the_bound_of_the_workspace_where_it_is_known() -> None:
    resolved = replace(resolved_options(resolve(num_blocks=10)), max_workspace_bytes=3 << 20)

    assert dict(resolved.describe())["workspace"] == "at most 3.0 MiB, for 512 tokens"


def test_description_tells_model_memory_and_budgets() -> None:
    resolved = resolved_options(resolve(num_blocks=10))
    told = dict(resolved.describe())

    assert told["model"] == "x  (/models/x)"
    assert told["parameters"] == "1,000,000 as float32, 3.8 MiB"
    assert told["kv blocks"] == (
        "10 of 16 tokens = 160 tokens, 10.0 MiB when all are used (1.0 MiB each)"
    )
    assert (told["max_model_len"], told["max_num_batched_tokens"]) == ("161", "512")
    assert (told["batching"], told["policy"]) == ("continuous", "fcfs")
    assert told["preemption"] == "on shortage, recompute, whole, newest"
    assert "host blocks" not in told
    assert "workspace" not in told
    assert "aging_steps" not in told


def test_description_tells_what_was_changed() -> None:
    config = resolve(
        num_blocks=10,
        num_host_blocks=4,
        preemption_mode="auto",
        policy="vtc",
        backfill="greedy",
        max_queue_tokens=9_000,
        tenants={"a": TenantConfig(2.0, 30), "b": TenantConfig()},
    )
    measured = replace(config, preemption_costs=PreemptionCosts(1_500, 2_000_000))
    described = resolved_options(measured).describe()
    told = dict(described)

    assert told["host blocks"] == "4, 4.0 MiB when all are used"
    assert told["preemption"] == (
        "on shortage, auto, whole, newest; measured: 1.5 µs to move a block out and in, "
        "2.000 ms to compute a token"
    )
    assert (told["backfill"], told["max_queue_tokens"]) == ("greedy", "9,000")
    assert [value for name, value in described if name == "tenant"] == [
        "a: weight 2, at most 30 requests a minute",
        "b: weight 1, any number of requests",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_blocks": 32}, []),
        ({"num_blocks": 31}, ["the KV cache holds 496 tokens"]),
        ({"max_num_batched_tokens": 128}, []),
        ({"max_num_batched_tokens": 127}, ["up to 127 decodes can take all 127 tokens"]),
        ({"max_num_batched_tokens": 127, "min_prefill_tokens": 1}, []),
        ({"max_num_batched_tokens": 127, "prefill_aging_steps": 1}, []),
    ],
)
def test_options_that_will_surprise_are_warned_of(
    options: dict[str, Any], words: list[str]
) -> None:
    told = resolved_options(resolve(**options)).warnings()

    assert [word in warning for word, warning in zip(words, told, strict=True)] == [True] * len(
        told
    )


def test_header_of_the_event_log_is_json() -> None:
    config = resolve(num_blocks=10, policy="vtc", tenants={"a": TenantConfig(2.0, 30)})

    header = json.loads(json.dumps(resolved_options(config).header()))

    assert header["config"]["num_blocks"] == 10
    assert header["config"]["tenants"] == {"a": {"weight": 2.0, "max_requests_per_minute": 30}}
