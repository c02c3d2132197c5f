"""Who calls a field as another API does is told its name here, not the one that looks alike."""

from typing import Any

import pytest
from server.fakes import async_test, in_process, make_harness

LEAST: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
}


@pytest.mark.parametrize(
    ("path", "field", "meant"),
    [
        ("/v1/completions", "max_completion_tokens", "max_tokens"),
        ("/v1/completions", "n_predict", "max_tokens"),
        ("/v1/completions", "messages", "prompt"),
        ("/v1/completions", "n_probs", "logprobs"),
        ("/v1/chat/completions", "max_output_tokens", "max_tokens"),
        ("/v1/chat/completions", "input", "messages"),
        ("/v1/chat/completions", "n_probs", "top_logprobs"),
        ("/v1/chat/completions", "system", "messages"),
        ("/v1/chat/completions", "json_schema", "response_format"),
        ("/v1/chat/completions", "grammar", "structured_outputs"),
        ("/v1/responses", "max_tokens", "max_output_tokens"),
        ("/v1/responses", "max_completion_tokens", "max_output_tokens"),
        ("/v1/responses", "system", "instructions"),
        ("/v1/responses", "json_schema", "text"),
        ("/v1/responses", "messages", "input"),
    ],
)
def test_field_of_another_api_is_told_its_name_here(path: str, field: str, meant: str) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            answer = await client.post(path, json={**LEAST[path], field: 5})

        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": f"unknown field '{field}': did you mean {meant}?",
            "type": "invalid_request_error",
            "param": field,
            "code": "unknown_parameter",
        }

    run()
