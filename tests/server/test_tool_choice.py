"""tool_choice and strict tools: what the answer is held to, and what is refused by name."""

import json
from typing import Any

import pytest
from server.fakes import (
    EOS,
    MODEL,
    SpeakingExecutor,
    async_test,
    byte_tokenizer,
    in_process,
    make_harness,
    openai_client,
)

from everbatch.engine.engine import EngineRequest
from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.server.http_body import MAX_INLINE_BYTES
from everbatch.tokenizer.grammars import Grammars

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call> arguments{{ '\n' }}{% endif %}"
    "{% for message in messages %}{{ message.content }}\n{% endfor %}assistant:"
)
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Köln", "Bonn"]}},
}


def call(name: str, arguments: object) -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


FITS, BROKEN = call("weather", {"city": "Köln"}), call("weather", {"city": 7})
CLOCK = call("clock", {"zone": "UTC"})


def tool(name: str, *, strict: bool | None = None, flat: bool = False) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": name, "parameters": CITY if name == "weather" else {}}
    if strict is not None:
        facts["strict"] = strict
    return {"type": "function", **facts} if flat else {"type": "function", "function": facts}


def named(*names: str, flat: bool = False) -> list[dict[str, Any]]:
    if flat:
        return [{"type": "function", "name": name} for name in names]
    return [{"type": "function", "function": {"name": name}} for name in names]


def allowed(mode: str, *names: str, flat: bool = False) -> dict[str, Any]:
    facts = {"mode": mode, "tools": named(*names, flat=flat)}
    return {"type": "allowed_tools", **(facts if flat else {"allowed_tools": facts})}


class Watching(SpeakingExecutor):
    """Says what it is told to, whatever the form, and keeps the forms."""

    def __init__(self, text: str) -> None:
        super().__init__(reply=lambda prompt: text)
        self.forms: list[StructuredOutputsParams | None] = []

    def _fails(self, request: EngineRequest) -> bool:
        self.forms.append(request.sampling.structured_outputs)
        return super()._fails(request)


def ends_with(form: StructuredOutputsParams | None, text: str) -> bool:
    """Whether an answer of this form may be this text and end there."""
    if form is None:
        return True
    constraint = Grammars(byte_tokenizer(), EOS + 1, (EOS,)).start(form)
    mask = constraint.allowed(list(text.encode()))
    return bool(mask and mask[EOS >> 3] >> (EOS & 7) & 1)


STRICT = {"tools": [tool("weather", strict=True), tool("clock")]}
LOOSE = {"tools": [tool("weather", strict=False), tool("clock")]}
JSON_FORM = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 7}}}}
# The fields of a chat; answers that its form lets through; and such that it does not.
FORMS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (LOOSE, ["Hi.", FITS, BROKEN, CLOCK], []),
    (
        STRICT,
        ["", "Hi.", "a < b", FITS, f"I look.\n{FITS}\n{CLOCK}", f"{CLOCK} There."],
        [BROKEN, f"I look. {BROKEN}", call("rm", {}), "<tool_call>", f"{FITS}{BROKEN}"],
    ),
    (STRICT | {"tool_choice": "required"}, [FITS, CLOCK], ["", "Hi.", BROKEN]),
    (
        LOOSE | {"parallel_tool_calls": False},
        ["Hi.", FITS, BROKEN, f"I look. {CLOCK}"],
        [f"{FITS}\n{CLOCK}", call("rm", {})],
    ),
    (
        LOOSE | {"tool_choice": allowed("auto", "clock")},
        ["Hi.", CLOCK, f"{CLOCK}\n{CLOCK}"],
        [FITS],
    ),
    (LOOSE | {"tool_choice": allowed("auto", "clock", "weather")}, ["Hi.", CLOCK, BROKEN], []),
    (LOOSE | {"tool_choice": allowed("required", "clock")}, [CLOCK], ["Hi.", FITS]),
    (LOOSE | JSON_FORM, ["7", FITS, BROKEN, f"{FITS}\n{CLOCK}"], ["8", "Hi.", f"7{FITS}"]),
    (STRICT | JSON_FORM, ["7", FITS], ["8", BROKEN]),
    (LOOSE | {"response_format": {"type": "json_object"}}, ['{"a": 1}', FITS], ["7", "Hi."]),
]


@pytest.mark.parametrize(("fields", "goes", "does_not"), FORMS)
def test_answer_is_held_to_the_calls_that_may_come(
    fields: dict[str, Any], goes: list[str], does_not: list[str]
) -> None:
    executor = Watching("Hi.")

    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=TEMPLATE, executor=executor)) as client:
            answer = await client.post(CHAT, json={"messages": HELLO, **fields})
        assert answer.status_code == 200, answer.text

    run()
    form = executor.forms[0]
    assert [text for text in goes if not ends_with(form, text)] == []
    assert [text for text in does_not if ends_with(form, text)] == []


@async_test
async def test_allowed_tools_are_found_and_all_are_shown() -> None:
    executor = Watching(f"{CLOCK}{FITS}")
    harness = make_harness(
        template=TEMPLATE, executor=executor, max_model_len=2_048, num_blocks=256
    )
    async with openai_client(harness) as client:
        chat = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            tools=LOOSE["tools"],  # type: ignore[arg-type]
            tool_choice=allowed("auto", "clock"),  # type: ignore[arg-type]
        )
        response = await client.responses.create(
            model=MODEL,
            input="Hello",
            tools=[tool("weather", flat=True), tool("clock", flat=True)],  # type: ignore[list-item]
            tool_choice=allowed("auto", "clock", flat=True),  # type: ignore[arg-type]
        )
        shown = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            tools=LOOSE["tools"],  # type: ignore[arg-type]
        )

    [told] = chat.choices[0].message.tool_calls or []
    assert told.type == "function"
    assert (told.function.name, chat.choices[0].message.content) == ("clock", FITS)
    kinds = [item.type for item in response.output]
    assert (kinds, response.output_text) == (["function_call", "message"], FITS)
    assert response.tool_choice.type == "allowed_tools"  # type: ignore[union-attr]
    assert chat.usage is not None
    assert shown.usage is not None
    assert chat.usage.prompt_tokens == shown.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_certain_call_of_a_response(choice: Any) -> None:
    executor = Watching(FITS)

    @async_test
    async def run() -> None:
        harness = make_harness(template=TEMPLATE, executor=executor)
        async with openai_client(harness) as client:
            answer = await client.responses.create(
                model=MODEL,
                input="Hello",
                tools=[tool("weather", flat=True)],  # type: ignore[list-item]
                tool_choice=choice,
            )
        [item] = answer.output
        assert item.type == "function_call"

    run()
    assert ends_with(executor.forms[0], FITS)
    assert not ends_with(executor.forms[0], "Hi.")


def weird(schema: dict[str, Any]) -> list[dict[str, Any]]:
    facts = {"name": "f", "strict": True, "parameters": schema}
    return [{"type": "function", "function": facts}]


BAD: list[tuple[dict[str, Any], str, str]] = [
    (LOOSE | {"tool_choice": {"type": "web"}}, "tool_choice.type", "'web' is not supported"),
    (
        LOOSE | {"tool_choice": {"type": "allowed_tools"}},
        "tool_choice.allowed_tools",
        "is missing: give mode and tools",
    ),
    (
        LOOSE | {"tool_choice": allowed("maybe", "clock")},
        "tool_choice.allowed_tools.mode",
        "must be auto or required",
    ),
    (
        LOOSE | {"tool_choice": allowed("auto")},
        "tool_choice.allowed_tools.tools",
        "an array of 1 to 128",
    ),
    (LOOSE | {"tool_choice": allowed("auto", "rm")}, "tool_choice", "'rm', which is not among"),
    (
        LOOSE | {"tool_choice": allowed("auto", "clock") | {"more": 1}},
        "tool_choice.more",
        "unknown field",
    ),
    ({"tools": weird({"type": "nothing"})}, "tools", "what tools ask for cannot be followed"),
    (STRICT | {"min_tokens": 3}, "tools", "min_tokens does not go with"),
    (STRICT | {"guided_regex": "a"}, "tools", "given as regex does not go with tools"),
    (
        STRICT | {"tool_choice": "required"} | JSON_FORM,
        "tool_choice",
        "another field asks for a form",
    ),
    ({"tools": [tool("f", strict=True) | {"function": {"name": "f", "strict": 1}}]}, "", "strict"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD)
def test_what_cannot_be_held_to_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=TEMPLATE)) as client:
            answer = await client.post(CHAT, json={"messages": HELLO, **fields})

        error = answer.json()["error"]
        assert answer.status_code == 400
        assert words in error["message"]
        assert param in error["param"]

    run()


@pytest.mark.parametrize("depth", [200, 900, 985, 5_000])
def test_schema_is_refused_however_deeply_it_is_nested(depth: int) -> None:
    schema = '{"items":' * depth + "{}" + "}" * depth
    tools = f'"tools": [{{"function": {{"name": "a", "strict": true, "parameters": {schema}}}}}]'
    form = f'"structured_outputs": {{"json": {schema}}}'
    # Long bodies are read on a thread whose stack has room for more than the others'.
    space = " " * MAX_INLINE_BYTES

    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=TEMPLATE)) as client:
            for field in (tools, form):
                body = f'{{"messages": [{{"role": "user", "content": "x"}}], {field}}}{space}'
                answer = await client.post(
                    CHAT, content=body, headers={"Content-Type": "application/json"}
                )

                assert answer.status_code == 400, field[:20]
                assert answer.json()["error"]["type"] == "invalid_request_error"

    run()
