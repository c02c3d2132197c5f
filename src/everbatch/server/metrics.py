"""What /metrics tells, under vLLM's names with a prefix of ours, or with vLLM's.

Belongs here: the accumulators and their collector. Not here: who calls them (the bridge, once a
step and once a request), what requests and steps were like (request_metrics.py, step_metrics.py),
the engine's own counting. Gauges and totals are read from the latest EngineStats when Prometheus
asks, so that a step pays for a few additions. docs/metrics.md says what each one is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from everbatch.base.events import Admitted, Event, Finished, Preempted
from everbatch.base.units import NS_PER_S
from everbatch.engine.metrics import EngineStats
from everbatch.scheduler.admission import Rejection
from everbatch.scheduler.config import SchedulerConfig
from everbatch.server.histograms import ITERATION_BUCKETS, Histogram
from everbatch.server.live import EndCause, LiveRequest, LiveSample
from everbatch.server.phases import Phase, Phases
from everbatch.server.request_metrics import RequestHistograms
from everbatch.server.service_rate import MAX_RETRY_S, MIN_RETRY_S, ServiceRate
from everbatch.server.step_metrics import StepMetrics

DEFAULT_PREFIX = "everbatch"

LOGS = ("access", "events")
RESTARTS = ("died", "hung")
"""Why another process was started before this one."""
# vLLM's labels, and our options behind them.
_CACHE_CONFIG = {
    "block_size": "block_size",
    "num_gpu_blocks": "num_blocks",
    "num_cpu_blocks": "num_host_blocks",
    "enable_prefix_caching": "enable_prefix_caching",
}
_REGULAR_ENDS = ("stop", "length")


class ServerMetrics:
    """The numbers of one server; registers itself in a registry of its own."""

    def __init__(
        self,
        model_name: str,
        stats: EngineStats,
        config: SchedulerConfig | None = None,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        """`config`: which limits a refusal names; without it they are taken for requests."""
        self.model_name = model_name
        self._prefix = f"{prefix}:"
        self._stats = stats
        self._config = config
        self._max_queue_tokens = 0 if config is None else config.max_queue_tokens
        self._max_queue_requests = 0 if config is None else config.max_queue_requests
        self.num_restarts = dict.fromkeys(RESTARTS, 0)
        """By cause; known to who started this process."""
        self._rejected: dict[str, int] = {}
        self._aborted = {cause.value: 0 for cause in EndCause}
        self._preempted: dict[str, int] = {}
        self._logs: dict[str, Callable[[], bool]] = dict.fromkeys(LOGS, _kept)
        self._phases = Phases()
        self._requests = RequestHistograms()
        self._steps = StepMetrics()
        self._rate = ServiceRate()
        self._iteration_tokens = Histogram(
            "iteration_tokens_total", "Prompt and decode tokens of one step.", ITERATION_BUCKETS
        )
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_ServerCollector(self))

    def watch_log(self, name: str, is_lost: Callable[[], bool]) -> None:
        """Tell of one of LOGS whether it has ended before its time."""
        assert name in self._logs
        self._logs[name] = is_lost

    def fold_stats(self, stats: EngineStats) -> None:
        """Take in what a turn of the engine left behind."""
        if stats.num_steps > self._stats.num_steps:
            self._iteration_tokens.observe(stats.scheduled_tokens - self._stats.scheduled_tokens)
        self._stats = stats

    def fold_events(self, events: Sequence[Event], now_ns: int) -> None:
        """Take in what happened in a turn of the engine, after its stats."""
        self._steps.fold(events)
        num_left = num_tokens = 0
        for event in events:
            self._phases.take(event)
            match event:
                # Without a slot it had been preempted before, and loses what it had kept.
                case Preempted() if event.slot is not None:
                    self._preempted[event.way] = self._preempted.get(event.way, 0) + 1
                case Admitted(resumed=False) if event.prompt_tokens:
                    num_left += 1
                    num_tokens += event.prompt_tokens
                case Finished(reason="stop" | "length"):
                    self._requests.preemptions.observe(event.preemptions)
                case _:
                    pass
        is_waiting = self._stats.num_waiting > 0
        self._rate.fold(now_ns, num_left=num_left, num_tokens=num_tokens, is_waiting=is_waiting)

    def forget_waiting(self) -> None:
        """The engine is dead: nobody waits any more."""
        self._phases.clear()

    def observe_admission(self, request: LiveRequest) -> None:
        """Observe how long a request waited for its first slot."""
        assert request.admitted_ns is not None
        self._requests.queue.observe((request.admitted_ns - request.arrival_ns) / NS_PER_S)

    def observe_token(self, sample: LiveSample, now_ns: int) -> None:
        """Observe the time since the sample's last token; of its request's first, since arrival.

        To be called before either of them notes the token.
        """
        if sample.last_token_ns is not None:
            self._requests.inter_token.observe((now_ns - sample.last_token_ns) / NS_PER_S)
        elif sample.request.num_output_tokens == 0:
            ttft_ns = now_ns - sample.request.arrival_ns
            self._requests.first_token.observe(ttft_ns / NS_PER_S)

    def queue_retry_s(self, rejection: Rejection, now_ns: int) -> int:
        """Estimate when a full queue has room for a request that it refused, in seconds."""
        excess = rejection.needed - rejection.limit
        # The limit on requests is passed by one at a time.
        if rejection.limit == self._max_queue_tokens and (
            rejection.limit != self._max_queue_requests or excess > 1
        ):
            return self._rate.retry_s(now_ns, num_tokens=excess)
        return self._rate.retry_s(now_ns, num_requests=excess)

    def live_retry_s(self, num_requests: int, now_ns: int) -> int:
        """Estimate when so many requests more have left the queue, in seconds."""
        return self._rate.retry_s(now_ns, num_requests=num_requests)

    def tenant_retry_s(self, num_live: int) -> int:
        """Estimate when one of so many requests will have ended, in seconds."""
        return min(max(MIN_RETRY_S, ceil(self._requests.e2e.mean() / num_live)), MAX_RETRY_S)

    def fold_request(self, request: LiveRequest, now_ns: int) -> None:
        """Observe an ended request; those that were cut count apart, and say nothing else."""
        reason = None if request.reason is None else request.reason.value
        if reason in _REGULAR_ENDS:
            self._requests.observe_end(request, now_ns)
        elif reason == "deadline":
            self._aborted[EndCause.DEADLINE.value] += 1
        elif reason == "abort" and request.cause is not None:
            self._aborted[request.cause.value] += 1

    def count_rejection(self, reason: str) -> None:
        self._rejected[reason] = self._rejected.get(reason, 0) + 1

    def exposition(self) -> bytes:
        """Give Prometheus' text format."""
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        stats = self._stats
        for name, text, value in _gauges(stats):
            yield self._gauge(name, text, value)
        yield self._gauge(
            "recomputed_token_ratio",
            "Share of the computed tokens that had been computed before, since the start.",
            self._steps.recomputed_token_ratio,
        )
        yield self._by_label(
            GaugeMetricFamily, "kv_blocks", "KV blocks by state.", "state", _blocks(stats)
        )
        yield self._by_label(
            GaugeMetricFamily,
            "log_lost",
            "Logs that could not be written any more and have ended: 1.",
            "log",
            {log: int(is_lost()) for log, is_lost in self._logs.items()},
        )
        phases = self._phases.counts()
        yield self._gauge(
            "num_requests_preempted",
            "Of those that wait: who has run and lost its slot.",
            phases[Phase.PREEMPTED],
        )
        yield self._by_label(
            GaugeMetricFamily,
            "num_requests_running_by_phase",
            "Requests that hold a slot, by what they do.",
            "phase",
            {phase.value: phases[phase] for phase in (Phase.PREFILL, Phase.DECODE)},
        )
        yield self._by_label(
            GaugeMetricFamily,
            "num_requests_waiting_by_reason",
            "Requests that wait for a slot, by what they lack first.",
            "reason",
            self._phases.waiting_by_reason(),
        )
        totals = [*_totals(stats), *_step_totals(self._steps)]
        for name, text, count in totals:
            counter = CounterMetricFamily(self._prefix + name, text, labels=["model_name"])
            counter.add_metric([self.model_name], count)
            yield counter
        yield self._cache_config()
        for name, text, label, counts in (
            ("prompt_tokens_by_source", "Prompt tokens by where their KV came from.", "source",
             _sources(stats)),
            ("num_preemptions_by_way", "Preemptions by what became of the victim's blocks.", "way",
             self._preempted),
            ("request_success", "Requests that have ended, by how.", "finished_reason",
             stats.num_finished),
            ("request_aborted", "Requests that were cut before their end, by whom.", "cause",
             self._aborted),
            ("request_rejected", "Requests that were refused, by why.", "reason", self._rejected),
            ("process_restarts", "Processes that --supervise has started anew, by why.", "cause",
             self.num_restarts),
        ):  # fmt: skip
            yield self._by_label(CounterMetricFamily, name, text, label, counts)
        for histogram in (
            *self._requests.all(),
            self._iteration_tokens,
            self._steps.duration,
            self._steps.tokens,
        ):
            yield histogram.family(self._prefix, self.model_name)

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(self._prefix + name, text, labels=["model_name"])
        gauge.add_metric([self.model_name], value)
        return gauge

    def _cache_config(self) -> Metric:
        """Give the KV cache's sizes as labels, as vLLM does; nothing where nobody told them."""
        labels = ["model_name", *_CACHE_CONFIG]
        family = GaugeMetricFamily(
            f"{self._prefix}cache_config_info", "The KV cache's sizes, as labels.", labels=labels
        )
        if self._config is not None:
            told = [str(getattr(self._config, name)) for name in _CACHE_CONFIG.values()]
            family.add_metric([self.model_name, *told], 1)
        return family

    def _by_label(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        label: str,
        counts: Mapping[str, int],
    ) -> Metric:
        family = kind(self._prefix + name, text, labels=["model_name", label])
        for value, count in counts.items():
            family.add_metric([self.model_name, value], count)
        return family


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


def _blocks(stats: EngineStats) -> dict[str, int]:
    free, cached = stats.num_free_blocks, stats.num_cached_blocks
    return {"free": free, "cached": cached, "used": stats.num_blocks - free - cached}


def _sources(stats: EngineStats) -> dict[str, int]:
    cached = stats.prefix_cache_hits
    return {"local_compute": stats.prompt_tokens - cached, "local_cache_hit": cached}


def _totals(stats: EngineStats) -> list[tuple[str, str, int]]:
    return [
        ("num_preemptions", "Times a request lost its KV cache.", stats.num_preemptions),
        ("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
        ("generation_tokens", "Output tokens.", stats.generation_tokens),
        (
            "prompt_tokens_cached",
            "Prompt tokens found in the prefix cache.",
            stats.prefix_cache_hits,
        ),
        ("prefix_cache_queries", "Tokens looked up in the cache.", stats.prefix_cache_queries),
        ("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits),
    ]


def _step_totals(steps: StepMetrics) -> list[tuple[str, str, int]]:
    return [
        ("computed_tokens", "Tokens computed in steps.", steps.scheduled_tokens),
        ("recomputed_tokens", "Of them those computed before.", steps.recomputed_tokens),
    ]


def _kept() -> bool:
    return False
