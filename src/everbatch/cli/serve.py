"""`everbatch serve`: load a model and serve it over HTTP.

Belongs here: flags, and what is printed. Not here: the application (server), putting an engine
together (assemble). What can be wrong without a model, a port in use among it, is known before one
is loaded. Everything is printed on standard error.
"""

import asyncio
import logging
from contextlib import closing, suppress
from dataclasses import replace
from socket import socket
from typing import Any

import click
import uvloop
from rich.console import Console

from everbatch import __version__
from everbatch.assemble.real import RealEngine, build_engine
from everbatch.base.errors import ConfigError
from everbatch.cli.loading import loading_bar
from everbatch.cli.options import engine_options, pop_engine_options
from everbatch.cli.sections import SectionedCommand
from everbatch.server.app import create_app
from everbatch.server.bridge import AsyncEngine
from everbatch.server.metrics import ServerMetrics
from everbatch.server.run import bind_socket, serve
from everbatch.server.settings import ServerSettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
MAX_SECONDS = 86_400


@click.command(
    "serve",
    cls=SectionedCommand,
    short_help="Serve a model through an OpenAI-compatible HTTP API.",
)
@engine_options
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=int, default=DEFAULT_PORT, show_default=True, help="Port; 0: any free one."
)
@click.option("--served-model-name", help="What clients call the model. Default: MODEL.")
@click.option(
    "--shutdown-grace",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds that running requests get to finish after SIGTERM.",
)
@click.option(
    "--status-interval",
    type=float,
    default=10.0,
    show_default=True,
    help="Seconds between two lines that say what runs.",
)
def command(
    host: str,
    port: int,
    served_model_name: str | None,
    shutdown_grace: float,
    status_interval: float,
    **given: Any,
) -> None:
    """Serve MODEL: a directory, a .gguf file or a hub name. Default: the embedded model."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Downloads would log a line for each of their requests.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    options = pop_engine_options(given)
    # The two that depend on the model follow once it is there.
    settings = ServerSettings(
        model_name=served_model_name if served_model_name is not None else "model",
        version=__version__,
        vocab_size=1,
        shutdown_grace_s=_seconds("--shutdown-grace", shutdown_grace),
        status_interval_s=_seconds("--status-interval", status_interval),
    )
    with bind_socket(host, port) as listening:
        with loading_bar(Console(stderr=True)) as tell:
            real = build_engine(options, tell)
        with closing(real):
            settings = replace(
                settings,
                model_name=served_model_name or real.options.model_name,
                vocab_size=real.vocab_size,
            )
            _print_options(real)
            url = _url(host, listening.getsockname()[1])
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(real, settings, listening, url))


async def _serve(real: RealEngine, settings: ServerSettings, listening: socket, url: str) -> None:
    metrics = ServerMetrics(settings.model_name, real.engine.stats())
    engine = AsyncEngine(
        real.engine,
        metrics,
        real.clock,
        max_pending_requests=settings.max_pending_requests,
    )
    app = create_app(
        engine, real.tokenizer, real.tokenizer.chat_template, settings, real.clock, _say
    )
    await serve(app, engine, listening, settings.shutdown_grace_s, lambda: _print_ready(url))


def _seconds(name: str, value: float) -> float:
    # Beyond a day timers may overflow, and nobody waits that long.
    if not 0 <= value <= MAX_SECONDS:
        raise ConfigError(f"{name} must lie in [0, {MAX_SECONDS}] seconds, got {value:g}")
    return value


def _print_options(real: RealEngine) -> None:
    described = real.options.describe()
    width = max(len(name) for name, _ in described)
    for name, value in described:
        _say(f"{click.style(name.ljust(width), dim=True)}  {value}")


def _print_ready(url: str) -> None:
    _say(f"{click.style(f'ready at {url}', bold=True)}  (OpenAI-compatible API: {url}/v1)")
    # In one line: a break in the middle could not be pasted.
    _say(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        '-d \'{"messages": [{"role": "user", "content": "Why is the sky blue?"}], '
        '"max_tokens": 60}\''
    )


def _say(line: str) -> None:
    # Whoever read this may have left (`2>&1 | head`); clients are served all the same.
    with suppress(OSError):
        click.echo(line, err=True)


def _url(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
    if ":" in shown and not shown.startswith("["):
        shown = f"[{shown}]"
    return f"http://{shown}:{port}"
