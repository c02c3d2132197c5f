"""The fields about tools, read strictly: OpenAI's tools, tool_choice, and calls in a history.

Belongs here: what may be written, in chat and (`is_flat`: a function's facts stand beside its type)
in responses. Not here: how a model writes calls (tool_calls.py).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from everbatch.server.fields import (
    Fields,
    IsNeutral,
    Json,
    NestedTooDeeply,
    decode_json,
    name_type,
    nothing,
    only,
)
from everbatch.server.tool_calls import Tool

MAX_TOOLS = 128
MAX_DESCRIPTION_LENGTH = 1 << 30  # The body's limit is the one that binds.
MAX_ID_LENGTH = 256
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CHOICES = ("none", "auto", "required")
MODES = ("auto", "required")


# Of a function in responses.
NOT_SUPPORTED: dict[str, IsNeutral] = {
    "allowed_callers": nothing,
    "async": only(False),
    "defer_loading": only(False),
    "output_schema": nothing,
}


@dataclass(frozen=True, slots=True)
class ToolsWanted:
    """The tools of a request.

    tools: those that the model is shown; allowed: of them those that it may call. is_certain: the
    answer must be a call; may_repeat: or more.
    """

    tools: tuple[Tool, ...]
    allowed: tuple[Tool, ...]
    is_certain: bool
    may_repeat: bool

    @property
    def are_free(self) -> bool:
        """Whether the model may write whatever it writes."""
        is_strict = any(tool.is_strict for tool in self.allowed)
        return not is_strict and self.may_repeat and len(self.allowed) == len(self.tools)


def take_tools(fields: Fields, *, is_flat: bool = False) -> ToolsWanted | None:
    """Take tools, tool_choice and parallel_tool_calls; None if no tool may be called."""
    tools = take_tool_list(fields, is_flat=is_flat)
    choice = fields.take("tool_choice")
    may_repeat = fields.boolean("parallel_tool_calls", True)
    if isinstance(choice, dict):
        return _chosen(fields, choice, tools, may_repeat=may_repeat, is_flat=is_flat)
    if choice not in (None, *CHOICES):
        raise fields.bad("tool_choice", f"must be {', '.join(CHOICES)}, or name a function")
    if not tools:
        if choice == "required":
            raise fields.bad("tool_choice", "is required, but there are no tools: give some")
        return None
    if choice == "none":
        return None
    return ToolsWanted(tools, tools, choice == "required", may_repeat)


def _chosen(
    fields: Fields,
    value: dict[str, Json],
    tools: tuple[Tool, ...],
    *,
    may_repeat: bool,
    is_flat: bool,
) -> ToolsWanted:
    """Read a tool_choice that names tools: one that must be called, or those that may be."""
    choice = Fields(value, "tool_choice")
    kind = choice.text("type", MAX_ID_LENGTH)
    if kind in (None, "function"):
        named = _named(choice, is_flat=is_flat)
        found = _found(fields, tools, [named])
        return ToolsWanted(found, found, True, False)
    if kind != "allowed_tools":
        raise choice.bad(
            "type", f"{kind!r} is not supported: only 'function' and 'allowed_tools' are"
        )
    allowed = choice if is_flat else choice.object("allowed_tools")
    if allowed is None:
        raise choice.bad("allowed_tools", "is missing: give mode and tools")
    mode = allowed.text("mode", MAX_ID_LENGTH)
    if mode not in MODES:
        raise allowed.bad("mode", f"must be {' or '.join(MODES)}, got {mode!r:.80}")
    listed = allowed.take("tools")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_TOOLS:
        raise allowed.bad("tools", f"must be an array of 1 to {MAX_TOOLS} functions")
    names = [
        _named(_object(allowed, f"tools[{index}]", one, "function"), is_flat=is_flat)
        for index, one in enumerate(listed)
    ]
    allowed.end()
    choice.end()
    return ToolsWanted(tools, _found(fields, tools, names), mode == "required", may_repeat)


def _found(fields: Fields, tools: tuple[Tool, ...], names: Sequence[str]) -> tuple[Tool, ...]:
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise fields.bad("tool_choice", f"names the tool {name!r}, which is not among tools")
    return tuple(tool for tool in tools if tool.name in names)


def take_calls(message: Fields) -> list[dict[str, Json]]:
    """Take the tool_calls of a message of the assistant, arguments as templates want them: as an
    object."""
    value = message.take("tool_calls")
    if value is None:
        return []
    if not isinstance(value, list):
        raise message.wrong_type("tool_calls", "an array of calls", value)
    return [_call(message, f"tool_calls[{index}]", one) for index, one in enumerate(value)]


def take_tool_list(fields: Fields, *, is_flat: bool = False) -> tuple[Tool, ...]:
    """Take tools alone."""
    value = fields.take("tools")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise fields.wrong_type("tools", "an array of tools", value)
    if len(value) > MAX_TOOLS:
        raise fields.bad("tools", f"has {len(value):,} tools, at most {MAX_TOOLS} go")
    tools = tuple(
        _tool(fields, f"tools[{index}]", one, is_flat=is_flat) for index, one in enumerate(value)
    )
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise fields.bad("tools", f"has the name {name!r} twice")
    return tools


def take_arguments(function: Fields) -> dict[str, Json]:
    """Take the arguments of a call: JSON as text. Absent: none."""
    text = function.text("arguments", MAX_DESCRIPTION_LENGTH) or "{}"
    try:
        arguments = decode_json(text)
    except NestedTooDeeply as error:
        raise function.bad("arguments", f"is {error}") from None
    except msgspec.MsgspecError as error:
        raise function.bad("arguments", f"is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise function.bad("arguments", f"must be an object, not {name_type(arguments)}")
    return arguments


def take_name(function: Fields) -> str:
    """Take the name of a function."""
    name = function.text("name", MAX_ID_LENGTH)
    if name is None or not _NAME.fullmatch(name):
        raise function.bad(
            "name", f"must be 1 to 64 letters, digits, underscores and dashes, got {name!r:.80}"
        )
    return name


def _tool(fields: Fields, name: str, value: Json, *, is_flat: bool) -> Tool:
    tool = _object(fields, name, value, "function")
    function = _function(tool, "its name and its parameters", is_flat=is_flat)
    called = take_name(function)
    function.text("description", MAX_DESCRIPTION_LENGTH)
    is_strict = function.boolean("strict")
    parameters = function.object_value("parameters") or {}
    function.refuse(NOT_SUPPORTED)
    function.end()
    shown = _nested(value) if is_flat else value
    return Tool(called, parameters, shown, is_strict)


def _nested(value: dict[str, Json]) -> dict[str, Json]:
    """Give a flat tool as chat has it, which is what templates know."""
    facts = {
        name: one
        for name, one in value.items()
        if name in ("name", "description", "parameters", "strict") and one is not None
    }
    return {"type": "function", "function": facts}


def _function(outer: Fields, wanted: str, *, is_flat: bool) -> Fields:
    """Give where the facts of a function stand."""
    if is_flat:
        return outer
    function = outer.object("function")
    if function is None:
        raise outer.bad("function", f"is missing: give {wanted}")
    outer.end()
    return function


def _named(choice: Fields, *, is_flat: bool) -> str:
    function = _function(choice, "its name", is_flat=is_flat)
    name = take_name(function)
    function.end()
    return name


def _call(message: Fields, name: str, value: Json) -> dict[str, Json]:
    call = _object(message, name, value, "function")
    call_id = call.text("id", MAX_ID_LENGTH)
    call.take("index")
    function = _function(call, "its name and its arguments", is_flat=False)
    called = take_name(function)
    arguments = take_arguments(function)
    function.end()
    return call_of(call_id, called, arguments)


def call_of(call_id: str | None, name: str, arguments: dict[str, Json]) -> dict[str, Json]:
    """Give a call as templates know it."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _object(fields: Fields, name: str, value: Json, kind: str) -> Fields:
    """Give the fields of an object whose type must be `kind`, and may be left out."""
    if not isinstance(value, dict):
        raise fields.wrong_type(name, "an object", value)
    inner = Fields(value, fields.name(name))
    given = inner.text("type", MAX_ID_LENGTH)
    if given not in (None, kind):
        raise inner.bad("type", f"{given!r} is not supported: only {kind!r} is")
    return inner
