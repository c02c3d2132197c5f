"""Means, deviations and percentiles of latencies, under the names of vLLM's benchmark.

Percentiles interpolate linearly between ranks. Pure functions; used by figures.py.
"""

from collections.abc import Sequence

import numpy as np

from everbatch.base.units import NS_PER_MS

Figures = dict[str, float | None]


def percent_name(percent: float) -> str:
    """Give what a percentile is called: p50, p99.9."""
    return f"p{percent:g}"


def milliseconds(name: str, samples_ns: Sequence[float], percents: Sequence[float]) -> Figures:
    """Give mean_NAME_ms, median_NAME_ms, std_NAME_ms and pP_NAME_ms; all None without samples.

    The deviation is that of the samples themselves, as numpy's and vLLM's.
    """
    names = ["mean", "median", "std", *map(percent_name, percents)]
    keys = [f"{statistic}_{name}_ms" for statistic in names]
    if not len(samples_ns):
        return dict.fromkeys(keys)
    values = np.asarray(samples_ns, dtype=np.float64) / NS_PER_MS
    figures = [values.mean(), *np.percentile(values, 50, keepdims=True), values.std()]
    figures += list(np.percentile(values, list(percents)))
    return {key: float(figure) for key, figure in zip(keys, figures, strict=True)}
