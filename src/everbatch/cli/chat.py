"""`everbatch chat`: a conversation in the terminal with a running server.

Belongs here: the loop, and streaming an answer to the screen. Any OpenAI-compatible server will do.
Not interactive (a pipe): every line is a turn, only answers are printed, and a turn that failed
makes the exit status 1.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from math import isfinite

import click
import httpx
import msgspec

from everbatch.base.errors import ConfigError, EverbatchError
from everbatch.cli.server_url import base_url

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 5.0
CHECK_TIMEOUT_S = 10.0
EXIT_INCOMPLETE = 1
CUT = "[cut: no more tokens]"
HELP = (
    "/help says this, /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends an "
    "answer."
)


@click.command("chat")
@click.argument("url", default=DEFAULT_URL)
@click.option("--model", help="Model to ask for. Default: the one that is served.")
@click.option("--system", help="System message to begin with.")
@click.option("--max-tokens", type=int, help="Most tokens of an answer. Default: what fits.")
@click.option("--temperature", type=float, default=0.7, show_default=True, help="0: greedy.")
@click.option(
    "--api-key",
    envvar=("EVERBATCH_API_KEY", "OPENAI_API_KEY"),
    help="Sent as a bearer token, if given.",
)
def command(
    url: str,
    model: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float,
    api_key: str | None,
) -> None:
    """Talk to the server at URL (default: http://127.0.0.1:8000)."""
    if not isfinite(temperature):
        raise ConfigError(f"--temperature must be a number, got {temperature:g}")
    body: dict[str, object] = {"temperature": temperature, "stream": True}
    body |= {"model": model} if model else {}
    body |= {"max_tokens": max_tokens} if max_tokens is not None else {}
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # Prompts may be long and queues too, so nothing but connecting has a limit.
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    try:
        client = httpx.Client(base_url=base_url(url), headers=headers, timeout=timeout)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise EverbatchError(f"{url!r} is no URL ({error}): try {DEFAULT_URL}") from error
    with client:
        _check_server(client, url)
        all_answered = _converse(client, body, system)
    if not all_answered and not sys.stdin.isatty():
        sys.exit(EXIT_INCOMPLETE)


def _converse(client: httpx.Client, body: dict[str, object], system: str | None) -> bool:
    """Take turns until the user leaves; gives whether every turn was answered."""
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    all_answered = True
    if sys.stdin.isatty():
        # Line editing and history for input().
        with suppress(ImportError):
            import_module("readline")
        click.secho(HELP, dim=True)
    # What is not UTF-8 is told as U+FFFD: half a character can be typed in a terminal.
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    while (text := _read_turn()) is not None:
        if text == "/exit":
            break
        if text == "/reset":
            messages = list(start)
            continue
        if text == "/help" and sys.stdin.isatty():
            click.secho(HELP, dim=True)
            continue
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        answer = _print_answer(client, {**body, "messages": messages})
        if answer is None:
            messages.pop()
            all_answered = False
        else:
            messages.append({"role": "assistant", "content": answer})
    return all_answered


def _read_turn() -> str | None:
    """Give the next line, None at the end."""
    interactive = sys.stdin.isatty()
    try:
        return input("you> " if interactive else "")
    except EOFError:
        if interactive:
            click.echo()
        return None
    except KeyboardInterrupt:
        click.echo()
        return None


def _print_answer(client: httpx.Client, body: dict[str, object]) -> str | None:
    """Print an answer as it comes; None if the server refused, or left in the middle."""
    parts: list[str] = []
    is_cut = False
    try:
        for text, finish_reason in _stream(client, body):
            parts.append(text)
            click.echo(text, nl=False)
            is_cut |= finish_reason == "length"
    except KeyboardInterrupt:
        click.secho(" …", dim=True, nl=False)
    except (_Refused, httpx.HTTPError) as error:
        if parts:
            click.echo()
        click.echo(f"everbatch: {str(error) or type(error).__name__}", err=True)
        return None
    click.echo()
    if is_cut and sys.stdin.isatty():
        click.secho(CUT, dim=True)
    return "".join(parts)


class _Refused(EverbatchError):
    """The server answered with an error."""


def _stream(client: httpx.Client, body: dict[str, object]) -> Iterator[tuple[str, str | None]]:
    """Give each piece of the answer, and why it ended with its last one."""
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise _Refused(_message(response))
        for line in response.iter_lines():
            data = line.removeprefix("data:").strip()
            if line.startswith("data:") and data != "[DONE]":
                yield _piece(data)


def _piece(data: str) -> tuple[str, str | None]:
    """Give text and finish reason of one event; raises _Refused for an error, or for no chunk."""
    try:
        facts = msgspec.json.decode(data)
        if "error" in facts:
            raise _Refused(str(facts["error"]["message"]))
        choices = facts["choices"]
        reasons = (choice.get("finish_reason") for choice in choices)
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        return text, next(filter(None, reasons), None)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise _Refused(f"the server sent what is no chat completion chunk: {data[:200]}") from error


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code} {response.reason_phrase}"


def _check_server(client: httpx.Client, url: str) -> None:
    try:
        response = client.get("/v1/models", timeout=CHECK_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise EverbatchError(
            f"no server answers at {url} ({error}): start one with `everbatch serve`, or give its "
            "URL as `everbatch chat URL`"
        ) from error
    if response.status_code != httpx.codes.OK:
        raise EverbatchError(f"{url} is no OpenAI-compatible server: {_message(response)}")
