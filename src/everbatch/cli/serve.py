"""`everbatch serve`: load a model and serve it over HTTP.

Belongs here: flags, and what is printed. Not here: putting engine and server together (assemble).
What can be wrong without a model, a port in use among it, is known before one is loaded. Everything
is printed on standard error.
"""

import logging
from contextlib import closing, suppress
from dataclasses import fields
from typing import Any

import click
from rich.console import Console

from everbatch import __version__
from everbatch.assemble.real import RealEngine, build_engine
from everbatch.assemble.server import serve_engine
from everbatch.cli.loading import loading_bar
from everbatch.cli.options import engine_options, pop_engine_options
from everbatch.cli.sections import SectionedCommand
from everbatch.server.run import bind_socket
from everbatch.server.settings import ServerSettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000

_DEFAULTS = {item.name: item.default for item in fields(ServerSettings)}


@click.command("serve", cls=SectionedCommand)
@engine_options
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=int, default=DEFAULT_PORT, show_default=True, help="Port; 0: any free one."
)
@click.option(
    "--served-model-name",
    help="What clients call the model. Default: MODEL, of a path the last part.",
)
@click.option(
    "--shutdown-grace",
    type=float,
    default=_DEFAULTS["shutdown_grace_s"],
    show_default=True,
    help="Seconds that running requests get to finish after SIGTERM.",
)
@click.option(
    "--status-interval",
    type=float,
    default=_DEFAULTS["status_interval_s"],
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
    """Serve MODEL: a directory, a .gguf file or a hub name. Without: the default model."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Downloads would log a line for each of their requests.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    options = pop_engine_options(given)
    settings = ServerSettings(
        version=__version__,
        served_model_name=served_model_name,
        shutdown_grace_s=shutdown_grace,
        status_interval_s=status_interval,
    )
    with bind_socket(host, port) as listening:
        with loading_bar(Console(stderr=True)) as tell:
            real = build_engine(options, tell)
        with closing(real):
            _print_options(real)
            url = _url(host, listening.getsockname()[1])
            serve_engine(
                real, listening, settings, print_line=_say, on_ready=lambda: _print_ready(url)
            )


def _print_options(real: RealEngine) -> None:
    described = real.options.describe()
    width = max(len(name) for name, _ in described)
    for name, value in described:
        _say(f"{click.style(name.ljust(width), dim=True)}  {value}")
    for warning in real.options.warnings():
        _say(f"{click.style('warning:', fg='yellow')} {warning}")


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
