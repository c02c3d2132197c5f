"""Finding calls whose arguments stand between tags, and reading each as what its schema says."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.growing_text import looked_at_in
from server.markup import KOELN, call, found

from everbatch.server.tool_calls import CLOSE, OPEN, Call, Tool, ToolStyle
from everbatch.server.tool_finders import finder_of
from everbatch.server.tool_markup import FUNCTION, FunctionEndSearch

IS_KOELN = ("weather", {"city": "Köln"})
ABOUT_TAGS = "end it with\n</parameter> and\n</tool_call>, \n\n  then <tool_call> again"


@pytest.mark.parametrize(
    ("text", "told", "calls"),
    [
        ("", "", []),
        ("Just text.\n", "Just text.\n", []),
        (KOELN, "", [IS_KOELN]),
        (f"Let me look.\n{KOELN}\n{KOELN}\n", "Let me look.", [IS_KOELN, IS_KOELN]),
        (f"a {KOELN} b", "a b", [IS_KOELN]),
        (call("clock"), "", [("clock", {})]),
        ("<tool_call><function=clock></function></tool_call>", "", [("clock", {})]),
        (
            "<tool_call><function=weather><parameter=city>Köln</parameter></function></tool_call>",
            "",
            [IS_KOELN],
        ),
        (call("weather", city="\n two lines\n"), "", [("weather", {"city": "\n two lines\n"})]),
        (call("weather", city=ABOUT_TAGS), "", [("weather", {"city": ABOUT_TAGS})]),
        (
            call("weather", city='say "</tool_call>'),
            "",
            [("weather", {"city": 'say "</tool_call>'})],
        ),
        # The last of two is meant, as in JSON.
        (
            KOELN.replace("</function>", "<parameter=city>\nBonn\n</parameter>\n</function>"),
            "",
            [("weather", {"city": "Bonn"})],
        ),
    ],
)
def test_calls_are_found(text: str, told: str, calls: list[Any]) -> None:
    assert found([text]) == (told, calls)
    assert found(list(text)) == (told, calls)


@pytest.mark.parametrize(
    "text",
    [
        "a < b and <tool",
        "<tool_call>no function</tool_call>",
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
        call("rm", path="x"),
        KOELN[: len(KOELN) - 3],
        KOELN[: KOELN.index("</param")],
        KOELN.replace("</function>", ""),
        KOELN.replace("</parameter>", ""),
        KOELN.replace("<parameter=city>", ""),
        KOELN.replace("<parameter=city>", "<parameter=>"),
        KOELN.replace("</function>", "more</function>"),
        KOELN.replace("</parameter>", "</parameter>more"),
        KOELN.replace("weather>", "weather"),
        f"{OPEN}{FUNCTION}{'x' * 5_000}>",
        f"{OPEN}{FUNCTION}weather>" + "<parameter=city>" * 2_000,
    ],
)
def test_what_is_broken_or_cut_is_text(text: str) -> None:
    assert found([text]) == (text, [])
    assert found(list(text)) == (text, [])


def test_a_call_after_a_broken_one_is_found() -> None:
    assert found([f"{OPEN}nothing{CLOSE}{KOELN}"]) == (f"{OPEN}nothing{CLOSE}", [IS_KOELN])


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("city", "5", "5"),
        ("city", "null", "null"),
        ("city", ' "quoted" ', ' "quoted" '),
        ("city", "", ""),
        ("days", "5", 5),
        ("days", " 5 ", 5),
        ("days", "5.0", 5),
        ("days", "5.5", "5.5"),
        ("days", "five", "five"),
        ("days", "True", "True"),
        ("days", "9" * 5_000, "9" * 5_000),
        ("ratio", "5", 5),
        ("ratio", "-1.5e3", -1500.0),
        ("ratio", "1e999", "1e999"),
        ("ratio", "NaN", "NaN"),
        ("soon", "true", True),
        ("soon", "True", True),
        ("soon", "False", False),
        ("soon", "1", "1"),
        ("places", '["a", "b"]', ["a", "b"]),
        ("places", "['a']", "['a']"),
        ("places", '{"a": 1}', '{"a": 1}'),
        ("places", "[" * 100_000, "[" * 100_000),
        ("near", '{"km": 1.5}', {"km": 1.5}),
        ("near", "far", "far"),
        ("unit", "C", "C"),
        ("unit", "7", 7),
        ("note", "null", None),
        ("note", "None", None),
        ("note", "nothing", "nothing"),
        ("note", "5", "5"),
        ("code", "5", 5),
        ("code", "a5", "a5"),
        ("any", '{"a": [1]}', {"a": [1]}),
        ("any", "words", "words"),
        ("odd", "5", 5),
        ("unknown", "5", "5"),
    ],
)
def test_an_argument_has_the_type_that_its_schema_says(name: str, text: str, value: Any) -> None:
    assert found([call("weather", **{name: text})]) == ("", [("weather", {name: value})])


def test_arguments_that_are_not_spoken_of_have_the_type_of_the_others() -> None:
    assert found([call("shares", a="0.5", b="x")]) == ("", [("shares", {"a": 0.5, "b": "x"})])


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/X"},
        {"$ref": "#/$defs/X/y"},
        {"$ref": "elsewhere"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/X"}]},
        {"type": [["integer"], None]},
        {"enum": 5},
        {"anyOf": 5},
        "no schema",
        None,
    ],
)
def test_schemas_that_say_nothing_leave_what_came(schema: Any) -> None:
    tool = Tool("f", {"properties": {"x": schema}, "$defs": {"X": schema}}, {})
    finder = finder_of(ToolStyle.MARKUP, (tool,))
    text = call("f", x="words")

    assert [*finder.push(text).calls, *finder.finish().calls] == [Call("f", '{"x":"words"}')]


PIECES = [OPEN, CLOSE, "<tool", "<function=clock>", "</function>", "<parameter=a>", "</parameter>"]


@given(
    pieces=st.lists(st.sampled_from([*PIECES, " ", "x", "\n", "é"])),
    written=st.sampled_from(["", KOELN, call("clock", a="1")]),
    cuts=st.sets(st.integers(0, 300)),
)
def test_cutting_a_text_changes_nothing(pieces: list[str], written: str, cuts: set[int]) -> None:
    text = "".join([*pieces, written, *pieces])
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]

    assert found([text]) == found([text[start:end] for start, end in pairwise(places)])


def test_closing_tag_that_is_repeated_in_an_argument_is_looked_at_once() -> None:
    search, begin = FunctionEndSearch(), f"{FUNCTION}clock><parameter=a>"

    # Of each tag what stands just before it.
    assert looked_at_in(search, begin, 200) <= 200 * 50
    assert search.partition(begin + 200 * CLOSE + "</function>" + CLOSE)[1] == CLOSE
