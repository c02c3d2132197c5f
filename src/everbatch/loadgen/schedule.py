"""When requests are due and how long they are: synthetic arrivals, or a trace with its own times.

Belongs here: rates, burstiness, ramps, uniform lengths. Not here: drawing (workload.random_draws),
reading traces (workload.traces), what prompts say (prompts.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from everbatch.base.units import NS_PER_S
from everbatch.workload.arrivals import Content, OpenRequests, all_at_once, gaps
from everbatch.workload.lengths import LengthDraw, Lengths
from everbatch.workload.random_draws import Draw, exp, ln, stream
from everbatch.workload.sources import RequestSource

RampStrategy = Literal["linear", "exponential"]
RAMP_STRATEGIES = ("linear", "exponential")


@dataclass(frozen=True, slots=True)
class Ramp:
    """Requests a second from the first request to the last, by their number; vLLM's names."""

    strategy: RampStrategy
    start_rps: float
    end_rps: float

    def rate(self, number: int, num_requests: int) -> float:
        share = number / max(num_requests - 1, 1)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * share
        return self.start_rps * exp(ln(self.end_rps / self.start_rps) * share)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast requests come. `rate` is requests a second; None: all at once.

    `burstiness` is the shape of the gamma distribution of the gaps: 1 is a Poisson process, less
    comes in bursts, more is even.
    """

    rate: float | None = None
    burstiness: float = 1.0
    ramp: Ramp | None = None

    def times(self, seed: int, num_requests: int | None) -> Iterator[int]:
        """Give when requests are due, in nanoseconds; the first one at 0. A ramp needs their
        number."""
        draw = stream(seed, "arrivals").random
        # The variance of a gamma distribution of mean 1 is 1 / shape.
        unit = gaps(draw, 1.0, self.burstiness**-0.5)
        if self.ramp is not None:
            assert num_requests is not None
            return _ramped(unit, self.ramp, num_requests)
        if self.rate is None:
            return all_at_once()
        return _steady(unit, self.rate)


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths that are all equally likely."""

    low: int
    high: int

    def drawing(self) -> LengthDraw:
        low, count = self.low, self.high - self.low + 1
        if count == 1:
            return lambda draw: low

        def draw_one(draw: Draw) -> int:
            return low + int(draw() * count)

        return draw_one


@dataclass(frozen=True, slots=True)
class Extent:
    """How many requests, and for how long they are sent; one of them at least."""

    num_requests: int | None
    duration_ns: int | None


def synthetic_requests(pace: Pace, content: Content, extent: Extent, seed: int) -> RequestSource:
    """Give requests that are drawn; the same ones for the same seed."""
    return OpenRequests(
        pace.times(seed, extent.num_requests),
        content.maker(seed),
        extent.num_requests,
        extent.duration_ns,
    )


def content_of(
    prompt: LengthRange, output: LengthRange, prefix_tokens: int = 0, num_prefixes: int = 1
) -> Content:
    """Give what synthetic requests bring."""
    lengths = Lengths(prompt.drawing(), output.drawing())
    return Content(lengths, prefix_tokens, num_prefixes)


def _steady(unit: Callable[[], float], rate: float) -> Iterator[int]:
    time = 0
    while True:
        yield time
        time += round(unit() / rate * NS_PER_S)


def _ramped(unit: Callable[[], float], ramp: Ramp, num_requests: int) -> Iterator[int]:
    time = 0
    for number in range(num_requests):
        yield time
        time += round(unit() / ramp.rate(number, num_requests) * NS_PER_S)
