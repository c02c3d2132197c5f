"""Rotary frequencies: values worked out by hand. All kinds are compared with transformers in
tests/oracle."""

import math

import numpy as np
from models.network_builders import TINY, with_rope

from everbatch.models.config import FrequencyFactors, LinearScaling, Llama3Scaling, YarnScaling
from everbatch.models.rope import rotary_frequencies

# theta 256 and head_dim 16: inverse frequency i is 2 ** -i.
PLAIN = [2.0**-i for i in range(8)]
THETA = 256.0


def test_plain_frequencies_are_powers_of_theta() -> None:
    frequencies, scale = rotary_frequencies(with_rope(TINY, None, THETA))

    assert frequencies.dtype == np.float32
    assert frequencies.tolist() == PLAIN
    assert scale == 1.0


def test_linear_scaling_divides_every_frequency() -> None:
    frequencies, scale = rotary_frequencies(with_rope(TINY, LinearScaling(factor=4.0), THETA))

    assert frequencies.tolist() == [frequency / 4 for frequency in PLAIN]
    assert scale == 1.0


def test_frequency_factors_divide_one_frequency_each() -> None:
    scaling = FrequencyFactors(factors=(1.0, 2.0, 1.0, 4.0, 1.0, 1.0, 1.0, 8.0))
    frequencies, scale = rotary_frequencies(with_rope(TINY, scaling, THETA))

    expected = [p / f for p, f in zip(PLAIN, scaling.factors, strict=True)]
    assert frequencies.tolist() == expected
    assert scale == 1.0


def test_llama3_scaling_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    # With 64 original positions pair i turns 64 * 2 ** -i / (2 pi) = 10.19 * 2 ** -i times: 10.19,
    # 5.09 | 2.55, 1.27 | 0.64 and less. At least 4 turns: kept. At most 1: divided.
    scaling = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    )
    frequencies, scale = rotary_frequencies(with_rope(TINY, scaling, THETA))
    kept = [(64 * 2.0**-i / (2 * math.pi) - 1) / 3 for i in (2, 3)]
    between = [PLAIN[i] * (k + (1 - k) / 8) for i, k in zip((2, 3), kept, strict=True)]

    expected = [*PLAIN[:2], *between, *(p / 8 for p in PLAIN[4:])]
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
    assert scale == 1.0


def test_yarn_blends_between_the_two_dimensions() -> None:
    # Pair i turns 64 * 2 ** -i / (2 pi) times in 64 positions: beta_fast 4 turns is between pairs 1
    # and 2 (1.35), beta_slow 1 turn between 3 and 4 (3.35). Rounded outwards: ramp from 1 to 4.
    scaling = YarnScaling(
        factor=4.0,
        original_max_position_embeddings=64,
        attention_factor=1.25,
        beta_fast=4.0,
        beta_slow=1.0,
    )
    frequencies, scale = rotary_frequencies(with_rope(TINY, scaling, THETA))
    ramp = [0, 0, 1 / 3, 2 / 3, 1, 1, 1, 1]

    expected = [p * (1 - r) + p / 4 * r for p, r in zip(PLAIN, ramp, strict=True)]
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
    assert scale == 1.25


def test_yarn_without_truncation_ramps_between_the_exact_dimensions() -> None:
    scaling = YarnScaling(
        factor=4.0,
        original_max_position_embeddings=64,
        attention_factor=1.0,
        beta_fast=4.0,
        beta_slow=1.0,
        truncate=False,
    )
    frequencies, _ = rotary_frequencies(with_rope(TINY, scaling, THETA))
    # Pair d turns 64 * 2 ** -d / (2 pi) times, so the ramp runs from log2 of that over 4 to 1.
    low, high = (math.log2(64 / (2 * math.pi * turns)) for turns in (4, 1))
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(8)]

    expected = [p * (1 - r) + p / 4 * r for p, r in zip(PLAIN, ramp, strict=True)]
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
