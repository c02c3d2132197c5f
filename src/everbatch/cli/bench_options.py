"""The flags of `everbatch bench serve`.

Belongs here: names, help, and what single values may be. Not here: what they mean together
(bench_plan). Names are those of vLLM's benchmark where it has them; its spellings are aliases.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from everbatch.cli.number_range import NumberRange
from everbatch.cli.sections import SectionedOption
from everbatch.workload.traces.formats import FORMATS

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_NUM_PROMPTS = 100
ENDPOINTS = {
    "completions": "completions",
    "chat": "chat",
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
}
RAMP_STRATEGIES = ("linear", "exponential")
MAX_PROMPTS = 2_000_000
MAX_LENGTH = 1 << 30
MIN_RATE, MAX_RATE = 1e-6, 1e6
MIN_BURSTINESS, MAX_BURSTINESS = 1e-4, 1e6
MAX_SECONDS = 1e9
MAX_CONCURRENCY = 1_000_000
MAX_RETRIES = 100


class Rate(click.ParamType[float | None]):
    """Requests a second; "inf", all at once, is None."""

    name = "requests/s|inf"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        if value is None or value == "inf":
            return None
        try:
            rate = float(value)
        except ValueError:
            rate = 0.0
        if not MIN_RATE <= rate <= MAX_RATE:
            self.fail(f"{value!r} must be inf or a number from {MIN_RATE:g} to {MAX_RATE:,.0f}")
        return rate


class Span(click.ParamType[tuple[int, int]]):
    """Whole numbers: "128", or "64-256" for all between."""

    name = "N|low-high"

    def __init__(self, low: int = 1) -> None:
        self._low = low

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, dash, second = str(value).partition("-")
        try:
            low, high = int(first), int(second if dash else first)
        except ValueError:
            self.fail(f"{value!r} must be a whole number, or two as in 64-256", param, ctx)
        if not self._low <= low <= high <= MAX_LENGTH:
            self.fail(
                f"{value!r} must lie between {self._low} and {MAX_LENGTH:,}, the lower one first",
                param,
                ctx,
            )
        return low, high


class Percents(click.ParamType[tuple[float, ...]]):
    """Percentiles: "50,90,99.9"."""

    name = "P,P,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            percents = tuple(dict.fromkeys(float(one) for one in str(value).split(",")))
        except ValueError:
            self.fail(f"{value!r} must be numbers with commas, as in 50,90,99", param, ctx)
        if not all(0 <= one <= 100 for one in percents):
            self.fail(f"{value!r} holds a number outside 0 to 100", param, ctx)
        return percents


class JsonObject(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "JSON"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            found = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            self.fail(f"{value!r} is no JSON ({error})", param, ctx)
        if not isinstance(found, dict):
            self.fail(f'{value!r} must be an object, as {{"top_p": 0.9}}', param, ctx)
        return found


class OutputPath(click.Path):
    """A file to write; "-" is standard output."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert("/dev/stdout" if value == "-" else value, param, ctx)


def _option(section: str, *names: str, **settings: Any) -> Callable[..., Any]:
    if settings.get("default") is not None:
        settings.setdefault("show_default", True)
    return click.option(*names, cls=SectionedOption, section=section, **settings)


_server = partial(_option, "Server")
_prompts = partial(_option, "Prompts")
_arrivals = partial(_option, "Arrivals")
_clients = partial(_option, "Clients")
_result = partial(_option, "Result")
_seconds = NumberRange(0, MAX_SECONDS, min_open=True)
_written = OutputPath(dir_okay=False, path_type=Path)

_OPTIONS = [
    _server("--url", "--base-url", default=DEFAULT_URL, help="The server, or its host:port."),
    _server("--model", help="Model to ask for. Default: the first that the server lists."),
    _server(
        "--endpoint",
        type=click.Choice(list(ENDPOINTS)),
        default="completions",
        metavar="[completions|chat]",
        help="Which API is asked.",
    ),
    _server("--api-key", envvar="OPENAI_API_KEY", help="Sent as a bearer token, if given."),
    _prompts(
        "--dataset",
        default="random",
        metavar="random|FILE",
        help="Texts of random words, or a file of prompts, one a line.",
    ),
    _prompts(
        "--input-len",
        "--random-input-len",
        type=Span(),
        default="256",
        help="Tokens of a prompt, or a range in which all are equally likely.",
    ),
    _prompts(
        "--output-len",
        "--random-output-len",
        type=Span(),
        default="64",
        help="Most tokens of an answer, or a range.",
    ),
    _prompts(
        "--prefix-len",
        "--random-prefix-len",
        type=click.IntRange(0, MAX_LENGTH),
        default=0,
        help="So many tokens of each prompt are those of a shared text.",
    ),
    _prompts(
        "--num-prefixes",
        type=click.IntRange(1, MAX_PROMPTS),
        default=1,
        help="How many shared texts there are.",
    ),
    _prompts(
        "--token-ids",
        type=Span(0),
        metavar="LOW-HIGH",
        help="Prompts of random token ids of this range in place of words; completions only.",
    ),
    _prompts("--ignore-eos", is_flag=True, help="Answers go on to their limit."),
    _prompts("--temperature", type=float, default=0.0, help="0: greedy."),
    _prompts(
        "--extra-body",
        type=JsonObject(),
        help="More fields of each request; they go before ours, null leaves one out.",
    ),
    _arrivals(
        "--num-prompts",
        type=click.IntRange(1, MAX_PROMPTS),
        help=f"Requests to send. Default: {DEFAULT_NUM_PROMPTS}, or all of a file, or those of "
        "--duration.",
    ),
    _arrivals(
        "--request-rate", type=Rate(), default="inf", help="Requests a second; inf: all at once."
    ),
    _arrivals(
        "--burstiness",
        type=NumberRange(MIN_BURSTINESS, MAX_BURSTINESS),
        default=1.0,
        help="Gaps between arrivals: 1 a Poisson process, less in bursts, more evenly.",
    ),
    _arrivals(
        "--ramp-up-strategy",
        type=click.Choice(RAMP_STRATEGIES),
        help="Let the rate grow from --ramp-up-start-rps to --ramp-up-end-rps.",
    ),
    _arrivals("--ramp-up-start-rps", type=NumberRange(MIN_RATE, MAX_RATE)),
    _arrivals("--ramp-up-end-rps", type=NumberRange(MIN_RATE, MAX_RATE)),
    _arrivals(
        "--trace",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Take arrivals, lengths and shared prefixes from a trace.",
    ),
    _arrivals(
        "--trace-format",
        type=click.Choice(FORMATS),
        help="Format of --trace. Default: found by its columns.",
    ),
    _arrivals(
        "--speed-up",
        type=NumberRange(1e-6, 1e6),
        default=1.0,
        help="Send a trace so many times as fast.",
    ),
    _arrivals("--duration", type=_seconds, help="Send for so many seconds."),
    _arrivals(
        "--max-concurrency",
        type=click.IntRange(1, MAX_CONCURRENCY),
        help="Most requests at once. With rate inf: so many clients, one request after the other.",
    ),
    _clients(
        "--cancel-share",
        type=NumberRange(0, 1),
        default=0.0,
        help="Share of the clients who leave after a drawn number of their tokens.",
    ),
    _clients(
        "--retry",
        "num_retries",
        type=click.IntRange(0, MAX_RETRIES),
        default=0,
        help="Send a request again so often after 429 or 503, when Retry-After says.",
    ),
    _clients("--timeout", type=_seconds, help="Give an answer up so many seconds after it is due."),
    _clients("--seed", type=click.IntRange(0), default=0, help="Of arrivals, lengths and texts."),
    _result(
        "--goodput",
        "goals",
        multiple=True,
        metavar="NAME:MS",
        help="A goal for ttft, tpot, itl or e2el in milliseconds; several may follow.",
    ),
    _result(
        "--percentiles",
        "--metric-percentiles",
        type=Percents(),
        default="50,90,99",
        help="Percentiles of latencies.",
    ),
    _result(
        "--count-from",
        type=click.Choice(["due", "sent"]),
        default="due",
        help="Count latencies from when a request was due, or from when it was sent.",
    ),
    _result("--json", "json_path", type=_written, help="Write the result to this file; -: print."),
    _result("--html", "html_path", type=_written, help="Write a report with plots to this file."),
    _result(
        "--request-log",
        "log_path",
        type=_written,
        help="Write the answered requests to this file, for everbatch trace and calibrate.",
    ),
    _result("--detailed", is_flag=True, help="Have --json tell each request."),
]


def bench_options(command: Command) -> Command:
    """Give a command these flags."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
