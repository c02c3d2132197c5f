"""`everbatch serve`: load a model and serve it over HTTP.

Belongs here: flags, and what is printed. Not here: putting engine and server together (assemble).
What can be wrong without a model, a port in use among it, is known before one is loaded. Everything
is printed on standard error.
"""

import logging
import os
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from everbatch import __version__
from everbatch.assemble.access_log import AccessLogFile
from everbatch.assemble.options import EngineOptions
from everbatch.assemble.otlp import OtlpSpans
from everbatch.assemble.real import RealEngine, build_engine
from everbatch.assemble.server import serve_engine
from everbatch.assemble.supervised import supervisor_of
from everbatch.assemble.supervisor import supervise as keep_serving
from everbatch.assemble.watchdog import DEFAULT_TIMEOUT_S, Limits
from everbatch.base.errors import ConfigError
from everbatch.base.units import counted
from everbatch.cli.loading import loading_bar
from everbatch.cli.options import engine_options, pop_engine_options
from everbatch.cli.sections import SectionedCommand
from everbatch.cli.server_options import (
    API_KEY_VARIABLE,
    pop_settings,
    read_keys,
    server_options,
)
from everbatch.server.api_keys import ApiKeys
from everbatch.server.run import bind_socket
from everbatch.server.settings import ServerSettings


@click.command("serve", cls=SectionedCommand)
@server_options
@engine_options
def command(
    host: str,
    port: int,
    api_key: tuple[str, ...],
    api_key_file: Path | None,
    access_log: Path | None,
    otlp_traces_endpoint: str | None,
    supervise: bool,
    watchdog_timeout: float | None,
    **given: Any,
) -> None:
    """Serve MODEL: a directory, a .gguf file or a hub name. Without: the default model."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Downloads would log a line for each of their requests.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    options, settings = pop_engine_options(given), pop_settings(given)
    keys = read_keys(api_key, os.environ.get(API_KEY_VARIABLE), api_key_file)
    _check_priorities(keys, options)
    if settings.log_prompts and access_log is None:
        raise ConfigError("--log-prompts writes into the access log: give --access-log, too")
    limits = _limits(watchdog_timeout, settings) if supervise else None
    if watchdog_timeout is not None and limits is None:
        raise ConfigError(
            "--watchdog-timeout watches the process that --supervise starts: give that, too, or "
            "leave this out"
        )
    with supervisor_of() as supervisor, ExitStack() as stack:
        if supervisor is None:
            listening = stack.enter_context(bind_socket(host, port))
            url = _url(host, listening.getsockname()[1])
        else:
            listening, url = supervisor.listening, supervisor.url
        if limits is not None and supervisor is None:
            command_line = [sys.executable, "-m", "everbatch.cli.main", *sys.argv[1:]]
            sys.exit(keep_serving(command_line, listening, url, _say, limits))
        log = spans = None
        if access_log is not None:
            log = stack.enter_context(closing(AccessLogFile(access_log)))
        if otlp_traces_endpoint is not None:
            spans = stack.enter_context(closing(OtlpSpans(otlp_traces_endpoint, __version__)))
        with loading_bar(Console(stderr=True)) as tell:
            real = build_engine(options, tell)

        with closing(real):
            _print_options(real)
            print_access(keys, host)
            serve_engine(
                real,
                listening,
                settings,
                keys=keys,
                access_log=log,
                spans=None if spans is None else spans.write,
                print_line=_say,
                on_ready=lambda: _print_ready(url, has_keys=len(keys) > 0),
                supervisor=supervisor,
            )


def _limits(watchdog_timeout: float | None, settings: ServerSettings) -> Limits:
    timeout_s = DEFAULT_TIMEOUT_S if watchdog_timeout is None else watchdog_timeout
    return Limits(timeout_s, silent_s=settings.step_timeout_s)


def _check_priorities(keys: ApiKeys, options: EngineOptions) -> None:
    if keys.have_priorities and options.policy != "priority":
        raise ConfigError(
            f"the API keys have priorities, but the policy is {options.policy} and does not look "
            "at them: leave them out or use --policy priority"
        )


def print_access(keys: ApiKeys, host: str) -> None:
    """Say who may ask, if that is not this machine alone."""
    if len(keys):
        _say(f"{counted(len(keys), 'API key')}: requests without one get 401")
    elif host not in ("127.0.0.1", "localhost", "::1"):
        _say(
            f"{click.style('warning:', fg='yellow')} whoever reaches {host or 'this machine'} may "
            "ask: give --api-key or --api-key-file to let in those alone who have a key"
        )


def _print_options(real: RealEngine) -> None:
    described = real.options.describe()
    width = max(len(name) for name, _ in described)
    for name, value in described:
        _say(f"{click.style(name.ljust(width), dim=True)}  {value}")
    for warning in real.options.warnings():
        _say(f"{click.style('warning:', fg='yellow')} {warning}")


def _print_ready(url: str, *, has_keys: bool) -> None:
    _say(f"{click.style(f'ready at {url}', bold=True)}  (OpenAI-compatible API: {url}/v1)")
    # In one line: a break in the middle could not be pasted.
    key = "-H 'Authorization: Bearer KEY' " if has_keys else ""
    _say(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}"
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
