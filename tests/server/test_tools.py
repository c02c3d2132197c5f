"""Tools in chat by the official client: what the model is shown, calls whole and streamed."""

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

from everbatch.engine.engine import EngineRequest

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} answer with <tool_call> and arguments{{ '\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function.name }} {{ call.function.arguments.city }}</tool_call>"
    "{% endfor %}{{ '\n' }}{% endfor %}assistant:"
)
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 🙂"}}\n</tool_call>'
ARGUMENTS = {"city": "Köln 🙂"}


def saying(text: str) -> SpeakingExecutor:
    return SpeakingExecutor(reply=lambda prompt: text)


@async_test
async def test_call_is_told_with_its_arguments() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(f"I look.\n{CALL}\n{CALL}"))
    async with openai_client(harness) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL])

    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    calls = choice.message.tool_calls
    assert calls is not None
    assert [json.loads(call.function.arguments) for call in calls] == [ARGUMENTS] * 2  # type: ignore[union-attr]
    assert [call.function.name for call in calls] == ["weather"] * 2  # type: ignore[union-attr]
    assert len({call.id for call in calls}) == 2


@async_test
async def test_streamed_calls_are_numbered_and_text_comes_as_it_is_said() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(f"I look.\n{CALL}\n{CALL}"))
    async with openai_client(harness) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=[TOOL], stream=True
        )
        chunks = [chunk async for chunk in stream]

    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.index for call in calls] == [0, 1]
    assert all(call.function and call.function.name == "weather" for call in calls)
    assert json.loads(calls[0].function.arguments or "") == ARGUMENTS  # type: ignore[union-attr]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@async_test
async def test_answer_without_a_call_is_text() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying("No <tool needed."))
    async with openai_client(harness) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL])

    assert answer.choices[0].message.content == "No <tool needed."
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


@async_test
async def test_call_that_is_cut_is_text_with_reason_length() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(CALL))
    async with openai_client(harness) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=[TOOL], max_tokens=20
        )

    assert answer.choices[0].message.content == CALL[:20]
    assert answer.choices[0].finish_reason == "length"


@async_test
async def test_model_is_shown_tools_calls_and_results() -> None:
    seen: list[str] = []

    def reply(prompt: Any) -> str:
        seen.append(bytes(prompt).decode())
        return "Sunny."

    harness = make_harness(template=TEMPLATE, executor=SpeakingExecutor(reply=reply))
    async with openai_client(harness) as client:
        call = {"name": "weather", "arguments": json.dumps({"city": "Köln"})}
        await client.chat.completions.create(
            model=MODEL,
            messages=[
                *HELLO,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "call-1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
            ],
            tools=[TOOL],
        )

    shown, rest = seen[0].split(" answer with <tool_call> and arguments\n")
    assert json.loads(shown) == [TOOL]
    told = "assistant: <tool_call>weather Köln</tool_call>\ntool: sunny\nassistant:"
    assert rest == f"user: Hello\n{told}"


@async_test
async def test_tokenize_shows_what_chat_sends() -> None:
    body = {"messages": HELLO, "tools": [TOOL]}
    async with in_process(make_harness(template=TEMPLATE)) as client:
        tokens = (await client.post("/tokenize", json=body)).json()
        chat = (await client.post(CHAT, json=body | {"max_tokens": 1})).json()
        bad = await client.post("/tokenize", json=body | {"tools": [1]})
    async with in_process(make_harness()) as client:
        none = await client.post("/tokenize", json=body)

    assert "weather" in bytes(tokens["tokens"]).decode()
    assert tokens["count"] == chat["usage"]["prompt_tokens"]
    assert bad.json()["error"]["param"] == "tools[0]"
    assert (none.status_code, none.json()["error"]["param"]) == (400, "tools")


@async_test
async def test_tool_choice_none_shows_no_tools() -> None:
    harness = make_harness(template=TEMPLATE, executor=saying(CALL))
    async with openai_client(harness) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=[TOOL], tool_choice="none"
        )

    assert answer.choices[0].message.content == CALL
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user: Hello\nassistant:")


@pytest.mark.parametrize(
    ("choice", "certain"),
    [
        ("auto", False),
        ("required", True),
        ({"type": "function", "function": {"name": "weather"}}, True),
    ],
)
def test_certain_calls_are_a_form_of_the_answer(choice: Any, certain: bool) -> None:
    forms: list[object] = []

    class Watching(SpeakingExecutor):
        def _fails(self, request: EngineRequest) -> bool:
            forms.append(request.sampling.structured_outputs)
            return super()._fails(request)

    @async_test
    async def run() -> None:
        executor = Watching(reply=lambda prompt: CALL)
        harness = make_harness(template=TEMPLATE, executor=executor)
        async with openai_client(harness) as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=HELLO, tools=[TOOL], tool_choice=choice
            )
        assert answer.choices[0].finish_reason == "tool_calls"

    run()
    assert (forms[0] is not None) == certain


TOOLS_WITHOUT_A_WAY: list[tuple[str | None, dict[str, Any], str, str]] = [
    ("{{ messages }}", {"tools": [TOOL]}, "tools", "knows no tools"),
    (
        "{{ messages }}",
        {"messages": [*HELLO, {"role": "tool", "tool_call_id": "a", "content": "x"}]},
        "messages",
        "knows no tools",
    ),
    (None, {"tools": [TOOL]}, "messages", "/v1/completions"),
]


@pytest.mark.parametrize(("template", "fields", "param", "words"), TOOLS_WITHOUT_A_WAY)
def test_model_without_tools_says_so(
    template: str | None, fields: dict[str, Any], param: str, words: str
) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=template)) as client:
            answer = await client.post(CHAT, json={"messages": HELLO, **fields})

        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert words in error["message"]

    run()


def tool(**changes: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **changes}}]}


def called(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}", **changes}
    call = {"id": "c", "type": "function", "function": function}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": 1}, "tools must be an array"),
    ({"tools": [1]}, "tools[0] must be an object"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type 'web_search' is not supported"),
    ({"tools": [{"type": "function"}]}, "tools[0].function is missing"),
    (tool(name="a b"), "tools[0].function.name must be 1 to 64"),
    (tool(name=None), "tools[0].function.name must be 1 to 64"),
    (tool(parameters=[]), "tools[0].function.parameters must be an object"),
    (tool(nonsense=1), "tools[0].function.nonsense"),
    ({"tools": [*tool()["tools"], *tool()["tools"]]}, "the name 'f' twice"),
    ({"tools": tool()["tools"] * 129}, "at most 128"),
    ({"tool_choice": "required"}, "there are no tools"),
    ({**tool(), "tool_choice": "sometimes"}, "tool_choice must be"),
    ({**tool(), "tool_choice": {"function": {"name": "g"}}}, "not among tools"),
    ({**tool(), "tool_choice": {"type": "custom"}}, "tool_choice.type"),
    ({**tool(parameters={"type": "foo"}), "tool_choice": "required"}, "cannot be followed"),
    (
        {**tool(), "tool_choice": "required", "response_format": {"type": "json_object"}},
        "give one of them",
    ),
    ({**tool(), "parallel_tool_calls": 1}, "parallel_tool_calls must be"),
    (called(arguments="{"), "arguments is not JSON"),
    (called(arguments="[]"), "arguments must be an object"),
    (called(name=""), "name must be 1 to 64"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id is missing"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "tool_calls"),
    ({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "tool_call_id"),
]


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_bad_field_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=TEMPLATE)) as client:
            answer = await client.post(CHAT, json={"messages": HELLO, **fields})

        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]

    run()
