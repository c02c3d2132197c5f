"""The official client works unchanged: both APIs, streamed and whole, lists, usage, logprobs."""

from openai.types.chat import ChatCompletionMessageParam
from server.fakes import MODEL, REPLY, async_test, make_harness, openai_client, reply_to

PROMPT = "Say something"
ANSWER = reply_to(PROMPT.encode())
CHAT: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]
CHAT_TEXT = "system: Be brief.\nuser: Hello\nassistant:"
CHAT_ANSWER = reply_to(CHAT_TEXT.encode())


@async_test
async def test_completion_gives_text_finish_reason_and_usage() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(model=MODEL, prompt=PROMPT)

    [choice] = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (ANSWER, "stop", None)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    # The eos counts as an output, as in vLLM.
    num_outputs = len(ANSWER.encode()) + 1
    usage = answer.usage
    assert usage is not None
    assert (len(PROMPT), num_outputs) == (usage.prompt_tokens, usage.completion_tokens)
    assert usage.total_tokens == len(PROMPT) + num_outputs


@async_test
async def test_streamed_completion_joins_to_the_whole_text() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.completions.create(model=MODEL, prompt=PROMPT, stream=True)
        chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].text for chunk in chunks) == ANSWER
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


@async_test
async def test_token_whose_text_is_held_back_makes_no_chunk() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.completions.create(model=MODEL, prompt=PROMPT, stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]

    # One chunk a character, though most characters are several tokens here, and the last chunk.
    assert texts == [*ANSWER, ""]


@async_test
async def test_chat_gives_a_message_of_the_assistant() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=CHAT)

    [choice] = answer.choices
    assert (choice.message.content, choice.message.role) == (CHAT_ANSWER, "assistant")
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(CHAT_TEXT)


@async_test
async def test_streamed_chat_begins_with_the_role_and_ends_with_the_reason() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
        chunks = [chunk async for chunk in stream]

    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert deltas[0].content == ""
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == CHAT_ANSWER
    assert deltas[-1].content is None
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].object == "chat.completion.chunk"


@async_test
async def test_include_usage_adds_a_last_chunk_without_choices() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=CHAT,
            stream=True,
            max_tokens=5,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

    *others, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert (len(CHAT_TEXT), 5) == (last.usage.prompt_tokens, last.usage.completion_tokens)
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in others)


@async_test
async def test_max_tokens_ends_with_reason_length() -> None:
    async with openai_client(make_harness()) as client:
        old = await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=4)
        new = await client.chat.completions.create(
            model=MODEL, messages=CHAT, max_completion_tokens=4
        )

    for answer in (old, new):
        assert answer.choices[0].message.content == CHAT_ANSWER[:4]
        assert answer.choices[0].finish_reason == "length"


@async_test
async def test_absent_max_tokens_fill_the_context() -> None:
    async with openai_client(make_harness(max_model_len=100)) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=[1] * 40, extra_body={"ignore_eos": True}
        )

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 60
    assert answer.choices[0].finish_reason == "length"


@async_test
async def test_absent_max_tokens_stop_where_the_pool_ends() -> None:
    async with openai_client(make_harness(num_blocks=4)) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=[1] * 40, extra_body={"ignore_eos": True}
        )

    # 4 blocks of 16 hold 64 tokens; the last output needs no place.
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 64 - 40 + 1


@async_test
async def test_unfinished_character_at_the_end_becomes_a_replacement_mark() -> None:
    before = ANSWER[: ANSWER.index("🙂")]
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=len(before.encode()) + 2
        )

    assert answer.choices[0].text == before + "\ufffd"


@async_test
async def test_several_prompts_give_choices_in_their_order() -> None:
    prompts = ["first", "second one", "third"]
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(model=MODEL, prompt=prompts)
        stream = await client.completions.create(model=MODEL, prompt=prompts, stream=True)
        texts = ["", "", ""]
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text

    wanted = [reply_to(prompt.encode()) for prompt in prompts]
    assert wanted == [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert wanted == texts
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, prompts))


@async_test
async def test_token_ids_are_prompts_too() -> None:
    ids = list(PROMPT.encode())
    async with openai_client(make_harness()) as client:
        one = await client.completions.create(model=MODEL, prompt=ids)
        two = await client.completions.create(model=MODEL, prompt=[ids, ids])

    assert [choice.text for choice in one.choices] == [ANSWER]
    assert [choice.text for choice in two.choices] == [ANSWER, ANSWER]


@async_test
async def test_long_texts_are_encoded_beside_the_loop_with_the_same_result() -> None:
    text = "word " * 2_000
    harness = make_harness(max_model_len=16_384, num_blocks=1_024)
    async with openai_client(harness) as client:
        one = await client.completions.create(model=MODEL, prompt=text)
        chat = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}]
        )

    assert one.choices[0].text == reply_to(text.encode())
    written = f"user: {text}\nassistant:"
    assert chat.choices[0].message.content == reply_to(written.encode())


@async_test
async def test_stop_string_cuts_the_text_whole_and_streamed() -> None:
    wanted = ANSWER[: ANSWER.index("again")]
    async with openai_client(make_harness()) as client:
        whole = await client.completions.create(model=MODEL, prompt=PROMPT, stop=["again", "zzz"])
        stream = await client.completions.create(
            model=MODEL, prompt=PROMPT, stop="again", stream=True
        )
        texts = [chunk.choices[0].text async for chunk in stream]
        kept = await client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            stop="again",
            extra_body={"include_stop_str_in_output": True},
        )

    assert (wanted, "stop") == (whole.choices[0].text, whole.choices[0].finish_reason)
    assert "".join(texts) == wanted
    assert kept.choices[0].text == wanted + "again"


@async_test
async def test_stop_string_ends_the_request_in_the_engine() -> None:
    harness = make_harness()
    async with openai_client(harness) as client:
        await client.completions.create(
            model=MODEL, prompt=PROMPT, stop=REPLY[10:12], extra_body={"ignore_eos": True}
        )

    harness.assert_all_returned()
    assert harness.engine.stats.num_finished == {"stop": 1}


@async_test
async def test_stop_token_is_no_text_unless_asked_for() -> None:
    stop = {"stop_token_ids": [ord(";")]}
    async with openai_client(make_harness()) as client:
        left_out = await client.completions.create(model=MODEL, prompt=PROMPT, extra_body=stop)
        kept = await client.completions.create(
            model=MODEL, prompt=PROMPT, extra_body=stop | {"include_stop_str_in_output": True}
        )

    before = ANSWER[: ANSWER.index(";")]
    assert (before, "stop") == (left_out.choices[0].text, left_out.choices[0].finish_reason)
    assert kept.choices[0].text == before + ";"


@async_test
async def test_completion_logprobs_are_parallel_lists() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=PROMPT, logprobs=1, max_tokens=4
        )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == list(ANSWER[:4])
    assert logprobs.token_logprobs == [-1.0] * 4
    assert logprobs.text_offset == [0, 1, 2, 3]
    assert logprobs.top_logprobs is not None
    # The chosen token and the likeliest one.
    assert logprobs.top_logprobs[0] == {ANSWER[0]: -1.0, chr(ord(ANSWER[0]) + 1): -0.5}


@async_test
async def test_completion_logprobs_zero_hold_the_chosen_token_only() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=PROMPT, logprobs=0, max_tokens=1
        )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs == [{ANSWER[0]: -1.0}]


@async_test
async def test_chat_logprobs_carry_bytes_and_alternatives() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=CHAT, logprobs=True, top_logprobs=2, max_tokens=2
        )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [ord(char) for char in CHAT_ANSWER[:2]] == [
        byte for entry in logprobs.content for byte in entry.bytes or []
    ]
    first = logprobs.content[0]
    assert (CHAT_ANSWER[0], -1.0) == (first.token, first.logprob)
    assert [one.logprob for one in first.top_logprobs] == [-0.5, -1.0]


@async_test
async def test_streamed_logprobs_miss_no_token() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=CHAT, logprobs=True, stream=True
        )
        streamed = bytearray()
        async for chunk in stream:
            logprobs = chunk.choices[0].logprobs
            for entry in (logprobs and logprobs.content) or []:
                streamed += bytes(entry.bytes or [])

    # Half characters and the eos have entries too.
    assert bytes(streamed) == CHAT_ANSWER.encode() + b"<|eos|>"


@async_test
async def test_models_are_listed_and_found() -> None:
    async with openai_client(make_harness()) as client:
        listed = [model.id async for model in client.models.list()]
        found = await client.models.retrieve(MODEL)

    assert listed == [MODEL]
    assert (found.id, found.object) == (MODEL, "model")


@async_test
async def test_request_id_comes_back() -> None:
    async with openai_client(make_harness()) as client:
        raw = await client.completions.with_raw_response.create(
            model=MODEL, prompt="x", extra_headers={"X-Request-Id": "mine-1"}
        )
        own = await client.completions.with_raw_response.create(model=MODEL, prompt="x")

    assert raw.headers["x-request-id"] == "mine-1"
    assert own.headers["x-request-id"] == own.parse().id
