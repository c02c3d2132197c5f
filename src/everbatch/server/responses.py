"""Answers of POST /v1/responses: items of text and calls, as one body or as typed events.

Belongs here: the JSON of the response around the items. Not here: HTTP, tokens, the items
(response_items.py), reading bodies (responses_fields.py). Used by the routes.

    created, in_progress | the items' own events | completed, incomplete or failed

Each event has its type as the event's name, too, and a number that counts up.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from everbatch.server.channel import Channel
from everbatch.server.choices import Head, Stream, Streaming, Usage
from everbatch.server.errors import ApiError
from everbatch.server.generation import Choice
from everbatch.server.logprobs import ChatLogprobs, Logprobs, PromptScores
from everbatch.server.response_items import Items, Silence
from everbatch.server.tool_finders import CallFinder, FinderMaker
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
    """Writes one response. told: the fields of the request that it repeats. new_finder: makes what
    watches for calls, if any may come."""

    prompt_field = "input"

    def __init__(self, told: Mapping[str, Any], new_finder: FinderMaker | None = None) -> None:
        self._told = told
        self._new_finder = new_finder

    def collect(
        self,
        head: Head,
        logprobs: Logprobs | None,
        echo: str,
        told_of_prompt: Callable[[], dict[str, Any]],
    ) -> Items:
        return Items(head, logprobs, self.finder(), Silence())

    def body(self, head: Head, choices: Sequence[Items], usage: Usage) -> bytes:
        [items] = choices
        return _encoder.encode(self.response(head, items, usage))

    def stream(self, head: Head, wanted: Streaming) -> Stream:
        return ResponseStream(self, head, wanted)

    def logprobs(self, tokenizer: Tokenizer, num_top: int, prompt: PromptScores | None) -> Logprobs:
        return ChatLogprobs(tokenizer, num_top)

    def finder(self) -> CallFinder | None:
        return None if self._new_finder is None else self._new_finder()

    def response(self, head: Head, items: Items | None, usage: Usage | None) -> dict[str, Any]:
        """Give the response object; without items it is in progress."""
        finish_reason = "" if items is None else items.finish_reason
        reason = _INCOMPLETE.get(finish_reason)
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "status": _STATUS.get(finish_reason, "in_progress"),
            "background": False,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": head.model,
            "output": [] if items is None else items.done,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            **self._told,
        }


class ResponseStream:
    """The events of one response."""

    def __init__(self, api: ResponsesApi, head: Head, wanted: Streaming) -> None:
        self._api = api
        self._head = head
        self._usage = wanted.usage
        self._num_events = 0
        self._items: Items | None = None

    def choice(self, index: int, logprobs: Logprobs | None, channel: Channel, echo: str) -> Choice:
        told = _Told(self, channel)
        self._items = Items(self._head, logprobs, self._api.finder(), told)
        return self._items

    def begin(self) -> bytes:
        response = self._api.response(self._head, None, None)
        created = self.event("response.created", response=response)
        return created + self.event("response.in_progress", response=response)

    def end(self) -> bytes:
        assert self._items is not None
        response = self._api.response(self._head, self._items, self._usage())
        # A client knows no event of its own for a response that somebody else ended.
        is_whole = response["status"] == "completed"
        kind = "response.completed" if is_whole else "response.incomplete"
        return self.event(kind, response=response)

    def failed(self, error: ApiError) -> bytes:
        response = self._api.response(self._head, None, None)
        told = {"code": error.code or error.type, "message": error.message}
        response |= {"status": "failed", "error": told}
        return self.event("response.failed", response=response)

    def event(self, kind: str, **facts: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._num_events, **facts}
        self._num_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encoder.encode(body) + b"\n\n"


class _Told:
    """Sends the items' events to the client."""

    def __init__(self, stream: ResponseStream, channel: Channel) -> None:
        self._stream = stream
        self._channel = channel

    def begin(self) -> None:
        self._channel.put(self._stream.begin())

    def tell(self, kind: str, **facts: Any) -> None:
        self._channel.put(self._stream.event(kind, **facts))


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }
