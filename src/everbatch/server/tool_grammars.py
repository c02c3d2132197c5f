"""Grammars of answers in which tools are called, in each of the ways that models write calls.

Belongs here: what llguidance is told. Not here: the ways themselves (tool_calls.py), finding calls
(tool_finders.py), when an answer needs a grammar (tool_use.py).

Where a call must come, its text is what the model was trained to write. Where it may come, any text
may, and once a call has begun it has to be one:

    tagged   any text, until the opening tag; so markup
    bare     text that begins with anything but {, for that begins a call
    listed   text that begins with anything but [
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everbatch.base.errors import InvalidRequest
from everbatch.engine.structured_outputs import MAX_GRAMMAR_CHARACTERS, schema_text
from everbatch.server.fields import MAX_DEPTH
from everbatch.server.tool_calls import CLOSE, OPEN, Tool, ToolStyle
from everbatch.server.tool_markup import (
    FUNCTION,
    FUNCTION_END,
    MAX_NAME_LENGTH,
    NAME,
    PARAMETER,
    PARAMETER_END,
    kinds_of,
    referred,
    values_of,
)

_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_SPACE = r"[\x20\x0A]{1,8}"
# Between two calls: what a finder passes over.
_BETWEEN = {
    ToolStyle.TAGGED: '"\\n"',
    ToolStyle.MARKUP: '"\\n"',
    ToolStyle.BARE: '"; "',
    ToolStyle.LISTED: '", "',
}
_BETWEEN_AT_WILL = {
    ToolStyle.TAGGED: "SPACE?",
    ToolStyle.MARKUP: "SPACE?",
    ToolStyle.BARE: r"/[;\x20\x0A]{1,8}/",
    ToolStyle.LISTED: '"," SPACE?',
}
_TERMINALS = f"""
SPACE: /{_SPACE}/
ANY: /(.|\\n)*/
LAST: /(.|\\n)*/ & ~/(.|\\n)*{OPEN}(.|\\n)*/
NO_OBJECT: /[^{{\\s](.|\\n)*/
NO_ARRAY: /[^\\[\\s](.|\\n)*/
head[lazy]: ANY "{OPEN}"
KEY: /{NAME}/
VALUE: (/(.|\\n)*/ & ~/(.|\\n)*<\\/parameter>(.|\\n)*/) "\\n{PARAMETER_END}"
"""
MAX_SCHEMAS = 2_048
"""Of one tool: references may double what they stand for again and again."""
# What is said of a text that has no quotes, and so none of JSON's grammar.
_OF_TEXT = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model writes calls. token_ids: special tokens that may stand before them."""

    style: ToolStyle
    token_ids: tuple[int, ...] = ()

    @property
    def token(self) -> str:
        """Give that token, which need not come, as grammars name it."""
        ids = ",".join(map(str, self.token_ids))
        return f"<[{ids}]>? " if ids else ""


def certain_calls(syntax: CallSyntax, tools: Sequence[Tool], *, may_repeat: bool) -> str:
    """Give a grammar of answers that are calls of these tools and nothing else."""
    style = syntax.style
    call = f'"{OPEN}\\n" body "\\n{CLOSE}"' if style.has_tags else "body"
    calls = f"call ({_BETWEEN[style]} call)*" if may_repeat else "call"
    start = f'{syntax.token}"[" {calls} "]"' if style is ToolStyle.LISTED else calls
    rules = _rules(style, tools)
    return f"start: {start}\ncall: {call}\n{rules}{_TERMINALS}"


def possible_calls(
    syntax: CallSyntax,
    tools: Sequence[Tool],
    *,
    may_repeat: bool,
    otherwise: dict[str, Any] | None = None,
) -> str:
    """Give a grammar of answers that may be, or have, calls of these tools; arguments of those that
    are strict fit. otherwise: a JSON schema of answers without a call; None: any text."""
    style = syntax.style
    rules = _rules(style, [one if one.is_strict else replace(one, parameters={}) for one in tools])
    if otherwise is not None:
        call = f'"{OPEN}" SPACE? body SPACE? "{CLOSE}"' if style.has_tags else "body"
        start = f"{_several(style, call, may_repeat)} | other"
        other = _json_rule("other", otherwise)
    elif style.has_tags:
        # What comes after the last call has no tag, or it would be a call.
        call = f'head SPACE? body SPACE? "{CLOSE}"'
        start, other = f"({call}){'*' if may_repeat else '?'} LAST", ""
    else:
        text = "NO_OBJECT" if style is ToolStyle.BARE else "NO_ARRAY"
        start, other = f"SPACE? ({_several(style, 'body', may_repeat)} SPACE? | {text})?", ""
    return f"start: {syntax.token}({start})\n{other}{rules}{_TERMINALS}"


def _several(style: ToolStyle, call: str, may_repeat: bool) -> str:
    calls = f"{call} ({_BETWEEN_AT_WILL[style]} {call})*" if may_repeat else call
    return f'"[" {calls} "]"' if style is ToolStyle.LISTED else calls


def _rules(style: ToolStyle, tools: Sequence[Tool]) -> str:
    """Give the rule `body`: one of these calls. Each schema is a document of its own, as its
    references are from its own root."""
    names = " | ".join(f"body_{index}" for index in range(len(tools)))
    rules = [f"body: {names}\n"]
    for index, tool in enumerate(tools):
        if style is ToolStyle.MARKUP:
            rules.append(_MarkupRules(tool, f"body_{index}").text())
            continue
        key = f'"\\"{style.arguments_key}\\"" SPACE? ":"'
        called = f'"{{" SPACE? "\\"name\\"" SPACE? ":" SPACE? "\\"{tool.name}\\""'
        rules.append(
            f'body_{index}: {called} SPACE? "," SPACE? {key} SPACE? args_{index} SPACE? "}}"\n'
        )
        rules.append(_json_rule(f"args_{index}", tool.parameters or _ANY_ARGUMENTS))
    return "".join(rules)


def _json_rule(name: str, schema: dict[str, Any]) -> str:
    bounded = {"x-guidance": {"whitespace_pattern": _SPACE}, **schema}
    return f"{name}: %json {schema_text(bounded)}\n"


class _MarkupRules:
    """The rules of a call whose arguments stand between tags, in the order of their schema; those
    that are not required may be left out."""

    def __init__(self, tool: Tool, name: str) -> None:
        self._tool = tool
        self._name = name
        self._rules: list[str] = []
        self._num_looked_at = 0
        self._num_characters = 0

    def text(self) -> str:
        parameters = self._tool.parameters
        declared, required = parameters.get("properties"), parameters.get("required")
        parts = [f'"{FUNCTION}{self._tool.name}>\\n"']
        for name, schema in declared.items() if isinstance(declared, dict) else ():
            tag = json.dumps(f"{PARAMETER}{name}>\n", ensure_ascii=False)
            is_required = isinstance(required, list) and name in required
            self._check_name(name)
            parts.append(f'({tag} {self._value(schema)} "\\n"){"" if is_required else "?"}')
        others = parameters.get("additionalProperties", not isinstance(declared, dict))
        if others is not False and others is not None:
            parts.append(f'("{PARAMETER}" KEY ">\\n" {self._value(others)} "\\n")*')
        return "".join([f'{self._name}: {" ".join(parts)} "{FUNCTION_END}"\n', *self._rules])

    def _check_name(self, name: str) -> None:
        if not re.fullmatch(NAME, name):
            raise InvalidRequest(
                f"the argument {name!r:.80} of {self._tool.name} has > or a line break in its "
                f"name, or more than {MAX_NAME_LENGTH} characters, which this model's way of "
                "calling cannot hold: give it another name"
            )

    def _value(self, schema: Any) -> str:
        """Give what may be written for an argument, with its closing tag."""
        ways = self._ways(schema, frozenset(), 1)
        return "VALUE" if ways is None else f"({' | '.join(ways)})"

    def _ways(self, schema: Any, seen: frozenset[str], depth: int) -> list[str] | None:
        """Give the ways of writing a value; None: it may be any text. seen: the references that led
        to this schema; depth: how many schemas did, with this one."""
        root = self._tool.parameters
        self._num_looked_at += 1
        if self._num_looked_at > MAX_SCHEMAS:
            raise InvalidRequest(
                f"{self._tool.name} has more than {MAX_SCHEMAS:,} alternatives for its arguments, "
                "references followed: give fewer"
            )
        if depth > MAX_DEPTH:
            raise InvalidRequest(
                f"{self._tool.name} has more than {MAX_DEPTH} alternatives in each other, "
                "references followed: flatten them"
            )
        if not isinstance(schema, dict):
            return None
        if isinstance(reference := schema.get("$ref"), str):
            if reference in seen:
                return None
            return self._ways(referred(reference, root), seen | {reference}, depth + 1)
        if (values := values_of(schema)) is not None:
            return [_literal(value) for value in values]
        listed = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(listed, list):
            ways = [self._ways(one, seen, depth + 1) for one in listed]
            return None if None in ways else [way for several in ways for way in several or ()]
        kinds = kinds_of(schema, root)
        if kinds is None or "string" in kinds:
            self._check_text(schema)
            return None
        rule = f"{self._name}_{len(self._rules)}"
        shared: dict[str, Any] = {
            name: root[name] for name in ("$defs", "definitions") if name in root
        }
        self._add(_json_rule(rule, shared | schema))
        return [f'{rule} "\\n{PARAMETER_END}"']

    def _add(self, rule: str) -> None:
        """Add a rule. Definitions come again with each that may refer to them, so the whole, which
        has its limit, too, could be thousands of times as long as the body."""
        self._rules.append(rule)
        self._num_characters += len(rule)
        if self._num_characters > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest(
                f"the grammar of {self._tool.name} has more than {MAX_GRAMMAR_CHARACTERS:,} "
                "characters, its definitions written with each argument: give fewer or shorter ones"
            )

    def _check_text(self, schema: dict[str, Any]) -> None:
        said = [name for name in _OF_TEXT if name in schema]
        if self._tool.is_strict and said:
            raise InvalidRequest(
                f"{self._tool.name} is strict and says {said[0]} of a text, to which it cannot be "
                "held in this model's way of calling: leave strict or that out"
            )


def _literal(value: Any) -> str:
    """Write one value, and the closing tag after it, as grammars write texts."""
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(f"{written}\n{PARAMETER_END}", ensure_ascii=False)
