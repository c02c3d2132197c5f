"""Builders for tests of networks: tiny configurations, random weights, batches from requests.

`Runner` plays the part of scheduler and executor: it gives requests blocks in a scattered order and
packs steps, so that a test only says which request consumes how many tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.protocol import KernelsBackend
from everbatch.kernels.reference import ReferenceKernels
from everbatch.models.config import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from everbatch.models.llama import LlamaForCausalLM, tensor_shapes

TINY = ModelConfig(
    architecture="llama",
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    max_model_len=2048,
    name="tiny",
)

ARCHITECTURES = {
    "llama": TINY,
    "llama with every bias": replace(
        TINY, attention_bias=True, attention_output_bias=True, mlp_bias=True
    ),
    "mistral": replace(TINY, architecture="mistral", num_layers=3, num_kv_heads=1),
    "qwen2": replace(TINY, architecture="qwen2", attention_bias=True, tie_word_embeddings=True),
    # A head_dim that is not hidden_size / num_heads, as in the real ones.
    "qwen3": replace(TINY, architecture="qwen3", qk_norm=True, head_dim=24, num_kv_heads=4),
}

ROPE_SCALINGS: dict[str, RopeScaling | None] = {
    "plain": None,
    "linear": LinearScaling(factor=4.0),
    "llama3": Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=256
    ),
    "yarn": YarnScaling(
        factor=4.0, original_max_position_embeddings=256, attention_factor=1.1386294361119891
    ),
    "frequency factors": FrequencyFactors(factors=(1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)),
}


def with_rope(
    config: ModelConfig, scaling: RopeScaling | None, theta: float = 10_000.0
) -> ModelConfig:
    return replace(config, rope=RopeConfig(theta=theta, scaling=scaling))


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights that keep activations near 1 and attention far from uniform."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith("norm.weight"):
            tensors[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            scale = 0.3 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
            tensors[name] = scale * rng.standard_normal(shape, dtype=np.float32)
    return tensors


def random_prompt(config: ModelConfig, length: int, seed: int = 1) -> list[int]:
    rng = np.random.default_rng([seed, length])
    token_ids: list[int] = rng.integers(0, config.vocab_size, length).tolist()
    return token_ids


class Runner:
    """A network with paged KV and a few requests, each a list of all the tokens it will consume."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, np.ndarray],
        *,
        block_size: int = 4,
        num_blocks: int = 400,
        backend: KernelsBackend = ReferenceKernels,
    ) -> None:
        self.network = LlamaForCausalLM(config, dict(tensors), backend)
        self.kv = self.network.allocate_kv(num_blocks, block_size)
        self.block_size = block_size
        free = np.random.default_rng(7).permutation(num_blocks)
        self._free_blocks: list[int] = free.tolist()
        self.tokens: dict[str, list[int]] = {}
        self.blocks: dict[str, list[int]] = {}
        self.num_computed: dict[str, int] = {}

    def add(self, request: str, tokens: Sequence[int]) -> None:
        self.tokens[request] = list(tokens)
        self.blocks[request] = []
        self.num_computed[request] = 0

    def share(self, source: str, request: str, num_blocks: int) -> None:
        """Let `request` start with the first full blocks of `source`, already computed."""
        self.blocks[request] = self.blocks[source][:num_blocks]
        self.num_computed[request] = num_blocks * self.block_size

    def release(self, request: str) -> None:
        """Take the blocks back; the next request to need some gets them first."""
        self._free_blocks.extend(self.blocks.pop(request))
        del self.tokens[request], self.num_computed[request]

    def step(self, prefills: dict[str, int], decodes: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Consume the given number of tokens of each prefill and one of each decode.
        Give the logits of every consumed token, [tokens, vocab], by request."""
        batch = self.pack(prefills, decodes)
        batch.validate(self.kv.num_blocks, self.block_size)
        logits = self.network.forward(batch, self.kv)
        for request, count in [*prefills.items(), *((name, 1) for name in decodes)]:
            self.num_computed[request] += count
        rows = np.split(logits, batch.cu_seqlens_q[1:-1])
        return dict(zip([*prefills, *decodes], rows, strict=True))

    def pack(self, prefills: dict[str, int], decodes: Sequence[str] = ()) -> PackedBatch:
        rows = [*prefills.items(), *((name, 1) for name in decodes)]
        positions = [
            self.num_computed[name] + np.arange(count, dtype=np.int32) for name, count in rows
        ]
        context_lens = [self.num_computed[name] + count for name, count in rows]
        for (name, _), context_len in zip(rows, context_lens, strict=True):
            while len(self.blocks[name]) * self.block_size < context_len:
                self.blocks[name].append(self._free_blocks.pop())
        tables = np.zeros((len(rows), max(len(self.blocks[name]) for name, _ in rows)), np.int32)
        for table, (name, _) in zip(tables, rows, strict=True):
            table[: len(self.blocks[name])] = self.blocks[name]
        slots = [
            table[where // self.block_size] * self.block_size + where % self.block_size
            for table, where in zip(tables, positions, strict=True)
        ]
        input_ids = [
            np.take(self.tokens[name], where)
            for (name, _), where in zip(rows, positions, strict=True)
        ]
        num_tokens = sum(count for _, count in rows)
        return PackedBatch(
            input_ids=np.concatenate(input_ids).astype(np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            cu_seqlens_q=np.cumsum([0, *(count for _, count in rows)]).astype(np.int32),
            context_lens=np.array(context_lens, np.int32),
            block_tables=tables,
            slot_mapping=np.concatenate(slots).astype(np.int32),
            logit_rows=np.arange(num_tokens, dtype=np.int32),
            num_prefills=len(prefills),
        )
