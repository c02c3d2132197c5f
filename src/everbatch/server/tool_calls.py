"""Calls of tools in the text of an answer: how models write them, found as the text comes.

Belongs here: the ways of writing that we know, and a grammar that makes a call certain. Not
here: JSON for clients (tool_choices.py), reading bodies (tool_fields.py). A model's way is told by
its chat template.

    tagged   <tool_call> {"name": …, "arguments": {…}} </tool_call>, any number, text around them
             (Hermes; Qwen 2.5 and 3)
    bare     the whole answer is {"name": …, "parameters": {…}}, several with ";" or lines between
             (Llama 3.1 and 3.2)
    listed   the whole answer is [{"name": …, "arguments": {…}}, …], after a special token, which is
             no text (Mistral 7B v0.3, Nemo)

What looks like a call and is none, broken JSON or a tool that was not offered, is text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import msgspec

from everbatch.server.fields import Json
from everbatch.tokenizer.chat_template import ChatTemplate

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NO_JSON = ("<function=", "<arg_key>")
_ANY_ARGUMENTS: dict[str, Json] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers. parameters: a JSON schema; shown: all of it, as given."""

    name: str
    parameters: dict[str, Json]
    shown: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Call:
    """arguments: a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a piece of text brought: text for the client, and calls."""

    text: str
    calls: tuple[Call, ...] = ()


class ToolStyle(Enum):
    TAGGED = "tagged"
    BARE = "bare"
    LISTED = "listed"

    @property
    def arguments_key(self) -> str:
        return "parameters" if self is ToolStyle.BARE else "arguments"


class CallFinder(Protocol):
    """Watches one answer."""

    def push(self, text: str) -> Found: ...

    def finish(self) -> Found:
        """Give what was held back."""
        ...


def style_of(template: ChatTemplate) -> ToolStyle | None:
    """Say how a model writes calls; None if its template knows no tools, or another way."""
    if not template.mentions("tools"):
        return None
    if template.mentions(OPEN):
        # Others write XML between the same tags (Qwen 3 Coder, GLM 4.5).
        is_json = template.mentions("arguments") and not any(map(template.mentions, _NO_JSON))
        return ToolStyle.TAGGED if is_json else None
    if template.mentions("[TOOL_CALLS]"):
        # Later ones write a name, [ARGS] and an object.
        return None if template.mentions("[ARGS]") else ToolStyle.LISTED
    return ToolStyle.BARE if template.mentions('"parameters": dictionary') else None


def finder_of(style: ToolStyle, tools: Sequence[Tool]) -> CallFinder:
    names = frozenset(tool.name for tool in tools)
    return TaggedFinder(names) if style is ToolStyle.TAGGED else WholeFinder(style, names)


def grammar_of(style: ToolStyle, tools: Sequence[Tool], *, may_repeat: bool) -> str:
    """Give a grammar of answers that are calls of these tools and nothing else."""
    bodies = [_call_schema(style, tool) for tool in tools]
    schema = {"anyOf": bodies, "x-guidance": {"whitespace_pattern": r"[\x20\x0A]{1,8}"}}
    between = {ToolStyle.TAGGED: '"\\n"', ToolStyle.BARE: '"; "', ToolStyle.LISTED: '", "'}[style]
    call = f'"{OPEN}\\n" body "\\n{CLOSE}"' if style is ToolStyle.TAGGED else "body"
    calls = f"call ({between} call)*" if may_repeat else "call"
    start = f'"[" {calls} "]"' if style is ToolStyle.LISTED else calls
    return f"start: {start}\ncall: {call}\nbody: %json {json.dumps(schema)}\n"


class TaggedFinder:
    """Finds calls between tags. Spaces before a tag are not text: models put calls on lines."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = ""
        self._is_inside = False

    def push(self, text: str) -> Found:
        self._held += text
        told: list[str] = []
        calls: list[Call] = []
        while self._step(told, calls):
            pass
        return Found("".join(told), tuple(calls))

    def finish(self) -> Found:
        held, self._held = self._held, ""
        if self._is_inside:
            return Found(OPEN + held)
        return Found(held)

    def _step(self, told: list[str], calls: list[Call]) -> bool:
        """Go on to the next tag; gives whether there was one."""
        before, tag, after = self._held.partition(CLOSE if self._is_inside else OPEN)
        if not tag:
            if not self._is_inside:
                cut = _end_of_text(before)
                told.append(before[:cut])
                self._held = before[cut:]
            return False
        self._held = after
        if self._is_inside:
            call = _call(before, "arguments", self._names)
            if call is None:
                told.append(f"{OPEN}{before}{CLOSE}")
            else:
                calls.append(call)
        else:
            told.append(before.rstrip())
        self._is_inside = not self._is_inside
        return True


class WholeFinder:
    """Takes an answer that begins as one with calls does for such, and looks when it has ended."""

    def __init__(self, style: ToolStyle, names: frozenset[str]) -> None:
        self._style = style
        self._opening = "[" if style is ToolStyle.LISTED else "{"
        self._names = names
        self._held: list[str] = []
        self._may_be_calls: bool | None = None
        """None while only spaces have come."""

    def push(self, text: str) -> Found:
        if self._may_be_calls is None and text.strip():
            self._may_be_calls = text.lstrip().startswith(self._opening)
        if self._may_be_calls is False:
            return Found(self._take() + text)
        self._held.append(text)
        return Found("")

    def finish(self) -> Found:
        held = self._take()
        calls = self._calls(held)
        return Found(held) if calls is None else Found("", calls)

    def _take(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def _calls(self, text: str) -> tuple[Call, ...] | None:
        """Give the calls that the text consists of; None if it is anything else."""
        decoder, calls, place = json.JSONDecoder(), [], 0
        text = text.strip()
        if self._style is ToolStyle.LISTED:
            if not text.endswith("]"):
                return None
            text = text[1:-1].strip()
        while place < len(text):
            try:
                _, end = decoder.raw_decode(text, place)
            except (ValueError, RecursionError):
                return None
            call = _call(text[place:end], self._style.arguments_key, self._names)
            if call is None:
                return None
            calls.append(call)
            rest = text[end:]
            separators = ", \n" if self._style is ToolStyle.LISTED else "; \n"
            place = len(text) - len(rest.lstrip(separators))
        return tuple(calls) or None


def _end_of_text(text: str) -> int:
    """Give where what may be spaces before a tag, or the beginning of one, begins."""
    end = len(text)
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-length:]):
            end -= length
            break
    return len(text[:end].rstrip())


def _call(text: str, arguments_key: str, names: frozenset[str]) -> Call | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get(arguments_key, {})
    if not isinstance(arguments, dict):
        return None
    return Call(value["name"], msgspec.json.encode(arguments).decode())


def _call_schema(style: ToolStyle, tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            style.arguments_key: tool.parameters or _ANY_ARGUMENTS,
        },
        "required": ["name", style.arguments_key],
        "additionalProperties": False,
    }
