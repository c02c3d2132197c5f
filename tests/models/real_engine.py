"""Runs requests through the real engine on a network, under options that must not change text.

Used by the golden text tests and by the model executor's. The default model is loaded once a test
session: packing it takes seconds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from everbatch.assemble.model_source import resolve_model
from everbatch.base.clock import VirtualClock
from everbatch.base.events import Preempted
from everbatch.engine.engine import Engine, EngineRequest, StepResult
from everbatch.engine.executor import TokenLogprobs
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.model.executor import ModelExecutor, Network
from everbatch.kernels.reference import ReferenceKernels
from everbatch.models.llama import LlamaForCausalLM
from everbatch.models.weights import load_model
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.request import FinishReason
from everbatch.scheduler.verify import verify_scheduler


@dataclass(frozen=True, slots=True)
class RealRun:
    """What came out, by the ids under which it came, and what it took."""

    texts: dict[str, list[int]]
    logprobs: dict[str, list[TokenLogprobs | None]]
    """Of each token, where they were asked for."""
    ends: dict[str, FinishReason]
    ways: Counter[str]
    """Preemptions by way."""
    most_together: int
    """Most tokens that came out of one step."""
    num_hit_tokens: int
    num_masked_rows: int
    num_recomputed_tokens: int


@dataclass(slots=True)
class RealEngine:
    """An engine over a network, and everything that came out of it."""

    network: Network
    config: SchedulerConfig
    engine: Engine = field(init=False)
    texts: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs | None]] = field(default_factory=dict)
    ends: dict[str, FinishReason] = field(default_factory=dict)
    ways: Counter[str] = field(default_factory=Counter)
    num_masked_rows: int = 0
    num_passes: int = 0
    most_together: int = 0

    def __post_init__(self) -> None:
        executor = ModelExecutor(self.network, self.config, eos_token_ids=(), seed=0)
        self.engine = Engine(self.config, executor, VirtualClock())

    def add(self, request: EngineRequest) -> None:
        assert self.engine.add(request) is None
        self.texts.update((sample_id, []) for sample_id in request.sample_ids)
        self.logprobs.update((sample_id, []) for sample_id in request.sample_ids)

    def step(self, leaving: Iterable[str] = ()) -> StepResult:
        """One call of the engine; `leaving` are aborted while its pass runs."""
        result = self.engine.step(lambda: [(name, FinishReason.ABORT) for name in leaving])
        verify_scheduler(self.engine.scheduler)
        for output in result.outputs:
            self.texts[output.request_id].append(output.token_id)
            self.logprobs[output.request_id].append(output.logprobs)
        self.ends.update(result.finished)
        self.ways.update(
            event.way
            for event in result.events
            if isinstance(event, Preempted) and event.slot is not None
        )
        if result.plan is not None:
            self.num_passes += 1
            self.most_together = max(self.most_together, len(result.outputs))
            self.num_masked_rows += len(result.plan.masked)
        return result

    def run(self, aborts: Mapping[str, int] | None = None) -> RealRun:
        """Run until nobody is left. `aborts`: who leaves during which pass, counted from 1."""
        leaving = aborts or {}
        while self.engine.has_work:
            number = self.num_passes + 1
            self.step([name for name, when in leaving.items() if when == number])
        stats = self.engine.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        host_pool = self.engine.scheduler.state.host_pool
        assert host_pool is None or host_pool.num_used == 0
        return RealRun(
            self.texts,
            self.logprobs,
            self.ends,
            self.ways,
            self.most_together,
            stats.prefix_cache_hits,
            self.num_masked_rows,
            stats.recomputed_tokens,
        )


def greedy(request_id: str, prompt: Sequence[int], max_tokens: int, n: int = 1) -> EngineRequest:
    """A request for exactly so many tokens, whatever the model says."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return make_request(request_id, prompt, sampling, n)


def make_request(
    request_id: str, prompt: Sequence[int], sampling: SamplingParams, n: int = 1
) -> EngineRequest:
    ids = np.array(prompt, np.int32)
    return EngineRequest(request_id, ids, len(ids), sampling, n=n)


def run_requests(
    network: Network,
    config: SchedulerConfig,
    requests: Iterable[EngineRequest],
    aborts: Mapping[str, int] | None = None,
) -> RealRun:
    """Answer requests that arrive at once, in this order."""
    real = RealEngine(network, config)
    for request in requests:
        real.add(request)
    return real.run(aborts)


def load_default_network() -> LlamaForCausalLM:
    """The embedded default model in float32."""
    loaded = load_model(default_model_path())
    return LlamaForCausalLM(loaded.config, loaded.tensors, ReferenceKernels)


def default_model_path() -> Path:
    return resolve_model(None).path
