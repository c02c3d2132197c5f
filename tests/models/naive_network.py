"""The same network, as plainly as it can be written: an oracle for tests that needs no torch.

One request, no cache, no batch, everything recomputed, float64, loops over heads and positions. It
shares with the real path the configuration and the rotary frequencies (which the tests compare with
transformers) and nothing else. Not here: speed.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from everbatch.kernels.arrays import Floats
from everbatch.models.config import ModelConfig
from everbatch.models.rope import rotary_frequencies

Doubles: TypeAlias = NDArray[np.float64]


def naive_logits(
    config: ModelConfig, tensors: dict[str, Floats], token_ids: Sequence[int]
) -> Doubles:
    """Give the logits [T, vocab] float64 of every position. O(T ** 2) in time and slow."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    embedding = weights["model.embed_tokens.weight"]
    hidden = embedding[list(token_ids)]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        own = {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
        hidden = hidden + _attention(config, own, hidden)
        hidden = hidden + _mlp(config, own, hidden)
    head = embedding if config.tie_word_embeddings else weights["lm_head.weight"]
    normed: Doubles = _norm(hidden, weights["model.norm.weight"], config)
    return normed @ head.T


def _attention(config: ModelConfig, own: dict[str, Doubles], hidden: Doubles) -> Doubles:
    normed = _norm(hidden, own["input_layernorm.weight"], config)
    queries = _projected(own, "self_attn.q_proj", normed)
    keys = _projected(own, "self_attn.k_proj", normed)
    values = _projected(own, "self_attn.v_proj", normed)
    group_size = config.num_heads // config.num_kv_heads
    outputs = []
    for head in range(config.num_heads):
        query = _head(queries, head, config)
        key = _head(keys, head // group_size, config)
        value = _head(values, head // group_size, config)
        if config.qk_norm:
            query = _norm(query, own["self_attn.q_norm.weight"], config)
            key = _norm(key, own["self_attn.k_norm.weight"], config)
        outputs.append(_attend(_rotated(query, config), _rotated(key, config), value))
    return _projected(own, "self_attn.o_proj", np.concatenate(outputs, axis=1))


def _attend(query: Doubles, key: np.ndarray, value: np.ndarray) -> Doubles:
    """Causal softmax attention of one head, one position at a time; all [T, D]."""
    output = np.empty_like(value)
    for position in range(len(query)):
        scores = key[: position + 1] @ query[position] / np.sqrt(query.shape[1])
        weights = np.exp(scores - scores.max())
        output[position] = weights @ value[: position + 1] / weights.sum()
    return output


def _rotated(x: Doubles, config: ModelConfig) -> Doubles:
    """Turn the pairs (i, i + D/2) of x [T, D], each one complex number, by their angles."""
    frequencies, scale = rotary_frequencies(config)
    half = config.head_dim // 2
    angles = np.outer(np.arange(len(x)), frequencies.astype(np.float64))
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles) * scale
    return np.concatenate([turned.real, turned.imag], axis=1)


def _mlp(config: ModelConfig, own: dict[str, Doubles], hidden: Doubles) -> Doubles:
    normed = _norm(hidden, own["post_attention_layernorm.weight"], config)
    gate = _projected(own, "mlp.gate_proj", normed)
    up = _projected(own, "mlp.up_proj", normed)
    return _projected(own, "mlp.down_proj", gate * (0.5 + 0.5 * np.tanh(gate / 2)) * up)


def _norm(x: Doubles, weight: Doubles, config: ModelConfig) -> Doubles:
    root_mean_square: Doubles = np.sqrt((x**2).mean(axis=1, keepdims=True) + config.rms_norm_eps)
    return x / root_mean_square * weight


def _projected(own: dict[str, Doubles], name: str, x: Doubles) -> Doubles:
    return x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0.0)


def _head(x: Doubles, head: int, config: ModelConfig) -> Doubles:
    return x[:, head * config.head_dim : (head + 1) * config.head_dim]
