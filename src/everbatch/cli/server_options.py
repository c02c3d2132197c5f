"""The server's own settings as command-line flags.

Belongs here: names, help, parsing, and reading the files they name. Not here: defaults and checks
(server.settings), the engine's flags (options.py). Used by `everbatch serve`.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from everbatch import __version__
from everbatch.assemble.watchdog import DEFAULT_TIMEOUT_S
from everbatch.base.errors import ConfigError
from everbatch.cli.options import ByteSize
from everbatch.cli.sections import SectionedOption
from everbatch.server.api_keys import ApiKeys, KeyOwner
from everbatch.server.settings import ServerSettings

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
MAX_KEY_FILE_BYTES = 8 << 20
API_KEY_VARIABLE = "EVERBATCH_API_KEY"

_DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(ServerSettings)}


def _server_option(section: str, flag: str, *more: str, **settings: Any) -> Callable[..., Any]:
    """Make a flag; that of a setting, whose name is among `more`, has the default it has there."""
    name = next((one for one in more if not one.startswith("-")), "")
    if name in _DEFAULTS and not settings.get("multiple"):
        default = _DEFAULTS[name]
        if isinstance(settings.get("type"), ByteSize):
            default = f"{default >> 20}MiB"
        settings |= {"default": default, "show_default": default is not False}
    return click.option(flag, *more, cls=SectionedOption, section=section, **settings)


_serving = partial(_server_option, "Serving")
_access = partial(_server_option, "Access and limits of clients")
_watching = partial(_server_option, "Watching")

_OPTIONS = [
    _serving("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on."),
    _serving(
        "--port", type=int, default=DEFAULT_PORT, show_default=True, help="Port; 0: any free one."
    ),
    _serving(
        "--served-model-name",
        help="What clients call the model. Default: MODEL, of a path the last part.",
    ),
    _serving(
        "--shutdown-grace",
        "--shutdown-timeout",
        "shutdown_grace_s",
        type=float,
        help="Seconds that running requests get to finish after SIGTERM.",
    ),
    _serving(
        "--step-timeout",
        "step_timeout_s",
        type=float,
        help="Seconds that a step may take; then the server is not ready and who waits gets 503.",
    ),
    _serving(
        "--supervise",
        is_flag=True,
        help="Run the engine in a process of its own; if it dies or hangs another one is started.",
    ),
    _serving(
        "--watchdog-timeout",
        type=float,
        help="With --supervise: seconds without progress after which it hangs; 0: however long.  "
        f"[default: {DEFAULT_TIMEOUT_S}]",
    ),
    _access(
        "--api-key",
        "api_key",
        multiple=True,
        help=f"A key that requests must bring; may be repeated. Or {API_KEY_VARIABLE} in the "
        "environment, which other users of the machine do not see.",
    ),
    _access(
        "--api-key-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File of keys, a line each: KEY, KEY TENANT or KEY TENANT PRIORITY.",
    ),
    _access(
        "--allowed-origins",
        "allowed_origins",
        multiple=True,
        help="A web page's origin that may ask, or *; may be repeated. Default: none.",
    ),
    _access(
        "--max-live-requests",
        "max_live_requests",
        type=int,
        help="Most requests that run or wait; more are refused with 429.",
    ),
    _access(
        "--max-tenant-requests",
        "max_tenant_requests",
        type=int,
        help="Most requests that a tenant has under way; more are refused with 429. 0: any number.",
    ),
    _access(
        "--max-body-size",
        "max_body_bytes",
        type=ByteSize(),
        help="Largest body of a request.",
    ),
    _access(
        "--max-prompts", "max_prompts", type=int, help="Most prompts of one completion request."
    ),
    _access(
        "--max-choices",
        "max_choices",
        type=int,
        help="Most answers to one request: prompts times n.",
    ),
    _access(
        "--max-client-buffer",
        "max_client_buffer_bytes",
        type=ByteSize(),
        help="Most of a stream that its client may leave unread; then it is cut.",
    ),
    _watching(
        "--status-interval",
        "status_interval_s",
        type=float,
        help="Seconds between two lines that say what runs.",
    ),
    _watching(
        "--metrics-prefix",
        "metrics_prefix",
        help="What the names of /metrics begin with; vllm for dashboards made for it.",
    ),
    _watching(
        "--access-log",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Append a line of JSON for each request to this file; -: standard error.",
    ),
    _watching(
        "--log-prompts",
        "log_prompts",
        is_flag=True,
        help="Write prompts into the access log, too.",
    ),
    _watching(
        "--otlp-traces-endpoint",
        help="Collector that gets an OpenTelemetry span for each request, by OTLP over HTTP.",
    ),
]


def server_options(command: Command) -> Command:
    """Add the flags of ServerSettings, of the socket, of the keys and of the access log."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def pop_settings(given: dict[str, Any]) -> ServerSettings:
    """Take the settings out of a command's parameters."""
    names = [name for name in ServerSettings.__dataclass_fields__ if name in given]
    return ServerSettings(version=__version__, **{name: given.pop(name) for name in names})


def read_keys(keys: tuple[str, ...], in_environment: str | None, path: Path | None) -> ApiKeys:
    """Gather the keys of the flags, of the environment and of a file; raises ConfigError."""
    found = ApiKeys()
    for number, key in enumerate(keys, 1):
        found.add(key, KeyOwner(), f"--api-key number {number}")
    if in_environment:
        found.add(in_environment, KeyOwner(), API_KEY_VARIABLE)
    if path is not None:
        num_before = len(found)
        found.add_lines(_lines(path), str(path))
        if len(found) == num_before:
            # Everybody would be let in, which nobody wants who gives such a file.
            raise ConfigError(f"--api-key-file {path} has no key in it: add one or leave it out")
    return found


def _lines(path: Path) -> list[str]:
    try:
        size = path.stat().st_size
        if size > MAX_KEY_FILE_BYTES:
            raise ConfigError(
                f"--api-key-file {path} has {size:,} bytes, at most {MAX_KEY_FILE_BYTES:,} are "
                "read: give a smaller one"
            )
        return path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--api-key-file {path} has other than ASCII characters at byte {error.start}: HTTP "
            "could not carry them in a header"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read --api-key-file {path} ({error.strerror})") from error
