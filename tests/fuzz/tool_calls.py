"""What a model may write where tools are offered, in each of the ways that we know.

Whole and in pieces the same must be found, and the arguments of a call are an object of JSON.
"""

import json

from fuzz.target import Target

from everbatch.server.tool_calls import Tool, ToolStyle
from everbatch.server.tool_finders import finder_of

SCHEMA = {
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "boolean"}]},
    },
    "$defs": {"D": {"type": "object"}},
}
TOOLS = (Tool("f", SCHEMA, {}), Tool("g", {}, {}))
PIECE_LENGTHS = (1, 7)

_SEEDS = (
    'Hi.\n<tool_call>\n{"name": "f", "arguments": {"a": "\\"</tool_call>", "b": 1}}\n</tool_call>',
    '{"name": "f", "parameters": {"b": -1.5e3}}; {"name": "g", "parameters": {}}',
    '[{"name": "f", "arguments": {"c": true}}, {"name": "g", "arguments": {"x": [null]}}]',
    "<tool_call>\n<function=f>\n<parameter=a>\né\n</parameter>\n<parameter=b>\n5\n</parameter>\n"
    '<parameter=c>\n{"k": [1]}\n</parameter>\n</function>\n</tool_call>\n<tool_call><function=g>'
    "</function></tool_call>",
)


class IsText(Exception):
    """Nothing in it is a call."""


def _read(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    num_calls = 0
    for style in ToolStyle:
        told, calls = _found(style, [text])
        for length in PIECE_LENGTHS:
            pieces = [text[at : at + length] for at in range(0, len(text), length)]
            assert _found(style, pieces) == (told, calls)
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
        num_calls += len(calls)
    if not num_calls:
        raise IsText


def _found(style: ToolStyle, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    finder = finder_of(style, TOOLS)
    told = [*(finder.push(piece) for piece in pieces), finder.finish()]
    calls = [(call.name, call.arguments) for one in told for call in one.calls]
    return "".join(one.text for one in told), calls


TARGET = Target(
    "tool_call",
    _read,
    (IsText,),
    lambda: [seed.encode() for seed in _SEEDS],
    (
        *(b"<tool_call>", b"</tool_call>", b"<function=f>", b"<function=", b"</function>"),
        *(b"<parameter=a>", b"<parameter=", b"</parameter>", b"</param", b">"),
        *(b'{"name": "f"', b'"arguments": ', b'"parameters": ', b"}", b"]", b'\\"', b"; "),
        *(b"True", b"None", b"1e999", b"\n"),
    ),
)
