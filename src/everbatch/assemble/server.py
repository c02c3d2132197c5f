"""A server around a real engine: its metrics, its bridge, its application, its loop.

Belongs here: putting them together and running them. Not here: making the engine (real.py), parsing
and printing (cli). Called by `everbatch serve`.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from socket import socket

import uvloop

from everbatch.assemble.access_log import AccessLogFile
from everbatch.assemble.real import RealEngine
from everbatch.assemble.service_manager import ServiceManager
from everbatch.assemble.supervised import Supervisor
from everbatch.server.api_keys import ApiKeys
from everbatch.server.app import create_app
from everbatch.server.bridge import AsyncEngine, EngineState
from everbatch.server.metrics import ServerMetrics
from everbatch.server.progress import Pulse
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
    supervisor: Supervisor | None = None,
) -> None:
    """Serve until a signal comes, in this thread. Closes the socket, not the engine or the log.

    `spans` gets the span of each request, `print_line` the status lines; `on_ready` is called once
    requests are answered, and then a service manager is told, or the `supervisor` that has started
    this process (server.run.serve); whoever is told gets signs of life, too.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engine = _make_engine(real, settings, spans)
        for name, log in (("events", real.event_log), ("access", access_log)):
            if log is not None:
                engine.metrics.watch_log(name, partial(getattr, log, "is_lost"))
        app = create_app(
            engine,
            _served_model(real, settings),
            settings,
            real.clock,
            print_line,
            keys=keys,
            log_access=None if access_log is None else access_log.write,
        )
        control, watcher = None, supervisor or ServiceManager.of(os.environ)
        if supervisor is not None:
            control = supervisor.control
            engine.metrics.num_restarts = supervisor.num_restarts

        def tell_ready() -> None:
            watcher.tell_ready()
            on_ready()

        serving = serve(
            app, engine, listening, settings.shutdown_grace_s, tell_ready, supervisor=control
        )
        pulse = Pulse(engine.progress, lambda: real.network.num_layers_run)
        signs = watcher.give_signs_of_life(lambda: is_well(engine, pulse))
        runner.run(_watched(serving, signs))


def is_well(engine: AsyncEngine, pulse: Pulse) -> bool:
    """Whether the engine lives and has moved since it was last asked, so that a new process would
    not do better."""
    return engine.state is not EngineState.DEAD and pulse.beats()


async def _watched(
    serving: Coroutine[None, None, None], signs_of_life: Coroutine[None, None, None]
) -> None:
    signs = asyncio.create_task(signs_of_life)
    try:
        await serving
    finally:
        signs.cancel()


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
