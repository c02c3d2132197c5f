"""Answers of chat in which tools may be called.

Belongs here: the JSON of calls, whole and streamed. Not here: finding them (tool_finders.py). A
call is streamed as one delta, once it is whole.
"""

from collections.abc import Sequence
from typing import Any

from everbatch.engine.engine import TokenOutput
from everbatch.server.channel import Channel
from everbatch.server.choices import (
    ChatApi,
    CollectedChoice,
    Events,
    Head,
    MessageDeltas,
    Stream,
    StreamedChoice,
    Streaming,
)
from everbatch.server.errors import ApiError
from everbatch.server.generation import Choice
from everbatch.server.logprobs import Logprobs
from everbatch.server.tool_calls import Call, new_call_id
from everbatch.server.tool_finders import CallFinder, FinderMaker, Found


class ToolChatApi(ChatApi):
    """Chat with tools; `new_finder` makes what watches one choice."""

    def __init__(self, new_finder: FinderMaker) -> None:
        self._new_finder = new_finder

    def stream(self, head: Head, wanted: Streaming) -> Stream:
        events = Events("chat.completion.chunk", MessageDeltas(), head, wanted)
        return _ToolStream(events, self._new_finder)

    def part(self, choice: CollectedChoice) -> dict[str, Any]:
        finder = self._new_finder()
        found = (finder.push(choice.full_text), finder.finish())
        text = "".join(one.text for one in found)
        calls = [call for one in found for call in one.calls]
        if not calls:
            return super().part(choice)
        message = {"role": "assistant", "content": text or None, "refusal": None}
        message["tool_calls"] = _told(calls)  # type: ignore[assignment]
        return {"message": message, "finish_reason": _reason(choice.finish_reason)}


class _ToolStream:
    """The events of chat, with calls among the deltas."""

    def __init__(self, events: Events, new_finder: FinderMaker) -> None:
        self._events = events
        self._new_finder = new_finder

    def choice(self, index: int, logprobs: Logprobs | None, channel: Channel, echo: str) -> Choice:
        inner = StreamedChoice(self._events, index, logprobs, channel, echo)
        return _StreamedCalls(inner, self._new_finder())

    def end(self) -> bytes:
        return self._events.end()

    def failed(self, error: ApiError) -> bytes:
        return self._events.failed(error)


class _StreamedCalls:
    """A choice whose text goes through a finder of calls."""

    def __init__(self, inner: StreamedChoice, finder: CallFinder) -> None:
        self._inner = inner
        self._finder = finder
        self._num_calls = 0

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        self._inner.logprobs(output, offset)

    def text(self, text: str) -> None:
        self._tell(self._finder.push(text))

    def finish(self, finish_reason: str) -> None:
        self._tell(self._finder.finish())
        self._inner.finish(_reason(finish_reason) if self._num_calls else finish_reason)

    def _tell(self, found: Found) -> None:
        for part in found.parts:
            if isinstance(part, str):
                self._inner.text(part)
            else:
                calls = _told([part], first=self._num_calls)
                self._num_calls += 1
                self._inner.delta({"delta": {"tool_calls": calls}})


def _told(calls: Sequence[Call], first: int | None = None) -> list[dict[str, Any]]:
    """Give calls as clients see them; in a stream, numbered from `first`."""
    return [
        {
            **({} if first is None else {"index": first + place}),
            "id": new_call_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(calls)
    ]


def _reason(finish_reason: str) -> str:
    return "tool_calls" if finish_reason == "stop" else finish_reason
