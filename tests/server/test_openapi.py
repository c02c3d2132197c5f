"""The OpenAPI document says what the server does: each field it names is taken, and no other is."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from server.fakes import MODEL, async_test, in_process, make_harness

from everbatch.server import openapi, protocol, responses_fields, side_bodies
from everbatch.server.fields import Fields

Body = dict[str, Any]
MESSAGES = [{"role": "user", "content": "Hello"}]
TEMPLATE = "{% if tools %}<tool_call>arguments{% endif %}{{ messages[0].content }}"
TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f"}
FORM = {"type": "json_object"}

# Path, the least body, the schema, its reader.
OPERATIONS: list[tuple[str, Body, Body, Any, Callable[[bytes], object]]] = [
    (
        "/v1/completions",
        {"prompt": "x"},
        openapi.COMPLETIONS,
        protocol,
        lambda body: protocol.read_completion(body, 1),
    ),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES},
        openapi.CHAT_COMPLETIONS,
        protocol,
        protocol.read_chat,
    ),
    (
        "/v1/responses",
        {"input": "x"},
        openapi.RESPONSES,
        responses_fields,
        responses_fields.read_responses,
    ),
    ("/tokenize", {"prompt": "x"}, openapi.TOKENIZE, side_bodies, side_bodies.read_tokenize),
    ("/tokenize", {"messages": MESSAGES}, openapi.TOKENIZE, side_bodies, side_bodies.read_tokenize),
    ("/detokenize", {"tokens": [1]}, openapi.DETOKENIZE, side_bodies, side_bodies.read_detokenize),
    ("/abort", {"request_id": "x"}, openapi.ABORT, side_bodies, side_bodies.read_abort),
    ("/abort", {"request_ids": ["x"]}, openapi.ABORT, side_bodies, side_bodies.read_abort),
]
# Values that a schema alone does not tell.
VALUES: Body = {
    "model": MODEL,
    "messages": MESSAGES,
    "response_format": FORM,
    "structured_outputs": {"choice": ["a"]},
    "guided_regex": "a",
    "guided_grammar": 'root ::= "a"',
    "guided_json": {},
    "guided_choice": ["a"],
    "tools": [TOOL],
    "tool_choice": "auto",
    "logit_bias": {"65": 1},
    "max_tokens": 3,
    "max_wait_s": 60,
    "max_total_s": 60,
    "metadata": {"a": "b"},
}
OF_RESPONSES: Body = {"tools": [FLAT_TOOL], "response_format": None}
COMPANY: dict[str, Body] = {
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [TOOL]},
    "top_logprobs": {"logprobs": True},
}


def schema_of(operation: Body, least: Body) -> Body:
    """Give the schema of a body; where there are several, that of bodies like `least`."""
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return next(one for one in schema.get("anyOf", [schema]) if set(one["required"]) <= set(least))


def company_of(name: str, path: str) -> Body:
    """Give what has to be there for a field to have sense."""
    if path == "/v1/responses":
        wanted = {
            "top_logprobs": {"include": ["message.output_text.logprobs"]},
            "stream_options": {"stream": True},
            "tool_choice": {"tools": [FLAT_TOOL]},
        }
        return wanted.get(name, {})
    if (path, name) == ("/v1/completions", "max_tokens"):
        return {"echo": True}
    return COMPANY.get(name, {})


def value_of(name: str, schema: Body, path: str = "") -> Any:
    """Give a value that the schema allows."""
    if path == "/v1/responses" and name in OF_RESPONSES:
        return OF_RESPONSES[name]
    if name in VALUES:
        return VALUES[name]
    if "anyOf" in schema:
        return value_of("", schema["anyOf"][0])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match kind_of(schema):
        case "string":
            return "x"
        case "boolean":
            return False
        case "integer" | "number":
            low = max(schema.get("minimum", 0), 0)
            return low + 1 if "exclusiveMinimum" in schema else low
        case "array":
            return [value_of("", schema["items"])]
        case _:
            wanted = schema.get("required", ())
            return {name: value_of(name, schema["properties"][name]) for name in wanted}


def kind_of(schema: Body) -> str:
    """Give a schema's type; all that may be null may be something else, too."""
    kind = schema.get("type", "")
    return kind[0] if isinstance(kind, list) else kind


def limits(schema: Body) -> list[tuple[Any, bool]]:
    """Give values at and beyond the bounds that a schema states, and whether they go."""
    step = 1 if kind_of(schema) == "integer" else 0.5
    rows: list[tuple[Any, bool]] = []
    if "minimum" in schema:
        rows += [(schema["minimum"], True), (schema["minimum"] - step, False)]
    if "exclusiveMinimum" in schema:
        rows += [(schema["exclusiveMinimum"], False)]
    if "maximum" in schema:
        rows += [(schema["maximum"], True), (schema["maximum"] + step, False)]
    return rows


@pytest.mark.parametrize(
    ("path", "least", "operation"),
    [row[:3] for row in OPERATIONS],
    ids=lambda value: value if isinstance(value, str) else "-".join(value)[:12],
)
def test_every_field_of_the_document_is_taken(path: str, least: Body, operation: Body) -> None:
    properties = schema_of(operation, least)["properties"]

    @async_test
    async def run() -> None:
        harness = make_harness(template=TEMPLATE, policy="priority")
        async with in_process(harness) as client:
            for name, schema in properties.items():
                body = {**least, **company_of(name, path), name: value_of(name, schema, path)}
                answer = await client.post(path, json=body)
                assert answer.status_code == 200, (name, answer.text)

    run()


@pytest.mark.parametrize(
    ("path", "least", "operation"),
    [row[:3] for row in OPERATIONS[:3]],
    ids=lambda value: value if isinstance(value, str) else "-".join(value)[:12],
)
def test_limits_of_the_document_are_those_of_the_server(
    path: str, least: Body, operation: Body
) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness(
            template=TEMPLATE, policy="priority", max_num_seqs=128, num_blocks=256
        )
        async with in_process(harness) as client:
            for name, schema in schema_of(operation, least)["properties"].items():
                for value, goes in limits(schema):
                    tokens = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
                    body = {**least, **company_of(name, path), tokens: 1, name: value}
                    answer = await client.post(path, json=body)
                    # No time to wait, and no time at all, are limits that may be met.
                    is_taken = answer.status_code in (200, 503, 504)
                    assert is_taken == goes, (name, value, answer.text)

    run()


@pytest.mark.parametrize(
    ("path", "least", "operation", "module", "read"),
    OPERATIONS,
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_field_that_is_read_is_in_the_document(
    path: str,
    least: Body,
    operation: Body,
    module: Any,
    read: Callable[[bytes], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Fields] = []

    class Watched(Fields):
        def __init__(self, values: Body, path: str = "") -> None:
            super().__init__(values, path)
            made.append(self)

    monkeypatch.setattr(module, "Fields", Watched)
    read(json.dumps(least).encode())
    body = next(fields for fields in made if fields.name("x") == "x")

    # What one API refuses is read by what it has in common with the others.
    read_in_vain = set(getattr(module, "NOT_SUPPORTED", {}))
    told = set(schema_of(operation, least)["properties"])
    assert sorted(set(body.known) - told - read_in_vain) == []


@async_test
async def test_served_document_has_these_bodies() -> None:
    async with in_process(make_harness()) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]

    for path, _, operation, _, _ in OPERATIONS:
        assert paths[path]["post"]["requestBody"] == operation["requestBody"]
        assert "200" in paths[path]["post"]["responses"]
