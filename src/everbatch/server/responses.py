"""Answers of POST /v1/responses: one message of text, as one body or as typed events.

Belongs here: the JSON of the Responses API. Not here: HTTP, tokens, reading bodies
(responses_fields.py). Used by the routes.

    created, in_progress | output_item.added, content_part.added | output_text.delta …
    | output_text.done, content_part.done, output_item.done | completed, incomplete or failed

Each event has its type as the event's name, too, and a number that counts up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everbatch.engine.engine import TokenOutput
from everbatch.server.channel import Channel
from everbatch.server.choices import CollectedChoice, Head, Stream, Streaming, Usage
from everbatch.server.errors import ApiError
from everbatch.server.generation import Choice
from everbatch.server.logprobs import ChatLogprobs, Logprobs, PromptScores
from everbatch.tokenizer.tokenizer import Tokenizer

# How a finish reason is told.
_STATUS = {
    "stop": "completed",
    "length": "incomplete",
    "deadline": "incomplete",
    "abort": "cancelled",
}
# Why an answer is not whole. OpenAI knows nothing like a deadline.
_INCOMPLETE = {"length": "max_output_tokens", "deadline": "deadline"}

_encoder = msgspec.json.Encoder()


class ResponsesApi:
    """Writes one response. told: the fields of the request that it repeats."""

    prompt_field = "input"

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = told

    def body(self, head: Head, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        [choice] = choices
        message = Message(head, choice.full_text, choice.take_logprobs(), choice.finish_reason)
        return _encoder.encode(self.response(head, message, usage))

    def stream(self, head: Head, wanted: Streaming) -> Stream:
        return ResponseStream(self, head, wanted)

    def logprobs(self, tokenizer: Tokenizer, num_top: int, prompt: PromptScores | None) -> Logprobs:
        return ChatLogprobs(tokenizer, num_top)

    def response(
        self, head: Head, message: "Message | None", usage: Usage | None
    ) -> dict[str, Any]:
        """Give the response object; without a message it is in progress."""
        status = "in_progress" if message is None else message.status
        reason = None if message is None else _INCOMPLETE.get(message.finish_reason)
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": head.model,
            "output": [] if message is None else [message.item()],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            **self._told,
        }


class Message:
    """The message of a response that has ended."""

    def __init__(
        self, head: Head, text: str, logprobs: dict[str, Any] | None, finish_reason: str
    ) -> None:
        self._id = message_id(head)
        self.text = text
        self.logprobs = [] if logprobs is None else logprobs["content"]
        self.finish_reason = finish_reason
        self.status = _STATUS[finish_reason]

    def part(self) -> dict[str, Any]:
        return _part(self.text, self.logprobs)

    def item(self) -> dict[str, Any]:
        status = "completed" if self.status == "completed" else "incomplete"
        return _item(self._id, status, [self.part()])


class ResponseStream:
    """The events of one response."""

    def __init__(self, api: ResponsesApi, head: Head, wanted: Streaming) -> None:
        self._api = api
        self._head = head
        self._usage = wanted.usage
        self._num_events = 0
        self._message: Message | None = None

    def choice(self, index: int, logprobs: Logprobs | None, channel: Channel, echo: str) -> Choice:
        return StreamedMessage(self, self._head, logprobs, channel)

    def begin(self) -> bytes:
        response = self._api.response(self._head, None, None)
        item_id = message_id(self._head)
        return b"".join(
            (
                self.event("response.created", response=response),
                self.event("response.in_progress", response=response),
                self.event(
                    "response.output_item.added",
                    output_index=0,
                    item=_item(item_id, "in_progress", []),
                ),
                self.event("response.content_part.added", **self.place(), part=_part("", [])),
            )
        )

    def message_done(self, message: Message) -> bytes:
        self._message = message
        place = self.place()
        text, logprobs = message.text, message.logprobs
        return b"".join(
            (
                self.event("response.output_text.done", **place, text=text, logprobs=logprobs),
                self.event("response.content_part.done", **place, part=message.part()),
                self.event("response.output_item.done", output_index=0, item=message.item()),
            )
        )

    def end(self) -> bytes:
        assert self._message is not None
        response = self._api.response(self._head, self._message, self._usage())
        # A client knows no event of its own for a response that somebody else ended.
        is_whole = self._message.status == "completed"
        kind = "response.completed" if is_whole else "response.incomplete"
        return self.event(kind, response=response)

    def failed(self, error: ApiError) -> bytes:
        response = self._api.response(self._head, None, None)
        told = {"code": error.code or error.type, "message": error.message}
        response |= {"status": "failed", "error": told}
        return self.event("response.failed", response=response)

    def place(self) -> dict[str, Any]:
        """Give where the text stands."""
        return {"item_id": message_id(self._head), "output_index": 0, "content_index": 0}

    def event(self, kind: str, **facts: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._num_events, **facts}
        self._num_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encoder.encode(body) + b"\n\n"


class StreamedMessage:
    """The message of a response, sent piece by piece."""

    def __init__(
        self, stream: ResponseStream, head: Head, logprobs: Logprobs | None, channel: Channel
    ) -> None:
        self._stream = stream
        self._head = head
        self._logprobs = logprobs
        self._channel = channel
        self._pieces: list[str] = []
        self._told: list[dict[str, Any]] = []
        self._is_first = True

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        if self._logprobs is not None:
            self._logprobs.add(output, offset)

    def text(self, text: str) -> None:
        self._begin()
        self._pieces.append(text)
        kind = "response.output_text.delta"
        place, told = self._stream.place(), self._take_logprobs()
        self._channel.put(self._stream.event(kind, **place, delta=text, logprobs=told))

    def finish(self, finish_reason: str) -> None:
        self._begin()
        self._take_logprobs()
        logprobs = {"content": self._told}
        message = Message(self._head, "".join(self._pieces), logprobs, finish_reason)
        self._channel.put(self._stream.message_done(message))

    def _begin(self) -> None:
        if self._is_first:
            self._is_first = False
            self._channel.put(self._stream.begin())

    def _take_logprobs(self) -> list[dict[str, Any]]:
        taken = None if self._logprobs is None else self._logprobs.take()
        entries = [] if taken is None else taken["content"]
        self._told += entries
        return entries


def message_id(head: Head) -> str:
    return f"msg-{head.id.partition('-')[2]}"


def _item(item_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }
