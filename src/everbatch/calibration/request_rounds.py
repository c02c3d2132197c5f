"""Finds prices that explain the stamps of requests.

From when a request came to its first token, and from there to its last, the engine ran steps. A
simulated run of the same requests tells which: so many without a prompt, so many decodes, tokens,
pairs. The sum of their prices is what the log says it took, one equation a stamp, linear in the
prices. What runs when depends on the prices, so the run is repeated with those that were found. If
steps take too long, too many requests share them, and the next prices go too far the other way: a
change of prices that makes it worse is halved.

Belongs here: equations and rounds. Not here: arithmetic (fit), runs (request_runs).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_S
from everbatch.calibration.fit import PRICES, Array, fit_counts, rounded
from everbatch.calibration.request_log import RequestLog
from everbatch.calibration.request_runs import RecordedRun, run_requests
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.workload.scenario import Scenario

MIN_REQUESTS = 20
MAX_ROUNDS = 16
SETTLED = 1e-3
"""Prices hold if no stamp moves by more than this fraction."""
LEANING = 1.0
"""A price that is leaned on counts as so many stamps."""
SPARE_TIME = 1.5
"""A run may be so many times as long as what was recorded before it is given up."""


@dataclass(frozen=True, slots=True)
class _Round:
    """One run: of each stamp that it reached what was done, and how long it took, in both."""

    prices: Prices
    counts: Array
    """[stamp, price]"""
    recorded: Array
    simulated: Array
    num_missed: int
    """Stamps that the run had not reached when it was given up."""

    @property
    def error(self) -> float:
        """The mean of the stamps' errors, as fractions up to 1."""
        errors = np.minimum(np.abs(self.simulated / self.recorded - 1), 1.0)
        return float((errors.sum() + self.num_missed) / (len(errors) + self.num_missed))

    def moves(self, other: Prices) -> bool:
        """Whether other prices move a stamp by more than what is settled."""
        change = _vector(other) - _vector(self.prices)
        moved = np.abs((self.counts * change).sum(axis=1)) / self.simulated
        return bool(moved.max() >= SETTLED)


class Rounds:
    """Repeats runs and fits until the prices hold."""

    def __init__(
        self,
        log: RequestLog,
        scenario: Scenario,
        cut: int,
        leaning: Prices,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        """Fit to the stamps up to `cut`, and weakly to those prices of `leaning` that are not 0.

        `tell` hears how many rounds are done.
        """
        self._log = log
        self._scenario = scenario
        self._cut = cut
        self._tell = tell or (lambda num_rounds: None)
        self._leaning_rows, self._leaning_times = _measurements(leaning)

    def settle(self, start: Prices) -> tuple[Prices, int]:
        """Give the prices whose run is nearest to what was recorded, and how many runs it took."""
        self._tell(0)
        best = self._round(start)
        if len(best.recorded) < MIN_REQUESTS:
            raise ConfigError(
                f"{self._log.name}: the engine of this scenario reaches {len(best.recorded):,} of "
                f"its stamps in time, a fit needs {MIN_REQUESTS}: are num_blocks, max_num_seqs and "
                "max_num_batched_tokens those of the engine that wrote the log?"
            )
        num_rounds, candidate = 1, self._fit(best)
        while num_rounds < MAX_ROUNDS and best.moves(candidate):
            self._tell(num_rounds)
            num_rounds += 1
            tried = self._round(candidate)
            if tried.error < best.error:
                best, candidate = tried, self._fit(tried)
            else:
                candidate = _between(best.prices, candidate)
        return best.prices, num_rounds

    def _round(self, prices: Prices) -> _Round:
        run = run_requests(
            self._scenario,
            self._log.requests,
            FittedStepTime(prices, Region()),
            round(SPARE_TIME * self._cut),
            has_queued=self._log.has_queued,
        )
        return self._equations(prices, run)

    def _equations(self, prices: Prices, run: RecordedRun) -> _Round:
        rows: list[Array] = []
        times: list[tuple[int, int]] = []
        num_missed = 0
        for one, stamp in zip(self._log.requests, run.stamps, strict=True):
            if one.first_ns > self._cut:
                continue
            wants_last = one.last_ns <= self._cut and one.decode_ns > 0
            if stamp.first_ns is None:
                num_missed += 1 + wants_last
                continue
            first = run.done_until(stamp.first_ns)
            rows.append(first - run.done_until(stamp.queued_ns))
            times.append((one.ttft_ns, stamp.first_ns - stamp.queued_ns))
            if wants_last and stamp.last_ns is not None:
                rows.append(run.done_until(stamp.last_ns) - first)
                times.append((one.decode_ns, stamp.last_ns - stamp.first_ns))
            else:
                num_missed += wants_last
        recorded, simulated = np.array(times, dtype=np.float64).reshape(-1, 2).T
        counts = np.array(rows).reshape(-1, len(PRICES))
        return _Round(prices, counts, recorded, np.maximum(simulated, 1.0), num_missed)

    def _fit(self, found: _Round) -> Prices:
        """Fit to the stamps and, weakly, to what is leaned on."""
        times = np.concatenate([found.recorded, self._leaning_times])
        weights = np.full(len(times), LEANING)
        weights[: len(found.recorded)] = 1.0
        return fit_counts(np.vstack([found.counts, self._leaning_rows]), times, weights).prices


def _measurements(leaning: Prices) -> tuple[Array, Array]:
    """Give each price as a measurement of itself alone: so much of it in a second."""
    prices = _vector(leaning)
    told = np.flatnonzero(prices)
    rows = np.zeros((len(told), len(PRICES)))
    rows[np.arange(len(told)), told] = NS_PER_S / prices[told]
    return rows, np.full(len(told), float(NS_PER_S))


def _between(one: Prices, other: Prices) -> Prices:
    middle = (_vector(one) + _vector(other)) / 2
    prices: dict[str, Any] = {
        name: rounded(price) for name, price in zip(PRICES, middle, strict=True)
    }
    return Prices(**prices)


def _vector(prices: Prices) -> Array:
    return np.array([getattr(prices, name) for name in PRICES])
