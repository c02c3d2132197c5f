"""Finding calls in text: however the text is cut, calls are calls and all else is text."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.fakes import EOS, byte_tokenizer
from server.growing_text import looked_at_in

from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.server.tool_calls import CLOSE, Call, Tool, ToolStyle, style_of
from everbatch.server.tool_finders import CloseSearch, finder_of
from everbatch.server.tool_grammars import CallSyntax, certain_calls
from everbatch.tokenizer.chat_template import ChatTemplate
from everbatch.tokenizer.grammars import Grammars

WEATHER = Tool(
    "weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    {},
)
CLOCK = Tool("clock", {}, {})
TAGGED_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
BARE_CALL = '{"name": "weather", "parameters": {"city": "Köln"}}'
KOELN = Call("weather", '{"city":"Köln"}')

TAGGED = [
    ("", "", []),
    ("Just text.\n", "Just text.\n", []),
    (TAGGED_CALL, "", [KOELN]),
    (f"Let me look.\n{TAGGED_CALL}", "Let me look.", [KOELN]),
    (f"{TAGGED_CALL}\n{TAGGED_CALL}", "", [KOELN, KOELN]),
    (f"a {TAGGED_CALL} b", "a b", [KOELN]),
    ('<tool_call>{"name": "clock"}</tool_call>', "", [Call("clock", "{}")]),
    (f"{TAGGED_CALL}\n \n", "", [KOELN]),
    (f"{TAGGED_CALL} b \n", " b \n", [KOELN]),
    (
        '<tool_call>{"name": "clock", "arguments": {"a": "\\"</tool_call>"}}</tool_call>',
        "",
        [Call("clock", '{"a":"\\"</tool_call>"}')],
    ),
    ("a < b and <tool", "a < b and <tool", []),
    ("spaces at the end   \n", "spaces at the end   \n", []),
    ("<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", []),
    ('<tool_call>{"name": "rm"}</tool_call>', '<tool_call>{"name": "rm"}</tool_call>', []),
    ('<tool_call>{"name": "clock"}', '<tool_call>{"name": "clock"}', []),
    ('<tool_call>{"name": "clock", "arguments": 1}</tool_call>',) * 2 + ([],),
    ('<tool_call>{"name": ["clock"]}</tool_call>',) * 2 + ([],),
    ('<tool_call>"</tool_call>\\</tool_call>"</tool_call>',) * 2 + ([],),
]
BARE = [
    ("", "", []),
    ("Just text.\n", "Just text.\n", []),
    (BARE_CALL, "", [KOELN]),
    (f" {BARE_CALL}; {BARE_CALL}\n", "", [KOELN, KOELN]),
    ('{"name": "clock"}', "", [Call("clock", "{}")]),
    (f"Here: {BARE_CALL}", f"Here: {BARE_CALL}", []),
    ('{"an": "object"}', '{"an": "object"}', []),
    (f"{BARE_CALL} and text", f"{BARE_CALL} and text", []),
    ('{"name": "weather", "param', '{"name": "weather", "param', []),
    ("[" * 5_000, "[" * 5_000, []),
    ('{"a":' * 5_000, '{"a":' * 5_000, []),
    ('{"name": {"clock": 1}}', '{"name": {"clock": 1}}', []),
]

LISTED_CALL = '{"name": "weather", "arguments": {"city": "Köln"}}'
LISTED = [
    ("", "", []),
    ("Just text.\n", "Just text.\n", []),
    (f" [{LISTED_CALL}]", "", [KOELN]),
    (f"[{LISTED_CALL}, {LISTED_CALL}]\n", "", [KOELN, KOELN]),
    (LISTED_CALL, LISTED_CALL, []),
    (f"[{LISTED_CALL}", f"[{LISTED_CALL}", []),
    ("[]", "[]", []),
    ("[1]", "[1]", []),
    ("[", "[", []),
    ("[" * 5_000 + "]", "[" * 5_000 + "]", []),
]


def found(style: ToolStyle, pieces: list[str]) -> tuple[str, list[Call]]:
    finder = finder_of(style, (WEATHER, CLOCK))
    told = [*(finder.push(piece) for piece in pieces), finder.finish()]
    return "".join(one.text for one in told), [call for one in told for call in one.calls]


@pytest.mark.parametrize(("text", "told", "calls"), TAGGED)
def test_tagged_calls_are_found(text: str, told: str, calls: list[Call]) -> None:
    assert found(ToolStyle.TAGGED, [text]) == (told, calls)
    assert found(ToolStyle.TAGGED, list(text)) == (told, calls)


@pytest.mark.parametrize(("text", "told", "calls"), BARE)
def test_bare_calls_are_found(text: str, told: str, calls: list[Call]) -> None:
    assert found(ToolStyle.BARE, [text]) == (told, calls)
    assert found(ToolStyle.BARE, list(text)) == (told, calls)


@pytest.mark.parametrize(("text", "told", "calls"), LISTED)
def test_listed_calls_are_found(text: str, told: str, calls: list[Call]) -> None:
    assert found(ToolStyle.LISTED, [text]) == (told, calls)
    assert found(ToolStyle.LISTED, list(text)) == (told, calls)


@given(
    pieces=st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<tool", " ", "x", "\n", "é"])),
    call=st.sampled_from(["", TAGGED_CALL]),
    cuts=st.sets(st.integers(0, 200)),
)
def test_cutting_a_text_changes_nothing(pieces: list[str], call: str, cuts: set[int]) -> None:
    text = "".join([*pieces, call, *pieces])
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    cut_up = [text[start:end] for start, end in pairwise(places)]

    for style in ToolStyle:
        assert found(style, [text]) == found(style, cut_up)


def test_text_is_sent_as_soon_as_it_cannot_become_a_tag() -> None:
    finder = finder_of(ToolStyle.TAGGED, (CLOCK,))

    assert finder.push("a b").text == "a b"
    assert finder.push(" <to").text == ""
    assert finder.push("y").text == " <toy"
    assert finder_of(ToolStyle.BARE, (CLOCK,)).push("a").text == "a"


def test_closing_tag_that_is_repeated_in_a_string_is_looked_at_once() -> None:
    search, text = CloseSearch(), '{"' + 200 * CLOSE

    assert looked_at_in(search, '{"', 200) <= len(text)
    assert search.partition(text + '"}' + CLOSE) == (text + '"}', CLOSE, "")


@pytest.mark.parametrize(
    ("source", "style"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", ToolStyle.LISTED),
        ("{% if tools %}[TOOL_CALLS]f[ARGS]{% endif %}", None),
        ("{% if tools %}<tool_call>{{ call.arguments }}{% endif %}", ToolStyle.TAGGED),
        ("{% if tools %}<tool_call><function={{ call.arguments }}{% endif %}", None),
        ("{% if tools %}<tool_call><function=x><parameter=y>{% endif %}", ToolStyle.MARKUP),
        ("{% if tools %}<tool_call><arg_key>{{ call.arguments }}{% endif %}", None),
        ("<tool_call>{{ call.arguments }}", None),
        ('{% if tools %}{"name": name, "parameters": dictionary}{% endif %}', ToolStyle.BARE),
        ('{% if tools %}{"parameters"}{% endif %}', None),
    ],
)
def test_template_tells_the_style(source: str | None, style: ToolStyle | None) -> None:
    assert style_of(ChatTemplate(source)) is style


@pytest.mark.parametrize(
    ("style", "text", "goes_once", "goes_often"),
    [
        (ToolStyle.TAGGED, TAGGED_CALL, True, True),
        (ToolStyle.TAGGED, f"{TAGGED_CALL}\n{TAGGED_CALL}", False, True),
        (ToolStyle.TAGGED, TAGGED_CALL.replace("city", "town"), False, False),
        (ToolStyle.TAGGED, "text", False, False),
        (ToolStyle.LISTED, f"[{LISTED_CALL}]", True, True),
        (ToolStyle.LISTED, f"[{LISTED_CALL}, {LISTED_CALL}]", False, True),
        (ToolStyle.LISTED, LISTED_CALL, False, False),
        (ToolStyle.BARE, BARE_CALL, True, True),
        (ToolStyle.BARE, f"{BARE_CALL}; {BARE_CALL}", False, True),
        (ToolStyle.BARE, '{"name": "clock", "parameters": {"any": [1]}}', True, True),
        (ToolStyle.BARE, BARE_CALL.replace("weather", "rm"), False, False),
    ],
)
def test_grammar_lets_through_calls_that_are_found(
    style: ToolStyle, text: str, goes_once: bool, goes_often: bool
) -> None:
    tools = (WEATHER, CLOCK)
    for may_repeat, goes in ((False, goes_once), (True, goes_often)):
        form = StructuredOutputsParams(
            grammar=certain_calls(CallSyntax(style), tools, may_repeat=may_repeat)
        )
        constraint = Grammars(byte_tokenizer(), EOS + 1, (EOS,)).start(form)
        mask = constraint.allowed(list(text.encode()))
        assert bool(mask and mask[EOS >> 3] >> (EOS & 7) & 1) == goes
    if goes_often:
        told, calls = found(style, [text])
        assert (told, calls != []) == ("", True)
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
