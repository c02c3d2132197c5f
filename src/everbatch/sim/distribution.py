"""Means and percentiles of samples that come with counts.

Percentiles interpolate linearly between ranks, as numpy's do by default. Pure functions. Used by
the summary and by its tests.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from operator import mul

PERCENTS = (50, 90, 99)


def distribution(samples: Iterable[float]) -> dict[str, float | None]:
    """Give mean and percentiles of samples; all None if there are none."""
    values = sorted(samples)
    return _distribution(values, range(1, len(values) + 1), sum(values))


def distribution_of_counts(counts: Mapping[float, int]) -> dict[str, float | None]:
    """Give mean and percentiles of samples that each came so many times."""
    values = sorted(counts)
    times = [counts[value] for value in values]
    return _distribution(values, list(accumulate(times)), sum(map(mul, values, times)))


def _distribution(
    values: list[float], ranks: "list[int] | range", total: float
) -> dict[str, float | None]:
    """`ranks[i]` samples are at most `values[i]`."""
    count = ranks[-1] if values else 0
    if count == 0:
        return {"mean": None, **{f"p{percent}": None for percent in PERCENTS}}
    percentiles = {f"p{percent}": _percentile(values, ranks, percent) for percent in PERCENTS}
    return {"mean": total / count, **percentiles}


def _percentile(values: list[float], ranks: "list[int] | range", percent: int) -> float:
    """Give the value at rank percent/100 × (count − 1), between neighbours in proportion."""
    # Integers first: a rank that is whole must not miss its sample by rounding.
    below, hundredths = divmod(percent * (ranks[-1] - 1), 100)
    low = values[bisect_right(ranks, below)]
    if hundredths == 0:
        return float(low)
    high = values[bisect_right(ranks, below + 1)]
    return low + (high - low) * hundredths / 100
