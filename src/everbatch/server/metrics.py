"""What /metrics tells, under vLLM's names with the prefix `everbatch:`.

Belongs here: the accumulators and their collector. Not here: who calls them (the bridge, once a
step and once a request) or the engine's own counting. Gauges and totals are read from the latest
EngineStats when Prometheus asks, so that a step pays for two additions; histograms are plain lists,
because prometheus-client's cost a lock and a linear search for every token.

Covered: running, waiting (and why), KV usage, preemptions, tokens, prefix cache, requests by finish
reason and refusals by reason, latencies, tokens a step, lengths. Not covered: prefill and decode
time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import ceil

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from everbatch.base.events import Event, Preempted
from everbatch.base.units import NS_PER_S
from everbatch.engine.metrics import EngineStats
from everbatch.server.live import LiveRequest, LiveSample
from everbatch.server.waiting import WaitingReasons

PREFIX = "everbatch:"

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
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# What a client that was refused is told to wait.
MIN_RETRY_S, MAX_RETRY_S = 1, 60
LENGTH_BUCKETS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000),
    *(100_000, 200_000),
)


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum", "_text", "name")

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self._text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def mean(self) -> float:
        """Give the mean of what was observed; 0 if nothing was."""
        return self._sum / max(1, sum(self._counts))

    def family(self, model_name: str) -> HistogramMetricFamily:
        """Give it as Prometheus wants it: cumulative counts."""
        family = HistogramMetricFamily(PREFIX + self.name, self._text, labels=["model_name"])
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((_bound_text(bound), total))
        family.add_metric([model_name], buckets=buckets, sum_value=self._sum)
        return family


class ServerMetrics:
    """The numbers of one server; registers itself in a registry of its own."""

    def __init__(self, model_name: str, stats: EngineStats) -> None:
        self._model_name = model_name
        self._stats = stats
        self._rejected: dict[str, int] = {}
        self._preempted: dict[str, int] = {}
        self._waiting = WaitingReasons()
        self._time_to_first_token = Histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", TTFT_BUCKETS_S
        )
        self._inter_token_latency = Histogram(
            "inter_token_latency_seconds", "Between a sample's tokens.", INTER_TOKEN_BUCKETS_S
        )
        self._queue_time = Histogram(
            "request_queue_time_seconds", "From arrival to the first slot.", E2E_BUCKETS_S
        )
        self._e2e = Histogram(
            "e2e_request_latency_seconds", "From arrival to the end.", E2E_BUCKETS_S
        )
        self._iteration_tokens = Histogram(
            "iteration_tokens_total", "Prompt and decode tokens of one step.", ITERATION_BUCKETS
        )
        self._prompt_tokens = Histogram(
            "request_prompt_tokens", "Prompt tokens of an ended request.", LENGTH_BUCKETS
        )
        self._output_tokens = Histogram(
            "request_generation_tokens", "Output tokens of an ended request.", LENGTH_BUCKETS
        )
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ServerCollector(self))

    def fold_stats(self, stats: EngineStats) -> None:
        """Take in what a turn of the engine left behind."""
        if stats.num_steps > self._stats.num_steps:
            self._iteration_tokens.observe(stats.scheduled_tokens - self._stats.scheduled_tokens)
        self._stats = stats

    def fold_events(self, events: Sequence[Event]) -> None:
        """Take in what happened in a turn of the engine."""
        self._waiting.fold(events)
        for event in events:
            # Without a slot it had been preempted before, and loses what it had kept.
            if isinstance(event, Preempted) and event.slot is not None:
                self._preempted[event.way] = self._preempted.get(event.way, 0) + 1

    def forget_waiting(self) -> None:
        """The engine is dead: nobody waits any more."""
        self._waiting.clear()

    def observe_admission(self, request: LiveRequest, now_ns: int) -> None:
        """Observe how long a request waited for its first slot."""
        self._queue_time.observe((now_ns - request.arrival_ns) / NS_PER_S)

    def observe_token(self, sample: LiveSample, now_ns: int) -> None:
        """Observe the time since the sample's last token; of its request's first, since arrival.

        To be called before either of them notes the token.
        """
        if sample.last_token_ns is not None:
            self._inter_token_latency.observe((now_ns - sample.last_token_ns) / NS_PER_S)
        elif sample.request.num_output_tokens == 0:
            ttft_ns = now_ns - sample.request.arrival_ns
            self._time_to_first_token.observe(ttft_ns / NS_PER_S)

    def queue_retry_s(self) -> int:
        """Estimate when there is a place in a full queue again, in seconds.

        A queue of L in which each waits W lets one in every W / L (Little's law).
        """
        wait_s = self._queue_time.mean() / max(1, self._stats.num_waiting)
        return min(max(MIN_RETRY_S, ceil(wait_s)), MAX_RETRY_S)

    def fold_request(
        self, finish_reason: str, *, e2e_s: float, num_prompt_tokens: int, num_output_tokens: int
    ) -> None:
        """Observe one ended request; those that were cut say nothing about latency and length."""
        if finish_reason in ("stop", "length"):
            self._e2e.observe(e2e_s)
            self._prompt_tokens.observe(num_prompt_tokens)
            self._output_tokens.observe(num_output_tokens)

    def count_rejection(self, reason: str) -> None:
        self._rejected[reason] = self._rejected.get(reason, 0) + 1

    def exposition(self) -> bytes:
        """Give Prometheus' text format."""
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        stats, model = self._stats, self._model_name
        for name, text, value in _gauges(stats):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
            gauge.add_metric([model], value)
            yield gauge
        for name, text, count in _totals(stats):
            counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
            counter.add_metric([model], count)
            yield counter
        yield self._waiting_by_reason()
        by_way = CounterMetricFamily(
            PREFIX + "num_preemptions_by_way",
            "Preemptions by what became of the victim's blocks.",
            labels=["model_name", "way"],
        )
        for way, count in self._preempted.items():
            by_way.add_metric([model, way], count)
        yield by_way
        yield self._by_reason("request_success", "finished_reason", stats.num_finished)
        yield self._by_reason("request_rejected", "reason", self._rejected)
        for histogram in (
            *(self._time_to_first_token, self._inter_token_latency, self._queue_time, self._e2e),
            *(self._iteration_tokens, self._prompt_tokens, self._output_tokens),
        ):
            yield histogram.family(model)

    def _waiting_by_reason(self) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(
            PREFIX + "num_requests_waiting_by_reason",
            "Requests that wait for a slot, by what they lack first.",
            labels=["model_name", "reason"],
        )
        for reason, count in self._waiting.counts().items():
            gauge.add_metric([self._model_name, reason], count)
        return gauge

    def _by_reason(self, name: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
        text = f"Requests by {label.replace('_', ' ')}; abort: the client or the server left."
        counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name", label])
        for reason, count in counts.items():
            counter.add_metric([self._model_name, reason], count)
        return counter


class _ServerCollector(Collector):
    """The face that prometheus-client wants."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


def _gauges(stats: EngineStats) -> list[tuple[str, str, float]]:
    return [
        ("num_requests_running", "Requests that hold a slot.", stats.num_running),
        ("num_requests_waiting", "Requests that wait for a slot.", stats.num_waiting),
        ("kv_cache_usage_perc", "KV blocks held by requests, 1 is all.", stats.kv_cache_usage),
    ]


def _totals(stats: EngineStats) -> list[tuple[str, str, int]]:
    return [
        ("num_preemptions", "Times a request lost its KV cache.", stats.num_preemptions),
        ("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
        ("generation_tokens", "Output tokens.", stats.generation_tokens),
        ("prefix_cache_queries", "Tokens looked up in the cache.", stats.prefix_cache_queries),
        ("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits),
    ]


def _bound_text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
