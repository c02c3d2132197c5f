"""The prompts of `everbatch generate`: a file's lines become tasks.

Belongs here: the format, and errors that name the line. Not here: whether a prompt fits the model
(llm). A line is plain text, or a JSON object if it starts with "{"; empty lines are passed over.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from everbatch.base.errors import InvalidRequest
from everbatch.engine.sampling_params import SamplingParams

PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")
OTHER_KEYS = ("id", "priority", "tenant")
# A line of answers has no place for log probabilities of prompts.
_SAMPLING_KEYS = frozenset(SamplingParams.__dataclass_fields__) - {"prompt_logprobs"}


@dataclass(slots=True)
class Task:
    """One line: what to answer, and how. `prompt` is text or token ids; None with `messages`.

    priority, tenant: its standing in the queue, for the policies that look at them.
    """

    number: int
    id: object
    prompt: str | list[int] | None
    messages: list[dict[str, object]] | None
    params: SamplingParams
    priority: int = 0
    tenant: str = ""


def read_tasks(path: str, defaults: dict[str, Any]) -> list[Task]:
    """Read all prompts of a file, or of standard input if it is "-".

    `defaults` are the sampling options of lines that do not say otherwise. Raises InvalidRequest
    that names the first bad line.
    """
    lines = _read_lines(path)
    # Options that no line could have are told as what they are.
    SamplingParams(**defaults)
    tasks = [_parse(line, number, defaults) for number, line in lines]
    if not tasks:
        raise InvalidRequest(f"there are no prompts in {_named(path)}: write one a line")
    return tasks


@contextmanager
def naming_line(number: int) -> Iterator[None]:
    """Put the number of a line before what is wrong with its prompt."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number}: {error}", error.param) from error


def _read_lines(path: str) -> list[tuple[int, str]]:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"cannot read the prompts from {_named(path)} ({error.strerror}): check --prompts"
        ) from error
    lines = []
    # JSON may hold other characters that end lines for Python, so only "\n" does here.
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            line = raw.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"line {number} is not UTF-8: {error.reason}") from error
        if line.strip():
            lines.append((number, line))
    return lines


def _named(path: str) -> str:
    return "standard input" if path == "-" else path


def _parse(line: str, number: int, defaults: dict[str, Any]) -> Task:
    if not line.lstrip().startswith("{"):
        return Task(number, None, line, None, _params(defaults, {}, number))
    try:
        facts = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f'line {number} starts with "{{" but is not JSON: {error}') from error
    given = [key for key in PROMPT_KEYS if key in facts]
    if len(given) != 1:
        raise InvalidRequest(f"line {number} must have exactly one of {', '.join(PROMPT_KEYS)}")
    unknown = [key for key in facts if key not in (*PROMPT_KEYS, *_SAMPLING_KEYS, *OTHER_KEYS)]
    if unknown:
        known = (*PROMPT_KEYS, *OTHER_KEYS, *sorted(_SAMPLING_KEYS))
        raise InvalidRequest(
            f"line {number} has the unknown field {', '.join(unknown)}: {_known(unknown[0], known)}"
        )
    [key] = given
    wanted = {"prompt": str | list, "prompt_token_ids": list, "messages": list}[key]
    if not isinstance(facts[key], wanted):
        kinds = "text or a list of token ids" if key == "prompt" else "a list"
        raise InvalidRequest(
            f"line {number}: {key} must be {kinds}, not {type(facts[key]).__name__}"
        )
    sampling = {name: value for name, value in facts.items() if name in _SAMPLING_KEYS}
    params = _params(defaults, sampling, number)
    priority, tenant = facts.get("priority", 0), facts.get("tenant", "")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidRequest(f"line {number}: priority must be an integer, not {priority!r}")
    if not isinstance(tenant, str):
        raise InvalidRequest(f"line {number}: tenant must be text, not {tenant!r}")
    prompt, messages = (None, facts[key]) if key == "messages" else (facts[key], None)
    return Task(number, facts.get("id"), prompt, messages, params, priority, tenant)


def _known(wrong: str, known: Sequence[str]) -> str:
    """Say which field may have been meant, or which there are."""
    close = get_close_matches(wrong, known, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def _params(defaults: dict[str, Any], given: dict[str, Any], number: int) -> SamplingParams:
    with naming_line(number):
        return SamplingParams(**{**defaults, **given})
