"""Calls whose arguments are texts between tags: reading each as the type that its schema says.

    <tool_call>
    <function=weather>
    <parameter=city>
    Köln
    </parameter>
    <parameter=days>
    3
    </parameter>
    </function>
    </tool_call>

Belongs here: this one way of writing (the chat templates of Qwen 3 Coder and Qwen 3.5). Not here:
finding calls in a text (tool_finders.py), grammars (tool_grammars.py).

Nothing is escaped. An argument ends at the first </parameter> after which the next one begins or
the function ends, and a call at the first closing tag after a function's end, so that either may
stand in a text that speaks of it. The line breaks around an argument are not part of it.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from everbatch.server.fields import Json
from everbatch.server.tool_calls import CLOSE, Call, Tool

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MAX_NAME_LENGTH = 256
NAME = rf"[^>\n]{{1,{MAX_NAME_LENGTH}}}"
MAX_SPACES = 32
"""Between the end of a function and the closing tag."""

_HEAD = re.compile(rf"\s*{FUNCTION}({NAME})>\s*")
_PARAMETER = re.compile(rf"{PARAMETER}({NAME})>")
_PARAMETER_END = re.compile(rf"{PARAMETER_END}\s*+(?={PARAMETER}|{FUNCTION_END}\s*\Z)")
_TAIL = re.compile(rf"{FUNCTION_END}\s*")
# Templates write a value that is neither text, list nor object as Python does.
_OF_PYTHON: dict[str, Json] = {"True": True, "False": False, "None": None}


class FunctionEndSearch:
    """Looks in a text that grows for the closing tag of a call; each tag is looked at once.

    In a text that does not begin as a call does it is the first one.
    """

    def __init__(self) -> None:
        self._searched = 0
        """Where the next tag may begin."""
        self._is_function: bool | None = None

    def partition(self, text: str) -> tuple[str, str, str]:
        """Partition at that tag; `text` begins with what was given before."""
        while (place := text.find(CLOSE, self._searched)) >= 0:
            self._searched = place + 1
            if self._is_function is None:
                self._is_function = text.lstrip().startswith(FUNCTION)
            before = text[max(0, place - MAX_SPACES - len(FUNCTION_END)) : place]
            if not self._is_function or before.rstrip().endswith(FUNCTION_END):
                return text[:place], CLOSE, text[place + len(CLOSE) :]
        self._searched = max(self._searched, len(text) - len(CLOSE) + 1)
        return text, "", ""


class FunctionReader:
    """Reads calls of some tools."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._kinds: dict[tuple[str, str], frozenset[str] | None] = {}
        """By tool and argument, once they have been asked for."""

    def read(self, text: str) -> Call | None:
        """Read what stands between a call's tags; None if that is no call of these tools."""
        head = _HEAD.match(text)
        tool = None if head is None else self._tools.get(head[1].strip())
        if head is None or tool is None:
            return None
        arguments: dict[str, Json] = {}
        place = head.end()
        while (begin := _PARAMETER.match(text, place)) is not None:
            end = _PARAMETER_END.search(text, begin.end())
            if end is None:
                return None
            written = text[begin.end() : end.start()].removeprefix("\n").removesuffix("\n")
            arguments[begin[1]] = _value(written, self._kinds_of(tool, begin[1]))
            place = end.end()
        if not _TAIL.fullmatch(text, place):
            return None
        try:
            return Call(tool.name, msgspec.json.encode(arguments).decode())
        except RecursionError:
            return None

    def _kinds_of(self, tool: Tool, name: str) -> frozenset[str] | None:
        key = (tool.name, name)
        if key not in self._kinds:
            schema = schema_of(tool.parameters, name)
            self._kinds[key] = kinds_of(schema, tool.parameters)
        return self._kinds[key]


def schema_of(parameters: dict[str, Json], name: str) -> Json:
    """Give the schema of an argument; one that is not spoken of is a text."""
    declared = parameters.get("properties")
    if isinstance(declared, dict) and name in declared:
        return declared[name]
    others = parameters.get("additionalProperties")
    return others if isinstance(others, dict) else {"type": "string"}


def kinds_of(schema: Json, root: dict[str, Json]) -> frozenset[str] | None:
    """Give the JSON types that a schema speaks of; None where it may be any. References are looked
    up in `root`."""
    kinds: set[str] = set()
    waiting, seen = [schema], set[str]()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            return None
        reference, listed = one.get("$ref"), _alternatives(one)
        if isinstance(reference, str):
            if reference not in seen:
                seen.add(reference)
                waiting.append(referred(reference, root))
        elif (named := one.get("type")) is not None:
            kinds.update(str(kind) for kind in (named if isinstance(named, list) else [named]))
        elif (values := values_of(one)) is not None:
            kinds.update(_kind(value) for value in values)
        elif listed:
            waiting.extend(listed)
        else:
            return None
    return frozenset(kinds)


def values_of(schema: dict[str, Json]) -> list[Json] | None:
    """Give the values among which a schema has its choice; None: it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def referred(reference: str, root: dict[str, Json]) -> Json:
    """Give what a reference such as "#/$defs/City" means; None if that is nothing here."""
    if not reference.startswith("#"):
        return None
    place: Json = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, dict) else None
    return place


def _alternatives(schema: dict[str, Json]) -> list[Json]:
    found: list[Json] = []
    for name in ("anyOf", "oneOf", "allOf"):
        listed = schema.get(name)
        found.extend(listed if isinstance(listed, list) else [])
    return found


def _value(text: str, kinds: frozenset[str] | None) -> Json:
    """Read an argument as one of these types. A text it is if it is none of the others: the client
    sees what came."""
    if kinds is not None and kinds == {"string"}:
        return text
    for value in _readings(text.strip()):
        kind = _kind(value)
        if kind == "string":
            continue
        if kinds is None or kind in kinds or (kind == "integer" and "number" in kinds):
            return value
        if isinstance(value, float) and value.is_integer() and "integer" in kinds:
            return int(value)
    return text


def _readings(text: str) -> Iterator[Json]:
    if text in _OF_PYTHON:
        yield _OF_PYTHON[text]
    try:
        yield msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return


def _kind(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
