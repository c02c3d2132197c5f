"""Sampling at the end of a native pass, where logits that nobody looks at are never made: the same
tokens as those of the logits, whoever shares the batch."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from models.network_builders import TINY, Runner, random_prompt, random_tensors
from models.real_engine import make_request, run_requests
from native_kernels import PATHS, backend
from unit.kernels.sampling_builders import sampling_rows

from everbatch.engine.sampling_params import SamplingParams
from everbatch.kernels.arrays import Floats, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.bf16 import NAN_BITS
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.sampling import RowExtras, SampledTokens, SamplingRows, sample
from everbatch.models.llama import LlamaForCausalLM
from everbatch.scheduler.config import SchedulerConfig

TENSORS = random_tensors(TINY)


def runner_of(path: str = PATHS[0], num_threads: int = 2, num_tokens: int = 30) -> Runner:
    runner = Runner(TINY, TENSORS, backend=backend(path, num_threads))
    runner.add("a", random_prompt(TINY, num_tokens))
    return runner


def assert_same(runner: Runner, batch: PackedBatch, which: Int32s, rows: SamplingRows) -> None:
    expected = sample(runner.network.forward(batch, runner.kv)[which], rows)
    found = runner.network.sample(batch, runner.kv, which, rows)

    assert found.failed.tolist() == expected.failed.tolist()
    fine = ~expected.failed
    assert found.token_ids[fine].tolist() == expected.token_ids[fine].tolist()
    assert found.logprobs.keys() == expected.logprobs.keys()
    for row, logprobs in expected.logprobs.items():
        assert found.logprobs[row].logprob == logprobs.logprob
        assert found.logprobs[row].rank == logprobs.rank
        assert found.logprobs[row].top_ids.tolist() == logprobs.top_ids.tolist()
        assert found.logprobs[row].top_logprobs.tobytes() == logprobs.top_logprobs.tobytes()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_of_one_kind_get_the_tokens_of_their_logits(
    temperature: float, num_threads: int, path: str
) -> None:
    runner = runner_of(path, num_threads)
    rows = sampling_rows(30, temperature=temperature)

    assert_same(runner, runner.pack({"a": 30}), np.arange(30, dtype=np.int32), rows)


def test_rows_of_all_kinds_get_the_tokens_of_their_logits() -> None:
    runner = runner_of()
    extras = {
        row: RowExtras(token_history=np.arange(row), prompt_length=1, repetition_penalty=1.5)
        for row in (2, 3, 17)
    }
    rows = sampling_rows(
        30,
        temperature=np.arange(30) % 2,
        top_p=0.9,
        wants_logprobs=np.arange(30) % 5 == 0,
        num_logprobs=np.arange(30) % 4,
        extras=extras,
    )

    assert_same(runner, runner.pack({"a": 30}), np.arange(30, dtype=np.int32), rows)


def test_rows_of_logits_may_be_shared_or_left_alone() -> None:
    runner = runner_of()
    which = np.array([3, 3, 3, 0, 29, 29, 11], np.int32)
    rows = sampling_rows(7, temperature=[1, 0, 1, 0, 0, 0, 1], seed=np.arange(7))

    assert_same(runner, runner.pack({"a": 30}), which, rows)


def test_nobody_samples() -> None:
    runner = runner_of()
    batch = runner.pack({"a": 30})
    found = runner.network.sample(batch, runner.kv, np.empty(0, np.int32), sampling_rows(0))

    assert found.token_ids.size == 0
    batch.logit_rows = np.empty(0, np.int32)
    found = runner.network.sample(batch, runner.kv, np.empty(0, np.int32), sampling_rows(0))
    assert found.failed.size == 0


@pytest.mark.parametrize("num_rows", [95, 96, 97, 200])
def test_more_rows_than_there_are_logits_at_once(num_rows: int) -> None:
    runner = runner_of(num_tokens=num_rows)
    rows = sampling_rows(num_rows, temperature=1.0)

    assert_same(
        runner, runner.pack({"a": num_rows}), np.arange(num_rows, dtype=np.int32)[::-1].copy(), rows
    )


@pytest.mark.parametrize("path", PATHS)
def test_greedy_rows_without_finite_logits_fail_alone(path: str) -> None:
    runner = Runner(TINY, TENSORS, backend=backend(path))
    for name in ("a", "b", "c"):
        runner.add(name, random_prompt(TINY, 9, seed=ord(name)))
        runner.step({name: 8})
    runner.kv.values[0, runner.blocks["b"][0]] = NAN_BITS
    batch = runner.pack({}, ["a", "b", "c"])
    rows = sampling_rows(3, temperature=0.0)

    assert_same(runner, batch, np.arange(3, dtype=np.int32), rows)
    found = runner.network.sample(batch, runner.kv, np.arange(3, dtype=np.int32), rows)
    assert found.failed.tolist() == [False, True, False]


@pytest.mark.parametrize("vocab_size", [1, 15, 33, 100])
def test_padding_of_the_head_is_no_token(vocab_size: int) -> None:
    config = replace(TINY, vocab_size=vocab_size, tie_word_embeddings=False)
    tensors = random_tensors(config)
    # All logits are far below the zeros of padding.
    tensors["lm_head.weight"] = -np.abs(tensors["lm_head.weight"])
    tensors["model.norm.weight"] = np.abs(tensors["model.norm.weight"])
    runner = Runner(config, tensors, backend=backend())
    runner.add("a", [0] * 20)
    rows = sampling_rows(20, temperature=0.0)

    assert_same(runner, runner.pack({"a": 20}), np.arange(20, dtype=np.int32), rows)


@dataclass(slots=True)
class WholeLogits:
    """A network that always makes all logits."""

    network: LlamaForCausalLM

    @property
    def vocab_size(self) -> int:
        return self.network.vocab_size

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        return self.network.allocate_kv(num_blocks, block_size)

    def forward(self, batch: PackedBatch, kv: KVStorage) -> Floats:
        return self.network.forward(batch, kv)

    def sample(
        self, batch: PackedBatch, kv: KVStorage, logits_of: Int32s, rows: SamplingRows
    ) -> SampledTokens:
        return sample(self.forward(batch, kv)[logits_of], rows)


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_texts_are_the_same_as_with_all_logits(batching: str) -> None:
    network = LlamaForCausalLM(TINY, dict(TENSORS), backend())
    config = SchedulerConfig(
        max_num_seqs=6,
        max_num_batched_tokens=24,
        num_blocks=60,
        block_size=4,
        batching=batching,
    )
    options = [
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True, seed=4, top_p=0.9),
        SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True, frequency_penalty=1.0),
        SamplingParams(temperature=0.7, max_tokens=10, ignore_eos=True, logprobs=3, top_k=5),
    ]

    def texts(of: LlamaForCausalLM | WholeLogits) -> dict[str, list[int]]:
        requests = [
            make_request(f"r{number}", random_prompt(TINY, 5 + number), sampling, n=1 + number % 2)
            for number, sampling in enumerate(options * 2)
        ]
        return run_requests(of, config, requests).texts

    assert texts(network) == texts(WholeLogits(network))
