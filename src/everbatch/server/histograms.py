"""Histograms of /metrics as plain lists: prometheus-client's cost a lock and a search a token.

Belongs here: counting, and the form in which Prometheus wants it. Not here: what is observed
(request_metrics.py, step_metrics.py).
"""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
E2E_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LENGTH_BUCKETS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000),
    *(100_000, 200_000),
)
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100)


class Histogram:
    """Counts of observations by upper bound, and their sum; with a label for each of its values.

    All values of a label are named at once, so that none is missing before it is observed.
    """

    __slots__ = ("_bounds", "_label", "_series", "_text", "name")

    def __init__(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        label: str | None = None,
        values: Sequence[str] = ("",),
    ) -> None:
        self.name = name
        self._text = text
        self._bounds = bounds
        self._label = label
        self._series = {value: _Series(len(bounds) + 1) for value in values}

    def observe(self, value: float, kind: str = "", count: int = 1) -> None:
        """Observe a value, `count` times; `kind` is the label's value."""
        series = self._series[kind]
        series.counts[bisect_left(self._bounds, value)] += count
        series.sum += value * count

    def mean(self) -> float:
        """Give the mean of what was observed under any label; 0 if nothing was."""
        num = sum(sum(series.counts) for series in self._series.values())
        return sum(series.sum for series in self._series.values()) / max(1, num)

    def family(self, prefix: str, model_name: str) -> HistogramMetricFamily:
        """Give it as Prometheus wants it: cumulative counts."""
        labels = ["model_name"] if self._label is None else ["model_name", self._label]
        family = HistogramMetricFamily(prefix + self.name, self._text, labels=labels)
        for value, series in self._series.items():
            buckets: list[tuple[str, float]] = []
            total = 0
            for bound, count in zip((*self._bounds, float("inf")), series.counts, strict=True):
                total += count
                buckets.append((_bound_text(bound), total))
            own = [model_name] if self._label is None else [model_name, value]
            family.add_metric(own, buckets=buckets, sum_value=series.sum)
        return family


class _Series:
    __slots__ = ("counts", "sum")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * num_buckets
        self.sum = 0.0


def _bound_text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
