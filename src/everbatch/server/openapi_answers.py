"""What the server answers, as the OpenAPI document shows it.

Belongs here: schemas of answers, closed, so that a field more or less is an answer that breaks the
document. Not here: bodies of requests (openapi_bodies.py), which path gives what (openapi.py).
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
ANY_OBJECT: Schema = {"type": "object"}
_LOGPROB: Schema = {"type": "number"}
_FINISH_REASONS = ("stop", "length", "tool_calls", "deadline", "abort")


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """Let a value be null, too."""
    if "anyOf" in schema:
        return schema | {"anyOf": [*schema["anyOf"], NULL]}
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, NULL]}


def shown(name: str) -> Schema:
    """Refer to one of SCHEMAS."""
    return {"$ref": "/".join(("#", "components", "schemas", name))}


def closed(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """Describe an object that has these properties and no others."""
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
        "additionalProperties": False,
    }


def _const(value: str) -> Schema:
    return {"const": value}


_USAGE = closed(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": closed({"cached_tokens": COUNT}),
    }
)
_TOP = closed({"token": STRING, "logprob": _LOGPROB, "bytes": array(COUNT)})
_TOKEN = closed(
    {"token": STRING, "logprob": _LOGPROB, "bytes": array(COUNT), "top_logprobs": array(_TOP)}
)
_PROMPT_LOGPROBS = array(
    or_null(
        {
            "type": "object",
            "additionalProperties": closed(
                {"logprob": _LOGPROB, "rank": COUNT, "decoded_token": STRING}
            ),
        }
    )
)
_COMPLETION_CHOICE = closed(
    {
        "index": COUNT,
        "text": STRING,
        "finish_reason": {"enum": list(_FINISH_REASONS)},
        "logprobs": or_null(
            closed(
                {
                    "tokens": array(STRING),
                    "token_logprobs": array(or_null(_LOGPROB)),
                    "top_logprobs": array(
                        or_null({"type": "object", "additionalProperties": _LOGPROB})
                    ),
                    "text_offset": array(COUNT),
                }
            )
        ),
        "prompt_logprobs": _PROMPT_LOGPROBS,
    },
    optional=("prompt_logprobs",),
)
_CALL = closed(
    {
        "id": STRING,
        "type": _const("function"),
        "function": closed({"name": STRING, "arguments": STRING}),
    }
)
_CHAT_CHOICE = closed(
    {
        "index": COUNT,
        "message": closed(
            {
                "role": _const("assistant"),
                "content": or_null(STRING),
                "refusal": NULL,
                "tool_calls": array(_CALL) | {"minItems": 1},
            },
            optional=("tool_calls",),
        ),
        "finish_reason": {"enum": list(_FINISH_REASONS)},
        "logprobs": or_null(closed({"content": array(_TOKEN), "refusal": NULL})),
    }
)
_MESSAGE_ITEM = closed(
    {
        "id": STRING,
        "type": _const("message"),
        "status": {"enum": ["completed", "incomplete"]},
        "role": _const("assistant"),
        "content": array(
            closed(
                {
                    "type": _const("output_text"),
                    "text": STRING,
                    "annotations": array(ANY_OBJECT) | {"maxItems": 0},
                    "logprobs": array(_TOKEN),
                }
            )
        ),
    }
)
_CALL_ITEM = closed(
    {
        "id": STRING,
        "type": _const("function_call"),
        "status": _const("completed"),
        "call_id": STRING,
        "name": STRING,
        "arguments": STRING,
    }
)


def _answer(kind: str, properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """Describe what begins as all answers do."""
    head = {"id": STRING, "object": _const(kind), "created": COUNT, "model": STRING}
    return closed({**head, **properties}, optional)


SCHEMAS: dict[str, Schema] = {
    "Error": closed(
        {
            "error": closed(
                {
                    "message": STRING,
                    "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                    "param": or_null(STRING),
                    "code": or_null(STRING),
                }
            )
        }
    ),
    "Completion": _answer(
        "text_completion", {"choices": array(_COMPLETION_CHOICE), "usage": _USAGE}
    ),
    "ChatCompletion": _answer(
        "chat.completion",
        {"choices": array(_CHAT_CHOICE), "usage": _USAGE, "prompt_logprobs": _PROMPT_LOGPROBS},
        optional=("prompt_logprobs",),
    ),
    "Response": closed(
        {
            "id": STRING,
            "object": _const("response"),
            "created_at": COUNT,
            "status": {"enum": ["completed", "incomplete", "cancelled"]},
            "background": {"const": False},
            "error": NULL,
            "incomplete_details": or_null(
                closed({"reason": {"enum": ["max_output_tokens", "deadline"]}})
            ),
            "instructions": or_null(STRING),
            "max_output_tokens": or_null(COUNT),
            "metadata": {"type": "object", "additionalProperties": STRING},
            "model": STRING,
            "output": array({"anyOf": [_MESSAGE_ITEM, _CALL_ITEM]}) | {"minItems": 1},
            "parallel_tool_calls": FLAG,
            "previous_response_id": NULL,
            "store": {"const": False},
            "temperature": {"type": "number"},
            "text": closed({"format": ANY_OBJECT}),
            "tool_choice": {"anyOf": [STRING, ANY_OBJECT]},
            "tools": array(ANY_OBJECT),
            "top_logprobs": COUNT,
            "top_p": {"type": "number"},
            "truncation": _const("disabled"),
            "usage": closed(
                {
                    "input_tokens": COUNT,
                    "input_tokens_details": closed({"cached_tokens": COUNT}),
                    "output_tokens": COUNT,
                    "output_tokens_details": closed({"reasoning_tokens": COUNT}),
                    "total_tokens": COUNT,
                }
            ),
            "user": or_null(STRING),
        }
    ),
    "Model": closed(
        {
            "id": STRING,
            "object": _const("model"),
            "created": COUNT,
            "owned_by": STRING,
            "max_model_len": COUNT,
        }
    ),
    "Models": closed({"object": _const("list"), "data": array(shown("Model"))}),
    "Tokens": closed(
        {
            "count": COUNT,
            "max_model_len": COUNT,
            "tokens": array(COUNT),
            "token_strs": or_null(array(STRING)),
        }
    ),
    "Text": closed({"prompt": STRING}),
    "Aborted": closed({"aborted": array(STRING)}),
    "Version": closed({"version": STRING}),
}
