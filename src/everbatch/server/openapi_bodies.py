"""The bodies of requests, as the OpenAPI document shows them.

Belongs here: schemas for readers and client generators. Not here: checking; protocol.py and its
like read bodies themselves, because they must name the field that is wrong in OpenAI's error body.

Null always means absent. What is refused by name stands in a schema with the values that ask for
what happens anyway, which are taken.
"""

from collections.abc import Mapping

from everbatch.server import (
    chat_messages,
    protocol,
    responses_fields,
    responses_input,
    side_bodies,
    structured_fields,
    tool_fields,
)
from everbatch.server.fields import IsNeutral, nothing
from everbatch.server.openapi_answers import ANY_OBJECT, STRING, Schema, or_null
from everbatch.server.responses_fields import LOGPROBS_WANTED

_NUMBER: Schema = {"type": "number"}
_BOOLEAN: Schema = {"type": "boolean", "default": False}
_ON: Schema = {"type": "boolean", "default": True}
_TOKEN_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TEXTS: Schema = {"type": "array", "items": STRING}
_LOGPROBS: Schema = {"type": "integer", "minimum": 0, "maximum": 20}
_WORD: Schema = {"type": "string", "maxLength": 256}


def body(
    required: Mapping[str, Schema],
    optional: Mapping[str, Schema] | None = None,
    refused: Mapping[str, IsNeutral] | None = None,
) -> Schema:
    """Describe an object with these fields and no others."""
    schema: Schema = {
        "type": "object",
        "properties": {
            **required,
            **{name: or_null(one) for name, one in (optional or {}).items()},
            **{name: _neutral(one) for name, one in (refused or {}).items()},
        },
        "additionalProperties": False,
    }
    if required:
        schema["required"] = list(required)
    return schema


def _neutral(is_neutral: IsNeutral) -> Schema:
    return {"enum": [*is_neutral.values, None], "description": "Not supported otherwise."}


_SCHEMA_FIELDS: dict[str, Schema] = {
    "name": {"type": "string", "maxLength": 64},
    "description": {"type": "string", "maxLength": 4_096},
    "strict": {"type": "boolean", "description": "Always so."},
    "schema": ANY_OBJECT,
}
_FORMS: dict[str, Schema] = {
    "json": {"anyOf": [ANY_OBJECT, STRING]},
    "json_object": _BOOLEAN,
    "regex": {"type": "string", "minLength": 1},
    "choice": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "minItems": 1,
        "maxItems": 1_024,
    },
    "grammar": {"type": "string", "minLength": 1},
}
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": 1_000}
_LABEL: Schema = {"type": "string", "maxLength": 512, "description": "Has no effect."}
_SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": 86_400}
_MAX_TOKENS: Schema = {
    "type": "integer",
    "minimum": 1,
    "description": "Absent: what max_model_len and the KV cache leave.",
}

_COMMON: dict[str, Schema] = {
    "model": {"type": "string", "maxLength": 512, "description": "Absent: the served model."},
    "stream": _BOOLEAN,
    "temperature": _NUMBER | {"minimum": 0, "maximum": 2, "default": 1},
    "top_p": _NUMBER | {"exclusiveMinimum": 0, "maximum": 1, "default": 1},
    "top_k": {"type": "integer", "minimum": -1, "default": 0, "description": "0 or -1: off."},
    "min_p": _NUMBER | {"minimum": 0, "maximum": 1, "default": 0},
    "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
    "min_tokens": {"type": "integer", "minimum": 0, "default": 0},
    "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": 16}]},
    "stop_token_ids": _TOKEN_IDS | {"maxItems": 64},
    "ignore_eos": _BOOLEAN,
    "presence_penalty": _NUMBER | {"minimum": -2, "maximum": 2, "default": 0},
    "frequency_penalty": _NUMBER | {"minimum": -2, "maximum": 2, "default": 0},
    "repetition_penalty": _NUMBER | {"minimum": 0.01, "maximum": 2, "default": 1},
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": 1_024,
    },
    "include_stop_str_in_output": _BOOLEAN,
    "skip_special_tokens": _ON,
    **{label: _LABEL for label in protocol.LABELS},
    "metadata": {
        "type": "object",
        "additionalProperties": STRING,
        "maxProperties": 16,
        "description": "Has no effect.",
    },
    "priority": {
        "type": "integer",
        "minimum": -protocol.MAX_PRIORITY,
        "maximum": protocol.MAX_PRIORITY,
        "default": 0,
        "description": "Lower runs first. Other than 0 under --policy priority only.",
    },
    "tenant": {"type": "string", "maxLength": 128, "description": "Or the header X-Tenant."},
    "max_wait_s": _SECONDS | {"description": "Longest wait for the first step."},
    "max_total_s": _SECONDS | {"description": "Longest time to the end of the answer."},
    "cache_salt": {
        "type": "string",
        "maxLength": 256,
        "description": "Only equal salts share cached prefixes.",
    },
    "structured_outputs": body({}, _FORMS, structured_fields.NOT_SUPPORTED)
    | {"description": "One of them."},
    **{f"guided_{name}": _FORMS[name] for name in ("json", "regex", "choice", "grammar")},
}
_FORMAT_TYPE: Schema = {"enum": ["text", "json_object", "json_schema"]}
_OF_TEXTS: dict[str, Schema] = {
    "max_tokens": _MAX_TOKENS,
    "n": {"type": "integer", "minimum": 1, "maximum": 128, "default": 1},
    "prompt_logprobs": _LOGPROBS | {"description": "Not with stream."},
    "stream_options": body(
        {},
        {
            "include_usage": _BOOLEAN,
            "continuous_usage_stats": _BOOLEAN
            | {"description": "Goes with include_usage: usage so far in every event."},
        },
        protocol.STREAM_OPTIONS_NOT_SUPPORTED,
    )
    | {"description": "Goes with stream."},
    "response_format": body({"type": _FORMAT_TYPE}, {"json_schema": body({}, _SCHEMA_FIELDS)}),
}
_FUNCTION_NAME: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_FUNCTION: Schema = {"const": "function"}
_OF_FUNCTIONS: dict[str, Schema] = {
    "description": STRING,
    "parameters": ANY_OBJECT,
    "strict": _BOOLEAN | {"description": "Arguments of its calls fit parameters."},
}
_NOT_OF_FUNCTIONS = tool_fields.NOT_SUPPORTED
_TOOL = body(
    {"function": body({"name": _FUNCTION_NAME}, _OF_FUNCTIONS, _NOT_OF_FUNCTIONS)},
    {"type": _FUNCTION},
)
_FLAT_TOOL = body({"name": _FUNCTION_NAME}, {"type": _FUNCTION, **_OF_FUNCTIONS}, _NOT_OF_FUNCTIONS)
_NAMED = body({"function": body({"name": _FUNCTION_NAME})}, {"type": _FUNCTION})
_FLAT_NAMED = body({"name": _FUNCTION_NAME}, {"type": _FUNCTION})


def _tool_fields(tool: Schema, named: Schema, *, is_flat: bool) -> dict[str, Schema]:
    """Give tools, tool_choice and parallel_tool_calls."""
    listed = {"type": "array", "items": named, "minItems": 1, "maxItems": tool_fields.MAX_TOOLS}
    allowed: dict[str, Schema] = {"mode": {"enum": list(tool_fields.MODES)}, "tools": listed}
    facts = allowed if is_flat else {"allowed_tools": body(allowed)}
    choice = body({"type": {"const": "allowed_tools"}, **facts})
    return {
        "tools": {"type": "array", "items": tool, "maxItems": tool_fields.MAX_TOOLS},
        "tool_choice": {
            "anyOf": [{"enum": list(tool_fields.CHOICES)}, named, choice],
            "default": "auto",
        },
        "parallel_tool_calls": _ON,
    }


def _parts(part: Schema) -> Schema:
    return {"anyOf": [STRING, {"type": "array", "items": part, "minItems": 1}]}


_CONTENT = _parts(body({"type": {"const": "text"}, "text": STRING}))
_AUTHOR: dict[str, Schema] = {"name": {"type": "string", "maxLength": 64}}
_NOT_OF_MESSAGES = chat_messages.NOT_SUPPORTED | chat_messages.NOT_OF_OTHERS
_CALL = body(
    {"function": body({"name": _FUNCTION_NAME}, {"arguments": STRING})},
    {"id": _WORD, "type": _FUNCTION, "index": {}},
)
_MESSAGE: Schema = {
    "anyOf": [
        body(
            {"role": {"enum": ["system", "developer", "user"]}, "content": _CONTENT},
            _AUTHOR,
            _NOT_OF_MESSAGES | chat_messages.NOT_OF_ASKERS,
        ),
        body(
            {"role": {"const": "assistant"}, "content": _CONTENT},
            _AUTHOR | {"tool_calls": {"type": "array", "items": _CALL}},
            _NOT_OF_MESSAGES,
        ),
        body(
            {
                "role": {"const": "assistant"},
                "tool_calls": {"type": "array", "items": _CALL, "minItems": 1},
            },
            _AUTHOR | {"content": _CONTENT},
            _NOT_OF_MESSAGES,
        ),
        body(
            {"role": {"const": "tool"}, "content": _CONTENT, "tool_call_id": _WORD},
            _AUTHOR,
            chat_messages.NOT_SUPPORTED,
        ),
    ]
}
_MESSAGES: Schema = {"type": "array", "items": _MESSAGE, "minItems": 1}
_VARIABLES: Schema = ANY_OBJECT | {"description": "Variables for the model's template."}

COMPLETIONS = body(
    {
        "prompt": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                _TEXTS | {"minItems": 1},
                _TOKEN_IDS | {"minItems": 1},
                {"type": "array", "items": _TOKEN_IDS | {"minItems": 1}, "minItems": 1},
            ]
        }
    },
    {
        **_COMMON,
        **_OF_TEXTS,
        "logprobs": _LOGPROBS,
        "add_special_tokens": _ON,
        "echo": _BOOLEAN | {"description": "Begin each text with its prompt."},
        "max_tokens": _MAX_TOKENS | {"minimum": 0, "description": "0: with echo only."},
    },
    protocol.NOT_SUPPORTED_ANYWHERE | protocol.NOT_SUPPORTED_IN_COMPLETIONS,
)
CHAT_COMPLETIONS = body(
    {"messages": _MESSAGES},
    {
        **_COMMON,
        **_OF_TEXTS,
        "max_completion_tokens": {"type": "integer", "minimum": 1},
        "chat_template_kwargs": _VARIABLES,
        "logprobs": _BOOLEAN,
        "top_logprobs": _LOGPROBS,
        **_tool_fields(_TOOL, _NAMED, is_flat=False),
    },
    protocol.NOT_SUPPORTED_ANYWHERE | protocol.NOT_SUPPORTED_IN_CHAT,
)
_OF_ITEMS: dict[str, Schema] = {"id": _WORD, "status": _WORD}
_INPUT_PARTS = _parts(
    body(
        {"type": {"enum": list(responses_input.TEXT_PARTS)}, "text": STRING},
        # What came with an answer may go back.
        {"logprobs": {}},
        responses_input.NOT_OF_PARTS,
    )
)
_CALL_ID: dict[str, Schema] = {"call_id": _WORD}
_INPUT_ITEM: Schema = {
    "anyOf": [
        body(
            {"role": {"enum": list(chat_messages.ROLES)}, "content": _INPUT_PARTS},
            {"type": {"const": "message"}, **_OF_ITEMS},
            responses_input.NOT_OF_MESSAGES,
        ),
        body(
            {"type": {"const": "function_call"}, "name": _FUNCTION_NAME, **_CALL_ID},
            {"arguments": STRING, **_OF_ITEMS},
            responses_input.NOT_OF_CALLS,
        ),
        body(
            {"type": {"const": "function_call_output"}, "output": _INPUT_PARTS, **_CALL_ID},
            {"name": _WORD, **_OF_ITEMS},
            responses_input.NOT_OF_CALLS,
        ),
    ]
}
_FORMAT = body({"type": _FORMAT_TYPE}, _SCHEMA_FIELDS)
RESPONSES = body(
    {"input": {"anyOf": [STRING, {"type": "array", "items": _INPUT_ITEM, "minItems": 1}]}},
    {
        **_COMMON,
        "instructions": {"type": "string", "description": "A system message before the input."},
        "max_output_tokens": _MAX_TOKENS,
        "text": body({}, {"format": _FORMAT}, responses_fields.TEXT_NOT_SUPPORTED),
        "include": {"type": "array", "items": {"const": LOGPROBS_WANTED}},
        "top_logprobs": _LOGPROBS,
        "stream_options": body({}, {}, protocol.STREAM_OPTIONS_NOT_SUPPORTED),
        "chat_template_kwargs": _VARIABLES,
        **_tool_fields(_FLAT_TOOL, _FLAT_NAMED, is_flat=True),
    },
    protocol.NOT_SUPPORTED_ANYWHERE | responses_fields.NOT_SUPPORTED,
)
_MODEL = {"model": _COMMON["model"]}
_OF_EITHER: dict[str, Schema] = {**_MODEL, "return_token_strs": _BOOLEAN}
TOKENIZE: Schema = {
    "anyOf": [
        body(
            {"prompt": STRING},
            {**_OF_EITHER, "add_special_tokens": _ON},
            side_bodies.NOT_SUPPORTED,
        ),
        body(
            {"messages": _MESSAGES},
            {
                **_OF_EITHER,
                "add_generation_prompt": _ON,
                "chat_template_kwargs": _VARIABLES,
                "tools": {"type": "array", "items": _TOOL, "maxItems": tool_fields.MAX_TOOLS},
            },
            side_bodies.NOT_SUPPORTED | side_bodies.NOT_WITH_MESSAGES | {"prompt": nothing},
        ),
    ]
}
DETOKENIZE = body({"tokens": _TOKEN_IDS}, _MODEL)
_ID: Schema = _WORD | {"description": "An answer's id, or an X-Request-Id."}
ABORT: Schema = {
    "anyOf": [
        body({"request_id": _ID}, {}, {"request_ids": nothing}),
        body(
            {"request_ids": {"type": "array", "items": STRING, "maxItems": side_bodies.MAX_IDS}},
            {},
            {"request_id": nothing},
        ),
    ]
}
