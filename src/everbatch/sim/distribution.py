"""Means and percentiles of samples that come with counts.

Percentiles interpolate linearly between ranks, as numpy's do by default. Pure functions. Used by
the summary and by its tests.
"""

from collections.abc import Iterable, Mapping

PERCENTS = (50, 90, 99)


def distribution(samples: Iterable[float]) -> dict[str, float | None]:
    """Give mean and percentiles of samples; all None if there are none."""
    counts: dict[float, int] = {}
    for sample in samples:
        counts[sample] = counts.get(sample, 0) + 1
    return distribution_of_counts(counts)


def distribution_of_counts(counts: Mapping[float, int]) -> dict[str, float | None]:
    """Give mean and percentiles of samples that each came so many times."""
    values = sorted(value for value, count in counts.items() if count > 0)
    total = sum(counts[value] for value in values)
    if total == 0:
        return {"mean": None, **{f"p{percent}": None for percent in PERCENTS}}
    mean = sum(value * counts[value] for value in values) / total
    return {
        "mean": mean,
        **{f"p{percent}": _percentile(values, counts, total, percent) for percent in PERCENTS},
    }


def _percentile(
    values: list[float], counts: Mapping[float, int], total: int, percent: int
) -> float:
    """Give the value at rank percent/100 × (total − 1), between neighbours in proportion."""
    # Integers first: a rank that is whole must not miss its sample by rounding.
    below, hundredths = divmod(percent * (total - 1), 100)
    low = _at_rank(values, counts, below)
    if hundredths == 0:
        return float(low)
    high = _at_rank(values, counts, below + 1)
    return low + (high - low) * hundredths / 100


def _at_rank(values: list[float], counts: Mapping[float, int], rank: int) -> float:
    for value in values:
        rank -= counts[value]
        if rank < 0:
            return value
    raise AssertionError("the rank lies beyond the samples")
