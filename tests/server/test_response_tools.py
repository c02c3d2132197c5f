"""Tools in /v1/responses by the official client: calls out, their outputs in, events, refusals."""

import json
from typing import Any

import pytest
from server.fakes import (
    MODEL,
    SpeakingExecutor,
    async_test,
    in_process,
    make_harness,
    openai_client,
)

RESPONSES = "/v1/responses"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} answer with <tool_call> and arguments{{ '\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<{{ call.id }} {{ call.function.name }} {{ call.function.arguments.city }}>"
    "{% endfor %}{% if message.tool_call_id %} of {{ message.tool_call_id }}{% endif %}"
    "{{ '\n' }}{% endfor %}assistant:"
)
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 🙂"}}\n</tool_call>'
ARGUMENTS = {"city": "Köln 🙂"}


def saying(text: str) -> SpeakingExecutor:
    return SpeakingExecutor(reply=lambda prompt: text)


@async_test
async def test_calls_are_items_between_messages_in_their_order() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(f"One.\n{CALL}\nTwo.\n{CALL}\n"))
    async with openai_client(harness) as client:
        answer = await client.responses.create(model=MODEL, input="Hello", tools=[TOOL])

    kinds = [item.type for item in answer.output]
    assert kinds == ["message", "function_call", "message", "function_call"]
    assert answer.output_text == "One.\nTwo."
    calls: list[Any] = [item for item in answer.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [ARGUMENTS] * 2
    assert {(call.name, call.status) for call in calls} == {("weather", "completed")}
    assert len({item.id for item in answer.output}) == 4
    assert len({call.call_id for call in calls}) == 2
    assert answer.status == "completed"
    assert [tool.model_dump(exclude_none=True) for tool in answer.tools] == [TOOL]
    assert (answer.tool_choice, answer.parallel_tool_calls) == ("auto", True)


@async_test
async def test_streamed_items_are_told_one_after_another_as_the_whole_answer_has_them() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(f"One.\n{CALL}"))
    async with openai_client(harness) as client:
        whole = await client.responses.create(model=MODEL, input="Hello", tools=[TOOL])
        stream = await client.responses.create(
            model=MODEL, input="Hello", tools=[TOOL], stream=True
        )
        events: list[Any] = [event async for event in stream]

    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    places = [event.output_index for event in events if hasattr(event, "output_index")]
    assert places == sorted(places)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
    arguments = next(event for event in events if event.type.endswith("arguments.done"))
    assert (arguments.item_id, arguments.arguments) == (done[1].id, done[1].arguments)
    assert [item.type for item in whole.output] == [item.type for item in done]
    assert whole.output_text == events[-1].response.output_text == "One."
    assert json.loads(done[1].arguments) == ARGUMENTS


@async_test
async def test_client_s_own_helper_follows_a_call() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(CALL))
    async with openai_client(harness) as client:
        async with client.responses.stream(model=MODEL, input="Hello", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
        final = await stream.get_final_response()

    [call] = final.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == ARGUMENTS
    assert "response.function_call_arguments.delta" in kinds


@async_test
async def test_output_of_a_call_goes_on_with_the_conversation() -> None:
    seen: list[str] = []

    def reply(prompt: Any) -> str:
        seen.append(bytes(prompt).decode())
        return "Sunny." if "sunny" in seen[-1] else f"I look.\n{CALL}"

    harness = make_harness(template=TEMPLATE, executor=SpeakingExecutor(reply=reply))
    async with openai_client(harness) as client:
        first = await client.responses.create(model=MODEL, input="Hello", tools=[TOOL])
        call: Any = first.output[1]
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        again = await client.responses.create(
            model=MODEL,
            input=[{"role": "user", "content": "Hello"}, *first.output, output],  # type: ignore[list-item]
            tools=[TOOL],
        )
        dumped = await client.responses.create(
            model=MODEL,
            input=[
                {"role": "user", "content": "Hello"},
                *[item.model_dump() for item in first.output],  # type: ignore[list-item]
                output | {"output": [{"type": "input_text", "text": "sunny"}]},  # type: ignore[list-item]
            ],
            tools=[TOOL],
        )

    shown, rest = seen[-1].split(" answer with <tool_call> and arguments\n")
    facts = {name: value for name, value in TOOL.items() if name != "type"}
    assert json.loads(shown) == [{"type": "function", "function": facts}]
    told = f"assistant: I look.<{call.call_id} weather Köln 🙂>\ntool: sunny of {call.call_id}"
    assert rest == f"user: Hello\n{told}\nassistant:"
    assert len(set(seen)) == 2
    assert again.output_text == dumped.output_text == "Sunny."


@async_test
async def test_calls_without_text_before_them_are_one_message_of_the_assistant() -> None:
    seen: list[str] = []

    def reply(prompt: Any) -> str:
        seen.append(bytes(prompt).decode())
        return "ok"

    harness = make_harness(template=TEMPLATE, executor=SpeakingExecutor(reply=reply))
    calls = [
        {"type": "function_call", "call_id": name, "name": "weather", "arguments": '{"city": "X"}'}
        for name in ("a", "b")
    ]
    outputs = [{"type": "function_call_output", "call_id": name, "output": ""} for name in "ab"]
    async with in_process(harness) as client:
        answer = await client.post(RESPONSES, json={"input": [*calls, *outputs]})

    assert answer.status_code == 200, answer.text
    assert seen[0] == "assistant: <a weather X><b weather X>\ntool:  of a\ntool:  of b\nassistant:"


@async_test
async def test_call_that_is_cut_is_text_of_an_incomplete_answer() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(CALL))
    async with openai_client(harness) as client:
        answer = await client.responses.create(
            model=MODEL, input="Hello", tools=[TOOL], max_output_tokens=20
        )

    assert (answer.status, answer.output_text) == ("incomplete", CALL[:20])


@async_test
async def test_answer_is_created_though_all_of_it_may_be_a_call() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(CALL))
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
    async with openai_client(harness) as client:
        stream = await client.responses.create(
            model=MODEL, input="Hello", tools=[TOOL], stream=True
        )
        first = await anext(aiter(stream))
        harness.gate.open()
        rest: list[Any] = [event async for event in stream]

    assert first.type == "response.created"
    assert rest[-1].response.output[0].type == "function_call"


@async_test
async def test_logprobs_are_those_of_the_text_alone() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(f"One. {CALL} Two."))
    options: dict[str, Any] = {
        "model": MODEL,
        "input": "Hello",
        "tools": [TOOL],
        "include": ["message.output_text.logprobs"],
    }
    async with openai_client(harness) as client:
        whole = await client.responses.create(**options)
        stream = await client.responses.create(**options, stream=True)
        events: list[Any] = [event async for event in stream]

    for answer in (whole, events[-1].response):
        first, _, last = answer.output
        assert "".join(entry.token for entry in first.content[0].logprobs) == "One."
        assert "".join(entry.token for entry in last.content[0].logprobs) == " Two.<|eos|>"


@async_test
async def test_tool_choice_none_shows_no_tools() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(CALL))
    async with openai_client(harness) as client:
        answer = await client.responses.create(
            model=MODEL, input="Hello", tools=[TOOL], tool_choice="none"
        )

    assert answer.output_text == CALL
    assert answer.tool_choice == "none"
    assert answer.usage is not None
    assert answer.usage.input_tokens == len("user: Hello\nassistant:")


def call_item(**changes: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", **changes}


def output_item(**changes: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "a", "output": "x", **changes}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name must be 1 to 64"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type 'mcp' is not supported"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading=true is not supported"),
    ({"tools": [TOOL | {"nonsense": 1}]}, "tools[0].nonsense"),
    ({"tools": [TOOL, TOOL]}, "the name 'weather' twice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name must be"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "not among tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type 'file_search'"),
    ({"tool_choice": "required"}, "there are no tools"),
    ({"max_tool_calls": 3}, "max_tool_calls=3 is not supported"),
    ({"input": [call_item(call_id=None)]}, "input[0].call_id is missing"),
    ({"input": [call_item(name="a b")]}, "input[0].name must be 1 to 64"),
    ({"input": [call_item(arguments="[]")]}, "input[0].arguments must be an object"),
    ({"input": [call_item(arguments="{")]}, "input[0].arguments is not JSON"),
    ({"input": [call_item(namespace="x")]}, 'input[0].namespace="x" is not supported'),
    ({"input": [output_item()]}, "input[0].call_id answers the call 'a', which is not before it"),
    ({"input": [call_item(), output_item(output=None)]}, "input[1].output must be a text"),
    (
        {"input": [call_item(), output_item(output=[{"type": "input_image"}])]},
        "input[1].output[0].type 'input_image' is not supported",
    ),
    ({"input": [call_item(), output_item(call_id=None)]}, "input[1].call_id is missing"),
]


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_bad_field_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=TEMPLATE)) as client:
            answer = await client.post(RESPONSES, json={"input": "x", **fields})

        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]

    run()


@async_test
async def test_model_without_tools_says_so() -> None:
    async with in_process(make_harness()) as client:
        tools = await client.post(RESPONSES, json={"input": "x", "tools": [TOOL]})
        items = await client.post(RESPONSES, json={"input": [call_item(), output_item()]})

    for answer, param in ((tools, "tools"), (items, "input")):
        assert answer.status_code == 400
        assert "knows no tools" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == param
