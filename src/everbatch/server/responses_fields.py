"""The body of POST /v1/responses, read strictly: text and calls of functions, in and out.

Belongs here: what the Responses API names otherwise than chat. Not here: what both have in common
(protocol.py), its input (responses_input.py). Nothing is stored, so whatever refers to an earlier
response is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from everbatch.engine.sampling_params import MAX_LOGPROBS
from everbatch.server.chat_messages import Message
from everbatch.server.fields import Fields, IsNeutral, Json, decode_object, nothing, only
from everbatch.server.protocol import (
    NOT_SUPPORTED_ANYWHERE,
    STREAM_OPTIONS_NOT_SUPPORTED,
    Common,
    read_common,
)
from everbatch.server.responses_input import MAX_TEXT_LENGTH, take_input
from everbatch.server.structured_fields import take_format
from everbatch.server.tool_fields import ToolsWanted, take_tools

LOGPROBS_WANTED = "message.output_text.logprobs"
MAX_TOKENS = 2**31 - 1

NOT_SUPPORTED: dict[str, IsNeutral] = {
    "access_programs": nothing,
    "background": only(False),
    "background_options": nothing,
    "context_management": only([]),
    "conversation": nothing,
    "image": nothing,
    "max_tool_calls": nothing,
    "moderation": nothing,
    "n": only(1),
    "previous_response_id": nothing,
    "prompt": nothing,
    "prompt_cache_options": nothing,
    "prompt_logprobs": nothing,
    "prompt_cache_retention": only("in_memory"),
    "reasoning": only({}),
    "response_format": nothing,
    "store": only(False),
    "truncation": only("disabled"),
}
TEXT_NOT_SUPPORTED: dict[str, IsNeutral] = {"verbosity": only("medium")}


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """messages: instructions as a system message, then the input. told: the fields of the body that
    the response repeats."""

    common: Common
    messages: tuple[Message, ...]
    tools: ToolsWanted | None
    template_variables: Mapping[str, Json]
    told: Mapping[str, Json]


def read_responses(body: bytes) -> ResponsesRequest:
    """Read the body of POST /v1/responses; raises ApiError, naming the field."""
    values = decode_object(body)
    fields = Fields(values)
    fields.refuse(NOT_SUPPORTED_ANYWHERE | NOT_SUPPORTED)
    instructions = fields.text("instructions", MAX_TEXT_LENGTH)
    messages = take_input(fields)
    if instructions is not None:
        messages = ({"role": "system", "content": instructions}, *messages)
    tools = take_tools(fields, is_flat=True)
    logprobs, form = _logprobs(fields), _form(fields)
    _no_obfuscation(fields)
    max_tokens = fields.integer("max_output_tokens", 1, MAX_TOKENS)
    common = read_common(fields, logprobs, max_tokens, form)
    variables = fields.object_value("chat_template_kwargs")
    fields.end()
    return ResponsesRequest(common, messages, tools, variables or {}, _told(values, common))


def _told(values: Mapping[str, Json], common: Common) -> dict[str, Json]:
    text = values.get("text") or {}
    return {
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        "metadata": values.get("metadata") or {},
        "parallel_tool_calls": values.get("parallel_tool_calls") is not False,
        "temperature": common.sampling.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": values.get("tool_choice") or "auto",
        "tools": [_told_tool(tool) for tool in values.get("tools") or ()],
        "top_logprobs": values.get("top_logprobs") or 0,
        "top_p": common.sampling.top_p,
        "user": values.get("user"),
    }


def _told_tool(tool: Mapping[str, Json]) -> dict[str, Json]:
    facts = {"type": "function", "description": None, "parameters": None, "strict": False}
    return facts | {name: value for name, value in tool.items() if value is not None}


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
    text.refuse(TEXT_NOT_SUPPORTED)
    text.end()
    return form


def _no_obfuscation(fields: Fields) -> None:
    """Take stream_options, which here can ask for one thing only that we do not do."""
    options = fields.object("stream_options")
    if options is not None:
        options.refuse(STREAM_OPTIONS_NOT_SUPPORTED)
        options.end()
