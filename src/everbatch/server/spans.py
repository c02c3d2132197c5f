"""What a tracing system is told of a request: one span, with what happened in it.

Belongs here: the records, and what a caller sends of its own trace. Not here: filling them
(span_recorder.py), sending them (assemble.otlp). No text of a prompt or an answer is in a span.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from everbatch.engine.sampling_params import SamplingParams

TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context: whose trace a request belongs to."""
MAX_TRACE_HEADER_LENGTH = 1_024
"""A longer one is passed over: the standard asks for 512 characters to be kept."""
MAX_SPAN_EVENTS = 128

AttributeValue = str | int | float | bool | tuple[str, ...]
Attributes = dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened to a request, at `t_ns` of the engine's clock."""

    name: str
    t_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A request from its arrival to its end, on the engine's clock.

    trace_headers: those of TRACE_HEADERS that came with it; error: why it ended without its answer.
    """

    trace_headers: Mapping[str, str]
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[SpanEvent, ...]
    error: str | None


SpanSink = Callable[[Span], None]
"""Takes a span. Called on the event loop, so it must not wait for anybody."""


@dataclass(slots=True)
class RequestTrace:
    """What is kept of a request that lives, for its span."""

    trace_headers: Mapping[str, str]
    sampling: SamplingParams
    num_preemptions: int = 0
    events: list[SpanEvent] = field(default_factory=list)

    def note(self, event: SpanEvent) -> None:
        """Keep an event, if there are not too many."""
        if len(self.events) < MAX_SPAN_EVENTS:
            self.events.append(event)


def trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Give what the headers of a request say of the trace that it belongs to."""
    found = {name: headers.get(name, "") for name in TRACE_HEADERS}
    return {
        name: value for name, value in found.items() if 0 < len(value) <= MAX_TRACE_HEADER_LENGTH
    }
