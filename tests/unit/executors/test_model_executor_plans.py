"""What the model executor makes of each part of a plan, on a tiny network with random weights.

Texts are compared with those of each request alone in a pool with room for all; the arrays of every
step are checked on their way to the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from models.network_builders import TINY, random_prompt, random_tensors
from models.real_engine import RealEngine, RealRun, greedy, make_request, run_requests

from everbatch.base.sample_ids import sample_id
from everbatch.engine.engine import EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.kernels.arrays import Floats, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.random_numbers import seed_for
from everbatch.kernels.reference import ReferenceKernels
from everbatch.kernels.sampling import SampledTokens, SamplingRows
from everbatch.kernels.sampling import sample as sample_logits
from everbatch.models.llama import LlamaForCausalLM
from everbatch.scheduler.config import PreemptionCosts, SchedulerConfig
from everbatch.scheduler.request import FinishReason

NETWORK = LlamaForCausalLM(TINY, random_tensors(TINY), ReferenceKernels)


@dataclass(slots=True)
class CheckedNetwork:
    """Validates every batch and keeps it. The pool is filled with what no key is like, so that
    whoever reads what nobody wrote is found out."""

    num_masked: int = 0
    """Rows at the end of a batch that all write to one place."""
    failing: frozenset[int] = frozenset()
    """Passes, counted from 1, that run out of memory when all is written."""
    batches: list[PackedBatch] = field(default_factory=list)

    @property
    def vocab_size(self) -> int:
        return NETWORK.vocab_size

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        kv = NETWORK.allocate_kv(num_blocks, block_size)
        kv.keys[:] = kv.values[:] = 1e4
        return kv

    def forward(self, batch: PackedBatch, kv: KVStorage) -> Floats:
        if self.num_masked == 0:
            batch.validate(kv.num_blocks, kv.block_size)
        self.batches.append(batch)
        logits = NETWORK.forward(batch, kv)
        if len(self.batches) in self.failing:
            raise MemoryError
        return logits

    def sample(
        self, batch: PackedBatch, kv: KVStorage, logits_of: Int32s, rows: SamplingRows
    ) -> SampledTokens:
        return sample_logits(self.forward(batch, kv)[logits_of], rows)


def make_config(**options: Any) -> SchedulerConfig:
    defaults = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 12,
        "num_blocks": 40,
        "block_size": 4,
        "admission": "now",
    }
    return SchedulerConfig(**{**defaults, **options})


def prompt_of(length: int, seed: int = 1) -> list[int]:
    return random_prompt(TINY, length, seed)


def text_alone(prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    config = make_config(max_num_batched_tokens=512, num_blocks=100)
    return run_requests(NETWORK, config, [make_request("a", prompt, sampling)]).texts["a"]


def sample_params(sampling: SamplingParams, sample: int) -> SamplingParams:
    """The options with which a request alone says what this sample says."""
    if sample == 0 or sampling.seed is None:
        return sampling
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        ignore_eos=True,
        seed=seed_for(sampling.seed, sample),
    )


# The arrays of a step.


def test_long_prefill_with_three_decodes_has_the_arrays_of_the_lesson() -> None:
    network = CheckedNetwork()
    config = make_config(max_num_seqs=4, max_num_batched_tokens=515, block_size=16, num_blocks=60)
    real = RealEngine(network, config)
    for name, length in (("b", 50), ("c", 80), ("d", 20)):
        real.add(greedy(name, prompt_of(length), 8))
    real.step()
    real.step()
    real.add(greedy("a", prompt_of(512), 2))
    requests = real.engine.scheduler.state.requests
    computed = [real.engine.scheduler.progress(requests[name])[0] for name in "bcd"]
    result = real.step()
    batch = network.batches[-1]

    assert computed == [51, 81, 21]
    assert result.plan is not None
    # Budgets are spent on decodes first, rows are packed with the prompt first.
    assert (result.plan.num_tokens, result.plan.num_decodes) == (515, 3)
    assert batch.num_prefills == 1
    assert batch.cu_seqlens_q.tolist() == [0, 512, 513, 514, 515]
    assert batch.context_lens.tolist() == [512, 52, 82, 22]
    assert batch.positions.tolist() == [*range(512), 51, 81, 21]
    assert batch.logit_rows.tolist() == [511, 512, 513, 514]
    assert batch.block_tables.shape == (4, 32)
    tables = [requests[name].block_table for name in "abcd"]
    assert [len(table) for table in tables] == [32, 4, 6, 2]
    for row, table in enumerate(tables):
        assert batch.block_tables[row, : len(table)].tolist() == table
    # No padding: a token is a row of the input.
    assert len(batch.input_ids) == len(batch.slot_mapping) == 515


def test_samples_share_full_blocks_and_copy_the_tail_but_for_the_last_writer() -> None:
    network = CheckedNetwork()
    real = RealEngine(network, make_config())
    # One full block and two tokens of the next.
    real.add(greedy("a", prompt_of(6), 4, n=3))
    first = real.step()
    second = real.step()
    table = network.batches[-1].block_tables

    assert first.plan is not None
    assert [chunk.followers for chunk in first.plan.chunks] == [(1, 2)]
    assert network.batches[0].num_rows == 1
    assert [output.request_id for output in first.outputs] == ["a/0", "a/1", "a/2"]
    assert second.plan is not None
    assert len(second.plan.copies) == 2
    assert len(set(table[:, 0].tolist())) == 1
    assert len(set(table[:, 1].tolist())) == 3


def test_samples_of_full_blocks_copy_nothing() -> None:
    real = RealEngine(CheckedNetwork(), make_config())
    real.add(greedy("a", prompt_of(8), 3, n=3))
    real.step()
    second = real.step()

    assert second.plan is not None
    assert second.plan.copies == []
    assert len(second.plan.appended) == 3


def test_masked_rows_come_last_and_cost_a_token_each() -> None:
    network = CheckedNetwork(num_masked=1)
    real = RealEngine(network, make_config(batching="static", max_num_seqs=3))
    for name, max_tokens in (("a", 2), ("b", 5), ("c", 3)):
        real.add(greedy(name, prompt_of(3), max_tokens))
    run = real.run()
    last = network.batches[-1]

    assert run.num_masked_rows == 2 + 2 + 1
    assert [batch.num_tokens for batch in network.batches] == [9, 3, 3, 3, 3]
    assert [len(batch.logit_rows) for batch in network.batches] == [3] * 5
    # Block 40 is nobody's.
    assert last.block_tables[1:].tolist() == [[40, 40]] * 2
    assert last.context_lens.tolist() == [7, 1, 1]
    assert last.slot_mapping[1:].tolist() == [160, 160]


# Texts.


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("n", [2, 5])
def test_samples_say_what_single_requests_with_their_seeds_say(n: int, block_size: int) -> None:
    config = make_config(block_size=block_size, num_blocks=200)
    for length in (1, 3, 4, 5, 8, 13):
        sampling = SamplingParams(seed=length, max_tokens=9, ignore_eos=True)
        prompt = prompt_of(length)

        run = run_requests(CheckedNetwork(), config, [make_request("a", prompt, sampling, n)])

        for sample in range(n):
            alone = text_alone(prompt, sample_params(sampling, sample))
            assert run.texts[sample_id("a", sample)] == alone


@pytest.mark.parametrize("num_passes", [1, 2])
def test_samples_say_the_same_when_the_one_that_reads_their_prompt_leaves(num_passes: int) -> None:
    prompt = prompt_of(30)
    sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=6, ignore_eos=True)
    # Chunks of 12 tokens: after 24 of them the second sample goes on, in a slot of its own.
    run = run_requests(
        CheckedNetwork(),
        make_config(block_size=16),
        [make_request("a", prompt, sampling, n=3)],
        {"a/0": num_passes},
    )

    assert run.ends["a/0"] is FinishReason.ABORT
    assert run.texts["a/0"] == []
    for sample in (1, 2):
        alone = text_alone(prompt, sample_params(sampling, sample))
        assert run.texts[sample_id("a", sample)] == alone


def test_sample_without_a_seed_draws_from_the_order_of_arrival() -> None:
    sampling = SamplingParams(max_tokens=9, ignore_eos=True)
    prompt = prompt_of(5)
    plain = [make_request(str(number), prompt, sampling) for number in range(2)]
    samples = [make_request(str(number), prompt, sampling, n=3) for number in range(2)]

    alone = run_requests(NETWORK, make_config(), plain).texts
    run = run_requests(NETWORK, make_config(num_blocks=80), samples).texts

    assert [run["0/0"], run["1/0"]] == [alone["0"], alone["1"]]
    assert len({tuple(text) for text in run.values()}) == 6


def test_swapped_blocks_come_back_with_what_was_in_them() -> None:
    network = CheckedNetwork()
    config = make_config(num_blocks=6, num_host_blocks=4, preemption_mode="swap", max_num_seqs=2)
    prompts = {"a": prompt_of(7), "b": prompt_of(6)}

    run = run_requests(
        network, config, [greedy(name, prompt, 12) for name, prompt in prompts.items()]
    )

    assert run.ways == {"swap": 1}
    # Nothing was computed twice: each token of prompt and outputs, but for the last, once.
    assert sum(batch.num_tokens for batch in network.batches) == 7 + 6 + 2 * 11
    assert run.num_recomputed_tokens == 0
    for name, prompt in prompts.items():
        assert run.texts[name] == text_alone(prompt, greedy(name, prompt, 12).sampling)


def test_prompt_swapped_out_in_the_middle_goes_on_from_there() -> None:
    network = CheckedNetwork()
    config = make_config(
        num_blocks=8,
        num_host_blocks=8,
        preemption_mode="swap",
        max_num_seqs=2,
        max_num_batched_tokens=5,
    )
    prompts = {"a": prompt_of(9), "b": prompt_of(20)}

    run = run_requests(
        network, config, [greedy(name, prompt, 10) for name, prompt in prompts.items()]
    )

    assert run.ways["swap"] >= 1
    assert sum(batch.num_tokens for batch in network.batches) == 9 + 20 + 2 * 9
    for name, prompt in prompts.items():
        assert run.texts[name] == text_alone(prompt, greedy(name, prompt, 10).sampling)


def test_tail_holder_computes_its_tail_alone() -> None:
    network = CheckedNetwork()
    config = make_config(num_blocks=8, preemption_extent="tail", max_num_seqs=2)
    prompts = {"a": prompt_of(9), "b": prompt_of(14)}

    run = run_requests(
        network, config, [greedy(name, prompt, 12) for name, prompt in prompts.items()]
    )

    # "b" gives up a block each time that "a" needs one.
    assert run.ways == {"tail": 3}
    assert run.num_recomputed_tokens == sum(batch.num_tokens for batch in network.batches) - (
        9 + 14 + 2 * 11
    )
    for name, prompt in prompts.items():
        assert run.texts[name] == text_alone(prompt, greedy(name, prompt, 12).sampling)


OPTIONS: dict[str, list[Any]] = {
    "batching": ["continuous", "continuous", "continuous", "static"],
    "num_blocks": [14, 17, 25, 60],
    "num_host_blocks": [0, 3, 60],
    "max_num_seqs": [3, 5, 9],
    "max_num_batched_tokens": [9, 16, 64],
    "enable_prefix_caching": [False, True],
    "long_prefill_token_threshold": [0, 3],
    "min_prefill_tokens": [0, 4],
    "prefill_aging_steps": [0, 2],
    "policy": ["fcfs", "priority", "srpt", "vtc"],
    "aging_steps": [0, 3],
    "backfill": ["none", "safe", "greedy"],
    "admission": ["now", "prompt", "peak", "reserve"],
    "watermark": [0.0, 0.1],
    "preemption_trigger": ["shortage", "stall"],
    "preemption_mode": ["recompute", "swap", "auto"],
    "preemption_extent": ["whole", "tail"],
    "preemption_victim": ["newest", "priority", "least_lost", "largest"],
    "max_preemptions": [0, 1],
}
COSTS = PreemptionCosts(swap_ns_per_block=3, recompute_ns_per_token=1)


def random_requests(random: Random) -> list[EngineRequest]:
    """Half of the prompts begin alike; some want samples."""
    requests = []
    for number in range(10):
        seed = random.choice([1, 2 + number])
        prompt = prompt_of(24, seed)[: random.randint(1, 24)]
        max_tokens = random.randint(1, 14)
        n = random.choice([1, 1, 1, 2, 3])
        temperature = random.choice([0.0, 1.0])
        sampling = SamplingParams(
            temperature=temperature, seed=number, max_tokens=max_tokens, ignore_eos=True
        )
        request = make_request(f"r{number}", prompt, sampling, n)
        request.priority = random.randint(-2, 2)
        request.tenant = random.choice("ab")
        requests.append(request)
    return requests


def random_options(random: Random) -> dict[str, Any]:
    options = {name: random.choice(values) for name, values in OPTIONS.items()}
    if options["preemption_mode"] == "auto":
        options["preemption_costs"] = COSTS
    return options


def add_all(real: RealEngine, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
    """Add those that can ever run; gives them."""
    accepted = []
    for request in requests:
        limit, n = request.sampling.max_tokens, request.n
        if real.engine.refusal(request.num_prompt_tokens, limit, n) is None:
            real.add(request)
            accepted.append(request)
    return accepted


def assert_as_alone(run: RealRun, requests: Sequence[EngineRequest], cut: set[str]) -> None:
    """Every text is the one that the request, or its sample, has alone; those in `cut` may end
    early."""
    for request in requests:
        for sample, id in enumerate(request.sample_ids):
            alone = text_alone(request.prompt_token_ids, sample_params(request.sampling, sample))
            text = run.texts[id]
            assert text == alone[: len(text)], id
            if request.id not in cut:
                assert len(text) == len(alone)
                assert run.ends[id] is FinishReason.LENGTH


@pytest.mark.parametrize("seed", range(24))
def test_no_option_shows_in_any_text(seed: int) -> None:
    random = Random(seed)
    options = random_options(random)
    network = CheckedNetwork(num_masked=options["batching"] == "static")
    real = RealEngine(network, make_config(**options))
    accepted = add_all(real, random_requests(random))
    aborts = {request.id: random.randint(1, 25) for request in random.sample(accepted, 2)}

    run = real.run(aborts)

    assert_as_alone(run, accepted, set(aborts))


@pytest.mark.parametrize("seed", range(12))
def test_failed_passes_leave_no_wrong_numbers_behind(seed: int) -> None:
    random = Random(1_000 + seed)
    options = random_options(random) | {"enable_prefix_caching": True}
    # Runs of failures: who fails again alone ends.
    failing = frozenset(k + n for k in random.sample(range(1, 30), 4) for n in range(3))
    network = CheckedNetwork(num_masked=options["batching"] == "static", failing=failing)
    real = RealEngine(network, make_config(**options))
    accepted = add_all(real, random_requests(random))
    run = real.run()
    failed = {r.id for r in accepted if FinishReason.ERROR in {run.ends[s] for s in r.sample_ids}}
    assert_as_alone(run, accepted, failed)
    # Again: what is found in the prefix cache now was computed before or after a failed pass.
    again = [make_request(f"again-{r.id}", r.prompt_token_ids, r.sampling, r.n) for r in accepted]
    network.failing = frozenset()
    add_all(real, again)

    assert_as_alone(real.run(), again, set())
    assert failed
