"""The messages of a chat, read strictly.

Belongs here: roles and contents. Not here: the text that a model's template makes of them.
"""

from collections.abc import Mapping, Sequence

from everbatch.server.fields import Fields, IsNeutral, Json, nothing, only
from everbatch.server.tool_fields import take_calls
from everbatch.tokenizer.chat_template import joined

# A newer name of OpenAI's for the same thing; no template that we serve knows it.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TOOL_ROLE = "tool"
MAX_NAME_LENGTH = 64
MAX_ID_LENGTH = 256
MAX_TEXT_LENGTH = 1 << 30  # The body's limit is the one that binds.

Message = Mapping[str, Json]


# Null or empty in what the official client gives back for an answer, so a history may carry them.
NOT_SUPPORTED: dict[str, IsNeutral] = {
    "function_call": nothing,
    "refusal": nothing,
    "annotations": only([]),
    "audio": nothing,
    "reasoning_content": nothing,
}
# Of all roles but the tool's, and of those that are not the assistant's either.
NOT_OF_OTHERS: dict[str, IsNeutral] = {"tool_call_id": nothing}
NOT_OF_ASKERS: dict[str, IsNeutral] = {"tool_calls": only([])}


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """Take `messages`: at least one, each with a role and text."""
    value = fields.take("messages")
    if value is None:
        raise fields.bad("messages", "is missing: give an array of messages")
    if not isinstance(value, list):
        raise fields.wrong_type("messages", "an array of messages", value)
    if not value:
        raise fields.bad("messages", "is an empty array: give at least one message")
    return tuple(_message(fields, index, one) for index, one in enumerate(value))


def _message(fields: Fields, index: int, value: Json) -> Message:
    name = f"messages[{index}]"
    if not isinstance(value, dict):
        raise fields.wrong_type(name, "an object with role and content", value)
    message = Fields(value, name)
    role = message.text("role", MAX_NAME_LENGTH)
    if role not in (*ROLES, TOOL_ROLE):
        known = ", ".join((*ROLES, TOOL_ROLE))
        raise message.bad("role", f"must be one of {known}, got {role!r}")
    message.refuse(NOT_SUPPORTED)
    read = _read(message, role)
    author = message.text("name", MAX_NAME_LENGTH)
    if author is not None:
        read["name"] = author
    message.end()
    return read


def speaks_of_tools(messages: Sequence[Message]) -> bool:
    """Whether a tool was called, or answered."""
    return any(one["role"] == TOOL_ROLE or "tool_calls" in one for one in messages)


def _read(message: Fields, role: str) -> dict[str, Json]:
    """Read what depends on the role."""
    if role == TOOL_ROLE:
        call_id = message.text("tool_call_id", MAX_ID_LENGTH)
        if call_id is None:
            raise message.bad("tool_call_id", "is missing: say which call it answers")
        return {"role": role, "content": _content(message), "tool_call_id": call_id}
    message.refuse(NOT_OF_OTHERS)
    if role != "assistant":
        message.refuse(NOT_OF_ASKERS)
        return {"role": ROLES[role], "content": _content(message)}
    calls = take_calls(message)
    if not calls:
        return {"role": role, "content": _content(message)}
    content = _content(message) if message.has("content") else message.take("content") or ""
    return {"role": role, "content": content, "tool_calls": calls}


def _content(message: Fields) -> str:
    value = message.take("content")
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise message.wrong_type("content", "a string or a non-empty array of text parts", value)
    return joined(_part(message, index, part) for index, part in enumerate(value))


def _part(message: Fields, index: int, value: Json) -> str:
    name = f"content[{index}]"
    if not isinstance(value, dict):
        raise message.wrong_type(name, "an object with type and text", value)
    part = Fields(value, message.name(name))
    kind = part.text("type", MAX_NAME_LENGTH)
    if kind != "text":
        raise part.bad("type", f'{kind!r} is not supported: only "text" is')
    text = part.text("text", MAX_TEXT_LENGTH)
    if text is None:
        raise part.bad("text", "is missing")
    part.end()
    return text
