"""What prompts say: words that give the wanted number of tokens, or token ids.

Belongs here: texts that are drawn. Not here: those of a file (prompt_file.py), bodies (calls.py),
how many tokens a word is (contact.py).

A server's tokenizer is not at hand, so a text is made of words of four letters that are one token
each in most vocabularies, and as many bytes in the others. How many tokens a word really is, and
how many a chat template adds, the server has counted before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from everbatch.workload.random_draws import stream
from everbatch.workload.requests import RequestSpec

WORDS = (
    *("time", "year", "work", "life", "part", "case", "week", "game", "side", "kind", "head"),
    *("home", "line", "name", "book", "word", "room", "area", "body", "door", "face", "road"),
    *("team", "city", "plan", "form", "idea", "view", "land", "rest", "hand", "hope"),
)

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
        return Told(" ".join(words), spec.prompt.num_tokens, output_tokens(spec))


class RandomTokenIds:
    """Token ids of a range, so that every length is exact; for /v1/completions."""

    def __init__(self, low: int, high: int, seed: int) -> None:
        self._ids = range(low, high + 1)
        self._seed = seed

    def told(self, spec: RequestSpec) -> Told:
        ids: list[int] = []
        for name, tokens in _pieces(spec):
            ids += _drawn(self._seed, name, self._ids, tokens)
        return Told(ids, len(ids), output_tokens(spec))


def output_tokens(spec: RequestSpec) -> int:
    """Give how many tokens of an answer a request wants at most."""
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
