"""Greedy text stays transformers' under every way to run out of room, in samples and in batches.

The first rows swap, keep tails, run closed batches; each says what must have happened, so that
none passes by doing nothing. `make test-long` runs them on all prompts with 48 tokens each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from models import golden
from models.golden import GoldenPrompt
from models.real_engine import RealEngine, RealRun, greedy, make_request, run_requests

from everbatch.base.sample_ids import sample_id
from everbatch.engine.sampling_params import SamplingParams
from everbatch.kernels.random_numbers import seed_for
from everbatch.models.llama import LlamaForCausalLM
from everbatch.scheduler.config import PreemptionCosts, SchedulerConfig
from everbatch.scheduler.request import FinishReason

pytestmark = pytest.mark.model

NAMES = (
    *("one_token", "one_block_and_one", "two_blocks_chinese", "chat_capital"),
    *("emoji", "four_blocks_then_queues"),
)
NUM_OUTPUTS = 16
# Six requests want 23 blocks of 16; the largest alone takes 7.
TIGHT, ROOMY = 12, 64
# A block moves in the time of 15 tokens: swapping pays where the last block is nearly full.
COSTS = PreemptionCosts(swap_ns_per_block=15, recompute_ns_per_token=1)


@dataclass(frozen=True, slots=True)
class Row:
    """Options, and the ways of preemption that they must lead to, all of them and no others."""

    name: str
    options: dict[str, Any]
    ways: frozenset[str] = field(default_factory=frozenset)
    full_options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def row(name: str, *ways: str, full: dict[str, Any] | None = None, **options: Any) -> Row:
    return Row(name, options, frozenset(ways), full or {})


ROWS = [
    row("swap", "swap", preemption_mode="swap", num_host_blocks=64, full={"num_host_blocks": 999}),
    row(
        "swap-tiny-host",
        "swap",
        "recompute",
        preemption_mode="swap",
        num_host_blocks=3,
        full={"num_host_blocks": 8},
    ),
    # Who holds one block only has no tail to give.
    row("tail", "tail", "recompute", preemption_extent="tail"),
    row(
        "auto",
        "swap",
        "recompute",
        preemption_mode="auto",
        preemption_costs=COSTS,
        num_host_blocks=64,
        full={"num_host_blocks": 999},
    ),
    row(
        "swap-stall-largest-cache",
        "swap",
        preemption_mode="swap",
        preemption_trigger="stall",
        preemption_victim="largest",
        enable_prefix_caching=True,
        num_host_blocks=64,
        num_blocks=7,
        full={"num_host_blocks": 999, "num_blocks": 98},
    ),
    row(
        "unchunked-least-lost-bounded",
        "recompute",
        preemption_victim="least_lost",
        max_preemptions=1,
        enable_chunked_prefill=False,
        max_num_batched_tokens=96,
        full={"max_num_batched_tokens": 1_536},
    ),
]


def quick_prompts() -> list[GoldenPrompt]:
    by_name = {prompt.name: prompt for prompt in golden.load("small")}
    return [by_name[name] for name in NAMES]


def make_config(**options: Any) -> SchedulerConfig:
    defaults = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 48,
        "num_blocks": TIGHT,
        "admission": "now",
    }
    return SchedulerConfig(**{**defaults, **options})


def check(prompts: Sequence[GoldenPrompt], run: RealRun, num_outputs: int = NUM_OUTPUTS) -> None:
    """Compare the texts that came under the prompts' names."""
    produced = [run.texts[prompt.name][:num_outputs] for prompt in prompts]
    comparison = golden.compare(prompts, produced, num_tokens=num_outputs)
    assert comparison.allowed, comparison.summary()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_text_survives_every_way_of_preemption(default_network: LlamaForCausalLM, row: Row) -> None:
    prompts = quick_prompts()
    requests = [greedy(p.name, p.prompt_token_ids, NUM_OUTPUTS) for p in prompts]

    run = run_requests(default_network, make_config(**row.options), requests)

    check(prompts, run)
    assert set(run.ways) == row.ways


@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_text_of_all_prompts_survives_every_way_of_preemption(
    default_network: LlamaForCausalLM, row: Row
) -> None:
    prompts = golden.load("full")
    sizes = {"max_num_seqs": 64, "max_num_batched_tokens": 256, "num_blocks": 150}
    requests = [greedy(p.name, p.prompt_token_ids, 48) for p in prompts]

    config = make_config(**{**sizes, **row.options, **row.full_options})
    run = run_requests(default_network, config, requests)

    check(prompts, run, 48)
    assert set(run.ways) >= row.ways


def test_static_batches_say_the_same_though_ended_members_stay(
    default_network: LlamaForCausalLM,
) -> None:
    prompts = quick_prompts()
    lengths = [16, 3, 9, 12, 1, 16]
    requests = [
        greedy(prompt.name, prompt.prompt_token_ids, length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]

    config = make_config(batching="static", max_num_seqs=4, num_blocks=ROOMY)
    run = run_requests(default_network, config, requests)

    for prompt, length in zip(prompts, lengths, strict=True):
        assert len(run.texts[prompt.name]) == length
        check([prompt], run, length)
    assert run.num_masked_rows > 16
    assert not run.ways


def test_order_and_admission_do_not_show_in_the_text(default_network: LlamaForCausalLM) -> None:
    prompts = quick_prompts()
    requests = [greedy(p.name, p.prompt_token_ids, NUM_OUTPUTS) for p in prompts]
    config = make_config(
        policy="srpt",
        backfill="greedy",
        admission="peak",
        watermark=0.1,
        max_num_batched_tokens=24,
        min_prefill_tokens=23,
        prefill_aging_steps=1,
        max_num_seqs=3,
    )

    run = run_requests(default_network, config, requests)

    check(prompts, run)
    assert not run.ways


@pytest.mark.parametrize("caching", [False, True], ids=["nocache", "cache"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_each_greedy_sample_says_the_golden_text(
    default_network: LlamaForCausalLM, mode: str, caching: bool
) -> None:
    # A full block and one token, so that the tail is copied; two full blocks, so that none is.
    prompts = [p for p in quick_prompts() if p.name in ("one_block_and_one", "two_blocks_chinese")]
    requests = [greedy(p.name, p.prompt_token_ids, NUM_OUTPUTS, n=3) for p in prompts]
    config = make_config(
        num_blocks=8, num_host_blocks=16, preemption_mode=mode, enable_prefix_caching=caching
    )

    run = run_requests(default_network, config, requests)

    for sample in range(3):
        texts = {prompt.name: run.texts[sample_id(prompt.name, sample)] for prompt in prompts}
        comparison = golden.compare(
            prompts, [texts[prompt.name] for prompt in prompts], num_tokens=NUM_OUTPUTS
        )
        assert comparison.allowed, comparison.summary()
    assert run.ways[mode] > 0


def test_seeded_samples_are_the_single_requests_with_the_derived_seeds(
    default_network: LlamaForCausalLM,
) -> None:
    [prompt] = [p for p in quick_prompts() if p.name == "chat_capital"]
    together = SamplingParams(seed=11, max_tokens=12, ignore_eos=True)
    seeds = [11, *(seed_for(11, sample) for sample in (1, 2, 3))]

    run = run_requests(
        default_network,
        make_config(num_blocks=ROOMY),
        [make_request("n", prompt.prompt_token_ids, together, n=4)],
    )
    alone = run_requests(
        default_network,
        make_config(num_blocks=ROOMY),
        [
            make_request(
                str(number),
                prompt.prompt_token_ids,
                SamplingParams(seed=seed, max_tokens=12, ignore_eos=True),
            )
            for number, seed in enumerate(seeds)
        ],
    )

    texts = [run.texts[sample_id("n", sample)] for sample in range(4)]
    assert texts == [alone.texts[str(number)] for number in range(4)]
    assert len({tuple(text) for text in texts}) == 4


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_those_who_leave_are_not_missed_in_the_text_of_others(
    default_network: LlamaForCausalLM, mode: str
) -> None:
    prompts = quick_prompts()
    requests = [greedy(p.name, p.prompt_token_ids, NUM_OUTPUTS) for p in prompts]
    # In the middle of a prompt, after a preemption, and nearly done; a sample of three as well.
    aborts = {"emoji": 3, "four_blocks_then_queues": 10, "one_token": 14, "three/1": 6}
    requests.insert(2, greedy("three", prompts[1].prompt_token_ids, NUM_OUTPUTS, n=3))
    config = make_config(max_num_seqs=9, preemption_mode=mode, num_host_blocks=32)

    run = run_requests(default_network, config, requests, aborts)

    check([p for p in prompts if p.name not in aborts], run)
    for sample in ("three/0", "three/2"):
        comparison = golden.compare(prompts[1:2], [run.texts[sample]], num_tokens=NUM_OUTPUTS)
        assert comparison.allowed, comparison.summary()
    assert {run.ends[name] for name in aborts} == {FinishReason.ABORT}
    assert run.ways[mode] > 0


def test_prefix_hits_after_swaps_find_the_same_numbers(default_network: LlamaForCausalLM) -> None:
    prompts = quick_prompts()
    config = make_config(preemption_mode="swap", num_host_blocks=64, enable_prefix_caching=True)
    real = RealEngine(default_network, config)
    for prompt in prompts:
        real.add(greedy(prompt.name, prompt.prompt_token_ids, NUM_OUTPUTS))
    first = real.run()
    num_hits, num_swaps = first.num_hit_tokens, first.ways["swap"]
    # Again one after the other: who comes next finds what those before left.
    for prompt in prompts[-2:]:
        real.add(greedy(prompt.name, prompt.prompt_token_ids, NUM_OUTPUTS))
        again = real.run()
        check([prompt], again)

    assert num_swaps > 0
    assert again.num_hit_tokens > num_hits
