"""A server around a real engine: its metrics, its bridge, its application, its loop.

Belongs here: putting them together and running them. Not here: making the engine (real.py), parsing
and printing (cli). Called by `everbatch serve`.
"""

import asyncio
from collections.abc import Callable
from socket import socket

import uvloop

from everbatch.assemble.access_log import AccessLogFile
from everbatch.assemble.real import RealEngine
from everbatch.server.api_keys import ApiKeys
from everbatch.server.app import create_app
from everbatch.server.bridge import AsyncEngine
from everbatch.server.metrics import ServerMetrics
from everbatch.server.run import serve
from everbatch.server.served import ServedModel
from everbatch.server.settings import ServerSettings
from everbatch.server.spans import SpanSink


def serve_engine(
    real: RealEngine,
    listening: socket,
    settings: ServerSettings,
    *,
    keys: ApiKeys,
    access_log: AccessLogFile | None,
    spans: SpanSink | None,
    print_line: Callable[[str], None],
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal comes, in this thread. Closes the socket, not the engine or the log.

    `spans` gets the span of each request, `print_line` the status lines; `on_ready` is called once
    requests are answered.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engine = _make_engine(real, settings, spans)
        app = create_app(
            engine,
            _served_model(real, settings),
            settings,
            real.clock,
            print_line,
            keys=keys,
            log_access=None if access_log is None else access_log.write,
        )
        runner.run(serve(app, engine, listening, settings.shutdown_grace_s, on_ready))


def _make_engine(real: RealEngine, settings: ServerSettings, spans: SpanSink | None) -> AsyncEngine:
    name = _served_model(real, settings).name
    metrics = ServerMetrics(name, real.engine.stats(), real.engine.config, settings.metrics_prefix)
    return AsyncEngine(real.engine, metrics, real.clock, settings, spans)


def _served_model(real: RealEngine, settings: ServerSettings) -> ServedModel:
    name = settings.served_model_name
    return ServedModel(
        real.options.model_name if name is None else name,
        real.vocab_size,
        real.tokenizer,
        real.grammars,
    )
