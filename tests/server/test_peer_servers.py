"""What the suites of llama.cpp's server and of vLLM's OpenAI compatibility ask of HTTP.

Numbers are theirs where there are some. Where we decided otherwise:
docs/decisions/0008-peer-scenarios.md. What a text is: tests/unit/test_peer_generation.py.
"""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from server.fakes import (
    MODEL,
    async_test,
    eventually,
    in_process,
    listening,
    make_harness,
    openai_client,
    reply_to,
)

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


@async_test
async def test_eight_tokens_are_eight_and_the_usage_says_so() -> None:
    """llama.cpp: prompt_n, predicted 8, the limit as reason. vLLM: 6 + 5 = 11, none cached."""
    async with openai_client(make_harness()) as client:
        eight = await client.completions.create(model=MODEL, prompt="x" * 18, max_tokens=8)
        five = await client.completions.create(model=MODEL, prompt="Hello,", max_tokens=5)

    assert eight.usage is not None
    assert (eight.usage.prompt_tokens, eight.usage.completion_tokens) == (18, 8)
    assert five.usage is not None
    assert (five.usage.prompt_tokens, five.usage.total_tokens) == (6, 11)
    assert five.usage.prompt_tokens_details is not None
    assert five.usage.prompt_tokens_details.cached_tokens == 0
    assert {one.choices[0].finish_reason for one in (eight, five)} == {"length"}


@pytest.mark.parametrize(("num_slots", "num_requests"), [(1, 3), (2, 2), (2, 4), (4, 2), (4, 6)])
def test_all_slots_are_busy_while_there_are_requests_for_them(
    num_slots: int, num_requests: int
) -> None:
    """llama.cpp: all are answered with 200, and so many slots are busy."""

    @async_test
    async def run() -> None:
        harness = make_harness(max_num_seqs=num_slots)
        busiest = 0

        def watch(_number: int) -> None:
            nonlocal busiest
            busiest = max(busiest, harness.core.stats().num_running)

        harness.executor.before_pass = watch
        async with in_process(harness) as client:
            harness.gate.shut()
            asked = [
                asyncio.create_task(client.post(COMPLETIONS, json={"prompt": f"p{number}"}))
                for number in range(num_requests)
            ]
            await eventually(lambda: harness.engine.num_live == num_requests)
            harness.gate.open()
            answers = await asyncio.gather(*asked)

        assert [one.status_code for one in answers] == [200] * num_requests
        texts = [one.json()["choices"][0]["text"] for one in answers]
        assert texts == [reply_to(f"p{number}".encode()) for number in range(num_requests)]
        assert busiest == min(num_slots, num_requests)
        harness.assert_all_returned()

    run()


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_told_with_both_numbers(stream: bool) -> None:
    """llama.cpp: 400 with the prompt's tokens and the context's, before a stream begins."""

    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            body = {"prompt": "x" * 600, "stream": stream}
            answer = await client.post(COMPLETIONS, json=body)

        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "600" in error["message"]
        assert "512" in error["message"]

    run()


@async_test
async def test_a_client_that_gives_up_soon_frees_its_slot() -> None:
    """llama.cpp: a timeout of 0.1 s; the slot is idle soon after."""
    harness = make_harness(max_num_seqs=1)
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
    async with listening(harness) as url:
        async with httpx.AsyncClient(base_url=url, timeout=0.1) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(COMPLETIONS, json={"prompt": "x", "ignore_eos": True})
        await eventually(lambda: harness.engine.num_live == 0)
        harness.gate.open()
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            answer = await client.post(COMPLETIONS, json={"prompt": "x"})

    assert answer.status_code == 200
    harness.assert_all_returned()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "options",
    [
        {"include_usage": True},
        {"include_usage": True, "continuous_usage_stats": True},
        {"include_usage": False},
        {},
    ],
)
def test_stream_options_without_a_stream_are_refused(path: str, options: dict[str, Any]) -> None:
    """vLLM: 400, in four variants."""

    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            least = {"prompt": "x"} if path == COMPLETIONS else {"messages": HELLO}
            for stream in ({}, {"stream": False}):
                body = {**least, **stream, "stream_options": options}
                answer = await client.post(path, json=body)
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "stream_options"

    run()


@async_test
async def test_logprobs_are_so_many_and_one_too_many_leaves_the_server_alive() -> None:
    """vLLM: None, 0 and 5 give none, 1 and 5 or 6; 21 is refused, and the server lives."""
    async with openai_client(make_harness()) as client:
        given: dict[int | None, int | None] = {}
        for count in (None, 0, 2):
            answer = await client.completions.create(
                model=MODEL, prompt="x", max_tokens=1, logprobs=count
            )
            logprobs = answer.choices[0].logprobs
            given[count] = logprobs and len((logprobs.top_logprobs or [])[0])
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            await client.completions.create(model=MODEL, prompt="x", logprobs=21)
        with pytest.raises(openai.BadRequestError, match="top_logprobs"):
            await client.chat.completions.create(
                model=MODEL,
                messages=HELLO,  # type: ignore[arg-type]
                logprobs=True,
                top_logprobs=21,
            )
        await client.completions.create(model=MODEL, prompt="x")

    # The chosen token is the second likeliest here, so it is among the two.
    assert given == {None: None, 0: 1, 2: 2}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt_logprobs": -1}, "prompt_logprobs", "[0, 20]"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "above max_tokens 4"),
    ({"max_tokens": 0}, "max_tokens", "[1,"),
    ({"n": 129}, "n", "[1, 128]"),
    ({"logit_bias": {"65": 100.5}}, "logit_bias", "[-100, 100]"),
    ({"logit_bias": {"257": 1}}, "logit_bias", "token id 257"),
    ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens", "not supported"),
    ({"truncation_side": "left"}, "truncation_side", "unknown field"),
    ({"return_token_ids": True}, "return_token_ids", "unknown field"),
    ({"stream_interval": 4}, "stream_interval", "unknown field"),
    ({"return_progress": True}, "return_progress", "unknown field"),
    ({"id_slot": 0}, "id_slot", "unknown field"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    ({"guided_json": {"type": "nothing"}}, "structured_outputs", "the JSON schema"),
    ({"guided_regex": "["}, "structured_outputs", "the regular expression"),
    ({"guided_grammar": 'root ::= "'}, "structured_outputs", "the grammar"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    """vLLM's 400s, and fields of both that are not served."""

    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            answer = await client.post(COMPLETIONS, json={"prompt": "x", **fields})

        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert words in answer.json()["error"]["message"]

    run()


@async_test
async def test_samples_of_one_seed_are_distinct_and_each_ends_once_in_a_stream() -> None:
    """vLLM: n = 3 gives indices 0 to 2, distinct texts and three finish reasons."""
    async with openai_client(make_harness()) as client:
        stream = await client.completions.create(model=MODEL, prompt="x", n=3, seed=7, stream=True)
        texts, reasons = ["", "", ""], [0, 0, 0]
        async for chunk in stream:
            [choice] = chunk.choices
            assert not reasons[choice.index], "nothing comes after the reason"
            texts[choice.index] += choice.text
            reasons[choice.index] += choice.finish_reason is not None

    assert len(set(texts)) == 3
    assert reasons == [1, 1, 1]


@async_test
async def test_paths_of_other_servers_are_not_found_with_a_way_out() -> None:
    """llama.cpp: /slots that are off are 501; there are none here, nor other servers' paths."""
    async with in_process(make_harness()) as client:
        for path in ("/slots", "/props", "/completion", "/infill", "/generate", "/ping"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert "/openapi.json" in answer.json()["error"]["message"]
