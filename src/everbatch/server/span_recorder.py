"""Makes the span of each request out of what the bridge sees of it.

Belongs here: which facts a span has, under which names. Not here: where it goes (spans.SpanSink).
Used by the bridge, on the event loop; without a sink nothing is recorded.

Names are vLLM's, and OpenTelemetry's for generative AI where vLLM has none. Times are in seconds.
"""

from collections.abc import Mapping, Sequence

from everbatch.base.events import Admitted, Event, Preempted
from everbatch.base.units import NS_PER_S
from everbatch.engine.engine import EngineRequest
from everbatch.scheduler.request import FinishReason
from everbatch.server.live import EndCause, LiveRequest, LiveRequests
from everbatch.server.spans import Attributes, RequestTrace, Span, SpanEvent, SpanSink

_GONE = (EndCause.CLIENT, EndCause.SLOW_CLIENT)
"""Who is cut for one of these has nobody who misses the rest: that is no error of ours."""


class SpanRecorder:
    """Hands a span to `sink` for each request of the engine, when it has ended."""

    def __init__(self, model_name: str, sink: SpanSink | None) -> None:
        self._model_name = model_name
        self._sink = sink

    def begin(self, request: EngineRequest, headers: Mapping[str, str]) -> RequestTrace | None:
        """Make what a live request keeps for its span; None: nobody wants one."""
        return None if self._sink is None else RequestTrace(headers, request.sampling)

    def note(self, events: Sequence[Event], live: LiveRequests) -> None:
        """Note what happened in a turn of the engine, before it is told who has ended."""
        if self._sink is None:
            return
        for event in events:
            if not isinstance(event, Admitted | Preempted):
                continue
            sample = live.sample(event.id)
            trace = None if sample is None else sample.request.trace
            if trace is None:
                continue
            if isinstance(event, Preempted):
                trace.num_preemptions += 1
                trace.note(
                    SpanEvent(
                        "preempted",
                        event.t,
                        {"blocks": event.blocks, "way": event.way, "id": event.id},
                    )
                )
            elif event.resumed:
                trace.note(SpanEvent("resumed", event.t, {"id": event.id}))
            elif event.prompt_tokens:
                trace.note(SpanEvent("admitted", event.t, {"cached_tokens": event.cached_tokens}))

    def end(self, request: LiveRequest, now_ns: int, refused: str | None = None) -> None:
        """Hand over the span of a request that has ended; `refused`: why it never waited."""
        trace = request.trace
        if self._sink is None or trace is None:
            return
        events = list(trace.events)
        if request.first_token_ns is not None:
            events.append(SpanEvent("first_token", request.first_token_ns))
        events.sort(key=lambda event: event.t_ns)
        error = refused or _error(request)
        attributes = {
            **_asked(request, trace),
            **_usage(request, trace),
            **_latencies(request, now_ns),
            "gen_ai.operation.name": _operation(request.id),
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
        }
        if request.reason is not None and refused is None:
            attributes["gen_ai.response.finish_reasons"] = (request.reason.value,)
        if request.reason is FinishReason.ABORT and request.cause is not None:
            attributes["everbatch.abort_cause"] = request.cause.value
        if error is not None:
            attributes["error.type"] = error
        self._sink(
            Span(trace.trace_headers, request.arrival_ns, now_ns, attributes, tuple(events), error)
        )


def _operation(answer_id: str) -> str:
    """Give OpenTelemetry's name for what was asked: ids begin with the kind of their answer."""
    return "text_completion" if answer_id.startswith("cmpl-") else "chat"


def _error(request: LiveRequest) -> str | None:
    reason, cause = request.reason, request.cause
    if reason is FinishReason.ERROR or reason is FinishReason.DEADLINE:
        return str(reason.value)
    if reason is FinishReason.ABORT and cause is not None and cause not in _GONE:
        return cause.value
    return None


def _asked(request: LiveRequest, trace: RequestTrace) -> Attributes:
    sampling = trace.sampling
    attributes: Attributes = {
        "gen_ai.request.id": request.id,
        "gen_ai.request.n": request.num_samples,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
    }
    if request.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    return attributes


def _usage(request: LiveRequest, trace: RequestTrace) -> Attributes:
    num_prompt, num_output = request.num_prompt_tokens, request.num_output_tokens
    return {
        "gen_ai.usage.prompt_tokens": num_prompt,
        "gen_ai.usage.completion_tokens": num_output,
        "gen_ai.usage.input_tokens": num_prompt,
        "gen_ai.usage.output_tokens": num_output,
        "gen_ai.usage.cache_read.input_tokens": request.num_cached_tokens,
        "gen_ai.usage.num_sequences": request.num_samples,
        "everbatch.num_preemptions": trace.num_preemptions,
    }


def _latencies(request: LiveRequest, now_ns: int) -> Attributes:
    """Give the seconds of those parts of its life that it has reached, as /metrics counts them."""
    arrival, slot = request.arrival_ns, request.admitted_ns
    first, last = request.first_token_ns, request.last_token_ns
    spans = {
        "e2e": (arrival, now_ns),
        "time_in_queue": (arrival, slot),
        "time_to_first_token": (arrival, first),
        "time_in_model_prefill": (slot, first),
        "time_in_model_decode": (first, last),
        "time_in_model_inference": (slot, last),
    }
    return {
        # The clock is read after a step, the slot's time is that of its plan.
        f"gen_ai.latency.{name}": max(0, end - begin) / NS_PER_S
        for name, (begin, end) in spans.items()
        if begin is not None and end is not None
    }
