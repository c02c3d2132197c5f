"""Noise on step times: each step longer or shorter by a factor that depends on seed and step alone.

Real steps differ by some percent at equal work. A factor is lognormal with mean 1, so noise changes
the spread of a run and not its mean. It is drawn by a counter-based hash: no state but the number
of the step, so that two runs of a seed are alike, and a step's factor does not depend on others.
"""

import math

from everbatch.base.errors import ConfigError
from everbatch.costs.work import StepTime, StepWork

MAX_SIGMA = 2.0
"""Of the logarithm; the middle two thirds of the factors then span a factor of 50."""
_MASK = (1 << 64) - 1
_WEYL = 0x9E3779B97F4A7C15
_OTHER_STREAM = 0x5DEECE66D
"""Keeps these numbers apart from those of the factors."""
_LOW = (1 << 32) - 1
_HALF = 2.0**-32
_TURN = 2.0 * math.pi * _HALF


class NoisyStepTime:
    """Multiplies what another model predicts; its calls are the steps 0, 1, 2 and so on."""

    def __init__(self, step_time: StepTime, sigma: float, seed: int) -> None:
        """`sigma` is the standard deviation of the factor's logarithm: 0.02 is about 2 %."""
        if not 0 <= sigma <= MAX_SIGMA:
            raise ConfigError(f"noise must lie in [0, {MAX_SIGMA:g}], got {sigma:g}")
        self._step_time = step_time
        self._sigma = sigma
        self._key = _key(seed)
        self._step = 0

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1, and go on to the next step."""
        factor = _factor(self._key, self._step, self._sigma)
        self._step += 1
        return max(1, round(factor * self._step_time.duration_ns(work)))


def noise_factor(seed: int, step: int, sigma: float) -> float:
    """Give the factor of one step: lognormal with mean 1."""
    return _factor(_key(seed), step, sigma)


def uniform(seed: int, step: int) -> float:
    """Give a number in [0, 1) that depends on seed and step alone."""
    return _mixed(_key(seed ^ _OTHER_STREAM) + (step + 1) * _WEYL) * 2.0**-64


def _factor(key: int, step: int, sigma: float) -> float:
    """Source: Box and Muller (1958), from the two halves of one hash."""
    bits = _mixed(key + (step + 1) * _WEYL)
    # The lowest uniform is not 0, of which there is no logarithm.
    radius = math.sqrt(-2.0 * math.log(((bits >> 32) + 1) * _HALF))
    normal = radius * math.cos(_TURN * (bits & _LOW))
    return math.exp(sigma * (normal - 0.5 * sigma))


def _key(seed: int) -> int:
    return _mixed(seed * _WEYL)


def _mixed(bits: int) -> int:
    """Give 64 bits, each of which depends on all. Source: SplitMix64 (Steele et al., 2014)."""
    bits &= _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
