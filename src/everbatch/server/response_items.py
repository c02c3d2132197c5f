"""The items of one response, as its text comes: messages of text, and calls of functions.

Belongs here: which item stands where, and the events that tell of it. Not here: the response
around them (responses.py), finding calls (tool_finders.py). An item is done before the next begins:

    message   output_item.added, content_part.added, output_text.delta …,
              output_text.done, content_part.done, output_item.done
    call      output_item.added, function_call_arguments.delta, …done, output_item.done

Log probabilities are those of a message's text; the tokens of a call have none.
"""

from typing import Any, Protocol

from everbatch.engine.engine import TokenOutput
from everbatch.server.choices import Head
from everbatch.server.logprobs import Logprobs
from everbatch.server.tool_calls import Call, new_call_id
from everbatch.server.tool_finders import CallFinder, Found


class Listener(Protocol):
    """Who is told of the items while they come."""

    def begin(self) -> None:
        """Learn that an answer will come."""
        ...

    def tell(self, kind: str, **facts: Any) -> None: ...


class Silence:
    """Listens to an answer that is told as a whole."""

    def begin(self) -> None: ...

    def tell(self, kind: str, **facts: Any) -> None: ...


class Items:
    """Makes items of one answer. `done` has those that have ended."""

    def __init__(
        self,
        head: Head,
        logprobs: Logprobs | None,
        finder: CallFinder | None,
        listener: Listener,
    ) -> None:
        self._tail = head.id.partition("-")[2]
        self._logprobs = logprobs
        self._finder = finder
        self._listener = listener
        self._has_begun = False
        self._message: _Message | None = None
        self.done: list[dict[str, Any]] = []
        self.finish_reason = ""

    def logprobs(self, output: TokenOutput, offset: int) -> None:
        if self._logprobs is not None:
            self._logprobs.add(output, offset)

    def text(self, text: str) -> None:
        self._begin()
        self._take_in(Found((text,)) if self._finder is None else self._finder.push(text))

    def finish(self, finish_reason: str) -> None:
        self._begin()
        self.finish_reason = finish_reason
        if self._finder is not None:
            self._take_in(self._finder.finish())
        if not self.done and self._message is None:
            self._open_message()
        self._end_message("completed" if finish_reason == "stop" else "incomplete")

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._listener.begin()

    def _take_in(self, found: Found) -> None:
        for part in found.parts:
            if isinstance(part, str):
                self._tell_text(part)
            else:
                self._tell_call(part)

    def _tell_text(self, text: str) -> None:
        message = self._message or self._open_message()
        message.pieces.append(text)
        told = self._take_logprobs()
        message.logprobs += told
        self._listener.tell(
            "response.output_text.delta", **message.place(), delta=text, logprobs=told
        )

    def _open_message(self) -> "_Message":
        index = len(self.done)
        message = _Message(self._id("msg"), index)
        self._message = message
        item = message.item("in_progress", [])
        self._listener.tell("response.output_item.added", output_index=index, item=item)
        part = _part("", [])
        self._listener.tell("response.content_part.added", **message.place(), part=part)
        return message

    def _end_message(self, status: str) -> None:
        message = self._message
        if message is None:
            return
        self._message = None
        message.logprobs += self._take_logprobs()
        text, logprobs, place = message.text, message.logprobs, message.place()
        tell = self._listener.tell
        tell("response.output_text.done", **place, text=text, logprobs=logprobs)
        tell("response.content_part.done", **place, part=_part(text, logprobs))
        self._end_item(message.item(status, [_part(text, logprobs)]))

    def _tell_call(self, call: Call) -> None:
        # Before the message ends: what was gathered belongs to the text of the call.
        self._take_logprobs()
        self._end_message("completed")
        index, item_id = len(self.done), self._id("fc")
        item = {
            "id": item_id,
            "type": "function_call",
            "status": "in_progress",
            "call_id": new_call_id(),
            "name": call.name,
            "arguments": "",
        }
        place = {"item_id": item_id, "output_index": index}
        tell = self._listener.tell
        tell("response.output_item.added", output_index=index, item=item)
        tell("response.function_call_arguments.delta", **place, delta=call.arguments)
        tell(
            "response.function_call_arguments.done",
            **place,
            name=call.name,
            arguments=call.arguments,
        )
        self._end_item(item | {"status": "completed", "arguments": call.arguments})

    def _end_item(self, item: dict[str, Any]) -> None:
        index = len(self.done)
        self.done.append(item)
        self._listener.tell("response.output_item.done", output_index=index, item=item)

    def _id(self, kind: str) -> str:
        index = len(self.done)
        return f"{kind}-{self._tail}-{index}" if index else f"{kind}-{self._tail}"

    def _take_logprobs(self) -> list[dict[str, Any]]:
        taken = None if self._logprobs is None else self._logprobs.take()
        return [] if taken is None else taken["content"]


class _Message:
    """A message that goes on. index: its place among the items."""

    def __init__(self, item_id: str, index: int) -> None:
        self._id = item_id
        self._index = index
        self.pieces: list[str] = []
        self.logprobs: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def place(self) -> dict[str, Any]:
        """Give where its text stands."""
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
