"""What cannot be served is refused with OpenAI's error body, and the server goes on."""

import json
from typing import Any

import httpx
import pytest
from server.fakes import MODEL, async_test, in_process, listening, make_harness, reply_to

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]

# Field and value, put into an otherwise good body; the message must hold the words.
BAD_COMPLETION_FIELDS: list[tuple[str, Any, str]] = [
    ("prompt", None, "missing"),
    ("prompt", "", "no tokens"),
    ("prompt", [], "empty array"),
    ("prompt", ["good", ""], "no tokens"),
    ("prompt", [[]], "no tokens"),
    ("prompt", 7, "must be a string"),
    ("prompt", {"text": "x"}, "must be a string"),
    ("prompt", ["x", 1], "prompt[1]"),
    ("prompt", [1, "x"], "prompt[0]"),
    ("prompt", [[1, True]], "prompt[0]"),
    ("prompt", [1.5], "prompt[0]"),
    ("prompt", [-1], "token id -1"),
    ("prompt", [257], "token id 257"),
    ("prompt", [2**40], f"token id {2**40}"),
    ("prompt", ["x"] * 129, "at most 128"),
    ("prompt", "x" * 600, "max_model_len is 512"),
    ("prompt", "x" * 512, "max_model_len is 512"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -5, "max_tokens"),
    ("max_tokens", 512, "max_model_len 512"),
    ("max_tokens", 10**30, "max_tokens"),
    ("max_tokens", 1.5, "max_tokens must be an integer"),
    ("max_tokens", "10", "max_tokens must be an integer"),
    ("max_tokens", True, "max_tokens must be an integer"),
    ("max_completion_tokens", 5, "unknown field"),
    ("temperature", -0.1, "temperature"),
    ("temperature", 2.1, "temperature"),
    ("temperature", "hot", "temperature must be a number"),
    ("temperature", True, "temperature must be a number"),
    ("temperature", 10**400, "temperature must lie in [0, 2]"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("top_k", -2, "top_k must lie in [0, 2147483647] or be -1, which is off as 0 is, got -2"),
    ("top_k", 1.0, "top_k"),
    ("min_p", 1.5, "min_p"),
    ("seed", "x", "seed"),
    ("seed", 2**65, "seed"),
    ("min_tokens", -1, "min_tokens"),
    ("min_tokens", 511, "room for 508"),
    ("presence_penalty", 3, "presence_penalty"),
    ("frequency_penalty", -3, "frequency_penalty"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("logprobs", 21, "[0, 20]"),
    ("logprobs", -1, "[0, 20]"),
    ("logprobs", True, "logprobs must be an integer"),
    ("stop", 5, "stop must be"),
    ("stop", [""], "stop"),
    ("stop", [1], "stop"),
    ("stop", ["x"] * 17, "at most 16"),
    ("stop", "x" * 1001, "at most 1000"),
    ("stop_token_ids", 5, "stop_token_ids must be a list"),
    ("stop_token_ids", ["x"], "stop_token_ids"),
    ("stop_token_ids", [300], "token id 300"),
    ("ignore_eos", "yes", "ignore_eos must be true or false"),
    ("stream", 1, "stream must be true or false"),
    ("stream_options", {"include_usage": True}, "stream"),
    ("logit_bias", [], "logit_bias must be an object"),
    ("logit_bias", {"x": 1}, "no token id"),
    ("logit_bias", {"-1": 1}, "no token id"),
    ("logit_bias", {"01": 1}, "no token id"),
    ("logit_bias", {"9" * 5000: 1}, "no token id"),
    ("logit_bias", {"1": 101}, "logit_bias"),
    ("logit_bias", {"1": None}, "logit_bias must be a number"),
    ("logit_bias", {"999": 1}, "token id 999"),
    ("priority", "high", "priority must be an integer"),
    ("priority", 2**40, "priority must lie in"),
    ("cache_salt", 1, "cache_salt must be a string"),
    ("cache_salt", "x" * 300, "at most 256"),
    ("user", 1, "user must be a string"),
    ("metadata", {"a": 1}, "metadata"),
    ("model", 5, "model must be a string"),
    ("add_special_tokens", "no", "add_special_tokens"),
    ("n", 0, "n must lie in [1, 128], got 0"),
    ("n", 129, "n must lie in [1, 128], got 129"),
    ("n", "1", "n must be an integer"),
    ("n", True, "n must be an integer"),
    ("n", 9, "at most max_num_seqs 8 samples can run at once"),
    ("priority", 5, "priority is 5, but the policy is fcfs"),
    ("tenant", 5, "tenant must be a string"),
    ("tenant", "x" * 129, "at most 128"),
    ("max_wait_s", -1, "max_wait_s must lie in [0, 86400] seconds, got -1"),
    ("max_wait_s", 86_401, "max_wait_s must lie in"),
    ("max_wait_s", "soon", "max_wait_s must be a number"),
    ("max_wait_s", True, "max_wait_s must be a number"),
    ("best_of", 3, "best_of=3 is not supported"),
    ("echo", "yes", "echo must be true or false"),
    ("suffix", "end", 'suffix="end" is not supported'),
    ("prompt_logprobs", 21, "[0, 20]"),
    ("use_beam_search", True, "use_beam_search"),
    ("logit_processors", [], "logit_processors"),
    ("guided_whitespace_pattern", "x" * 500, "xx… is not supported"),
    ("service_tier", "priority", "service_tier"),
    ("messages", HELLO, "unknown field 'messages'"),
    ("temprature", 1, "unknown field 'temprature': did you mean temperature?"),
    ("temprature", None, "unknown field 'temprature'"),
    ("", 1, "unknown field ''"),
]

BAD_CHAT_FIELDS: list[tuple[str, Any, str]] = [
    ("messages", None, "missing"),
    ("messages", [], "empty array"),
    ("messages", "hello", "must be an array"),
    ("messages", ["hello"], "messages[0] must be an object"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"content": "x"}], "messages[0].role"),
    ("messages", [{"role": "robot", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "robot", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
    ("messages", [{"role": "user", "content": []}], "messages[0].content"),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "content[0].text"),
    ("messages", [{"role": "user", "content": "x", "mood": "good"}], "messages[0].mood"),
    ("messages", [{"role": "assistant", "content": "x", "tool_calls": [{}]}], "tool_calls"),
    ("messages", [{"role": "user", "content": "x" * 600}], "max_model_len is 512"),
    ("max_completion_tokens", 0, "max_tokens"),
    ("logprobs", 5, "logprobs must be true or false"),
    ("top_logprobs", 5, "top_logprobs goes with"),
    ("tools", [{"type": "function"}], "tools"),
    ("tool_choice", "required", "tool_choice"),
    ("parallel_tool_calls", 1, "parallel_tool_calls"),
    ("functions", [{}], "functions"),
    ("function_call", "auto", "function_call"),
    ("modalities", ["text", "audio"], "modalities"),
    ("audio", {"voice": "x"}, "audio"),
    ("store", True, "store"),
    ("reasoning_effort", "high", "reasoning_effort"),
    ("prediction", {}, "prediction"),
    ("web_search_options", {}, "web_search_options"),
    ("chat_template_kwargs", [], "chat_template_kwargs must be an object"),
    ("prompt", "x", "unknown field 'prompt'"),
]

BAD_BODIES: list[tuple[bytes, str]] = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b'{"prompt": "x"} x', "not valid JSON"),
    (b"[]", "must be a JSON object"),
    (b'"prompt"', "must be a JSON object"),
    (b"null", "must be a JSON object"),
    (b'{"prompt": "x", "temperature": NaN}', "not valid JSON"),
    (b'{"prompt": "x", "temperature": Infinity}', "not valid JSON"),
    (b'{"prompt": "x", "temperature": -Infinity}', "not valid JSON"),
    (b'{"prompt": "x", "temperature": 1e999}', "not valid JSON"),
    (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
    (b'{"prompt": "\xff"}', "not valid JSON"),
    (b'{"prompt": "\xed\xa0\x80"}', "not valid JSON"),
    (b'{"prompt": "\\ud800"}', "not valid JSON"),
    (b'{"prompt": "\\udc00"}', "not valid JSON"),
    (b'{"prompt": "\\ud800\\u0041"}', "not valid JSON"),
    (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    (b"[" * 1_000_000, "nested too deeply"),
]


def _name(row: tuple[Any, ...]) -> str:
    return "-".join(str(part)[:24] for part in row[:2]).replace("\x00", "0")


def _assert_refused(response: httpx.Response, words: str) -> dict[str, Any]:
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert len(response.content) < 2_000
    return dict(error)


async def _assert_goes_on(client: httpx.AsyncClient) -> None:
    response = await client.post(COMPLETIONS, json={"prompt": "x"})
    assert response.json()["choices"][0]["text"] == reply_to(b"x")


def _post_bad_field(path: str, body: dict[str, Any], field: str, value: Any, words: str) -> None:
    @async_test
    async def scenario() -> None:
        async with in_process(make_harness()) as client:
            bad = json.dumps(body | {field: value}).encode()
            headers = {"content-type": "application/json"}
            response = await client.post(path, content=bad, headers=headers)
            error = _assert_refused(response, words)
            await _assert_goes_on(client)
        assert error["param"] is not None

    scenario()


@pytest.mark.parametrize("row", BAD_COMPLETION_FIELDS, ids=_name)
def test_bad_completion_field_is_refused(row: tuple[str, Any, str]) -> None:
    _post_bad_field(COMPLETIONS, {"prompt": "good"}, *row)


@pytest.mark.parametrize("row", BAD_CHAT_FIELDS, ids=_name)
def test_bad_chat_field_is_refused(row: tuple[str, Any, str]) -> None:
    _post_bad_field(CHAT, {"messages": HELLO}, *row)


@pytest.mark.parametrize("row", BAD_BODIES, ids=_name)
def test_bad_body_is_refused(row: tuple[bytes, str]) -> None:
    body, words = row

    @async_test
    async def scenario() -> None:
        async with in_process(make_harness()) as client:
            response = await client.post(COMPLETIONS, content=body)
            error = _assert_refused(response, words)
            await _assert_goes_on(client)
        assert error["code"] == "invalid_json"

    scenario()


@async_test
async def test_refusal_of_a_stream_is_an_http_error() -> None:
    async with in_process(make_harness()) as client:
        long = await client.post(COMPLETIONS, json={"prompt": "x" * 600, "stream": True})
        unknown = await client.post(COMPLETIONS, json={"prompt": "x", "stream": True, "foo": 1})

    _assert_refused(long, "max_model_len is 512")
    _assert_refused(unknown, "foo")


@async_test
async def test_prompt_larger_than_the_pool_is_refused_and_the_next_one_runs() -> None:
    async with in_process(make_harness(num_blocks=4, max_model_len=512)) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x" * 80, "max_tokens": 1})
        error = _assert_refused(response, "5 KV blocks")
        filling = await client.post(COMPLETIONS, json={"prompt": "x" * 64, "max_tokens": 1})
        one_more = await client.post(COMPLETIONS, json={"prompt": "x" * 64, "max_tokens": 2})

    assert error["code"] == "context_length_exceeded"
    assert filling.status_code == 200
    _assert_refused(one_more, "make the KV cache larger")


@async_test
async def test_chat_that_is_too_long_names_the_messages() -> None:
    async with in_process(make_harness()) as client:
        body = {"messages": [{"role": "user", "content": "x" * 9_000}]}
        error = _assert_refused(await client.post(CHAT, json=body), "max_model_len is 512")

    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert "9,017 tokens" in error["message"]


@async_test
async def test_prompt_and_max_tokens_may_fill_the_context_exactly() -> None:
    async with in_process(make_harness()) as client:
        body = {"prompt": "x" * 500, "max_tokens": 12, "ignore_eos": True}
        full = await client.post(COMPLETIONS, json=body)
        over = await client.post(COMPLETIONS, json=body | {"max_tokens": 13})

    assert full.json()["usage"]["total_tokens"] == 512
    error = _assert_refused(over, "max_model_len 512")
    assert error["code"] == "context_length_exceeded"


@async_test
async def test_one_bad_prompt_among_several_refuses_all_and_frees_the_others() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        body = {"prompt": ["good", "x" * 600], "ignore_eos": True}
        _assert_refused(await client.post(COMPLETIONS, json=body), "max_model_len")

    harness.assert_all_returned()


@async_test
async def test_neutral_values_of_unsupported_fields_are_accepted() -> None:
    completion = {
        "prompt": "x",
        "model": MODEL,
        **{"n": 1, "best_of": 1, "echo": False, "suffix": None, "user": "me", "top_k": -1},
        **{"response_format": {"type": "text"}, "service_tier": "auto", "logit_bias": None},
        **{"metadata": {"a": "b"}, "stop": None, "stream": None, "max_tokens": None},
    }
    chat = {
        "messages": [*HELLO, {"role": "assistant", "content": "hi", "tool_calls": None}, *HELLO],
        **{"tools": None, "tool_choice": "none", "parallel_tool_calls": None, "store": False},
        **{"modalities": ["text"], "logprobs": False, "top_logprobs": 0, "functions": []},
        **{"max_tokens": 3, "max_completion_tokens": 3, "chat_template_kwargs": {"a": 1}},
    }
    async with in_process(make_harness()) as client:
        for path, body in ((COMPLETIONS, completion), (CHAT, chat)):
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text


@async_test
async def test_two_different_limits_for_one_chat_are_refused() -> None:
    async with in_process(make_harness()) as client:
        body = {"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4}
        _assert_refused(await client.post(CHAT, json=body), "give one of them")


@async_test
async def test_stream_options_are_read_strictly() -> None:
    async with in_process(make_harness()) as client:
        body = {"prompt": "x", "stream": True}
        for options, words in (
            ({"include_usage": 1}, "stream_options.include_usage"),
            ({"continuous_usage_stats": True}, "stream_options.continuous_usage_stats goes with"),
            ({"continuous_usage_stats": 1}, "stream_options.continuous_usage_stats must be"),
            ({"include_obfuscation": True}, "stream_options.include_obfuscation"),
            ({"foo": 1}, "stream_options.foo"),
            ("yes", "stream_options must be an object"),
        ):
            _assert_refused(
                await client.post(COMPLETIONS, json=body | {"stream_options": options}), words
            )


@async_test
async def test_chat_without_a_template_names_the_way_out() -> None:
    async with in_process(make_harness(template=None)) as client:
        response = await client.post(CHAT, json={"messages": HELLO})

    _assert_refused(response, "/v1/completions")


@async_test
async def test_unknown_model_is_not_found() -> None:
    async with in_process(make_harness()) as client:
        answers = [
            await client.post(COMPLETIONS, json={"prompt": "x", "model": "gpt-9"}),
            await client.post(CHAT, json={"messages": HELLO, "model": ""}),
            await client.get("/v1/models/gpt-9"),
        ]

    for answer in answers:
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"


@async_test
async def test_unknown_path_and_method_have_error_bodies() -> None:
    async with in_process(make_harness()) as client:
        nowhere = await client.post("/v1/embeddings", json={})
        slash = await client.post(f"{COMPLETIONS}/", json={"prompt": "x"})
        wrong = await client.get(COMPLETIONS)

    assert [one.status_code for one in (nowhere, slash, wrong)] == [404, 404, 405]
    assert "/v1/embeddings" in nowhere.json()["error"]["message"]
    assert "there is no /v1/completions/:" in slash.json()["error"]["message"]
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"


@async_test
async def test_other_content_type_is_refused() -> None:
    async with in_process(make_harness()) as client:
        response = await client.post(
            COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": "text/plain"}
        )

    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


@async_test
async def test_body_at_the_limit_is_read_and_one_byte_more_is_not() -> None:
    harness = make_harness(settings={"max_body_bytes": 1_000})
    body = b'{"prompt": "x"}'
    async with in_process(harness) as client:
        at = await client.post(COMPLETIONS, content=body.ljust(1_000))
        over = await client.post(COMPLETIONS, content=body.ljust(1_001))

    assert (at.status_code, over.status_code) == (200, 413)
    assert over.json()["error"]["code"] == "body_too_large"


@async_test
async def test_ten_megabytes_are_refused_by_a_real_server_that_goes_on() -> None:
    async def in_chunks() -> Any:
        for _ in range(160):
            yield b"x" * 65_536

    async with listening(make_harness()) as url, httpx.AsyncClient(base_url=url) as client:
        known = await client.post(COMPLETIONS, content=b"x" * 10_000_000)
        chunked = await client.post(COMPLETIONS, content=in_chunks())
        await _assert_goes_on(client)

    for response in (known, chunked):
        assert response.status_code == 413
        assert "4,194,304" in response.json()["error"]["message"]
