"""A server around a real engine: its metrics, its bridge, its application, its loop.

Belongs here: putting them together and running them. Not here: making the engine (real.py), parsing
and printing (cli). Called by `everbatch serve`.
"""

import asyncio
from collections.abc import Callable
from socket import socket

import uvloop

from everbatch.assemble.real import RealEngine
from everbatch.server.app import create_app
from everbatch.server.bridge import AsyncEngine
from everbatch.server.metrics import ServerMetrics
from everbatch.server.run import serve
from everbatch.server.served import ServedModel
from everbatch.server.settings import ServerSettings


def serve_engine(
    real: RealEngine,
    listening: socket,
    settings: ServerSettings,
    *,
    print_line: Callable[[str], None],
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal comes, in this thread. Closes the socket, not the engine.

    `print_line` gets the status lines; `on_ready` is called once requests are answered.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(real, listening, settings, print_line, on_ready))


async def _serve(
    real: RealEngine,
    listening: socket,
    settings: ServerSettings,
    print_line: Callable[[str], None],
    on_ready: Callable[[], None],
) -> None:
    name = settings.served_model_name
    model = ServedModel(
        real.options.model_name if name is None else name, real.vocab_size, real.tokenizer
    )
    engine = AsyncEngine(
        real.engine,
        ServerMetrics(model.name, real.engine.stats()),
        real.clock,
        max_pending_requests=settings.max_pending_requests,
    )
    app = create_app(engine, model, settings, real.clock, print_line)
    await serve(app, engine, listening, settings.shutdown_grace_s, on_ready)
