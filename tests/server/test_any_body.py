"""Whatever a body holds, the answer is one of the API's: never a 5xx, and the server goes on."""

import json
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server.fakes import async_test, in_process, make_harness

from everbatch.server import (
    openapi_bodies,
    protocol,
    responses_fields,
    side_bodies,
    structured_fields,
)

MESSAGES = [{"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{% if tools %}<tool_call>arguments{{ tools | tojson }}{% endif %}{{ messages[0].content }}"
)
LEAST: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/abort": {"request_id": "x"},
}
BODIES = (
    openapi_bodies.COMPLETIONS,
    openapi_bodies.CHAT_COMPLETIONS,
    openapi_bodies.RESPONSES,
    *openapi_bodies.TOKENIZE["anyOf"],
    openapi_bodies.DETOKENIZE,
    *openapi_bodies.ABORT["anyOf"],
)
TABLES = (
    protocol.NOT_SUPPORTED_ANYWHERE,
    protocol.NOT_SUPPORTED_IN_CHAT,
    responses_fields.NOT_SUPPORTED,
    side_bodies.NOT_SUPPORTED,
    structured_fields.NOT_SUPPORTED,
)
NAMES = sorted(
    {name for body in BODIES for name in body["properties"]}
    | {name for table in TABLES for name in table}
    | {"type", "role", "content", "text", "name", "function", "parameters", "arguments", "schema"}
    | {"call_id", "output", "allowed_tools", "mode", "strict"}
    | {"json_schema", "format", "include_usage", "json", "regex", "choice", "grammar", "anyOf"}
)
WORDS = st.sampled_from(
    [
        *("", "x", "text", "user", "assistant", "tool", "function", "auto", "required", "none"),
        *("json_object", "json_schema", "object", "string", "input_text", "message", "é🙂", "(["),
        *("function_call", "function_call_output", "allowed_tools"),
        *("a|b", 'root ::= "a"', "message.output_text.logprobs", "\x00", "{}", "65"),
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([2**63, -(2**70), 1e300, 0.5])
    | WORDS
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_body_is_answered(data: st.DataObject) -> None:
    requests = [
        (path, data.draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)))
        for path in data.draw(st.lists(st.sampled_from(sorted(LEAST)), min_size=4, max_size=8))
    ]

    @async_test
    async def run() -> None:
        harness = make_harness(template=TEMPLATE)
        async with in_process(harness) as client:
            for path, fields in requests:
                body = {**LEAST[path], **fields}
                answer = await client.post(
                    path,
                    content=msgspec.json.encode(body),
                    headers={"content-type": "application/json"},
                )
                # 503: the body may ask for no time to wait.
                is_late = "max_wait_s" in body or "max_total_s" in body
                allowed = {200, 400, 404} | ({503, 504} if is_late else set())
                assert answer.status_code in allowed, (path, body, answer.text)
                if answer.status_code != 200:
                    error = json.loads(answer.content)["error"]
                    assert error["message"], (path, body)
                    assert error["type"] in ("invalid_request_error", "server_error")
        harness.assert_all_returned()

    run()
