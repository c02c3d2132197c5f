"""What requests were like, as histograms: how long each part of them took, and their sizes.

Belongs here: which histograms there are, and what an ended request adds. Not here: counting
(histograms.py), the other metrics, of which these are a part (metrics.py).
"""

from everbatch.base.units import NS_PER_S
from everbatch.server.histograms import (
    COUNT_BUCKETS,
    E2E_BUCKETS_S,
    INTER_TOKEN_BUCKETS_S,
    LENGTH_BUCKETS,
    TTFT_BUCKETS_S,
    Histogram,
)
from everbatch.server.live import LiveRequest


class RequestHistograms:
    """What is observed of requests: of those that were cut nothing but their first tokens."""

    def __init__(self) -> None:
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", TTFT_BUCKETS_S
        )
        self.inter_token = Histogram(
            "inter_token_latency_seconds", "Between a sample's tokens.", INTER_TOKEN_BUCKETS_S
        )
        self.queue = Histogram(
            "request_queue_time_seconds", "From arrival to the first slot.", E2E_BUCKETS_S
        )
        self.prefill = Histogram(
            "request_prefill_time_seconds", "From the first slot to the first token.", E2E_BUCKETS_S
        )
        self.decode = Histogram(
            "request_decode_time_seconds", "From the first token to the last.", E2E_BUCKETS_S
        )
        self.inference = Histogram(
            "request_inference_time_seconds", "From the first slot to the last.", E2E_BUCKETS_S
        )
        self.per_output_token = Histogram(
            "request_time_per_output_token_seconds",
            "A request's mean time between tokens.",
            INTER_TOKEN_BUCKETS_S,
        )
        self.e2e = Histogram(
            "e2e_request_latency_seconds", "From arrival to the end.", E2E_BUCKETS_S
        )
        self.prompt_tokens = Histogram(
            "request_prompt_tokens", "Prompt tokens of an ended request.", LENGTH_BUCKETS
        )
        self.output_tokens = Histogram(
            "request_generation_tokens", "Output tokens of an ended request.", LENGTH_BUCKETS
        )
        self.max_tokens = Histogram(
            "request_params_max_tokens", "max_tokens of an ended request.", LENGTH_BUCKETS
        )
        self.computed_prompt_tokens = Histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens of an ended request that were not in the prefix cache.",
            LENGTH_BUCKETS,
        )
        self.longest_output = Histogram(
            "request_max_num_generation_tokens",
            "Output tokens of the longest sample of an ended request.",
            LENGTH_BUCKETS,
        )
        self.n = Histogram("request_params_n", "Samples of an ended request.", COUNT_BUCKETS)
        self.preemptions = Histogram(
            "request_num_preemptions", "Preemptions of an ended request.", (0, *COUNT_BUCKETS)
        )

    def all(self) -> list[Histogram]:
        return list(vars(self).values())

    def observe_end(self, request: LiveRequest, now_ns: int) -> None:
        """Observe a request that ended by itself or at its limit."""
        self.e2e.observe((now_ns - request.arrival_ns) / NS_PER_S)
        self.prompt_tokens.observe(request.num_prompt_tokens)
        self.computed_prompt_tokens.observe(request.num_prompt_tokens - request.num_cached_tokens)
        self.output_tokens.observe(request.num_output_tokens)
        self.longest_output.observe(request.longest_sample_tokens)
        self.n.observe(request.num_samples)
        if request.max_tokens is not None:
            self.max_tokens.observe(request.max_tokens)
        slot_ns, first_ns, last_ns = (
            request.admitted_ns,
            request.first_token_ns,
            request.last_token_ns,
        )
        if slot_ns is None or first_ns is None or last_ns is None:
            return
        # The clock is read after a step, the slot's time is that of its plan.
        self.prefill.observe(max(0, first_ns - slot_ns) / NS_PER_S)
        self.inference.observe(max(0, last_ns - slot_ns) / NS_PER_S)
        decode_s = (last_ns - first_ns) / NS_PER_S
        self.decode.observe(decode_s)
        num_gaps = request.num_output_tokens / request.num_samples - 1
        if num_gaps > 0:
            self.per_output_token.observe(decode_s / num_gaps)
