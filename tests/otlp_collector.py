"""A collector of OpenTelemetry's spans on a loopback port, which reads OTLP's own messages."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 30


class Collector:
    """Takes spans as a collector does; a shut gate makes it one that does not answer."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        self.paths: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def take(self, path: str, body: bytes) -> None:
        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        self.paths.append(path)
        for resource_spans in message.resource_spans:
            self.resources.append(attributes_of(resource_spans.resource))
            for scope in resource_spans.scope_spans:
                self.spans += scope.spans


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector on a free loopback port, and its address."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.gate.wait(WAIT_S)
            collector.take(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        collector.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def attributes_of(of: Any) -> dict[str, Any]:
    """Give the attributes of a span or a resource as Python's values."""
    found: dict[str, Any] = {}
    for one in of.attributes:
        value = getattr(one.value, one.value.WhichOneof("value"))
        found[one.key] = [item.string_value for item in value.values] if _is_list(one) else value
    return found


def _is_list(attribute: Any) -> bool:
    return attribute.value.WhichOneof("value") == "array_value"
