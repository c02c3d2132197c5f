"""echo, usage while a stream goes on, and streams that join to the whole text."""

import json
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from server.fakes import (
    MODEL,
    Harness,
    SpeakingExecutor,
    async_test,
    in_process,
    make_harness,
    openai_client,
    reply_to,
    sample_reply,
)

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
PROMPT = "Say something"
ANSWER = reply_to(PROMPT.encode())
# What is cut between tokens of one byte: several scripts, marks that join to what is before them,
# emoji of several code points, and the characters that JSON and events escape.
PIECES = (
    "a",
    " ",
    "\n",
    '"',
    "\\",
    "é",
    "e\u0301",
    "क्षि",
    "猫",
    "한",
    "🙂",
    "👩‍🚀",
    "🇩🇪",
    "\u2028",
    "\x00",
    "data:",
)


@async_test
async def test_echo_puts_the_prompt_before_each_text() -> None:
    async with openai_client(make_harness()) as client:
        one = await client.completions.create(model=MODEL, prompt=PROMPT, echo=True, n=2)
        ids = await client.completions.create(
            model=MODEL, prompt=[list(b"first"), list("zwölf".encode())], echo=True
        )

    said = [PROMPT + sample_reply(ANSWER, sample) for sample in range(2)]
    assert [choice.text for choice in one.choices] == said
    assert [choice.text for choice in ids.choices] == [
        "first" + reply_to(b"first"),
        "zwölf" + reply_to("zwölf".encode()),
    ]
    assert one.usage is not None
    assert one.usage.prompt_tokens == len(PROMPT)


@async_test
async def test_streamed_echo_comes_first_and_once() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.completions.create(model=MODEL, prompt=PROMPT, echo=True, stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]

    assert texts[0].startswith(PROMPT)
    assert "".join(texts) == PROMPT + ANSWER


@async_test
async def test_echo_of_an_answer_without_text_is_the_prompt() -> None:
    harness = make_harness(executor=SpeakingExecutor(reply=lambda prompt: ""))
    async with openai_client(harness) as client:
        whole = await client.completions.create(model=MODEL, prompt=PROMPT, echo=True)
        stream = await client.completions.create(model=MODEL, prompt=PROMPT, echo=True, stream=True)
        chunks = [chunk async for chunk in stream]

    assert whole.choices[0].text == PROMPT
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT
    assert chunks[-1].choices[0].finish_reason == "stop"


@async_test
async def test_refused_request_with_echo_has_the_status_of_its_refusal() -> None:
    async with in_process(make_harness()) as client:
        body = {"prompt": "x" * 600, "echo": True, "stream": True}
        answer = await client.post(COMPLETIONS, json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@async_test
async def test_echo_with_logprobs_begins_with_the_prompt_s_tokens() -> None:
    async with openai_client(make_harness()) as client:
        options: dict[str, Any] = {"model": MODEL, "prompt": "añb", "max_tokens": 2, "echo": True}
        whole = await client.completions.create(**options, logprobs=1)
        stream = await client.completions.create(**options, logprobs=1, stream=True)
        chunks = [chunk async for chunk in stream]

    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    said = reply_to("añb".encode())
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xb1", "b", *said[:2]]
    # What the toy model gives to a prompt's token depends on its place.
    assert logprobs.token_logprobs == [None, -1.0, -2.0, -3.0, -1.0, -1.0]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert [len(one) for one in logprobs.top_logprobs[1:]] == [2] * 5
    assert logprobs.text_offset == [0, 1, 1, 2, 3, 4]
    streamed = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [token for one in streamed for token in one.tokens or []] == logprobs.tokens
    assert [place for one in streamed for place in one.text_offset or []] == logprobs.text_offset


@async_test
async def test_prompt_logprobs_are_told_by_token_id() -> None:
    async with in_process(make_harness()) as client:
        body = {"max_tokens": 1, "prompt_logprobs": 1}
        completion = await client.post(
            COMPLETIONS, json=body | {"prompt": ["ab", "c"], "n": 2, "logprobs": 3, "echo": True}
        )
        chat = await client.post(
            "/v1/chat/completions", json=body | {"messages": [{"role": "user", "content": "x"}]}
        )

    choices = completion.json()["choices"]
    likeliest = {"logprob": -0.5, "rank": 1, "decoded_token": "c"}
    of_b = {str(ord("b")): {"logprob": -1.0, "rank": 2, "decoded_token": "b"}}
    told = [None, of_b | {str(ord("c")): likeliest}]
    assert [choice["prompt_logprobs"] for choice in choices] == [told, told, [None], [None]]
    # echo asked for three, prompt_logprobs for one.
    assert len(choices[0]["logprobs"]["top_logprobs"][1]) == 3
    assert len(chat.json()["prompt_logprobs"]) == chat.json()["usage"]["prompt_tokens"]


@async_test
async def test_prompt_logprobs_do_not_go_with_stream() -> None:
    async with in_process(make_harness()) as client:
        body = {"prompt": PROMPT, "prompt_logprobs": 0, "stream": True}
        answer = await client.post(COMPLETIONS, json=body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")


@async_test
async def test_continuous_usage_is_in_every_event_and_grows() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            stream=True,
            max_tokens=5,
            stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
        )
        usages = [chunk.usage async for chunk in stream]

    assert all(usage is not None for usage in usages)
    assert {usage.prompt_tokens for usage in usages if usage} == {len(PROMPT)}
    # Five tokens, the end, and the event without choices.
    assert [usage.completion_tokens for usage in usages if usage] == [1, 2, 3, 4, 5, 5, 5]


@given(
    pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12), stops=st.booleans()
)
@settings(max_examples=25, deadline=None)
def test_joined_stream_is_the_whole_text(pieces: list[str], stops: bool) -> None:
    """Whatever the text, and wherever a stop string cuts it."""
    text = "".join(pieces)

    @async_test
    async def run() -> None:
        harness = make_harness(executor=SpeakingExecutor(reply=lambda prompt: text))
        body = {"prompt": "p", "stop": ["猫", "e\u0301"] if stops else None}
        chat = {"messages": [{"role": "user", "content": "hi"}], "stop": body["stop"]}
        wanted = {"input": "hi", "stop": body["stop"]}
        async with in_process(harness) as client:
            whole = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
            events = await _events(client, COMPLETIONS, body)
            talk = await _events(client, "/v1/chat/completions", chat)
            whole_response = (await client.post(RESPONSES, json=wanted)).json()
            told = (await client.post(RESPONSES, json=wanted | {"stream": True})).content.decode()

        if not stops:
            assert whole["text"] == text
        assert "".join(event["text"] for event in events) == whole["text"]
        assert "".join(event["delta"].get("content", "") for event in talk) == whole["text"]
        data = [one.partition("\ndata: ")[2] for one in told.split("\n\n")[:-1]]
        deltas = [one["delta"] for one in map(json.loads, data) if one["type"].endswith("delta")]
        assert "".join(deltas) == whole_response["output"][0]["content"][0]["text"] == whole["text"]
        assert json.loads(data[-1])["response"]["output"][0]["content"][0]["text"] == whole["text"]
        assert events[-1]["finish_reason"] == talk[-1]["finish_reason"] == whole["finish_reason"]
        _assert_free(harness)

    run()


def _assert_free(harness: Harness) -> None:
    harness.assert_all_returned()


async def _events(client: httpx.AsyncClient, path: str, body: dict[str, object]) -> list[dict]:
    answer = await client.post(path, json=body | {"stream": True})
    # Events end with an empty line; a text may hold whatever else ends lines for Python.
    lines = answer.content.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]


@async_test
async def test_prompt_alone_is_scored_with_max_tokens_0() -> None:
    async with openai_client(make_harness()) as client:
        options: dict[str, Any] = {"model": MODEL, "max_tokens": 0, "echo": True, "logprobs": 1}
        whole = await client.completions.create(**options, prompt=["añb", PROMPT])
        stream = await client.completions.create(
            **options, prompt="añb", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        plain = await client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=0, echo=True, n=2
        )

    assert [choice.text for choice in whole.choices] == ["añb", PROMPT]
    assert {choice.finish_reason for choice in whole.choices} == {"length"}
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xb1", "b"]
    assert logprobs.token_logprobs == [None, -1.0, -2.0, -3.0]
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.prompt_tokens) == (0, 4 + len(PROMPT))
    *events, end = chunks
    assert "".join(chunk.choices[0].text for chunk in events) == "añb"
    told = [chunk.choices[0].logprobs for chunk in events if chunk.choices[0].logprobs]
    assert [token for one in told for token in one.tokens or []] == logprobs.tokens
    assert events[-1].choices[0].finish_reason == "length"
    assert end.usage is not None
    assert end.usage.completion_tokens == 0
    assert [choice.text for choice in plain.choices] == [PROMPT] * 2


@async_test
async def test_prompt_alone_whose_next_token_would_end_it_ends_by_length() -> None:
    harness = make_harness(executor=SpeakingExecutor(reply=lambda prompt: ""))
    async with openai_client(harness) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=0, echo=True
        )

    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (PROMPT, "length")
    _assert_free(harness)


@async_test
async def test_max_tokens_0_goes_with_echo_alone() -> None:
    async with in_process(make_harness()) as client:
        body = {"prompt": PROMPT, "max_tokens": 0}
        bare = await client.post(COMPLETIONS, json=body)
        false = await client.post(COMPLETIONS, json=body | {"max_tokens": False, "echo": True})
        more = await client.post(COMPLETIONS, json=body | {"min_tokens": 1, "echo": True})

    assert [one.status_code for one in (bare, false, more)] == [400] * 3
    assert more.json()["error"]["param"] == "min_tokens"
