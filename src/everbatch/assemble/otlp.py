"""Spans to a collector by OTLP over HTTP, if somebody asked for it.

Belongs here: OpenTelemetry's package, which nothing else imports and which need not be there, and
the way from the engine's clock to the world's. Not here: what a span says (server). Made by
`everbatch serve`; spans come on the event loop.

The package keeps spans in a queue and sends them from a thread of its own. A queue that is full
drops spans: nobody waits for a collector.
"""

import logging
import os
import threading
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from everbatch.assemble.wallclock import WallClock
from everbatch.base.clock import Clock
from everbatch.base.errors import ConfigError
from everbatch.server.spans import Span

logger = logging.getLogger("everbatch.otlp")

FLAG = "--otlp-traces-endpoint"
SPAN_NAME = "llm_request"
"""vLLM's."""
CLOSE_S = 5.0
"""How long the last spans may take when the server stops."""
PROTOCOL = "http/protobuf"
_DEFAULT_PATH = "/v1/traces"
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class DatedClock(Clock, Protocol):
    """The engine's clock, and Unix time."""

    def unix_ns(self) -> int: ...


class OtlpSpans:
    """Sends spans to a collector. `write` never waits.

    Raises ConfigError where the endpoint is none, or OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, version: str, clock: DatedClock | None = None) -> None:
        """`clock`: that of the spans' times; without one the engine's own."""
        self.endpoint = _full(endpoint)
        self._clock = clock or WallClock()
        _check_protocol()
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise ConfigError(
                f"{FLAG} needs OpenTelemetry, which is not installed ({error}): "
                "pip install 'everbatch[otel]', or leave the flag out"
            ) from error
        self._trace: Any = trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        resource = Resource({"service.name": "everbatch", "service.version": version})
        # What the environment says of the service goes before what we say.
        resource = resource.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(self.endpoint)))
        self._tracer = self._provider.get_tracer("everbatch", version)

    def write(self, span: Span) -> None:
        """Queue a span, or drop it if the queue is full."""
        trace = self._trace
        offset_ns = self._clock.unix_ns() - self._clock.now_ns()
        sent = self._tracer.start_span(
            SPAN_NAME,
            context=self._propagator.extract(span.trace_headers),
            kind=trace.SpanKind.SERVER,
            attributes=span.attributes,
            start_time=span.start_ns + offset_ns,
        )
        for event in span.events:
            sent.add_event(event.name, event.attributes, event.t_ns + offset_ns)
        if span.error is not None:
            sent.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        sent.end(span.end_ns + offset_ns)

    def close(self) -> None:
        """Send what is left, but do not wait long for a collector that does not answer."""
        closing = threading.Thread(target=self._provider.shutdown, name="otlp-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            logger.warning("%s does not take the last spans: leaving them", self.endpoint)


def _full(endpoint: str) -> str:
    """Give the address that spans are posted to: one without a path gets OTLP's own."""
    try:
        parts = urlsplit(endpoint)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(
            f"{FLAG} must be the http:// or https:// address of a collector that takes OTLP over "
            f"HTTP, as http://localhost:4318, got {endpoint!r:.80}"
        )
    if parts.path in ("", "/"):
        parts = parts._replace(path=_DEFAULT_PATH)
    return urlunsplit(parts)


def _check_protocol() -> None:
    for name in _PROTOCOL_VARIABLES:
        wanted = os.environ.get(name)
        if wanted and wanted != PROTOCOL:
            raise ConfigError(
                f"{name} is {wanted!r:.40}, spans are sent as {PROTOCOL} alone: unset it and give "
                f"{FLAG} the collector's HTTP port, most often 4318"
            )
