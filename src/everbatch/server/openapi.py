"""The request bodies as the OpenAPI document shows them.

Belongs here: schemas for readers and client generators. Not here: checking; protocol.py reads
bodies itself, because it must name the field that is wrong in OpenAI's error body.
"""

from typing import Any

_NUMBER = {"type": "number"}
_BOOLEAN = {"type": "boolean", "default": False}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}

_LOGPROBS = {"type": "integer", "minimum": 0, "maximum": 20}
_SCHEMA_FIELDS: dict[str, Any] = {
    "name": {"type": "string", "maxLength": 64},
    "description": {"type": "string", "maxLength": 4_096},
    "strict": {"type": "boolean"},
    "schema": {"type": "object"},
}
_FORMS: dict[str, Any] = {
    "json": {"anyOf": [{"type": "object"}, {"type": "string"}]},
    "json_object": _BOOLEAN,
    "regex": {"type": "string", "minLength": 1},
    "choice": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1_024},
    "grammar": {"type": "string", "minLength": 1},
}

_COMMON: dict[str, Any] = {
    "model": {"type": "string", "description": "Absent: the served model."},
    "stream": _BOOLEAN,
    "stream_options": {
        "type": "object",
        "properties": {
            "include_usage": _BOOLEAN,
            "continuous_usage_stats": _BOOLEAN
            | {"description": "Goes with include_usage: usage so far in every event."},
        },
        "additionalProperties": False,
    },
    "temperature": _NUMBER | {"minimum": 0, "maximum": 2, "default": 1},
    "top_p": _NUMBER | {"exclusiveMinimum": 0, "maximum": 1, "default": 1},
    "top_k": {"type": "integer", "minimum": -1, "default": 0, "description": "0 or -1: off."},
    "min_p": _NUMBER | {"minimum": 0, "maximum": 1, "default": 0},
    "seed": {"type": "integer"},
    "max_tokens": {
        "type": "integer",
        "minimum": 1,
        "description": "Absent: what max_model_len and the KV cache leave.",
    },
    "min_tokens": {"type": "integer", "minimum": 0, "default": 0},
    "stop": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "stop_token_ids": _TOKEN_IDS,
    "ignore_eos": _BOOLEAN,
    "presence_penalty": _NUMBER | {"minimum": -2, "maximum": 2, "default": 0},
    "frequency_penalty": _NUMBER | {"minimum": -2, "maximum": 2, "default": 0},
    "repetition_penalty": _NUMBER | {"exclusiveMinimum": 0, "maximum": 2, "default": 1},
    "logit_bias": {
        "type": "object",
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "include_stop_str_in_output": _BOOLEAN,
    "skip_special_tokens": {"type": "boolean", "default": True},
    **{
        label: {"type": "string", "maxLength": 512, "description": "Has no effect."}
        for label in ("user", "safety_identifier", "prompt_cache_key")
    },
    "metadata": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "maxProperties": 16,
        "description": "Has no effect.",
    },
    "n": {"type": "integer", "minimum": 1, "maximum": 128, "default": 1},
    "priority": {
        "type": "integer",
        "default": 0,
        "description": "Lower runs first. Other than 0 under --policy priority only.",
    },
    "tenant": {"type": "string", "maxLength": 128, "description": "Or the header X-Tenant."},
    "max_wait_s": _NUMBER
    | {"minimum": 0, "maximum": 86_400, "description": "Longest wait for the first step."},
    "max_total_s": _NUMBER
    | {"minimum": 0, "maximum": 86_400, "description": "Longest time to the end of the answer."},
    "cache_salt": {"type": "string", "description": "Only equal salts share cached prefixes."},
    "prompt_logprobs": _LOGPROBS | {"description": "Not with stream."},
    "response_format": {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {
                "type": "object",
                "properties": _SCHEMA_FIELDS,
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
    },
    "structured_outputs": {
        "type": "object",
        "description": "One of them.",
        "properties": _FORMS,
        "additionalProperties": False,
    },
    **{f"guided_{name}": _FORMS[name] for name in ("json", "regex", "choice", "grammar")},
}
_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "additionalProperties": False,
}
_FUNCTION_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}


def _function_tool(**details: object) -> dict[str, object]:
    """Describe a tool that is a function: its name, and whatever else of it may be said."""
    function = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": _FUNCTION_NAME, **details},
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "required": ["function"],
        "properties": {"type": {"const": "function"}, "function": function},
        "additionalProperties": False,
    }


_TOOL = _function_tool(
    description={"type": "string"}, parameters={"type": "object"}, strict={"type": "boolean"}
)
_NAMED_TOOL = _function_tool()
_CALL = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": _FUNCTION_NAME, "arguments": {"type": "string"}},
            "additionalProperties": False,
        },
    },
}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "tool_calls": {
            "type": "array",
            "items": _CALL,
            "description": "Of the assistant, whose content may be null then.",
        },
        "tool_call_id": {"type": "string", "description": "Of the role tool."},
        "content": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART, "minItems": 1}]
        },
        "name": {"type": "string"},
    },
}


def _operation(
    required: tuple[str, ...], properties: dict[str, Any], common: dict[str, Any] = _COMMON
) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": common | properties,
        "additionalProperties": False,
    }
    if required:
        schema["required"] = list(required)
    error = {"description": 'OpenAI\'s error body: {"error": {message, type, param, code}}'}
    statuses = ("400", "401", "404", "413", "415", "429", "500", "503")
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {status: error for status in statuses},
    }


COMPLETIONS = _operation(
    ("prompt",),
    {
        "prompt": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
            ]
        },
        "logprobs": _LOGPROBS,
        "add_special_tokens": {"type": "boolean", "default": True},
        "echo": _BOOLEAN | {"description": "Begin each text with its prompt."},
    },
)
CHAT_COMPLETIONS = _operation(
    ("messages",),
    {
        "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
        "max_completion_tokens": {"type": "integer", "minimum": 1},
        "chat_template_kwargs": {
            "type": "object",
            "description": "Variables for the model's template.",
        },
        "logprobs": _BOOLEAN,
        "top_logprobs": _LOGPROBS,
        "tools": {"type": "array", "items": _TOOL, "maxItems": 128},
        "tool_choice": {
            "anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED_TOOL],
            "default": "auto",
        },
        "parallel_tool_calls": {"type": "boolean", "default": True},
    },
)
_INPUT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {
        "type": {"enum": ["input_text", "output_text", "text"]},
        "text": {"type": "string"},
    },
}
_INPUT_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": _INPUT_PART, "minItems": 1}]
        },
    },
}
# What has another name in this API, or no sense.
_ELSEWHERE = ("max_tokens", "n", "stream_options", "response_format", "prompt_logprobs")
RESPONSES = _operation(
    ("input",),
    {
        "input": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": _INPUT_MESSAGE, "minItems": 1},
            ]
        },
        "instructions": {"type": "string", "description": "A system message before the input."},
        "max_output_tokens": {"type": "integer", "minimum": 1},
        "text": {
            "type": "object",
            "properties": {
                "format": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {
                        "type": {"enum": ["text", "json_object", "json_schema"]},
                        **_SCHEMA_FIELDS,
                    },
                    "additionalProperties": False,
                }
            },
        },
        "include": {
            "type": "array",
            "items": {"const": "message.output_text.logprobs"},
        },
        "top_logprobs": _LOGPROBS,
        "stream_options": {
            "type": "object",
            "properties": {"include_obfuscation": {"const": False}},
            "additionalProperties": False,
        },
        "chat_template_kwargs": {"type": "object"},
    },
    {name: schema for name, schema in _COMMON.items() if name not in _ELSEWHERE},
)
_MODEL = {"model": _COMMON["model"]}
TOKENIZE = _operation(
    (),
    {
        "prompt": {"type": "string", "description": "Or messages."},
        "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
        "add_special_tokens": {
            "type": "boolean",
            "default": True,
            "description": "With a prompt. The template of messages writes its own.",
        },
        "add_generation_prompt": {
            "type": "boolean",
            "default": True,
            "description": "With messages.",
        },
        "chat_template_kwargs": {"type": "object", "description": "With messages."},
        "tools": {
            "type": "array",
            "items": _TOOL,
            "maxItems": 128,
            "description": "With messages.",
        },
        "return_token_strs": _BOOLEAN,
    },
    _MODEL,
)
DETOKENIZE = _operation(("tokens",), {"tokens": _TOKEN_IDS}, _MODEL)
ABORT = _operation(
    (),
    {
        "request_id": {"type": "string", "description": "An answer's id, or an X-Request-Id."},
        "request_ids": {"type": "array", "items": {"type": "string"}, "maxItems": 1_024},
    },
    {},
)
