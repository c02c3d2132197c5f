"""Choices of an answer, collected into one body or streamed as server-sent events.

Belongs here: the JSON of completions and chat. Not here: HTTP, tokens, the third API
(responses.py), what logprobs look like (logprobs.py). Used by the routes.

A streamed choice writes one event for a piece of text. Its JSON is constant but for the text, so it
is made once and cut there: a token costs one JSON string and one concatenation (with 64 streams
the whole body anew is most of the loop's time).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from everbatch.engine.engine import TokenOutput
from everbatch.server.channel import Channel
from everbatch.server.errors import ApiError
from everbatch.server.generation import Choice
from everbatch.server.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs, PromptScores
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


@dataclass(frozen=True, slots=True)
class Streaming:
    """What a stream is asked to tell besides text. `usage` gives what was used so far."""

    include_usage: bool
    continuous_usage: bool
    usage: Callable[[], Usage]


class Stream(Protocol):
    """One answer as server-sent events: its choices write theirs, and it has the last word."""

    def choice(
        self, index: int, logprobs: Logprobs | None, channel: Channel, echo: str
    ) -> Choice: ...

    def end(self) -> bytes:
        """Give what comes once all choices have ended."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Give what comes instead when something failed after the first event."""
        ...


class Api(Protocol):
    """How one API writes an answer."""

    prompt_field: str

    def collect(
        self,
        head: Head,
        logprobs: Logprobs | None,
        echo: str,
        told_of_prompt: Callable[[], dict[str, Any]],
    ) -> Any:
        """Make what collects one choice, for `body`: CollectedChoice, or one of the API's own."""
        ...

    def body(self, head: Head, choices: Sequence[Any], usage: Usage) -> bytes: ...

    def stream(self, head: Head, wanted: Streaming) -> Stream: ...

    def logprobs(self, tokenizer: Tokenizer, num_top: int, prompt: PromptScores | None) -> Logprobs:
        """Make what gathers the log probabilities of one choice; `prompt`: those to begin with."""
        ...


def _collect(
    _head: Head,
    logprobs: Logprobs | None,
    echo: str,
    told_of_prompt: Callable[[], dict[str, Any]],
) -> "CollectedChoice":
    return CollectedChoice(logprobs, echo, told_of_prompt)


class CompletionApi:
    prompt_field = "prompt"
    collect = staticmethod(_collect)

    def body(self, head: Head, choices: "Sequence[CollectedChoice]", usage: Usage) -> bytes:
        parts = [
            {
                "text": choice.full_text,
                "finish_reason": choice.finish_reason,
                **choice.told_of_prompt(),
            }
            for choice in choices
        ]
        return _body("text_completion", head, choices, parts, usage, {})

    def stream(self, head: Head, wanted: Streaming) -> Stream:
        return Events("text_completion", TextDeltas(), head, wanted)

    def logprobs(self, tokenizer: Tokenizer, num_top: int, prompt: PromptScores | None) -> Logprobs:
        return CompletionLogprobs(tokenizer, num_top, prompt)


class ChatApi:
    prompt_field = "messages"
    collect = staticmethod(_collect)

    def body(self, head: Head, choices: "Sequence[CollectedChoice]", usage: Usage) -> bytes:
        parts = [self.part(choice) for choice in choices]
        told = choices[0].told_of_prompt()
        return _body("chat.completion", head, choices, parts, usage, told)

    def stream(self, head: Head, wanted: Streaming) -> Stream:
        return Events("chat.completion.chunk", MessageDeltas(), head, wanted)

    def logprobs(self, tokenizer: Tokenizer, num_top: int, prompt: PromptScores | None) -> Logprobs:
        return ChatLogprobs(tokenizer, num_top)

    def part(self, choice: "CollectedChoice") -> dict[str, Any]:
        """Give what a whole choice tells besides index and logprobs."""
        message = {"role": "assistant", "content": choice.full_text, "refusal": None}
        return {"message": message, "finish_reason": choice.finish_reason}


class CollectedChoice:
    """A choice that is sent as a whole. `echo`: the text that it repeats of its prompt.
    `told_of_prompt`: what it tells besides, once the prompt was computed."""

    def __init__(
        self,
        logprobs: Logprobs | None,
        echo: str = "",
        told_of_prompt: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._logprobs = logprobs
        self._echo = echo
        self.told_of_prompt = told_of_prompt
        self._pieces: list[str] = []
        self.finish_reason = ""

    @property
    def full_text(self) -> str:
        return self._echo + "".join(self._pieces)

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        if self._logprobs is not None:
            self._logprobs.add(output, len(self._echo) + offset)

    def take_logprobs(self) -> dict[str, Any] | None:
        return None if self._logprobs is None else self._logprobs.take()

    def text(self, text: str) -> None:
        self._pieces.append(text)

    def finish(self, finish_reason: str) -> None:
        self.finish_reason = finish_reason


def _body(
    kind: str,
    head: Head,
    choices: Sequence[CollectedChoice],
    parts: Sequence[dict[str, Any]],
    usage: Usage,
    told: dict[str, Any],
) -> bytes:
    """Give the body of an answer. parts: what each choice tells besides index and logprobs; told:
    what the body tells besides."""
    numbered = enumerate(zip(choices, parts, strict=True))
    return _encoder.encode(
        {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "choices": [
                {"index": index, **part, "logprobs": choice.take_logprobs()}
                for index, (choice, part) in numbered
            ],
            "usage": usage.json(),
            **told,
        }
    )


class Deltas(Protocol):
    """How a piece of text stands in an event."""

    def text(self, text: str) -> dict[str, Any]: ...

    def first(self) -> dict[str, Any] | None:
        """Give what a stream begins with before any text; None for nothing."""
        ...

    def last(self) -> dict[str, Any]: ...


class TextDeltas:
    def text(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def first(self) -> dict[str, Any] | None:
        return None

    def last(self) -> dict[str, Any]:
        return {"text": ""}


class MessageDeltas:
    def text(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def first(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def last(self) -> dict[str, Any]:
        return {"delta": {}}


class Events:
    """The events of one answer: "data: {json}" and an empty line."""

    def __init__(self, kind: str, deltas: Deltas, head: Head, wanted: Streaming) -> None:
        self.deltas = deltas
        self._wanted = wanted
        self._head = {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
        }

    @property
    def is_constant(self) -> bool:
        """Whether events differ in their text only."""
        return not self._wanted.continuous_usage

    def choice(self, index: int, logprobs: Logprobs | None, channel: Channel, echo: str) -> Choice:
        return StreamedChoice(self, index, logprobs, channel, echo)

    def end(self) -> bytes:
        if not self._wanted.include_usage:
            return DONE
        usage = self._wanted.usage().json()
        return _event({**self._head, "choices": [], "usage": usage}) + DONE

    def failed(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n" + DONE

    def event(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        finish_reason: str | None,
    ) -> bytes:
        choice = {"index": index, **delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return _event({**self._head, "choices": [choice], **self._tail()})

    def around_text(self, index: int) -> tuple[bytes, bytes]:
        """Give an event cut at its text: what comes before and after the JSON string."""
        event = self.event(index, self.deltas.text(_MARK), None, None)
        before, after = event.split(_encoder.encode(_MARK))
        return before, after

    def _tail(self) -> dict[str, Any]:
        # With include_usage OpenAI writes the field into every event, null until the last.
        if self._wanted.continuous_usage:
            return {"usage": self._wanted.usage().json()}
        return {"usage": None} if self._wanted.include_usage else {}


class StreamedChoice:
    """A choice that is sent piece by piece: an event for each text, one for the end."""

    def __init__(
        self, events: Events, index: int, logprobs: Logprobs | None, channel: Channel, echo: str
    ) -> None:
        self._events = events
        self._index = index
        self._logprobs = logprobs
        self._channel = channel
        self._echo = echo
        self._before, self._after = events.around_text(index)
        self._is_constant = events.is_constant and logprobs is None
        self._is_first = True

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        if self._logprobs is not None:
            self._logprobs.add(output, len(self._echo) + offset)

    def text(self, text: str) -> None:
        if self._is_first:
            self._begin()
            text = self._echo + text
        if self._is_constant:
            self._channel.put(self._before + _encoder.encode(text) + self._after)
        else:
            self._put(self._events.deltas.text(text), None)

    def delta(self, delta: dict[str, Any]) -> None:
        """Send something else than text."""
        if self._is_first:
            self._begin()
        self._put(delta, None)

    def finish(self, finish_reason: str) -> None:
        if self._is_first and self._echo:
            self.text("")
        if self._is_first:
            self._begin()
        self._put(self._events.deltas.last(), finish_reason)

    def _begin(self) -> None:
        self._is_first = False
        delta = self._events.deltas.first()
        if delta is not None:
            self._channel.put(self._events.event(self._index, delta, None, None))

    def _put(self, delta: dict[str, Any], finish_reason: str | None) -> None:
        logprobs = None if self._logprobs is None else self._logprobs.take()
        self._channel.put(self._events.event(self._index, delta, logprobs, finish_reason))


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"
