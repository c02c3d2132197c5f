"""Tools whose calls are written as arguments between tags."""

import json
from typing import Any

from everbatch.server.tool_calls import CLOSE, OPEN, Tool, ToolStyle
from everbatch.server.tool_finders import finder_of
from everbatch.server.tool_markup import FUNCTION

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "ratio": {"type": "number"},
        "soon": {"type": "boolean"},
        "places": {"type": "array", "items": {"type": "string"}},
        "near": {"$ref": "#/$defs/Near"},
        "unit": {"enum": ["C", "F", 7]},
        "note": {"type": ["string", "null"]},
        "code": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "any": {},
        "odd": True,
    },
    "required": ["city"],
    "$defs": {"Near": {"type": "object", "properties": {"km": {"type": "number"}}}},
}
WEATHER = Tool("weather", SCHEMA, {})
CLOCK = Tool("clock", {}, {})
SHARES = Tool("shares", {"properties": {}, "additionalProperties": {"type": "number"}}, {})
TOOLS = (WEATHER, CLOCK, SHARES)


def call(tool: str, /, **arguments: str) -> str:
    """Write a call as models do."""
    parts = [f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in arguments.items()]
    return f"{OPEN}\n{FUNCTION}{tool}>\n{''.join(parts)}</function>\n{CLOSE}"


def found(pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    finder = finder_of(ToolStyle.MARKUP, TOOLS)
    told = [*(finder.push(piece) for piece in pieces), finder.finish()]
    calls = [one for each in told for one in each.calls]
    return "".join(one.text for one in told), [
        (one.name, json.loads(one.arguments)) for one in calls
    ]


KOELN = call("weather", city="Köln")
