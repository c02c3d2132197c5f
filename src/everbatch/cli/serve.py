"""`everbatch serve`: load a model and serve it over HTTP.

Belongs here: flags, and what is printed. Not here: the application (server), putting an engine
together (assemble). The port is taken before the model is loaded: one in use is known at once.
"""

import asyncio
import logging
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.table import Table

from everbatch import __version__
from everbatch.assemble.real import RealEngine, build_engine
from everbatch.cli.loading import loading_bar
from everbatch.cli.options import engine_options, pop_engine_options
from everbatch.server.app import create_app
from everbatch.server.bridge import AsyncEngine
from everbatch.server.metrics import ServerMetrics
from everbatch.server.run import bind_socket, serve
from everbatch.server.settings import ServerSettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


@click.command("serve", short_help="Serve a model through an OpenAI-compatible HTTP API.")
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
def command(
    host: str, port: int, served_model_name: str | None, shutdown_grace: float, **given: Any
) -> None:
    """Serve MODEL: a directory, a .gguf file or a hub name. Default: the embedded model."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    console = Console(stderr=True)
    options = pop_engine_options(given)
    listening = bind_socket(host, port)
    with loading_bar(console) as tell:
        real = build_engine(options, tell)
    settings = ServerSettings(
        model_name=served_model_name or real.options.model_name,
        version=__version__,
        vocab_size=real.vocab_size,
        shutdown_grace_s=shutdown_grace,
    )
    _print_options(console, real)
    url = _url(host, listening.getsockname()[1])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(real, settings, listening, console, url))
    finally:
        real.close()


async def _serve(
    real: RealEngine, settings: ServerSettings, listening: Any, console: Console, url: str
) -> None:
    metrics = ServerMetrics(settings.model_name, real.engine.stats())
    engine = AsyncEngine(
        real.engine,
        metrics,
        real.clock,
        max_pending_requests=settings.max_pending_requests,
    )

    def print_line(line: str) -> None:
        console.print(line, highlight=False)

    app = create_app(
        engine, real.tokenizer, real.tokenizer.chat_template, settings, real.clock, print_line
    )
    await serve(
        app, engine, listening, settings.shutdown_grace_s, lambda: _print_ready(console, url)
    )


def _print_options(console: Console, real: RealEngine) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in real.options.describe():
        table.add_row(f"[dim]{name}[/dim]", value)
    console.print(table, highlight=False)


def _print_ready(console: Console, url: str) -> None:
    curl = (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        '-d \'{"messages": [{"role": "user", "content": "Why is the sky blue?"}], '
        '"max_tokens": 60}\''
    )
    console.print(f"[bold]ready at {url}[/bold]  (OpenAI-compatible API: {url}/v1)")
    # Printed as it is: a line break in the middle could not be pasted.
    console.print(curl, highlight=False, markup=False, soft_wrap=True)


def _url(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
    if ":" in shown and not shown.startswith("["):
        shown = f"[{shown}]"
    return f"http://{shown}:{port}"
