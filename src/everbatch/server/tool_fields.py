"""The fields about tools of a chat, read strictly: OpenAI's tools, tool_choice, tool messages.

Belongs here: what may be written. Not here: how a model writes calls (tool_calls.py).
"""

import re
from dataclasses import dataclass

import msgspec

from everbatch.server.fields import Fields, Json, name_type
from everbatch.server.tool_calls import Tool

MAX_TOOLS = 128
MAX_DESCRIPTION_LENGTH = 1 << 30  # The body's limit is the one that binds.
MAX_ID_LENGTH = 256
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolsWanted:
    """The tools that may be called. is_certain: the answer must be a call; may_repeat: or more."""

    tools: tuple[Tool, ...]
    is_certain: bool
    may_repeat: bool


def take_tools(fields: Fields) -> ToolsWanted | None:
    """Take tools, tool_choice and parallel_tool_calls; None if no tool may be called."""
    tools = take_tool_list(fields)
    choice = fields.take("tool_choice")
    may_repeat = fields.boolean("parallel_tool_calls", True)
    if isinstance(choice, dict):
        name = _named(fields, choice)
        named = tuple(tool for tool in tools if tool.name == name)
        if not named:
            raise fields.bad("tool_choice", f"names the tool {name!r}, which is not among tools")
        return ToolsWanted(named, True, False)
    if choice not in (None, *CHOICES):
        raise fields.bad("tool_choice", f"must be {', '.join(CHOICES)}, or name a function")
    if not tools:
        if choice == "required":
            raise fields.bad("tool_choice", "is required, but there are no tools: give some")
        return None
    if choice == "none":
        return None
    return ToolsWanted(tools, choice == "required", may_repeat)


def take_calls(message: Fields) -> list[dict[str, Json]]:
    """Take the tool_calls of a message of the assistant, arguments as templates want them: as an
    object."""
    value = message.take("tool_calls")
    if value is None:
        return []
    if not isinstance(value, list):
        raise message.wrong_type("tool_calls", "an array of calls", value)
    return [_call(message, f"tool_calls[{index}]", one) for index, one in enumerate(value)]


def take_tool_list(fields: Fields) -> tuple[Tool, ...]:
    """Take tools alone."""
    value = fields.take("tools")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise fields.wrong_type("tools", "an array of tools", value)
    if len(value) > MAX_TOOLS:
        raise fields.bad("tools", f"has {len(value):,} tools, at most {MAX_TOOLS} go")
    tools = tuple(_tool(fields, f"tools[{index}]", one) for index, one in enumerate(value))
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise fields.bad("tools", f"has the name {name!r} twice")
    return tools


def _tool(fields: Fields, name: str, value: Json) -> Tool:
    tool = _object(fields, name, value, "function")
    function = tool.object("function")
    if function is None:
        raise tool.bad("function", "is missing: give its name and its parameters")
    tool.end()
    called = _name_in(function)
    function.text("description", MAX_DESCRIPTION_LENGTH)
    function.boolean("strict")
    parameters = function.object_value("parameters") or {}
    function.end()
    return Tool(called, parameters, value)


def _named(fields: Fields, value: Json) -> str:
    choice = _object(fields, "tool_choice", value, "function")
    function = choice.object("function")
    if function is None:
        raise choice.bad("function", "is missing: give its name")
    choice.end()
    name = _name_in(function)
    function.end()
    return name


def _call(message: Fields, name: str, value: Json) -> dict[str, Json]:
    call = _object(message, name, value, "function")
    call_id = call.text("id", MAX_ID_LENGTH)
    function = call.object("function")
    if function is None:
        raise call.bad("function", "is missing: give its name and its arguments")
    call.take("index")
    call.end()
    called = _name_in(function)
    text = function.text("arguments", MAX_DESCRIPTION_LENGTH) or "{}"
    function.end()
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise function.bad("arguments", f"is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise function.bad("arguments", f"must be an object, not {name_type(arguments)}")
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": called, "arguments": arguments},
    }


def _object(fields: Fields, name: str, value: Json, kind: str) -> Fields:
    """Give the fields of an object whose type must be `kind`, and may be left out."""
    if not isinstance(value, dict):
        raise fields.wrong_type(name, "an object", value)
    inner = Fields(value, fields.name(name))
    given = inner.text("type", MAX_ID_LENGTH)
    if given not in (None, kind):
        raise inner.bad("type", f"{given!r} is not supported: only {kind!r} is")
    return inner


def _name_in(function: Fields) -> str:
    name = function.text("name", MAX_ID_LENGTH)
    if name is None or not _NAME.fullmatch(name):
        raise function.bad(
            "name", f"must be 1 to 64 letters, digits, underscores and dashes, got {name!r:.80}"
        )
    return name
