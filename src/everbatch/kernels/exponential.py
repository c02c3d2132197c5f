"""e ** x out of additions and products alone, so that it has the same bits on every machine.

Belongs here: this one function. Not here: who uses it (sampling.py). csrc/path_math.hpp has the
same steps in the same order; numpy's own `exp` differs in the last bit from one CPU to the next.
"""

import numpy as np

from everbatch.kernels.arrays import Floats

# Source: Cephes, expf.c: x = n * ln(2) + r, and a polynomial in r.
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)
_LOG2_E = np.float32(1.44269504088896341)
_LN2_UPPER, _LN2_LOWER = np.float32(0.693359375), np.float32(2.12194440e-4)
_COEFFICIENTS = tuple(
    np.float32(coefficient)
    for coefficient in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
# Adding 1.5 * 2 ** 23 leaves a float32 no place for a fraction: it rounds to the nearest integer.
_ROUNDER = np.float32(12582912.0)
_ROUNDER_BITS = np.uint32(0x4B400000)


def exponential(x: Floats) -> Floats:
    """Give e ** x, to about 2 units in the last place, exactly 1 for 0; x is held in [-87, 88].
    Each operation is rounded on its own, as IEEE 754 says."""
    x = np.minimum(np.maximum(x, _LOWEST), _HIGHEST)
    shifted = x * _LOG2_E
    shifted += _ROUNDER
    powers = shifted.view(np.uint32) - _ROUNDER_BITS
    powers += np.uint32(127)
    powers <<= np.uint32(23)
    whole = np.subtract(shifted, _ROUNDER, out=shifted)
    rest = x - whole * _LN2_UPPER
    rest += np.multiply(whole, _LN2_LOWER, out=whole)
    result: Floats = np.full_like(rest, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        result *= rest
        result += coefficient
    result *= rest
    result *= rest
    result += rest
    result += np.float32(1.0)
    result *= powers.view(np.float32)
    return result
