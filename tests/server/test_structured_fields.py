"""What is asked of an answer's form: bad wishes are refused by name, neutral ones are none."""

from typing import Any

import pytest
from server.fakes import async_test, in_process, make_harness

COMPLETIONS = "/v1/completions"
BAD: list[tuple[str, Any, str]] = [
    ("response_format", {"type": "xml"}, "response_format.type must be one of"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema is missing"),
    ("response_format", {"type": "json_object", "schema": {}}, "response_format.schema"),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}},
        "the JSON schema cannot be followed",
    ),
    ("guided_json", 1, "structured_outputs.json must be a JSON schema"),
    ("guided_regex", "([", "the regular expression cannot be followed"),
    ("guided_choice", [], "1 to 1,024"),
    ("guided_grammar", "root ::= nobody", "the grammar cannot be followed"),
    ("structured_outputs", 1, "structured_outputs must be an object"),
    ("structured_outputs", {}, "exactly one"),
    ("structured_outputs", {"regex": "a", "json": {}}, "json and regex"),
    ("structured_outputs", {"structural_tag": "x"}, "structured_outputs.structural_tag"),
    ("structured_outputs", {"nonsense": "x"}, "unknown field 'nonsense'"),
]


@pytest.mark.parametrize(("field", "value", "words"), BAD)
def test_bad_form_is_refused(field: str, value: Any, words: str) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness()
        async with in_process(harness) as client:
            answer = await client.post(COMPLETIONS, json={"prompt": "x", field: value})

        error = answer.json()["error"]
        assert answer.status_code == 400
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        harness.assert_all_returned()

    run()


@async_test
async def test_neutral_wishes_ask_for_nothing() -> None:
    neutral = {
        "response_format": {"type": "text"},
        "structured_outputs": None,
        "guided_json": None,
        "guided_whitespace_pattern": None,
    }
    async with in_process(make_harness()) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", **neutral})

    assert answer.status_code == 200


@async_test
async def test_two_wishes_are_refused() -> None:
    async with in_process(make_harness()) as client:
        body = {"prompt": "x", "guided_regex": "a", "guided_choice": ["a"]}
        answer = await client.post(COMPLETIONS, json=body)

    assert answer.json()["error"]["param"] == "guided_choice"
    assert "guided_regex both ask for a form" in answer.json()["error"]["message"]
