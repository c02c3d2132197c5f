"""Random numbers that depend on a seed and a position and on nothing else.

Belongs here: the counter-based generator. Not here: what is drawn with it (sampling.py). Whoever
implements sampling again must give the same numbers: texts of seeded requests depend on them.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

_MASK_32 = np.uint64(0xFFFF_FFFF)
MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15  # 2**64 over the golden ratio

# Philox-4x32's multipliers, and what its key grows by each round.
_MULTIPLIERS = (np.uint64(0xD251_1F53), np.uint64(0xCD9E_8D57))
_KEY_STEPS = (np.uint64(0x9E37_79B9), np.uint64(0xBB67_AE85))
_NUM_ROUNDS = 10


def uniform(seed: Words, position: Words) -> NDArray[np.float64]:
    """Give one number in [0, 1) for each (seed, position), a multiple of 2**-53.
    seed, position: [N] uint64. The seed is Philox's key, the position its counter."""
    zero = np.zeros_like(position)
    counter = (position & _MASK_32, position >> np.uint64(32), zero, zero)
    high, low, _, _ = philox(counter, (seed & _MASK_32, seed >> np.uint64(32)))
    bits = ((high << np.uint64(32)) | low) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Philox-4x32-10: four random 32-bit words for each counter and key, 32-bit words in uint64.
    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (right >> np.uint64(32)) ^ c1 ^ k0,
            right & _MASK_32,
            (left >> np.uint64(32)) ^ c3 ^ k1,
            left & _MASK_32,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK_32, (k1 + _KEY_STEPS[1]) & _MASK_32
    return c0, c1, c2, c3


def seed_for(engine_seed: int, arrival_number: int) -> int:
    """Give the seed, in [0, 2**64), of a request that brings none: the engine's arrival_number-th.
    SplitMix64's output function (Steele et al., OOPSLA 2014, figure 16) on its arrival_number-th
    state, so no two requests of one engine share a seed."""
    mixed = (_finalise(engine_seed & MASK_64) + (arrival_number + 1) * _GOLDEN) & MASK_64
    return _finalise(mixed)


def _finalise(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & MASK_64
    return value ^ (value >> 31)
