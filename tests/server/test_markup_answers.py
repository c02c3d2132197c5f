"""Answers of models that write arguments between tags: to what they are held, how they are told."""

import json
import tracemalloc
from typing import Any

import pytest
from server.fakes import (
    EOS,
    MODEL,
    SpeakingExecutor,
    async_test,
    byte_tokenizer,
    make_harness,
    openai_client,
)
from server.markup import CLOCK, KOELN, SCHEMA, TOOLS, WEATHER, call, found

from everbatch.base.errors import InvalidRequest
from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.server.fields import MAX_DEPTH
from everbatch.server.tool_calls import Tool, ToolStyle, style_of
from everbatch.server.tool_grammars import CallSyntax, certain_calls, possible_calls
from everbatch.tokenizer.chat_template import ChatTemplate
from everbatch.tokenizer.grammars import Grammars

# Ours, in the way of Qwen 3 Coder's: tools, calls of before and results in the same tags.
TEMPLATE = """
{%- if tools %}<tools>{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}</tools>
Call them so: <tool_call>
<function=NAME>
<parameter=NAME>
VALUE
</parameter>
</function>
</tool_call>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<tool_response>{{ message.content }}</tool_response>
{%- else %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value | tojson | safe if value is mapping or value is sequence and value is not string
   else value | string }}
</parameter>
{% endfor %}</function>
</tool_call>
{%- endfor %}{% endif %}
{% endfor %}assistant:"""


def ends_with(grammar: str, text: str) -> bool:
    """Whether an answer of this grammar may be this text and end there."""
    form = StructuredOutputsParams(grammar=grammar)
    constraint = Grammars(byte_tokenizer(), EOS + 1, (EOS,)).start(form)
    mask = constraint.allowed(list(text.encode()))
    return bool(mask and mask[EOS >> 3] >> (EOS & 7) & 1)


SYNTAX = CallSyntax(ToolStyle.MARKUP)
GOES = [
    KOELN,
    call("weather", city="two\nlines, <b> and </param"),
    call("weather", city="", days="-3", soon="true", near='{"km": 1}', unit="F", any="[1]"),
    call("weather", city="x", unit="7", note="null", code="a5"),
    call("clock"),
    call("clock", any="thing", at="all"),
    call("shares", a="0.5", b="1e3"),
]
DOES_NOT = [
    "text",
    f"text {KOELN}",
    KOELN[:-1],
    call("rm"),
    call("weather"),
    call("weather", days="3"),
    call("weather", city="x", days="three"),
    call("weather", city="x", unit="K"),
    call("weather", city="x", near="far"),
    call("weather", city="x</parameter>"),
    call("shares", a="much"),
]


def test_grammar_lets_through_calls_that_fit_and_are_found() -> None:
    grammar = certain_calls(SYNTAX, TOOLS, may_repeat=True)
    once = certain_calls(SYNTAX, TOOLS, may_repeat=False)

    assert [text for text in GOES if not ends_with(grammar, text)] == []
    assert [text for text in DOES_NOT if ends_with(grammar, text)] == []
    assert [text for text in GOES if found([text])[0] or not found([text])[1]] == []
    assert ends_with(grammar, f"{KOELN}\n{KOELN}")
    assert not ends_with(once, f"{KOELN}\n{KOELN}")


def test_grammar_of_possible_calls_holds_strict_ones_to_their_schemas() -> None:
    strict = Tool("weather", SCHEMA, {}, is_strict=True)
    grammar = possible_calls(SYNTAX, (strict, CLOCK), may_repeat=True)
    loose = possible_calls(SYNTAX, (WEATHER, CLOCK), may_repeat=True)
    bad = call("weather", city="x", days="three")

    assert all(ends_with(grammar, text) for text in ("", "Hi.", f"I look.\n{KOELN}", KOELN + "\n"))
    assert [ends_with(one, bad) for one in (grammar, loose)] == [False, True]
    assert not ends_with(grammar, call("rm"))


def doubling(depth: int, last: dict[str, Any]) -> dict[str, Any]:
    """A schema whose references stand for 2 to the power of `depth` times the last one."""
    defs: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(depth)
    }
    defs[f"d{depth}"] = last
    return {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs}


def chained(length: int) -> dict[str, Any]:
    """Of so many schemas each leads to the next, the last one is an integer."""
    defs: dict[str, Any] = {
        f"d{level}": {"$ref": f"#/$defs/d{level + 1}"} for level in range(1, length)
    }
    defs[f"d{length}"] = {"type": "integer"}
    return {"properties": {"x": defs["d1"]}, "$defs": defs}


def test_references_are_followed_as_deep_as_a_body_may_be() -> None:
    grammar = certain_calls(SYNTAX, (Tool("f", chained(MAX_DEPTH), {}),), may_repeat=False)

    assert ends_with(grammar, call("f", x="3"))
    assert not ends_with(grammar, call("f", x="three"))


def test_a_grammar_that_grows_too_long_is_not_written_to_its_end() -> None:
    parameters = doubling(10, {"type": "integer"})
    parameters["$defs"]["note"] = {"description": "x" * 100_000}
    tool = Tool("f", parameters, {})
    tracemalloc.start()
    with pytest.raises(InvalidRequest, match="the grammar of f has more than 262,144 characters"):
        certain_calls(SYNTAX, (tool,), may_repeat=False)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # Written to its end it has a hundred million characters.
    assert peak_bytes < 5_000_000


@pytest.mark.parametrize(
    ("parameters", "is_strict", "words"),
    [
        ({"properties": {"a>b": {}}}, False, "has > or a line break in its name"),
        ({"properties": {"a\nb": {}}}, False, "has > or a line break in its name"),
        ({"properties": {"": {}}}, False, "has > or a line break in its name"),
        (
            {"properties": {"a": {"type": "string", "pattern": "x+"}}},
            True,
            "says pattern of a text",
        ),
        (doubling(40, {"const": 1}), False, "more than 2,048 alternatives"),
        (chained(MAX_DEPTH + 1), False, "more than 128 alternatives in each other"),
        (chained(1_500), False, "more than 128 alternatives in each other"),
    ],
)
def test_what_cannot_be_held_to_is_refused(
    parameters: dict[str, Any], is_strict: bool, words: str
) -> None:
    tool = Tool("f", parameters, {}, is_strict)
    with pytest.raises(InvalidRequest, match=words):
        certain_calls(SYNTAX, (tool,), may_repeat=False)


def test_a_pattern_of_a_tool_that_is_not_strict_is_left_to_the_model() -> None:
    tool = Tool("f", {"properties": {"a": {"type": "string", "pattern": "x+"}}}, {})

    assert ends_with(certain_calls(SYNTAX, (tool,), may_repeat=False), call("f", a="y"))


SHOWN: Any = [
    {"type": "function", "function": {"name": one.name, "parameters": one.parameters}}
    for one in (WEATHER, CLOCK)
]
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ROOM = {"max_model_len": 4_096, "num_blocks": 512}


@async_test
async def test_a_server_tells_calls_whole_and_streamed() -> None:
    said = f"I look.\n{call('weather', city='Köln', days='3', soon='True')}\n{call('clock')}"
    harness = make_harness(
        template=TEMPLATE, executor=SpeakingExecutor(reply=lambda prompt: said), **ROOM
    )
    async with openai_client(harness) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=SHOWN)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=SHOWN, stream=True
        )
        deltas = [chunk.choices[0].delta async for chunk in stream]

    [choice] = answer.choices
    whole: list[Any] = choice.message.tool_calls or []
    streamed: list[Any] = [one for delta in deltas for one in delta.tool_calls or []]
    for calls in (whole, streamed):
        assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == [
            ("weather", {"city": "Köln", "days": 3, "soon": True}),
            ("clock", {}),
        ]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert "".join(delta.content or "" for delta in deltas) == "I look."


@async_test
async def test_model_is_shown_its_calls_as_it_writes_them() -> None:
    seen: list[str] = []

    def reply(prompt: Any) -> str:
        seen.append(bytes(prompt).decode())
        return "Sunny."

    arguments = {"city": "Köln", "soon": True, "places": ["a"]}
    function = {"name": "weather", "arguments": json.dumps(arguments)}
    history = [
        *HELLO,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "12 degrees"},
    ]
    executor = SpeakingExecutor(reply=reply)
    async with openai_client(make_harness(template=TEMPLATE, executor=executor, **ROOM)) as client:
        await client.chat.completions.create(model=MODEL, messages=history, tools=SHOWN)

    written = call("weather", city="Köln", soon="True", places='["a"]')
    assert style_of(ChatTemplate(TEMPLATE)) is ToolStyle.MARKUP
    assert f"assistant: {written}<tool_response>12 degrees" in seen[0]
    assert found([written]) == ("", [("weather", arguments)])
