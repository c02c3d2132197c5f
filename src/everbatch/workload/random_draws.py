"""Random numbers that are the same on every machine: streams by name, and draws from them.

`random.random` is specified to the bit; its distributions are not, and they call the C library's
logarithm, which rounds differently from one to the next. So ours use arithmetic, square roots and
scaling by powers of two only, which IEEE 754 specifies exactly. Called by arrivals, lengths and
traces.
"""

import math
from collections.abc import Callable
from hashlib import sha256
from random import Random

Draw = Callable[[], float]

_LN_2 = 0.6931471805599453
# ln 2 in two parts; multiples of the first, up to 2**20 of them, have no rounding error.
_LN_2_HIGH = 0.693147180369123816490
_LN_2_LOW = 1.90821492927058770002e-10
# Of the series of artanh(x) / x in x**2, and of e**x, up to where terms vanish in a double. Names
# and no loop: that is half the time of a draw.
_A1, _A2, _A3, _A4, _A5, _A6, _A7, _A8, _A9, _A10 = (1.0 / (2 * k + 1) for k in range(1, 11))
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (
    1.0 / math.factorial(k) for k in range(2, 14)
)
_SQRT_HALF = 0.7071067811865476


def stream(seed: int, name: str) -> Random:
    """Give the generator of one purpose: other purposes do not shift what it draws."""
    return Random(int.from_bytes(sha256(f"{seed}/{name}".encode()).digest()))


def ln(x: float) -> float:
    """Give the natural logarithm of a positive number, to some 2 units in the last place.

    x = m × 2**e with m near 1; ln m = 2 artanh((m − 1) / (m + 1)), as a series.
    """
    mantissa, exponent = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa *= 2
        exponent -= 1
    ratio = (mantissa - 1) / (mantissa + 1)
    q = ratio * ratio
    # fmt: off
    series = q * (_A1 + q * (_A2 + q * (_A3 + q * (_A4 + q * (_A5 + q * (
        _A6 + q * (_A7 + q * (_A8 + q * (_A9 + q * _A10)))))))))
    # fmt: on
    return exponent * _LN_2_HIGH + (2 * ratio + (2 * ratio * series + exponent * _LN_2_LOW))


def exp(x: float) -> float:
    """Give e to the power of x, to some 2 units in the last place; |x| at most 700."""
    exponent = math.floor(x / _LN_2 + 0.5)
    r = (x - exponent * _LN_2_HIGH) - exponent * _LN_2_LOW
    # fmt: off
    series = r * (1.0 + r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * (
        _E7 + r * (_E8 + r * (_E9 + r * (_E10 + r * (_E11 + r * (_E12 + r * _E13))))))))))))
    # fmt: on
    return math.ldexp(1.0 + series, exponent)


def exponential(random: Draw) -> float:
    """Draw with mean 1."""
    return -ln(1.0 - random())


def normal(random: Draw) -> float:
    """Draw with mean 0 and variance 1: Marsaglia's polar method (SIAM Review 6, 1964)."""
    while True:
        x, y = 2 * random() - 1, 2 * random() - 1
        square = x * x + y * y
        if 0 < square < 1:
            return x * math.sqrt(-2 * ln(square) / square)


def gamma(random: Draw, shape: float) -> float:
    """Draw with mean and variance `shape`. Source: Marsaglia and Tsang, ACM TOMS 26 (2000)."""
    if shape < 1:
        # Their remark: gamma(shape) = gamma(shape + 1) × U**(1 / shape); below e**-700 it is 0.
        power = ln(1.0 - random()) / shape
        return gamma(random, shape + 1) * (exp(power) if power > -700 else 0.0)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = normal(random)
        v = 1 + c * x
        if v <= 0:
            continue
        v = v * v * v
        u = 1.0 - random()
        # Their squeeze: it decides most draws without a logarithm.
        if u < 1 - 0.0331 * x * x * x * x or ln(u) < 0.5 * x * x + d - d * v + d * ln(v):
            return d * v
