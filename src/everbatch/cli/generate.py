"""`everbatch generate`: a file of prompts in, JSON Lines out, without a server.

Belongs here: reading prompts, writing answers, the progress bar. Answers are written as they end,
so an interrupted run keeps what it has; "index" says which prompt each belongs to.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from everbatch.base.errors import ConfigError, InvalidRequest
from everbatch.cli.loading import loading_bar
from everbatch.cli.options import engine_options, pop_engine_options
from everbatch.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from everbatch.llm import LLM, Prompt, RequestOutput

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")
_SAMPLING_KEYS = frozenset(SamplingParams.__dataclass_fields__)


@click.command("generate", short_help="Answer a file of prompts and write JSON Lines.")
@engine_options
@click.option(
    "--prompts",
    "prompts_path",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help='One prompt a line: plain text, or a JSON object with "prompt", "prompt_token_ids" or '
    '"messages", sampling options by name, and an "id". "-": standard input.',
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: standard output.",
)
@click.option("--max-tokens", type=int, help="Most tokens of an answer. Default: what fits.")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="0: greedy.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--top-k", type=int, default=0, show_default=True, help="0: off.")
@click.option("--stop", multiple=True, help="Text that ends an answer; may be repeated.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end-of-sequence token.")
def command(prompts_path: str, output: Path | None, **given: Any) -> None:
    """Answer every prompt of a file with MODEL (default: the embedded one).

    Writes one JSON object a prompt: index, id, prompt, text, finish_reason, stop_reason,
    prompt_tokens, completion_tokens.
    """
    options = pop_engine_options(given)
    defaults = {**given, "stop": tuple(given["stop"])}
    lines = _read_lines(prompts_path)
    tasks = [_parse(line, number, defaults) for number, line in enumerate(lines, 1)]
    console = Console(stderr=True)
    from everbatch.llm import LLM

    with loading_bar(console) as tell:
        llm = LLM(progress=tell, **asdict(options))
    prompts = [_encoded(llm, task) for task in tasks]
    params = [task.params for task in tasks]
    with _opened(output) as file, _answers_bar(console, len(tasks)) as advance:

        def write(index: int, answer: "RequestOutput") -> None:
            file.write(_line(index, answer, tasks[index]) + "\n")
            file.flush()
            advance()

        llm.generate(prompts, params, on_finished=write)
    llm.close()


class _Task(msgspec.Struct):
    """One line of the file: what to answer, and how."""

    number: int
    id: object
    prompt: object
    messages: list[dict[str, object]] | None
    params: SamplingParams


def _parse(line: str, number: int, defaults: dict[str, Any]) -> _Task:
    if not line.lstrip().startswith("{"):
        return _Task(number, None, line, None, _params(defaults, {}, number))
    try:
        facts = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"line {number} starts like JSON but is none: {error}") from error
    given = [key for key in _PROMPT_KEYS if key in facts]
    if len(given) != 1:
        raise InvalidRequest(f"line {number} must have exactly one of {', '.join(_PROMPT_KEYS)}")
    unknown = sorted(set(facts) - set(_PROMPT_KEYS) - _SAMPLING_KEYS - {"id"})
    if unknown:
        raise InvalidRequest(f"line {number} has the unknown field {', '.join(unknown)}")
    sampling = {key: value for key, value in facts.items() if key in _SAMPLING_KEYS}
    prompt, messages = facts.get("prompt", facts.get("prompt_token_ids")), facts.get("messages")
    if messages is None and not isinstance(prompt, str | list):
        raise InvalidRequest(f"line {number}: {given[0]} must be text or a list, not {prompt!r}")
    if "messages" in facts and not isinstance(messages, list):
        raise InvalidRequest(f"line {number}: messages must be a list, not {messages!r}")
    return _Task(number, facts.get("id"), prompt, messages, _params(defaults, sampling, number))


def _params(defaults: dict[str, Any], given: dict[str, Any], number: int) -> SamplingParams:
    values = {**defaults, **given}
    stop = values["stop"]
    values["stop"] = (stop,) if isinstance(stop, str) else stop
    for name in ("stop", "stop_token_ids"):
        if name in values:
            if not isinstance(values[name], list | tuple):
                raise InvalidRequest(f"line {number}: {name} must be a list", name)
            values[name] = tuple(values[name])
    if "logit_bias" in values:
        values["logit_bias"] = _biases(values["logit_bias"], number)
    try:
        return SamplingParams(**values)
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number}: {error}", error.param) from error


def _biases(given: object, number: int) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, dict):
        raise InvalidRequest(f"line {number}: logit_bias must map token ids to numbers")
    try:
        return tuple((int(token_id), bias) for token_id, bias in given.items())
    except ValueError as error:
        raise InvalidRequest(f"line {number}: logit_bias has a key that is no token id") from error


def _read_lines(path: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read the prompts {path} ({error.strerror})") from error
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the prompts {path} are not UTF-8: {error}") from error
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise InvalidRequest(f"there are no prompts in {path}: write one a line")
    return lines


def _encoded(llm: "LLM", task: _Task) -> "Prompt":
    if task.messages is None:
        return task.prompt  # type: ignore[return-value]
    try:
        return llm.encode_chat(task.messages)
    except InvalidRequest as error:
        raise InvalidRequest(f"line {task.number}: {error}", error.param) from error


def _line(index: int, answer: "RequestOutput", task: _Task) -> str:
    completion = answer.outputs[0]
    facts: dict[str, object] = {"index": index}
    if task.id is not None:
        facts["id"] = task.id
    facts |= {
        "prompt": task.prompt if task.messages is None else task.messages,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "prompt_tokens": len(answer.prompt_token_ids),
        "completion_tokens": len(completion.token_ids),
    }
    return msgspec.json.encode(facts).decode()


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}): check --output") from error
    with file:
        yield file


@contextmanager
def _answers_bar(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """Give a callback that counts answers, on a bar where somebody looks and work is long."""
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = console.is_terminal and total > 1
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("answers", total=total)
        yield lambda: bar.advance(task)
