"""What prompts say: words that give the wanted number of tokens, token ids, or a file's lines.

Belongs here: texts. Not here: bodies (calls.py), how many tokens a word is (contact.py).

A server's tokenizer is not at hand, so a text is made of words of four letters that are one token
each in most vocabularies, and as many bytes in the others. How many tokens a word really is, and
how many a chat template adds, the server has counted before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeGuard, TypeVar

import msgspec

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, shown
from everbatch.workload.random_draws import stream
from everbatch.workload.requests import MAX_TOKENS, RequestSpec

WORDS = (
    *("time", "year", "work", "life", "part", "case", "week", "game", "side", "kind", "head"),
    *("home", "line", "name", "book", "word", "room", "area", "body", "door", "face", "road"),
    *("team", "city", "plan", "form", "idea", "view", "land", "rest", "hand", "hope"),
)
MAX_LINES = 1_000_000
_KEYS = ("prompt", "prompt_token_ids", "messages", "max_tokens", "id")
_PROMPT_KEYS = _KEYS[:3]

Item = TypeVar("Item")
Message = dict[str, str]
Prompt = str | list[int] | list[Message]


@dataclass(frozen=True, slots=True)
class Told:
    """A prompt, and how many tokens are wanted of it and of its answer."""

    prompt: Prompt
    prompt_tokens: int
    output_tokens: int


class Prompts(Protocol):
    """Gives each request its prompt: the same one in every run of a seed."""

    def told(self, spec: RequestSpec) -> Told: ...


@dataclass(frozen=True, slots=True)
class Scale:
    """Tokens of a prompt of so many words: `overhead` + `per_word` × words."""

    per_word: float = 1.0
    overhead: float = 0.0

    def words(self, num_tokens: int) -> int:
        """Give how many words come nearest; at least one."""
        return max(1, round((num_tokens - self.overhead) / self.per_word))


class RandomWords:
    """Texts of drawn words. Where a workload has prompts begin alike, so do the texts."""

    def __init__(self, scale: Scale, seed: int) -> None:
        self._scale = scale
        self._seed = seed

    def told(self, spec: RequestSpec) -> Told:
        num_words = self._scale.words(spec.prompt.num_tokens)
        words: list[str] = []
        num_tokens = 0
        for name, tokens in _pieces(spec):
            num_tokens += tokens
            end = min(round(num_tokens / self._scale.per_word), num_words)
            words += _drawn(self._seed, name, WORDS, end - len(words))
        # Pieces are rounded, and what a template adds is taken off at the end.
        words += _drawn(self._seed, f"rest of {spec.position}", WORDS, num_words - len(words))
        return Told(" ".join(words), spec.prompt.num_tokens, _output_tokens(spec))


class RandomTokenIds:
    """Token ids of a range, so that every length is exact; for /v1/completions."""

    def __init__(self, low: int, high: int, seed: int) -> None:
        self._ids = range(low, high + 1)
        self._seed = seed

    def told(self, spec: RequestSpec) -> Told:
        ids: list[int] = []
        for name, tokens in _pieces(spec):
            ids += _drawn(self._seed, name, self._ids, tokens)
        return Told(ids, len(ids), _output_tokens(spec))


@dataclass(frozen=True, slots=True)
class _Line:
    prompt: Prompt
    max_tokens: int | None


class PromptFile:
    """The lines of a file, in order and again from the first. `max_tokens` of a line goes before
    what the workload draws. How many tokens a prompt has only the server knows."""

    def __init__(self, path: Path, *, is_chat: bool) -> None:
        self._lines = _read(path, is_chat=is_chat)

    def __len__(self) -> int:
        return len(self._lines)

    def told(self, spec: RequestSpec) -> Told:
        line = self._lines[spec.position % len(self._lines)]
        known = line.prompt if _is_token_ids(line.prompt) else ()
        return Told(line.prompt, len(known), line.max_tokens or _output_tokens(spec))


def _output_tokens(spec: RequestSpec) -> int:
    return min(spec.max_tokens, spec.output_tokens)


def _pieces(spec: RequestSpec) -> list[tuple[str, int]]:
    """Give the streams that a prompt is made of, by name and length."""
    own = f"prompt {spec.position}"
    return [
        (f"{own}, piece {index}" if piece.text is None else f"text {piece.text}", piece.tokens)
        for index, piece in enumerate(spec.prompt.segments)
    ]


def _drawn(seed: int, name: str, items: Sequence[Item], count: int) -> list[Item]:
    """Give the first `count` items of a stream."""
    return stream(seed, name).choices(items, k=count) if count > 0 else []


def _read(path: Path, *, is_chat: bool) -> list[_Line]:
    lines: list[_Line] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    lines.append(_line(text, f"{path} line {number:,}", is_chat=is_chat))
                if len(lines) > MAX_LINES:
                    raise ConfigError(f"{path} has more than {MAX_LINES:,} prompts: split it")
    except OSError as error:
        raise ConfigError(f"--dataset {path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--dataset {path} is no UTF-8 ({error.reason})") from error
    if not lines:
        raise ConfigError(f"--dataset {path} holds no prompt: write one a line")
    return lines


def _line(text: str, where: str, *, is_chat: bool) -> _Line:
    """Read a prompt as plain text, or as a JSON object if it begins with "{"."""
    if not text.lstrip().startswith("{"):
        return _Line(_messages(text.rstrip("\n")) if is_chat else text.rstrip("\n"), None)
    try:
        facts = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is no JSON ({error})") from error
    section = Fields(facts, where, _KEYS)
    given = [key for key in _PROMPT_KEYS if key in section]
    if len(given) != 1:
        raise ConfigError(f"{where} must have one of {', '.join(_PROMPT_KEYS)}")
    max_tokens = section.integer("max_tokens", None, 1, MAX_TOKENS)
    value = section.get(given[0])
    if is_chat and given[0] == "prompt_token_ids":
        raise ConfigError(
            f"{where} has token ids, which chat does not take: --endpoint completions"
        )
    if given[0] == "messages":
        if not is_chat:
            raise ConfigError(f"{where} has messages: --endpoint chat takes them")
        return _Line(_checked_messages(value, where), max_tokens)
    if given[0] == "prompt_token_ids":
        if not _is_token_ids(value):
            raise ConfigError(f"{where} prompt_token_ids must be a list of integers from 0")
        return _Line(value, max_tokens)
    prompt = section.text("prompt", "", may_be_empty=False)
    return _Line(_messages(prompt) if is_chat else prompt, max_tokens)


def _messages(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


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
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)
