"""Prompts out of a file: one a line, or the conversations of a file as ShareGPT's.

Belongs here: the formats, and errors that name the line. Not here: prompts that are drawn
(prompts.py).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import msgspec

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, shown
from everbatch.loadgen.prompts import Message, Prompt, Told, output_tokens
from everbatch.workload.requests import MAX_TOKENS, RequestSpec

MAX_FILE_BYTES = 1 << 30
"""It is read as a whole: its prompts are sent again and again."""
KEYS = ("prompt", "prompt_token_ids", "messages", "max_tokens", "id")
_PROMPT_KEYS = KEYS[:3]


@dataclass(frozen=True, slots=True)
class _Entry:
    prompt: Prompt
    max_tokens: int | None = None


class _Turn(msgspec.Struct):
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] = []


class PromptFile:
    """The prompts of a file, in order and again from the first. `max_tokens` of one goes before
    what the workload draws. How many tokens a prompt has only the server knows."""

    def __init__(self, path: Path, *, is_chat: bool) -> None:
        text = _text_of(path)
        if text.lstrip().startswith("["):
            self._entries = _conversations(text, path, is_chat=is_chat)
        else:
            self._entries = [
                _entry(line.removesuffix("\r"), f"{path} line {number:,}", is_chat=is_chat)
                for number, line in enumerate(text.split("\n"), 1)
                if line.strip()
            ]
        if not self._entries:
            raise ConfigError(f"--dataset {path} holds no prompt: write one a line")

    def __len__(self) -> int:
        return len(self._entries)

    def told(self, spec: RequestSpec) -> Told:
        entry = self._entries[spec.position % len(self._entries)]
        known = entry.prompt if _is_token_ids(entry.prompt) else ()
        return Told(entry.prompt, len(known), entry.max_tokens or output_tokens(spec))


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--dataset {path} cannot be read ({error.strerror})") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"--dataset {path} has more than {MAX_FILE_BYTES:,} bytes: split it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--dataset {path} is no UTF-8 ({error.reason})") from error


def _conversations(text: str, path: Path, *, is_chat: bool) -> list[_Entry]:
    """Take the first turn of each conversation that has one."""
    try:
        found = msgspec.json.decode(text, type=list[_Conversation])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"--dataset {path} begins with [ but is no list of conversations ({error})"
        ) from error
    firsts = (one.conversations[0].value for one in found if one.conversations)
    return [_Entry(_prompt(first, is_chat=is_chat)) for first in firsts if first.strip()]


def _entry(line: str, where: str, *, is_chat: bool) -> _Entry:
    """Read a prompt as plain text, or as a JSON object if it begins with "{"."""
    if not line.lstrip().startswith("{"):
        return _Entry(_prompt(line, is_chat=is_chat))
    try:
        facts = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON ({error})") from error
    section = Fields(facts, where, KEYS)
    given = [key for key in _PROMPT_KEYS if key in section]
    if len(given) != 1:
        raise ConfigError(f"{where} must have one of {', '.join(_PROMPT_KEYS)}")
    max_tokens = section.integer("max_tokens", None, 1, MAX_TOKENS)
    if given == ["prompt"]:
        text = section.text("prompt", "", may_be_empty=False)
        return _Entry(_prompt(text, is_chat=is_chat), max_tokens)
    value = section.get(given[0])
    if given == ["messages"]:
        if not is_chat:
            raise ConfigError(f"{where} has messages: --endpoint chat takes them")
        return _Entry(_checked_messages(value, where), max_tokens)
    if is_chat:
        raise ConfigError(f"{where} has token ids: --endpoint completions takes them")
    if not _is_token_ids(value):
        raise ConfigError(f"{where} prompt_token_ids must be a list of integers from 0")
    return _Entry(value, max_tokens)


def _prompt(text: str, *, is_chat: bool) -> Prompt:
    return [{"role": "user", "content": text}] if is_chat else text


def _checked_messages(value: object, where: str) -> list[Message]:
    try:
        messages = msgspec.convert(value, list[Message])
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{where} messages is {shown(value)}, it must be a list of objects with role and "
            f"content ({error})"
        ) from error
    if not messages:
        raise ConfigError(f"{where} messages is empty")
    return messages


def _is_token_ids(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(one) is int and one >= 0 for one in value)
    )
