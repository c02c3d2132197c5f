"""n > 1: choices by index, whole and streamed; the prompt is counted once; each ends by itself."""

import asyncio
import json

import httpx
from openai.types.chat import ChatCompletionMessageParam
from server.fakes import (
    MODEL,
    async_test,
    eventually,
    in_process,
    listening,
    make_harness,
    openai_client,
    reply_to,
    sample_reply,
)

from everbatch.base.errors import ExecutorError

COMPLETIONS = "/v1/completions"
PROMPT = "Say something"
CHAT: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
CHAT_TEXT = "user: Hello\nassistant:"


def texts_of(prompt: str, n: int) -> list[str]:
    return [sample_reply(reply_to(prompt.encode()), sample) for sample in range(n)]


def num_tokens(texts: list[str]) -> int:
    return sum(len(text.encode()) + 1 for text in texts)


@async_test
async def test_samples_are_choices_and_the_prompt_is_counted_once() -> None:
    harness = make_harness()
    async with openai_client(harness) as client:
        answer = await client.completions.create(model=MODEL, prompt=PROMPT, n=3)

    wanted = texts_of(PROMPT, 3)
    assert [choice.text for choice in answer.choices] == wanted
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage is not None
    assert (len(PROMPT), num_tokens(wanted)) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )
    # The prompt was computed once, too.
    assert harness.engine.stats.prompt_tokens == len(PROMPT)
    assert harness.engine.stats.num_finished == {"stop": 1}
    harness.assert_all_returned()


@async_test
async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt() -> None:
    prompts = ["first", "second one"]
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(model=MODEL, prompt=prompts, n=2)
        stream = await client.completions.create(model=MODEL, prompt=prompts, n=2, stream=True)
        streamed = ["", "", "", ""]
        async for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text

    wanted = [text for prompt in prompts for text in texts_of(prompt, 2)]
    assert [choice.text for choice in answer.choices] == wanted
    assert streamed == wanted


@async_test
async def test_streamed_chat_samples_each_begin_and_end_and_usage_comes_last() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=CHAT, n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    *events, last = chunks
    for index, wanted in enumerate(texts_of(CHAT_TEXT, 2)):
        mine = [chunk.choices[0] for chunk in events if chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in mine) == wanted
        assert [c.finish_reason for c in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert last.usage is not None
    assert last.usage.prompt_tokens == len(CHAT_TEXT)
    assert last.usage.completion_tokens == num_tokens(texts_of(CHAT_TEXT, 2))


@async_test
async def test_stop_string_ends_the_sample_that_said_it_alone() -> None:
    harness = make_harness()
    [first, _] = texts_of(PROMPT, 2)
    # Only the second sample says this.
    assert "#1" not in first
    async with openai_client(harness) as client:
        answer = await client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            n=2,
            stop="#1",
            max_tokens=5,
            extra_body={"ignore_eos": True},
        )

    assert [choice.text for choice in answer.choices] == [first[:5], ""]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "stop"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5 + len("#1")
    harness.assert_all_returned()


@async_test
async def test_limit_ends_each_sample_by_length() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(model=MODEL, prompt=PROMPT, n=4, max_tokens=3)

    assert [choice.text for choice in answer.choices] == [text[:3] for text in texts_of(PROMPT, 4)]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}


@async_test
async def test_logprobs_belong_to_their_sample() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=PROMPT, n=2, logprobs=0, max_tokens=2
        )

    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == list(choice.text)


@async_test
async def test_client_that_leaves_frees_all_samples_wherever_they_are() -> None:
    # One request runs in two slots, the other waits for them.
    harness = make_harness(max_num_seqs=2)
    body = {"n": 2, "ignore_eos": True, "max_tokens": 400, "stream": True}
    async with listening(harness) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        runs = client.build_request("POST", COMPLETIONS, json=body | {"prompt": "a"})
        running = await client.send(runs, stream=True)
        waits = client.build_request("POST", COMPLETIONS, json=body | {"prompt": "b"})
        waiting = asyncio.create_task(client.send(waits, stream=True))
        await eventually(lambda: harness.engine.stats.num_arrived == 2)
        waiting.cancel()
        await eventually(lambda: harness.engine.num_live == 1)
        await running.aclose()
        await eventually(lambda: harness.engine.stats.num_finished == {"abort": 2})

    harness.assert_all_returned()


@async_test
async def test_samples_that_never_reached_the_engine_can_leave() -> None:
    harness = make_harness()
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None
    body = {"ignore_eos": True, "max_tokens": 400, "stream": True}
    async with listening(harness) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        first = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"}))
        await harness.gate.reached()
        late = asyncio.create_task(client.post(COMPLETIONS, json=body | {"prompt": "b", "n": 3}))
        await eventually(lambda: harness.engine.num_live == 2)
        late.cancel()
        await eventually(lambda: harness.engine.num_live == 1)
        harness.gate.open()
        await first

    assert harness.engine.stats.num_arrived == 1
    harness.assert_all_returned()


@async_test
async def test_steps_that_keep_failing_end_all_samples_with_one_error() -> None:
    def fail(number: int) -> None:
        if number >= 2:
            raise ExecutorError("no memory")

    harness = make_harness()
    harness.executor.before_pass = fail
    async with in_process(harness) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "a", "n": 3})
        harness.executor.before_pass = lambda _: None
        again = await client.post(COMPLETIONS, json={"prompt": "a", "n": 3})

    assert answer.status_code == 500
    assert "no memory" in answer.json()["error"]["message"]
    assert [c["text"] for c in again.json()["choices"]] == texts_of("a", 3)
    assert harness.engine.num_live == 0


@async_test
async def test_samples_keep_their_texts_in_a_pool_that_is_too_small_for_all() -> None:
    harness = make_harness(num_blocks=16, num_host_blocks=9, preemption_mode="swap")
    prompts = [f"prompt {number}" for number in range(9)]
    async with in_process(harness) as client:
        body = {"n": 3, "max_tokens": 60}
        answers = await asyncio.gather(
            *(client.post(COMPLETIONS, json=body | {"prompt": one}) for one in prompts)
        )

    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = [text.encode()[:60].decode(errors="replace") for text in texts_of(prompt, 3)]
        assert [choice["text"] for choice in answer.json()["choices"]] == wanted
    assert harness.engine.stats.num_preemptions > 0
    harness.assert_all_returned()


@async_test
async def test_too_many_choices_are_refused() -> None:
    harness = make_harness(settings={"max_choices": 6})
    async with in_process(harness) as client:
        at = await client.post(COMPLETIONS, json={"prompt": ["a", "b", "c"], "n": 2})
        over = await client.post(COMPLETIONS, json={"prompt": ["a"] * 7, "n": 1})

    assert len(at.json()["choices"]) == 6
    assert over.status_code == 400
    assert "7 choices, at most 6" in over.json()["error"]["message"]


@async_test
async def test_more_samples_than_slots_name_n() -> None:
    async with in_process(make_harness(max_num_seqs=2)) as client:
        at = await client.post(COMPLETIONS, json={"prompt": "a", "n": 2})
        over = await client.post(COMPLETIONS, json={"prompt": "a", "n": 3})

    assert at.status_code == 200
    error = over.json()["error"]
    assert (over.status_code, error["param"], error["code"]) == (400, "n", "sequence_budget")


@async_test
async def test_absent_max_tokens_are_what_the_pool_leaves_to_each_sample() -> None:
    # 2 blocks hold the prompt's 32 tokens; each sample has 3 of the other 6 for itself.
    async with in_process(make_harness(num_blocks=8)) as client:
        body = {"prompt": "x" * 32, "n": 2, "ignore_eos": True}
        answer = await client.post(COMPLETIONS, json=body)

    assert answer.json()["usage"]["completion_tokens"] == 2 * (3 * 16 + 1)


@async_test
async def test_cached_tokens_of_a_prompt_are_told_once() -> None:
    prompt = "x" * 40
    async with openai_client(make_harness(enable_prefix_caching=True)) as client:
        first = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
        again = await client.completions.create(model=MODEL, prompt=prompt, n=3, max_tokens=2)
        both = await client.completions.create(model=MODEL, prompt=[prompt, prompt], max_tokens=2)
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=CHAT,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=1,
        )
        usages = [chunk.usage async for chunk in stream if chunk.usage is not None]

    def cached(usage: object) -> int:
        return json.loads(usage.model_dump_json())["prompt_tokens_details"]["cached_tokens"]

    # Of 40 tokens two blocks of 16 are full.
    assert [cached(answer.usage) for answer in (first, again, both)] == [0, 32, 64]
    assert [cached(usage) for usage in usages] == [0]
