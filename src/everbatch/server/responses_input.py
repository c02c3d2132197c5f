"""The `input` of POST /v1/responses, read strictly into the messages of a conversation.

Belongs here: items and their parts. Not here: the other fields (responses_fields.py).

A message of the assistant and the calls after it are one message, as templates know it:

    message, function_call …   {"role": "assistant", "content": …, "tool_calls": […]}
    function_call_output       {"role": "tool", "tool_call_id": …, "content": …}
"""

from everbatch.server.chat_messages import ROLES, TOOL_ROLE, Message
from everbatch.server.fields import Fields, IsNeutral, Json, nothing, only
from everbatch.server.tool_fields import call_of, take_arguments, take_name
from everbatch.tokenizer.chat_template import joined

MAX_WORD_LENGTH = 256
MAX_TEXT_LENGTH = 1 << 30  # The body's limit is the one that binds.
TEXT_PARTS = ("input_text", "output_text", "text")
ITEMS = ("message", "function_call", "function_call_output")


# What the official client gives back of an answer, so that a history may carry it.
NOT_OF_MESSAGES: dict[str, IsNeutral] = {
    "annotations": only([]),
    "logprobs": only([]),
    "phase": nothing,
}
NOT_OF_PARTS: dict[str, IsNeutral] = {"annotations": only([])}
NOT_OF_CALLS: dict[str, IsNeutral] = {
    "async": only(False),
    # As the client's own dump has it.
    "async_": nothing,
    "caller": nothing,
    "namespace": nothing,
}


def take_input(fields: Fields) -> tuple[Message, ...]:
    """Take `input`: a text, or at least one item."""
    value = fields.take("input")
    if value is None:
        raise fields.bad("input", "is missing: give a text, or an array of messages")
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if not isinstance(value, list):
        raise fields.wrong_type("input", "a text or an array of messages", value)
    if not value:
        raise fields.bad("input", "is an empty array: give at least one message")
    conversation = _Conversation()
    for index, item in enumerate(value):
        _read_item(fields, f"input[{index}]", item, conversation)
    return tuple(conversation.messages)


class _Conversation:
    """Messages as they are read."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Json]] = []
        self.call_ids: set[str] = set()

    def add_call(self, call_id: str, name: str, arguments: dict[str, Json]) -> None:
        self.call_ids.add(call_id)
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        calls = self.messages[-1].setdefault("tool_calls", [])
        calls.append(call_of(call_id, name, arguments))


def _read_item(fields: Fields, name: str, value: Json, conversation: _Conversation) -> None:
    if not isinstance(value, dict):
        raise fields.wrong_type(name, "an object with role and content", value)
    item = Fields(value, name)
    kind = item.text("type", MAX_WORD_LENGTH) or "message"
    if kind not in ITEMS:
        raise item.bad("type", f"{kind!r} is not supported: only {', '.join(ITEMS)} are")
    item.text("id", MAX_WORD_LENGTH)
    item.text("status", MAX_WORD_LENGTH)
    match kind:
        case "message":
            conversation.messages.append(_message(item))
        case "function_call":
            item.refuse(NOT_OF_CALLS)
            call_id = _call_id(item, "is missing: give the call's id, which its output repeats")
            conversation.add_call(call_id, take_name(item), take_arguments(item))
        case _:
            item.refuse(NOT_OF_CALLS)
            conversation.messages.append(_output(item, conversation))
    item.end()


def _message(item: Fields) -> dict[str, Json]:
    role = item.text("role", MAX_WORD_LENGTH)
    if role not in ROLES:
        raise item.bad("role", f"must be one of {', '.join(ROLES)}, got {role!r:.80}")
    item.refuse(NOT_OF_MESSAGES)
    return {"role": ROLES[role], "content": _content(item, "content")}


def _output(item: Fields, conversation: _Conversation) -> dict[str, Json]:
    call_id = _call_id(item, "is missing: say which call it answers")
    if call_id not in conversation.call_ids:
        raise item.bad(
            "call_id",
            f"answers the call {call_id!r:.80}, which is not before it in input: send the "
            "function_call, too (nothing is stored here)",
        )
    item.text("name", MAX_WORD_LENGTH)
    return {"role": TOOL_ROLE, "content": _content(item, "output"), "tool_call_id": call_id}


def _call_id(item: Fields, missing: str) -> str:
    call_id = item.text("call_id", MAX_WORD_LENGTH)
    if call_id is None:
        raise item.bad("call_id", missing)
    return call_id


def _content(item: Fields, field: str) -> str:
    value = item.take(field)
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise item.wrong_type(field, "a text or a non-empty array of text parts", value)
    return joined(_part(item, f"{field}[{index}]", part) for index, part in enumerate(value))


def _part(item: Fields, name: str, value: Json) -> str:
    if not isinstance(value, dict):
        raise item.wrong_type(name, "an object with type and text", value)
    part = Fields(value, item.name(name))
    kind = part.text("type", MAX_WORD_LENGTH)
    if kind not in TEXT_PARTS:
        raise part.bad("type", f"{kind!r} is not supported: only {', '.join(TEXT_PARTS)} are")
    text = part.text("text", MAX_TEXT_LENGTH)
    if text is None:
        raise part.bad("text", "is missing")
    part.take("logprobs")
    part.refuse(NOT_OF_PARTS)
    part.end()
    return text
