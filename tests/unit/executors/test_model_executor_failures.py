"""What the model executor makes of a pass that fails: the world's fault, or a bug."""

from collections.abc import Mapping
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest

from everbatch.base.clock import VirtualClock
from everbatch.base.errors import ExecutorError
from everbatch.engine.engine import Engine, EngineRequest, StepResult
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.model.executor import ModelExecutor
from everbatch.kernels.arrays import Floats, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.sampling import RowLogprobs, SampledTokens, SamplingRows, sample
from everbatch.kernels.weights import NetworkShape
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.request import FinishReason

VOCAB_SIZE = 50
NUM_BLOCKS = 8


class CountingNetwork:
    """After each token comes the one with the next id. Passes in `errors` raise."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        self._errors = errors
        self._num_passes = 0

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        shape = NetworkShape(
            num_layers=1,
            hidden_size=2,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            intermediate_size=2,
            vocab_size=VOCAB_SIZE,
            rms_norm_eps=1e-5,
        )
        return KVStorage(shape, num_blocks, block_size)

    def forward(self, batch: PackedBatch, kv: KVStorage) -> Floats:
        self._num_passes += 1
        if self._num_passes in self._errors:
            raise self._errors[self._num_passes]
        return np.eye(VOCAB_SIZE, dtype=np.float32)[batch.input_ids[batch.logit_rows] + 1]

    def sample(
        self, batch: PackedBatch, kv: KVStorage, logits_of: Int32s, rows: SamplingRows
    ) -> SampledTokens:
        return sample(self.forward(batch, kv)[logits_of], rows)


def make_engine(errors: Mapping[int, Exception], **options: object) -> Engine:
    config = SchedulerConfig(
        max_num_seqs=2, max_num_batched_tokens=32, num_blocks=NUM_BLOCKS, block_size=4, **options
    )
    return Engine(config, ModelExecutor(CountingNetwork(errors), config, (), 0), VirtualClock())


def add(engine: Engine, request_id: str, prompt: list[int], max_tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    request = EngineRequest(request_id, np.array(prompt, np.int32), len(prompt), params)
    assert engine.add(request) is None


def run(engine: Engine) -> tuple[dict[str, list[int]], dict[str, FinishReason], list[StepResult]]:
    texts: dict[str, list[int]] = {}
    ends: dict[str, FinishReason] = {}
    results = []
    while engine.has_work:
        results.append(engine.step())
        ends.update(results[-1].finished)
        for output in results[-1].outputs:
            texts.setdefault(output.request_id, []).append(output.token_id)
    return texts, ends, results


def test_pass_without_memory_is_tried_again_and_nobody_notices() -> None:
    engine = make_engine({3: MemoryError()})
    for request_id, prompt in [("a", [1]), ("b", [10, 11]), ("c", [20, 21])]:
        add(engine, request_id, prompt, 4)

    texts, ends, results = run(engine)

    assert texts == {"a": [2, 3, 4, 5], "b": [12, 13, 14, 15], "c": [22, 23, 24, 25]}
    assert set(ends.values()) == {FinishReason.LENGTH}
    assert engine.stats().num_free_blocks == NUM_BLOCKS
    [told] = [result.error for result in results if result.error]
    assert "out of memory in a step of 2 tokens" in told
    assert "--max-num-batched-tokens" in told


def test_who_finds_no_memory_again_alone_ends_and_the_engine_goes_on() -> None:
    engine = make_engine({3: MemoryError(), 4: MemoryError(), 5: MemoryError()})
    for request_id, prompt in [("a", [1]), ("b", [10, 11]), ("c", [20, 21])]:
        add(engine, request_id, prompt, 4)

    texts, ends, _ = run(engine)

    assert texts == {"a": [2, 3], "b": [12, 13, 14, 15], "c": [22, 23, 24, 25]}
    assert ends["a"] is FinishReason.ERROR
    assert ends["b"] is ends["c"] is FinishReason.LENGTH


def test_preempted_request_keeps_its_tokens_through_a_pass_without_memory() -> None:
    # Both fit until one needs its fifth block: "b" yields, and "a" fails twice meanwhile.
    engine = make_engine({12: MemoryError(), 13: MemoryError()}, admission="now")
    add(engine, "a", [1, 2, 3, 4, 5, 6, 7, 8], 20)
    add(engine, "b", [21, 22, 23, 24, 25, 26, 27, 28], 12)

    texts, ends, _ = run(engine)

    assert engine.stats().num_preemptions == 1
    assert ends == {"a": FinishReason.ERROR, "b": FinishReason.LENGTH}
    assert texts["b"] == list(range(29, 41))


class GreedyNetwork(CountingNetwork):
    """Runs out of memory with a large array in its hands."""

    def forward(self, batch: PackedBatch, kv: KVStorage) -> Floats:
        activations = np.zeros((batch.num_tokens, 1_000), np.float32)
        self.held = ref(activations)
        raise MemoryError


def test_a_pass_without_memory_gives_back_what_it_held() -> None:
    config = SchedulerConfig(
        max_num_seqs=2, max_num_batched_tokens=32, num_blocks=NUM_BLOCKS, block_size=4
    )
    network = GreedyNetwork({})
    executor = ModelExecutor(network, config, (), 0)
    engine = Engine(config, executor, VirtualClock())
    add(engine, "a", [1], 4)
    plan = engine.scheduler.schedule(0)
    assert isinstance(plan, StepPlan)

    try:
        executor.execute(plan)
    except ExecutorError as error:
        # While the error is handled, and slots are reset.
        assert "out of memory in a step of 1 tokens" in str(error)
        assert network.held() is None
    else:
        pytest.fail("memory was found")


class NoRoomForLogprobs(dict[int, RowLogprobs]):
    """Log probabilities that nobody can read for lack of memory."""

    def get(self, *_: object) -> RowLogprobs | None:
        raise MemoryError


class LateFailure(CountingNetwork):
    """Pass 2 runs out of memory once its tokens have been chosen."""

    def sample(
        self, batch: PackedBatch, kv: KVStorage, logits_of: Int32s, rows: SamplingRows
    ) -> SampledTokens:
        sampled = super().sample(batch, kv, logits_of, rows)
        if self._num_passes == 2:
            return replace(sampled, logprobs=NoRoomForLogprobs(sampled.logprobs))
        return sampled


def test_tokens_of_a_pass_that_failed_late_do_not_count() -> None:
    config = SchedulerConfig(
        max_num_seqs=2, max_num_batched_tokens=32, num_blocks=NUM_BLOCKS, block_size=4
    )
    said = []
    for network in (CountingNetwork({}), LateFailure({})):
        engine = Engine(config, ModelExecutor(network, config, (), 0), VirtualClock())
        # Each draw depends on its position, each penalty on the outputs before.
        params = SamplingParams(seed=1, frequency_penalty=1.0, logprobs=0, max_tokens=8)
        request = EngineRequest("a", np.array([1], np.int32), 1, params)
        assert engine.add(request) is None
        texts, ends, _ = run(engine)
        assert ends == {"a": FinishReason.LENGTH}
        said.append(texts["a"])

    assert said[1] == said[0]


@pytest.mark.parametrize("error", [ValueError("shapes"), IndexError("row 7"), AssertionError()])
def test_bug_is_no_failed_pass(error: Exception) -> None:
    engine = make_engine({1: error})
    add(engine, "a", [1], 4)

    with pytest.raises(type(error)):
        engine.step()
