"""Runs prompts through the real engine on a real model, under switches that must not change text.

Used by the golden text tests. The network is loaded once a test session: packing it takes seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everbatch.assemble.model_source import resolve_model
from everbatch.base.clock import VirtualClock
from everbatch.engine.engine import Engine, EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.model.executor import ModelExecutor
from everbatch.kernels.reference import ReferenceKernels
from everbatch.models.llama import LlamaForCausalLM
from everbatch.models.weights import load_model
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.request import FinishReason
from everbatch.scheduler.verify import verify_scheduler


@dataclass(frozen=True, slots=True)
class Switches:
    """How the engine runs; none of it may be seen in a greedy text.

    `batch`: requests that may run at once; `pool`: KV blocks of 16 tokens.
    """

    batch: int
    chunk_budget: int
    prefix_caching: bool
    pool: int
    trigger: str = "shortage"

    def __str__(self) -> str:
        caching = "cache" if self.prefix_caching else "nocache"
        return (
            f"batch{self.batch}-chunk{self.chunk_budget}-{caching}-pool{self.pool}-{self.trigger}"
        )


@dataclass(frozen=True, slots=True)
class RealRun:
    """The texts, in the order of the prompts, and what it took."""

    texts: list[list[int]]
    num_preemptions: int
    num_hit_tokens: int


def load_default_network() -> LlamaForCausalLM:
    """The embedded default model in float32."""
    loaded = load_model(default_model_path())
    return LlamaForCausalLM(loaded.config, loaded.tensors, ReferenceKernels)


def default_model_path() -> Path:
    return resolve_model(None).path


def run_prompts(
    network: LlamaForCausalLM,
    prompts: Sequence[Sequence[int]],
    num_outputs: int,
    switches: Switches,
) -> RealRun:
    """Answer all prompts greedily with exactly `num_outputs` tokens each, all arriving at once."""
    config = SchedulerConfig(
        max_num_seqs=switches.batch,
        max_num_batched_tokens=max(switches.chunk_budget, switches.batch),
        num_blocks=switches.pool,
        enable_prefix_caching=switches.prefix_caching,
        long_prefill_token_threshold=switches.chunk_budget,
        preemption_trigger=switches.trigger,
        admission="now",
    )
    executor = ModelExecutor(network, config, eos_token_ids=(), seed=0)
    engine = Engine(config, executor, VirtualClock())
    sampling = SamplingParams(temperature=0, max_tokens=num_outputs, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        ids = np.array(prompt, np.int32)
        assert engine.add(EngineRequest(str(number), ids, len(ids), sampling)) is None
    texts: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        result = engine.step()
        for output in result.outputs:
            texts[int(output.request_id)].append(output.token_id)
        assert all(reason is FinishReason.LENGTH for _, reason in result.finished)
    verify_scheduler(engine.scheduler)
    stats = engine.stats()
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    return RealRun(texts, stats.num_preemptions, stats.prefix_cache_hits)
