"""/v1/responses by the official client: text in and out, events, histories, refusals by name."""

import json
from typing import Any

import httpx
import pytest
from server.fakes import (
    MODEL,
    SpeakingExecutor,
    async_test,
    eventually,
    in_process,
    make_harness,
    openai_client,
    reply_to,
)

RESPONSES = "/v1/responses"
ANSWER = reply_to(b"user: Hello\nassistant:")


@async_test
async def test_text_is_answered_with_one_message() -> None:
    async with openai_client(make_harness()) as client:
        answer = await client.responses.create(model=MODEL, input="Hello")

    assert answer.output_text == ANSWER
    [message] = answer.output
    assert message.type == "message"
    assert (message.role, message.status) == ("assistant", "completed")
    assert (answer.object, answer.status, answer.error) == ("response", "completed", None)
    assert answer.id.startswith("resp-")
    assert answer.usage is not None
    num_prompt, num_outputs = len("user: Hello\nassistant:"), len(ANSWER.encode()) + 1
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (num_prompt, num_outputs)
    assert answer.usage.total_tokens == num_prompt + num_outputs
    assert answer.usage.input_tokens_details.cached_tokens == 0


@async_test
async def test_history_goes_through_the_template() -> None:
    async with openai_client(make_harness()) as client:
        first = await client.responses.create(model=MODEL, input="Hello")
        again = await client.responses.create(
            model=MODEL,
            instructions="Be brief.",
            input=[
                {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
                *[item.model_dump() for item in first.output],  # type: ignore[list-item]
                {"type": "message", "role": "developer", "content": "Now."},
            ],
        )

    text = f"system: Be brief.\nuser: Hello\nassistant: {ANSWER}\nsystem: Now.\nassistant:"
    assert again.output_text == reply_to(text.encode())
    assert again.instructions == "Be brief."


@async_test
async def test_stream_tells_each_stage_once_and_joins_to_the_text() -> None:
    async with openai_client(make_harness()) as client:
        stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
        events: list[Any] = [event async for event in stream]

    kinds = [event.type for event in events]
    num_deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * num_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-4].text == events[-1].response.output_text == ANSWER
    assert events[0].response.status == "in_progress"
    assert events[-1].response.usage.output_tokens == len(ANSWER.encode()) + 1
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert ids == {events[-1].response.output[0].id}


@async_test
async def test_client_s_own_helper_follows_the_stream() -> None:
    async with openai_client(make_harness()) as client:
        async with client.responses.stream(model=MODEL, input="Hello") as stream:
            async for _ in stream:
                pass
        final = await stream.get_final_response()

    assert final.output_text == ANSWER


@async_test
async def test_answer_that_is_cut_is_incomplete() -> None:
    async with openai_client(make_harness()) as client:
        whole = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=3)
        stream = await client.responses.create(
            model=MODEL, input="Hello", max_output_tokens=3, stream=True
        )
        events: list[Any] = [event async for event in stream]

    for answer in (whole, events[-1].response):
        assert (answer.status, answer.output_text) == ("incomplete", ANSWER[:3])
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.output[0].status == "incomplete"
    assert events[-1].type == "response.incomplete"


@async_test
async def test_answer_without_text_is_whole() -> None:
    harness = make_harness(executor=SpeakingExecutor(reply=lambda prompt: ""))
    async with openai_client(harness) as client:
        stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
        events: list[Any] = [event async for event in stream]

    assert len(events) == 8
    assert events[-1].response.output_text == ""


@async_test
async def test_logprobs_come_when_included() -> None:
    async with openai_client(make_harness()) as client:
        options: dict[str, Any] = {
            "model": MODEL,
            "input": "Hello",
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "max_output_tokens": 4,
        }
        answer = await client.responses.create(**options)
        stream = await client.responses.create(**options, stream=True)
        events: list[Any] = [event async for event in stream]

    entries = answer.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert [entry.token for entry in entries] == list(ANSWER[:4])
    assert [len(entry.top_logprobs) for entry in entries] == [2] * 4
    told = [
        one.token
        for event in events
        if event.type == "response.output_text.delta"
        for one in event.logprobs
    ]
    assert told == list(ANSWER[:4])
    assert len(events[-1].response.output[0].content[0].logprobs) == 4


@async_test
async def test_failure_after_the_first_event_is_an_event_of_its_own() -> None:
    harness = make_harness()

    def fail(number: int) -> None:
        if number == 3:
            harness.gate.shut()
        if number == 4:
            raise RuntimeError("told to fail")

    harness.executor.before_pass = fail
    async with openai_client(harness) as client:
        stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
        events: list[Any] = []
        async for event in stream:
            harness.gate.open()
            events.append(event)

    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.code


@async_test
async def test_aborted_response_says_so() -> None:
    harness = make_harness()
    async with openai_client(harness) as client:
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
        stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
        events: list[Any] = []
        async for event in stream:
            if not events:
                url = str(client.base_url).removesuffix("/v1/")
                async with httpx.AsyncClient(base_url=url) as plain:
                    await plain.post("/abort", json={"request_id": event.response.id})
                harness.gate.open()
            events.append(event)

    assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")
    await eventually(lambda: harness.engine.num_live == 0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input is missing"),
    ({"input": []}, "input is an empty array"),
    ({"input": 1}, "input must be a text"),
    ({"input": ["x"]}, "input[0] must be an object"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role must be one of"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type 'reasoning'"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content must be"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type 'input_image' is not supported",
    ),
    ({"max_output_tokens": 0}, "max_output_tokens must lie in [1"),
    ({"max_tokens": 3}, "unknown field 'max_tokens'"),
    ({"n": 2}, "n=2 is not supported"),
    ({"store": True}, "store=true is not supported"),
    ({"previous_response_id": "resp-1"}, "previous_response_id"),
    ({"background": True}, "background=true is not supported"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type 'web_search' is not supported"),
    ({"truncation": "auto"}, "truncation"),
    ({"reasoning": {"effort": "low"}}, "reasoning"),
    ({"include": ["file_search_call.results"]}, "include may hold"),
    ({"top_logprobs": 2}, "top_logprobs goes with"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type must be one of"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"temperature": 3}, "temperature"),
    ({"nonsense": 1}, "unknown field 'nonsense'"),
]


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_bad_field_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            answer = await client.post(RESPONSES, json={"input": "x", **fields})

        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]

    run()


@async_test
async def test_neutral_values_of_what_is_not_supported_go() -> None:
    neutral = {
        **{"store": False, "background": False, "tools": [], "tool_choice": "auto"},
        **{"parallel_tool_calls": True, "truncation": "disabled", "previous_response_id": None},
        **{"reasoning": {}, "text": {"format": {"type": "text"}}, "include": [], "n": 1},
        **{"metadata": {"a": "b"}, "user": "me", "stream_options": {"include_obfuscation": False}},
    }
    async with in_process(make_harness()) as client:
        answer = await client.post(RESPONSES, json={"input": "x", **neutral})

    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"] == {"a": "b"}


@async_test
async def test_model_without_a_template_names_the_way_out() -> None:
    async with in_process(make_harness(template=None)) as client:
        answer = await client.post(RESPONSES, json={"input": "x"})

    assert answer.status_code == 400
    assert "/v1/completions" in answer.json()["error"]["message"]


@async_test
async def test_events_carry_their_type_as_name() -> None:
    async with in_process(make_harness()) as client:
        answer = await client.post(RESPONSES, json={"input": "x", "stream": True})

    blocks = answer.content.decode().split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
