"""Log probabilities as OpenAI's two APIs, and vLLM, show them.

Belongs here: what one token looks like in each, and gathering them until they are sent. Not here:
computing them. A token that is not valid UTF-8 by itself is shown as OpenAI shows it,
"bytes:\\xf0\\x9f", so that nothing is lost or doubled. The chosen token stands first among the
alternatives of completions even when it is not one of the most likely.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from everbatch.engine.engine import TokenOutput
from everbatch.engine.executor import TokenLogprobs
from everbatch.tokenizer.detokenizer import Detokenizer
from everbatch.tokenizer.tokenizer import Tokenizer

# JSON has no -Infinity, and clients refuse it; OpenAI writes this number.
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The log probabilities of a prompt. The first token has none: nothing is before it.

    `scores` gives those of the others, once the prompt was computed.
    """

    token_ids: Sequence[int]
    scores: Callable[[], Sequence[TokenLogprobs | None]]


class Logprobs(Protocol):
    """Log probabilities of one choice, gathered until they are sent."""

    def add(self, output: TokenOutput, offset: int) -> None: ...

    def take(self) -> dict[str, Any] | None:
        """Take what was gathered as the API's object; None if there is nothing."""
        ...


class CompletionLogprobs:
    """Four parallel lists: tokens, their values, their alternatives, where they begin.

    `prompt`: the tokens of an echoed prompt, which come first.
    """

    def __init__(
        self, tokenizer: Tokenizer, num_top: int, prompt: PromptScores | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._prompt = prompt
        self._gathered: list[tuple[str, float | None, dict[str, float] | None, int]] = []

    def add(self, output: TokenOutput, offset: int) -> None:
        assert output.logprobs is not None
        # The first output comes when all of the prompt has been computed.
        self._add_prompt()
        self._add(output.token_id, output.logprobs, offset)

    def take(self) -> dict[str, Any] | None:
        self._add_prompt()
        if not self._gathered:
            return None
        tokens, values, tops, offsets = zip(*self._gathered, strict=True)
        self._gathered.clear()
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _add_prompt(self) -> None:
        if self._prompt is None:
            return
        prompt, self._prompt = self._prompt, None
        offset, detokenizer = 0, Detokenizer(self._tokenizer, at_start=True)
        for token_id, scores in zip(prompt.token_ids, (None, *prompt.scores()), strict=True):
            if scores is None:
                text = token_text(self._tokenizer.token_bytes(token_id))
                self._gathered.append((text, None, None, offset))
            else:
                self._add(token_id, scores, offset)
            offset += len(detokenizer.push(token_id))

    def _add(self, token_id: int, logprobs: TokenLogprobs, offset: int) -> None:
        self._gathered.append(
            (
                token_text(self._tokenizer.token_bytes(token_id)),
                finite(logprobs.logprob),
                completion_top(self._tokenizer, token_id, logprobs, self._num_top),
                offset,
            )
        )


class ChatLogprobs:
    """One list of tokens with their bytes and alternatives."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._gathered: list[dict[str, Any]] = []

    def add(self, output: TokenOutput, offset: int) -> None:
        self._gathered.append(chat_entry(self._tokenizer, output, self._num_top))

    def take(self) -> dict[str, Any] | None:
        if not self._gathered:
            return None
        content, self._gathered = self._gathered, []
        return {"content": content, "refusal": None}


def prompt_entries(
    tokenizer: Tokenizer, prompt: PromptScores, num_top: int
) -> list[dict[str, Any] | None]:
    """Give vLLM's list for a prompt: for each token, by token id, what could stand there."""
    entries: list[dict[str, Any] | None] = [None]
    for token_id, scores in zip(prompt.token_ids[1:], prompt.scores(), strict=True):
        entries.append(None if scores is None else _ranked(tokenizer, token_id, scores, num_top))
    return entries


def chat_entry(tokenizer: Tokenizer, output: TokenOutput, num_top: int) -> dict[str, Any]:
    """Give one element of a chat choice's logprobs.content."""
    assert output.logprobs is not None
    entry = _chat_token(tokenizer, output.token_id, output.logprobs.logprob)
    top = output.logprobs.top[:num_top]
    entry["top_logprobs"] = [_chat_token(tokenizer, token_id, value) for token_id, value in top]
    return entry


def completion_top(
    tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs, num_top: int
) -> dict[str, float]:
    """Give the alternatives of one token of a completion, most likely first."""
    chosen = token_text(tokenizer.token_bytes(token_id))
    top = {chosen: finite(logprobs.logprob)}
    for other_id, value in logprobs.top[:num_top]:
        # Two ids may be spelt alike; the more likely one comes first and stays.
        top.setdefault(token_text(tokenizer.token_bytes(other_id)), finite(value))
    return top


def token_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    return float(logprob) if math.isfinite(logprob) else LOWEST_LOGPROB


def _ranked(
    tokenizer: Tokenizer, token_id: int, scores: TokenLogprobs, num_top: int
) -> dict[str, Any]:
    top = enumerate(scores.top[:num_top], 1)
    ranked = [(token_id, scores.logprob, scores.rank)]
    ranked += [(other, value, rank) for rank, (other, value) in top]
    told: dict[str, Any] = {}
    for one, value, rank in ranked:
        text = token_text(tokenizer.token_bytes(one))
        told.setdefault(str(one), {"logprob": finite(value), "rank": rank, "decoded_token": text})
    return told


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": token_text(raw), "logprob": finite(logprob), "bytes": list(raw)}
