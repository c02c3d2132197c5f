"""The messages of a chat, read strictly.

Belongs here: roles and contents. Not here: the text that a model's template makes of them.
"""

from collections.abc import Mapping

from everbatch.server.fields import Fields, IsNeutral, Json
from everbatch.tokenizer.chat_template import joined

# A newer name of OpenAI's for the same thing; no template that we serve knows it.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MAX_NAME_LENGTH = 64
MAX_TEXT_LENGTH = 1 << 30  # The body's limit is the one that binds.

Message = Mapping[str, str]


def _empty(value: Json) -> bool:
    return bool(value == [])


def _nothing(_value: Json) -> bool:
    return False


# Null or empty in what the official client gives back for an answer, so a history may carry them.
NOT_SUPPORTED: dict[str, IsNeutral] = {
    "tool_calls": _empty,
    "tool_call_id": _nothing,
    "function_call": _nothing,
    "refusal": _nothing,
    "annotations": _empty,
    "audio": _nothing,
    "reasoning_content": _nothing,
}


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
    if role not in ROLES:
        raise message.bad("role", f"must be one of {', '.join(ROLES)}, got {role!r}")
    message.refuse(NOT_SUPPORTED)
    read = {"role": ROLES[role], "content": _content(message)}
    author = message.text("name", MAX_NAME_LENGTH)
    if author is not None:
        read["name"] = author
    message.end()
    return read


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
