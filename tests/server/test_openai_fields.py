"""Every endpoint and every parameter by the official client: served, or refused by name."""

import inspect
from collections.abc import Callable
from typing import Any

import openai
import pytest
from server.fakes import EOS, MODEL, async_test, make_harness, openai_client

from everbatch.server import openapi_bodies, protocol, responses_fields
from everbatch.server.fields import IsNeutral

TEMPLATE = (
    "{% if tools %}<tool_call> arguments{{ '\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
# Of the client alone.
OF_CALLS = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f"}
LOGPROBS_WANTED = ["message.output_text.logprobs"]

Fields = dict[str, Any]

# A parameter, and what goes with it.
BOTH: list[Fields] = [
    *({"model": MODEL}, {"temperature": 0.5}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}),
    *({"seed": 7}, {"min_tokens": 2}, {"stop": ";"}, {"stop": ["a", "b"]}, {"ignore_eos": True}),
    *({"stop_token_ids": [EOS]}, {"presence_penalty": 1}, {"frequency_penalty": -1}),
    *({"repetition_penalty": 1.1}, {"logit_bias": {"65": 1}}, {"skip_special_tokens": False}),
    {"include_stop_str_in_output": True, "stop": ";"},
    *({"cache_salt": "s"}, {"priority": 3}, {"tenant": "t"}, {"max_wait_s": 60}),
    *({"max_total_s": 60}, {"user": "u"}, {"safety_identifier": "s"}, {"prompt_cache_key": "k"}),
    {"metadata": {"a": "b"}},
    *({"structured_outputs": {"choice": ["a"]}}, {"guided_json": {}}, {"guided_regex": "a"}),
    *({"guided_choice": ["a"]}, {"guided_grammar": 'root ::= "a"'}),
]
TEXTS: list[Fields] = [
    *({"n": 2}, {"max_tokens": 3}, {"prompt_logprobs": 1}, {"stream": True}),
    *({"stream": True, "stream_options": {"include_usage": True}},),
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    *({"response_format": {"type": "json_object"}}, {"response_format": {"type": "text"}}),
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
]
COMPLETIONS: list[Fields] = [
    *BOTH,
    *TEXTS,
    *({"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": [[1], [2]]}, {"echo": True}),
    *({"echo": True, "max_tokens": 0}, {"logprobs": 0}, {"logprobs": 20}),
    {"add_special_tokens": False},
]
TOOL_FIELDS: list[Fields] = [{"tool_choice": "none"}, {"parallel_tool_calls": False}]
CHAT: list[Fields] = [
    *BOTH,
    *TEXTS,
    *TOOL_FIELDS,
    *({"max_completion_tokens": 3}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 20}),
    *({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}),
    {"chat_template_kwargs": {"a": 1}},
]
RESPONSES: list[Fields] = [
    *BOTH,
    *TOOL_FIELDS,
    *({"input": HELLO}, {"instructions": "Be brief."}, {"max_output_tokens": 3}),
    *({"stream": True}, {"text": {"format": {"type": "json_object"}}}),
    *({"include": LOGPROBS_WANTED}, {"include": LOGPROBS_WANTED, "top_logprobs": 20}),
    {"stream": True, "stream_options": {"include_obfuscation": False}},
    *({"tools": [FLAT_TOOL]}, {"tools": [FLAT_TOOL], "tool_choice": "auto"}),
    {"chat_template_kwargs": {"a": 1}},
]


def creators(client: openai.AsyncOpenAI) -> dict[str, Callable[..., Any]]:
    return {
        "completions": client.completions.create,
        "chat": client.chat.completions.create,
        "responses": client.responses.create,
    }


LEAST: dict[str, Fields] = {
    "completions": {"model": MODEL, "prompt": "x"},
    "chat": {"model": MODEL, "messages": HELLO},
    "responses": {"model": MODEL, "input": "x"},
}
SCHEMAS = {
    "completions": openapi_bodies.COMPLETIONS,
    "chat": openapi_bodies.CHAT_COMPLETIONS,
    "responses": openapi_bodies.RESPONSES,
}
SUPPORTED = {"completions": COMPLETIONS, "chat": CHAT, "responses": RESPONSES}
REFUSED: dict[str, dict[str, IsNeutral]] = {
    "completions": protocol.NOT_SUPPORTED_ANYWHERE | protocol.NOT_SUPPORTED_IN_COMPLETIONS,
    "chat": protocol.NOT_SUPPORTED_ANYWHERE | protocol.NOT_SUPPORTED_IN_CHAT,
    "responses": protocol.NOT_SUPPORTED_ANYWHERE | responses_fields.NOT_SUPPORTED,
}


def arguments_of(create: Callable[..., Any], fields: Fields) -> Fields:
    """Give arguments of the client's method: by name where it has one, else as extra_body."""
    known = inspect.signature(create).parameters
    named = {name: value for name, value in fields.items() if name in known}
    return named | {
        "extra_body": {name: value for name, value in fields.items() if name not in known}
    }


@pytest.mark.parametrize("api", SUPPORTED)
def test_every_supported_field_is_sent_by_the_client_and_answered(api: str) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness(template=TEMPLATE, policy="priority")
        async with openai_client(harness) as client:
            create = creators(client)[api]
            for fields in SUPPORTED[api]:
                answer = await create(**arguments_of(create, LEAST[api] | fields))
                if fields.get("stream"):
                    assert [event async for event in answer], fields
                else:
                    assert getattr(answer, "choices", None) or answer.output, fields

    run()
    sent = {name for fields in SUPPORTED[api] for name in fields} | set(LEAST[api])
    assert sorted(set(SCHEMAS[api]["properties"]) - set(REFUSED[api]) - sent) == []


@pytest.mark.parametrize("api", REFUSED)
def test_every_field_that_is_not_supported_is_refused_by_name(api: str) -> None:
    @async_test
    async def run() -> None:
        async with openai_client(make_harness(template=TEMPLATE)) as client:
            create = creators(client)[api]
            for name in REFUSED[api]:
                with pytest.raises(openai.BadRequestError) as refused:
                    await create(**arguments_of(create, LEAST[api] | {name: {"x": 1}}))
                assert refused.value.param == name
                assert refused.value.code == "unsupported_parameter"

    run()


@pytest.mark.parametrize("api", SCHEMAS)
def test_every_parameter_of_the_client_is_known(api: str) -> None:
    client = openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1")
    parameters = set(inspect.signature(creators(client)[api]).parameters) - OF_CALLS

    assert sorted(parameters - set(SCHEMAS[api]["properties"])) == []


@async_test
async def test_every_other_endpoint_is_reached_by_the_client() -> None:
    harness = make_harness(template=TEMPLATE)
    async with openai_client(harness) as client:
        root = client.copy(base_url=str(client.base_url).removesuffix("/v1/"))
        tokens: Any = await root.post("/tokenize", body={"prompt": "ab"}, cast_to=object)
        text: Any = await root.post("/detokenize", body={"tokens": [97, 98]}, cast_to=object)
        aborted: Any = await root.post("/abort", body={"request_id": "x"}, cast_to=object)
        version: Any = await root.get("/version", cast_to=object)
        metrics = await root.get("/metrics", cast_to=str)
        for path in ("/health", "/ready"):
            assert not await root.get(path, cast_to=str)
        events = await root.get("/debug/events", cast_to=str)
        shown: Any = await root.get("/openapi.json", cast_to=object)
        listed = [model.id async for model in client.models.list()]
        found = await client.models.retrieve(listed[0])
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp-1")

    assert tokens["tokens"] == [97, 98]
    assert text == {"prompt": "ab"}
    assert aborted == {"aborted": []}
    assert version == {"version": "0.0-test"}
    assert "everbatch:num_requests_running" in metrics
    assert events.startswith("{")
    assert found.id == MODEL
    assert set(shown["paths"]) >= {"/v1/responses", "/ready"}
