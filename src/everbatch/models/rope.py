"""Rotary position embedding: which frequencies a model's configuration means.

Belongs here: inverse frequencies and the factor on cos and sin, for every kind of scaling. Not
here: turning queries and keys (kernels). Called by the network, once at load.
"""

import math

import numpy as np

from everbatch.kernels.arrays import Floats
from everbatch.models.config import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    YarnScaling,
)


def rotary_frequencies(config: ModelConfig) -> tuple[Floats, float]:
    """Give the inverse frequencies [head_dim / 2] float32, and what cos and sin are multiplied by.

    Rounded to float32 at the same places as in transformers, because an angle is one of these times
    a position: a last bit here is 1e-4 rad at position 2,000. Source: arXiv 2104.09864;
    transformers 5, modeling_llama.py, LlamaRotaryEmbedding.compute_default_rope_parameters.
    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    wavelengths = np.power(config.rope.theta, exponents.astype(np.float64)).astype(np.float32)
    plain = np.float32(1) / wavelengths
    match config.rope.scaling:
        case None:
            return plain, 1.0
        case LinearScaling(factor=factor):
            # Positions divided by `factor`, written as frequencies (arXiv 2306.15595).
            return plain / np.float32(factor), 1.0
        case FrequencyFactors(factors=factors):
            # As llama.cpp applies the tensor rope_freqs (ggml.c, ggml_rope_ext).
            divisors: Floats = np.asarray(factors, dtype=np.float32)
            return plain / divisors, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(wavelengths, config, scaling), scaling.attention_factor


def _llama3(plain: Floats, scaling: Llama3Scaling) -> Floats:
    """Long wavelengths divided by factor, short ones kept, a ramp between.
    Source: transformers 5, modeling_rope_utils.py, _compute_llama3_parameters."""
    turns = scaling.original_max_position_embeddings * plain / np.float32(2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept: Floats = np.clip((turns - np.float32(low)) / np.float32(high - low), 0, 1)
    return (1 - kept) * plain / np.float32(scaling.factor) + kept * plain


def _yarn(wavelengths: Floats, config: ModelConfig, scaling: YarnScaling) -> Floats:
    """YaRN's blend, by parts (arXiv 2309.00071, section 3.2).
    Source: transformers 5, modeling_rope_utils.py, _compute_yarn_parameters."""
    low = _dimension_of(scaling.beta_fast, config, scaling)
    high = _dimension_of(scaling.beta_slow, config, scaling)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    if low == high:
        high += 0.001  # Keeps the ramp's slope finite.
    dimensions = np.arange(config.head_dim // 2, dtype=np.float32)
    interpolated: Floats = np.clip((dimensions - np.float32(low)) / np.float32(high - low), 0, 1)
    by_factor = np.float32(1) / (np.float32(scaling.factor) * wavelengths)
    return by_factor * interpolated + (1 - interpolated) / wavelengths


def _dimension_of(num_rotations: float, config: ModelConfig, scaling: YarnScaling) -> float:
    """The dimension whose pair turns num_rotations times in the original context."""
    turns = scaling.original_max_position_embeddings / (num_rotations * 2 * math.pi)
    return config.head_dim * math.log(turns) / (2 * math.log(config.rope.theta))
