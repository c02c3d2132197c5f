"""Grammars of answers in which tools are called, in each of the ways that models write calls.

Belongs here: what llguidance is told. Not here: the ways themselves (tool_calls.py), finding calls
(tool_finders.py), when an answer needs a grammar (tool_use.py).

Where a call must come, its text is what the model was trained to write. Where it may come, any text
may, and once a call has begun it has to be one:

    tagged   any text, until the opening tag
    bare     text that begins with anything but {, for that begins a call
    listed   text that begins with anything but [
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everbatch.engine.structured_outputs import schema_text
from everbatch.server.tool_calls import CLOSE, OPEN, Tool, ToolStyle

_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_SPACE = r"[\x20\x0A]{1,8}"
# Between two calls: what a finder passes over.
_BETWEEN = {ToolStyle.TAGGED: '"\\n"', ToolStyle.BARE: '"; "', ToolStyle.LISTED: '", "'}
_BETWEEN_AT_WILL = {
    ToolStyle.TAGGED: "SPACE?",
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
"""


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
    call = f'"{OPEN}\\n" body "\\n{CLOSE}"' if style is ToolStyle.TAGGED else "body"
    calls = f"call ({_BETWEEN[style]} call)*" if may_repeat else "call"
    start = f'{syntax.token}"[" {calls} "]"' if style is ToolStyle.LISTED else calls
    rules = _rules(style, [(tool.name, tool.parameters) for tool in tools])
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
    rules = _rules(
        style, [(tool.name, tool.parameters if tool.is_strict else {}) for tool in tools]
    )
    if otherwise is not None:
        call = f'"{OPEN}" SPACE? body SPACE? "{CLOSE}"' if style is ToolStyle.TAGGED else "body"
        start = f"{_several(style, call, may_repeat)} | other"
        other = _json_rule("other", otherwise)
    elif style is ToolStyle.TAGGED:
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


def _rules(style: ToolStyle, tools: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Give the rule `body`: one of these calls. Each schema is a document of its own, as its
    references are from its own root."""
    names = " | ".join(f"body_{index}" for index in range(len(tools)))
    rules = [f"body: {names}\n"]
    for index, (name, parameters) in enumerate(tools):
        key = f'"\\"{style.arguments_key}\\"" SPACE? ":"'
        called = f'"{{" SPACE? "\\"name\\"" SPACE? ":" SPACE? "\\"{name}\\""'
        rules.append(
            f'body_{index}: {called} SPACE? "," SPACE? {key} SPACE? args_{index} SPACE? "}}"\n'
        )
        rules.append(_json_rule(f"args_{index}", parameters or _ANY_ARGUMENTS))
    return "".join(rules)


def _json_rule(name: str, schema: dict[str, Any]) -> str:
    bounded = {"x-guidance": {"whitespace_pattern": _SPACE}, **schema}
    return f"{name}: %json {schema_text(bounded)}\n"
