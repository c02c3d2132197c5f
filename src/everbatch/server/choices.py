"""Choices of an answer, collected into one body or streamed as server-sent events.

Belongs here: the JSON of both APIs. Not here: HTTP, tokens. Used by the routes.

A streamed choice writes one event for a piece of text. Its JSON is constant but for the text, so it
is made once and cut there: a token costs one JSON string and one concatenation (with 64 streams
the whole body anew is most of the loop's time).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from everbatch.engine.engine import TokenOutput
from everbatch.server.channel import Channel
from everbatch.server.logprobs import (
    chat_entry,
    completion_top,
    finite,
    token_text,
)
from everbatch.tokenizer.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
# Stands in a template where the text goes; no field of a template can contain it.
_MARK = "\x00text\x00"

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Head:
    """What all bodies and events of one answer have in common."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Usage:
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    """Of the prompt tokens: those whose KV was there already."""

    def json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


class Logprobs(Protocol):
    """Log probabilities of one choice, gathered until they are sent."""

    def add(self, output: TokenOutput, offset: int) -> None: ...

    def take(self) -> dict[str, Any] | None:
        """Take what was gathered as the API's object; None if there is nothing."""
        ...


class Api(Protocol):
    """What differs between completions and chat."""

    prompt_field: str
    body_object: str
    event_object: str

    def choice(self, text: str) -> dict[str, Any]:
        """Give the part of a whole choice that holds its text."""
        ...

    def delta(self, text: str) -> dict[str, Any]:
        """Give the part of a streamed choice that holds some text."""
        ...

    def first_delta(self) -> dict[str, Any] | None:
        """Give what a stream begins with before any text; None for nothing."""
        ...

    def last_delta(self) -> dict[str, Any]: ...

    def logprobs(self, tokenizer: Tokenizer, num_top: int) -> Logprobs: ...


class CompletionApi:
    prompt_field = "prompt"
    body_object = "text_completion"
    event_object = "text_completion"

    def choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def first_delta(self) -> dict[str, Any] | None:
        return None

    def last_delta(self) -> dict[str, Any]:
        return {"text": ""}

    def logprobs(self, tokenizer: Tokenizer, num_top: int) -> Logprobs:
        return CompletionLogprobs(tokenizer, num_top)


class ChatApi:
    prompt_field = "messages"
    body_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def first_delta(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def last_delta(self) -> dict[str, Any]:
        return {"delta": {}}

    def logprobs(self, tokenizer: Tokenizer, num_top: int) -> Logprobs:
        return ChatLogprobs(tokenizer, num_top)


class CompletionLogprobs:
    """Four parallel lists: tokens, their values, their alternatives, where they begin."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._gathered: list[tuple[str, float, dict[str, float], int]] = []

    def add(self, output: TokenOutput, offset: int) -> None:
        assert output.logprobs is not None
        self._gathered.append(
            (
                token_text(self._tokenizer.token_bytes(output.token_id)),
                finite(output.logprobs.logprob),
                completion_top(self._tokenizer, output, self._num_top),
                offset,
            )
        )

    def take(self) -> dict[str, Any] | None:
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


class CollectedChoice:
    """A choice that is sent as a whole."""

    def __init__(self, api: Api, index: int, logprobs: Logprobs | None) -> None:
        self._api = api
        self._index = index
        self._logprobs = logprobs
        self._pieces: list[str] = []
        self._finish_reason: str | None = None

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        if self._logprobs is not None:
            self._logprobs.add(output, offset)

    def text(self, text: str) -> None:
        self._pieces.append(text)

    def finish(self, finish_reason: str) -> None:
        self._finish_reason = finish_reason

    def json(self) -> dict[str, Any]:
        return {
            "index": self._index,
            **self._api.choice("".join(self._pieces)),
            "logprobs": None if self._logprobs is None else self._logprobs.take(),
            "finish_reason": self._finish_reason,
        }


class StreamedChoice:
    """A choice that is sent piece by piece: an event for each text, one for the end."""

    def __init__(
        self, events: "Events", index: int, logprobs: Logprobs | None, channel: Channel
    ) -> None:
        self._events = events
        self._index = index
        self._logprobs = logprobs
        self._channel = channel
        self._before, self._after = events.around_text(index)
        self._is_first = True

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        if self._logprobs is not None:
            self._logprobs.add(output, offset)

    def text(self, text: str) -> None:
        if self._is_first:
            self._begin()
        if self._logprobs is None:
            event = self._before + _encoder.encode(text) + self._after
        else:
            delta = self._events.api.delta(text)
            event = self._events.choice(self._index, delta, self._logprobs.take(), None)
        self._channel.put(event)

    def finish(self, finish_reason: str) -> None:
        if self._is_first:
            self._begin()
        logprobs = None if self._logprobs is None else self._logprobs.take()
        delta = self._events.api.last_delta()
        self._channel.put(self._events.choice(self._index, delta, logprobs, finish_reason))

    def _begin(self) -> None:
        self._is_first = False
        delta = self._events.api.first_delta()
        if delta is not None:
            self._channel.put(self._events.choice(self._index, delta, None, None))


class Events:
    """The events of one answer: "data: {json}" and an empty line."""

    def __init__(self, api: Api, head: Head, *, include_usage: bool) -> None:
        self.api = api
        self._head = {
            "id": head.id,
            "object": api.event_object,
            "created": head.created,
            "model": head.model,
        }
        # With include_usage OpenAI writes the field into every event, null until the last.
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}

    def choice(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        finish_reason: str | None,
    ) -> bytes:
        choice = {"index": index, **delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return _event({**self._head, "choices": [choice], **self._tail})

    def usage(self, usage: Usage) -> bytes:
        return _event({**self._head, "choices": [], "usage": usage.json()})

    def around_text(self, index: int) -> tuple[bytes, bytes]:
        """Give an event cut at its text: what comes before and after the JSON string."""
        event = self.choice(index, self.api.delta(_MARK), None, None)
        before, after = event.split(_encoder.encode(_MARK))
        return before, after


def whole_body(api: Api, head: Head, choices: list[CollectedChoice], usage: Usage) -> bytes:
    """Give the body of an answer that is not streamed."""
    return _encoder.encode(
        {
            "id": head.id,
            "object": api.body_object,
            "created": head.created,
            "model": head.model,
            "choices": [choice.json() for choice in choices],
            "usage": usage.json(),
        }
    )


def error_event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"
