"""The body of POST /v1/responses, read strictly: text in, text out.

Belongs here: what the Responses API names otherwise than chat. Not here: what both have in common
(protocol.py). Nothing is stored, so whatever refers to an earlier response is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from everbatch.engine.sampling_params import MAX_LOGPROBS
from everbatch.server.chat_messages import ROLES, Message
from everbatch.server.fields import Fields, IsNeutral, Json, decode_object
from everbatch.server.protocol import (
    NOT_SUPPORTED_ANYWHERE,
    Common,
    nothing,
    only,
    read_common,
)
from everbatch.server.structured_fields import take_format
from everbatch.tokenizer.chat_template import joined

LOGPROBS_WANTED = "message.output_text.logprobs"
MAX_WORD_LENGTH = 256
MAX_TEXT_LENGTH = 1 << 30  # The body's limit is the one that binds.
MAX_TOKENS = 2**31 - 1
TEXT_PARTS = ("input_text", "output_text", "text")


def _flag(value: Json) -> bool:
    return isinstance(value, bool)


NOT_SUPPORTED: dict[str, IsNeutral] = {
    "background": only(False),
    "context_management": only([]),
    "conversation": nothing,
    "max_tool_calls": nothing,
    "moderation": nothing,
    "n": only(1),
    # Without tools both values say the same.
    "parallel_tool_calls": _flag,
    "previous_response_id": nothing,
    "prompt": nothing,
    "prompt_cache_options": nothing,
    "prompt_logprobs": nothing,
    "prompt_cache_retention": nothing,
    "reasoning": only({}),
    "response_format": nothing,
    "store": only(False),
    "tool_choice": only("none", "auto"),
    "tools": only([]),
    "truncation": only("disabled"),
}
# What the official client gives back of an answer, so that a history may carry it.
_OF_ANSWERS: dict[str, IsNeutral] = {
    "annotations": only([]),
    "logprobs": only([]),
    "phase": nothing,
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """messages: instructions as a system message, then the input. told: the fields of the body that
    the response repeats."""

    common: Common
    messages: tuple[Message, ...]
    template_variables: Mapping[str, Json]
    told: Mapping[str, Json]


def read_responses(body: bytes) -> ResponsesRequest:
    """Read the body of POST /v1/responses; raises ApiError, naming the field."""
    values = decode_object(body)
    fields = Fields(values)
    fields.refuse(NOT_SUPPORTED_ANYWHERE | NOT_SUPPORTED)
    instructions = fields.text("instructions", MAX_TEXT_LENGTH)
    messages = _input(fields)
    if instructions is not None:
        messages = ({"role": "system", "content": instructions}, *messages)
    logprobs, form = _logprobs(fields), _form(fields)
    _no_obfuscation(fields)
    max_tokens = fields.integer("max_output_tokens", 1, MAX_TOKENS)
    common = read_common(fields, logprobs, max_tokens, form)
    variables = fields.object_value("chat_template_kwargs")
    fields.end()
    return ResponsesRequest(common, messages, variables or {}, _told(values, common))


def _told(values: Mapping[str, Json], common: Common) -> dict[str, Json]:
    text = values.get("text") or {}
    return {
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        "metadata": values.get("metadata") or {},
        "temperature": common.sampling.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "top_logprobs": values.get("top_logprobs") or 0,
        "top_p": common.sampling.top_p,
        "user": values.get("user"),
    }


def _input(fields: Fields) -> tuple[Message, ...]:
    value = fields.take("input")
    if value is None:
        raise fields.bad("input", "is missing: give a text, or an array of messages")
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if not isinstance(value, list):
        raise fields.wrong_type("input", "a text or an array of messages", value)
    if not value:
        raise fields.bad("input", "is an empty array: give at least one message")
    return tuple(_item(fields, f"input[{index}]", item) for index, item in enumerate(value))


def _item(fields: Fields, name: str, value: Json) -> Message:
    if not isinstance(value, dict):
        raise fields.wrong_type(name, "an object with role and content", value)
    item = Fields(value, name)
    kind = item.text("type", MAX_WORD_LENGTH)
    if kind not in (None, "message"):
        raise item.bad("type", f'{kind!r} is not supported: only "message" is')
    role = item.text("role", MAX_WORD_LENGTH)
    if role not in ROLES:
        raise item.bad("role", f"must be one of {', '.join(ROLES)}, got {role!r}")
    item.text("id", MAX_WORD_LENGTH)
    item.text("status", MAX_WORD_LENGTH)
    item.refuse(_OF_ANSWERS)
    content = _content(item)
    item.end()
    return {"role": ROLES[role], "content": content}


def _content(item: Fields) -> str:
    value = item.take("content")
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise item.wrong_type("content", "a text or a non-empty array of text parts", value)
    return joined(_part(item, f"content[{index}]", part) for index, part in enumerate(value))


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
    part.refuse(_OF_ANSWERS)
    part.end()
    return text


def _logprobs(fields: Fields) -> int | None:
    include = fields.take("include")
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if include is not None and not isinstance(include, list):
        raise fields.wrong_type("include", "an array", include)
    for one in include or ():
        if one != LOGPROBS_WANTED:
            raise fields.bad("include", f"may hold {LOGPROBS_WANTED!r} only, not {one!r:.80}")
    if include:
        return top or 0
    if top:
        raise fields.bad("top_logprobs", f'goes with "include": ["{LOGPROBS_WANTED}"] only')
    return None


def _form(fields: Fields) -> Json:
    text = fields.object("text")
    if text is None:
        return None
    form = take_format(text, "format", is_flat=True)
    text.refuse({"verbosity": only("medium")})
    text.end()
    return form


def _no_obfuscation(fields: Fields) -> None:
    """Take stream_options, which here can ask for one thing only that we do not do."""
    options = fields.object("stream_options")
    if options is not None:
        options.refuse({"include_obfuscation": only(False)})
        options.end()
