"""Fits prices to measured steps: weighted, non-negative, robust least squares.

Steps differ by some percent of their length whatever it is, so a residual counts as a fraction of
the predicted time, and a line of n steps weighs n times as much as one of one step. Now and then a
step takes many times as long (a page fault, another process): a residual beyond HUBER robust
standard deviations counts in proportion to its size, not to its square (Huber 1964; weights as in
Holland and Welsch 1977). No step is thrown away: a kind of step that the prices cannot describe
shows as an error.

Some tokens are computed while the weights are read anyway, more of them take longer, and kernels
compute them in tiles (costs.fitted). From how many tokens on, and how many a tile holds, is tried
out: of BENDS and TILES those are taken that explain most, if chance would hardly explain as much.

Belongs here: arithmetic on counts and times. Not here: where they come from (steps), whether they
predict anything (holdout).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from everbatch.calibration.steps import MeasuredSteps
from everbatch.costs.fitted import Prices

PRICES = (
    "decode_step",
    "prompt_step",
    "decode",
    "decode_context",
    "prompt_token",
    "prompt_pair",
    "swapped_block",
)
"""Those of plain counts; the price of a copied block stays 0, as a log does not tell of it."""
WIDE, TILE = "wide_token", "tile"
"""Prices of tokens beyond a bend and of tiles, where there are such."""
BENDS = tuple(sorted({round(2 ** (half / 2)) for half in range(27)}))
"""Numbers of tokens of a step, from 1 to 8,192."""
TILES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MIN_LINES_A_SIDE = 20
"""Of a bend, and of the first tile."""
MIN_GAIN = 30.0
"""By so much a bend or a tile must lower the sum of squares, in units of the spread. Chance gives
2, for its size and its price, if steps err independently; but neighbours err alike."""
HUBER = 1.345
"""With it nothing but 5 % of the efficiency is lost where all residuals are normal."""
OUTLIER = 6.0
"""Robust standard deviations from which on a line is told as an outlier."""
DIGITS = 6
"""Of a price as it is given: all machines round to the same."""
MAX_ROUNDS = 100
_SETTLED = 1e-9
_NORMAL = 1.4826
"""A standard deviation, in median absolute deviations, of a normal distribution."""
_LEAST_SPREAD = 1e-6

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """Prices in nanoseconds, how sure they are, and how far steps are from them."""

    prices: Prices
    standard_errors: dict[str, float]
    """In nanoseconds, of the prices above 0: large if two counts moved together in the log."""
    num_seen: dict[str, int]
    """By price: how much of what it is the price of the fit has seen."""
    spread: float
    """Robust standard deviation of one step's time, as a fraction of the predicted time."""
    num_outliers: int
    """Steps in lines beyond OUTLIER; their pull on the prices is bounded."""
    outlier_time: float
    """Their share of the time."""


def fit_prices(lines: Sequence[MeasuredSteps]) -> Fit:
    """Fit prices to lines of steps, of which there must be one at least."""
    steps = _Steps.of(lines)
    shape, solution = _Shape(), steps.solve(_Shape())
    # A tile is easily taken for a bend, so the bend is looked for once more beside it.
    for name, sizes in (("bend", BENDS), ("tile", TILES), ("bend", BENDS)):
        others = [replace(shape, **{name: size}) for size in sizes if steps.has_both_sides(size)]
        losses = [steps.loss(other, solution) for other in others]
        if losses and min(losses) < steps.loss(shape, solution) - MIN_GAIN:
            shape = others[losses.index(min(losses))]
            solution = steps.solve(shape)
    return solution.fit(shape)


def fit_counts(counts: Array, times: Array, num_steps: Array) -> Fit:
    """Fit prices to `counts` [measurement, price] that took `times` [measurement], nanoseconds.

    A measurement weighs as much as `num_steps` of it.
    """
    return _solve(counts, times, num_steps).fit()


@dataclass(frozen=True, slots=True)
class _Solution:
    """Prices of least bounded squares, and how far each measurement is from them."""

    counts: Array
    times: Array
    num_steps: Array
    prices: Array
    errors: Array
    """Standard errors of the prices."""
    weights: Array
    """Of measurements, in the last round."""
    residuals: Array
    """Of one step, as fractions."""
    spread: float

    def fit(self, shape: "_Shape | None" = None) -> Fit:
        """Give what is told; the prices of a shape stand behind the others."""
        shape = shape or _Shape()
        names = (*PRICES, *shape.names())
        prices = {name: rounded(price) for name, price in zip(names, self.prices, strict=True)}
        is_outlier = np.abs(self.residuals) > OUTLIER * self.spread
        return Fit(
            Prices(**prices, narrow_tokens=shape.bend or 0, tile_tokens=shape.tile or 0),
            {
                name: float(f"{error:.2g}")
                for name, error in zip(names, self.errors, strict=True)
                if prices[name] > 0
            },
            {name: int(count) for name, count in zip(names, self.counts.sum(axis=0), strict=True)},
            float(f"{self.spread:.3g}"),
            int(self.num_steps[is_outlier].sum()),
            float(self.times[is_outlier].sum() / self.times.sum()),
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    """In what a step's time is no plain sum over its tokens; None: it is."""

    bend: int | None = None
    tile: int | None = None

    def names(self) -> list[str]:
        """Give the names of its prices."""
        sizes = ((WIDE, self.bend), (TILE, self.tile))
        return [name for name, size in sizes if size is not None]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Lines of steps as arrays: [line]."""

    counts: Array
    """[line, price]"""
    tokens: Array
    """Of each of its steps."""
    num_steps: Array
    times: Array

    @classmethod
    def of(cls, lines: Sequence[MeasuredSteps]) -> "_Steps":
        rows = [(line.first.num_tokens, line.count, line.duration_ns) for line in lines]
        tokens, num_steps, times = np.array(rows, dtype=np.float64).T
        return cls(counts_of(lines), tokens, num_steps, times)

    def counts_with(self, shape: _Shape) -> Array:
        """Give what each price is paid for, those of the shape behind the others."""
        columns = [self.counts]
        if shape.bend is not None:
            columns.append(self.num_steps * np.maximum(0.0, self.tokens - shape.bend))
        if shape.tile is not None:
            columns.append(self.num_steps * np.ceil(self.tokens / shape.tile))
        return np.column_stack(columns)

    def solve(self, shape: _Shape) -> _Solution:
        """Fit the prices of a shape."""
        return _solve(self.counts_with(shape), self.times, self.num_steps)

    def loss(self, shape: _Shape, found: _Solution) -> float:
        """Give about the sum of squares that a shape leaves, beside the one that was found so far.

        One round, with weights and spread of that: the shape is sought, not its prices.
        """
        counts = self.counts_with(shape)
        columns = counts / np.maximum(counts.max(axis=0), 1.0)
        times = _times(columns, _non_negative(columns, self.times, found.weights))
        predicted = np.maximum(times, self.times / 100)
        return _loss(_residuals(self.times, predicted, self.num_steps), found.spread)

    def has_both_sides(self, size: int) -> bool:
        """Whether there are enough steps of more tokens than that, and of fewer."""
        num_beyond = int((self.tokens > size).sum())
        return min(num_beyond, len(self.tokens) - num_beyond) >= MIN_LINES_A_SIDE


def _solve(counts: Array, times: Array, num_steps: Array) -> _Solution:
    # Columns of like size: context comes in thousands, pairs in millions.
    scale = np.maximum(counts.max(axis=0), 1.0)
    columns = counts / scale
    weights = num_steps / times**2
    predicted = times
    for _ in range(MAX_ROUNDS):
        before = predicted
        scaled = _non_negative(columns, times, weights)
        predicted = np.maximum(_times(columns, scaled), times / 100)
        residuals = _residuals(times, predicted, num_steps)
        spread = max(_LEAST_SPREAD, _NORMAL * float(np.median(np.abs(residuals))))
        bounded = np.minimum(1.0, HUBER * spread / np.maximum(np.abs(residuals), _LEAST_SPREAD))
        weights = bounded * num_steps / predicted**2
        if np.max(np.abs(predicted / before - 1.0)) < _SETTLED:
            break
    errors = _standard_errors(columns, scaled, weights, spread)
    return _Solution(
        counts, times, num_steps, scaled / scale, errors / scale, weights, residuals, spread
    )


def _residuals(times: Array, predicted: Array, num_steps: Array) -> Array:
    residuals: Array = (times / predicted - 1.0) * np.sqrt(num_steps)
    return residuals


def _loss(residuals: Array, spread: float) -> float:
    """Give the sum of squares in units of the spread; beyond HUBER they grow in proportion."""
    sizes = np.abs(residuals) / spread
    return float(np.where(sizes <= HUBER, sizes**2, HUBER * (2 * sizes - HUBER)).sum())


def counts_of(lines: Sequence[MeasuredSteps]) -> Array:
    """Give what each price is paid for: [line, price], in the order of PRICES."""
    rows = [
        (
            0 if line.has_prompt else line.count,
            line.count if line.has_prompt else 0,
            line.num_decodes,
            line.decode_context,
            line.first.prefill_tokens,
            line.first.prefill_pairs,
            line.first.swapped_blocks,
        )
        for line in lines
    ]
    return np.array(rows, dtype=np.float64)


def predicted_ns(prices: Prices, lines: Sequence[MeasuredSteps]) -> Array:
    """Give what the prices say of each line: [line]."""
    shape = _Shape(
        prices.narrow_tokens if prices.wide_token else None,
        prices.tile_tokens if prices.tile else None,
    )
    names = (*PRICES, *shape.names())
    counts = _Steps.of(lines).counts_with(shape)
    return _times(counts, np.array([getattr(prices, name) for name in names]))


def _times(columns: Array, prices: Array) -> Array:
    # Not a product of BLAS: that adds in another order with another number of threads.
    times: Array = (columns * prices).sum(axis=1)
    return times


def _non_negative(columns: Array, times: Array, weights: Array) -> Array:
    """Give the prices ≥ 0 of least weighted squares.

    The least squares of some set of prices, the others 0, are the solution: of all of them, unless
    one comes out below 0. There are few prices, so all sets are tried then, which needs no
    tolerance and cannot stall.
    """
    gram = _gram(columns, weights)
    target = (columns * (weights * times)[:, None]).sum(axis=0)
    num_prices = columns.shape[1]
    seen = [index for index in range(num_prices) if gram[index, index] > 0]
    best, best_gain = np.zeros(num_prices), 0.0
    for size in range(len(seen), 0, -1):
        for chosen in map(list, combinations(seen, size)):
            found, _, rank, _ = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], target[chosen])
            gain = float((found * target[chosen]).sum())
            # Less than full rank: two of them say the same, and a smaller set says it too.
            if rank == size and found.min() >= 0 and gain > best_gain:
                best, best_gain = np.zeros(num_prices), gain
                best[chosen] = found
        if size == len(seen) and best_gain:
            break
    return best


def _gram(columns: Array, weights: Array) -> Array:
    weighted = columns * weights[:, None]
    num_prices = columns.shape[1]
    return np.array([(weighted * columns[:, [index]]).sum(axis=0) for index in range(num_prices)])


def _standard_errors(columns: Array, prices: Array, weights: Array, spread: float) -> Array:
    """Give the standard error of each price above 0, from the weights of the last round."""
    paid = np.flatnonzero(prices)
    errors = np.zeros(len(prices))
    inverse = np.linalg.pinv(_gram(columns, weights)[np.ix_(paid, paid)])
    errors[paid] = spread * np.sqrt(np.diag(inverse))
    return errors


def rounded(price: float) -> float:
    """Give a price as it is told."""
    return float(f"{price:.{DIGITS}g}")
