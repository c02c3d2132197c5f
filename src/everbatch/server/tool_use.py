"""What tools change of a conversation: its prompt, its sampling, its answer.

Belongs here: putting the parts together. Not here: the parts (tool_fields.py, tool_calls.py,
tool_finders.py, tool_grammars.py). Used by the routes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from everbatch.base.errors import InvalidRequest
from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.server.chat_messages import Message, speaks_of_tools
from everbatch.server.errors import bad_request
from everbatch.server.protocol import Common
from everbatch.server.tool_calls import LISTED_TOKEN, Tool, ToolStyle, style_of
from everbatch.server.tool_fields import ToolsWanted
from everbatch.server.tool_finders import FinderMaker, finder_of
from everbatch.server.tool_grammars import CallSyntax, certain_calls, possible_calls
from everbatch.tokenizer.chat_template import ChatTemplate
from everbatch.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A conversation as it is to be run: `tools` are shown to the model, `new_finder` makes what
    watches one answer; None: nothing in it can be a call. makes_form: its form is that of calls."""

    common: Common
    tools: Sequence[Tool] = ()
    new_finder: FinderMaker | None = None
    makes_form: bool = False


def tool_use(
    common: Common,
    messages: Sequence[Message],
    wanted: ToolsWanted | None,
    tokenizer: Tokenizer,
    field: str,
) -> ToolUse:
    """Say what the tools of a request change; raises ApiError 400 where the model knows none.
    field: where the messages stand."""
    template = tokenizer.chat_template
    if wanted is None:
        check_tools(messages, (), template, field)
        return ToolUse(common)
    style = _style(template, "tools")
    new_finder = partial(finder_of, style, wanted.allowed)
    if not wanted.is_certain and wanted.are_free and common.sampling.structured_outputs is None:
        return ToolUse(common, wanted.tools, new_finder)
    syntax = CallSyntax(style, _tokens_before(style, tokenizer))
    form = _form_of_calls(common, syntax, wanted)
    return ToolUse(form, wanted.tools, new_finder, makes_form=True)


def check_tools(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    template: ChatTemplate,
    field: str = "messages",
) -> None:
    """Raise ApiError 400 where a model is shown tools, or what came of them, that knows none."""
    if tools:
        _style(template, "tools")
    if speaks_of_tools(messages):
        _style(template, field)


def _style(template: ChatTemplate, param: str) -> ToolStyle:
    style = style_of(template)
    if style is None and template.exists:
        raise bad_request(
            "the model's chat template knows no tools, or writes calls in a way that this server "
            "does not know (it knows those of Hermes, Qwen, Qwen Coder, Llama 3 and Mistral): "
            "leave them out, or serve a model that was trained for them",
            param,
            "unsupported_parameter",
        )
    # Without a template the model cannot chat at all; rendering says so.
    return style or ToolStyle.TAGGED


def _tokens_before(style: ToolStyle, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Give the special tokens with which a model begins its calls, and which are no text."""
    if style is not ToolStyle.LISTED:
        return ()
    wanted = LISTED_TOKEN.encode()
    return tuple(
        one for one in sorted(tokenizer.special_ids) if tokenizer.token_bytes(one) == wanted
    )


def _form_of_calls(common: Common, syntax: CallSyntax, wanted: ToolsWanted) -> Common:
    """Let the answer be calls and nothing else, or calls that are whole and text besides."""
    if wanted.is_certain and common.sampling.structured_outputs is not None:
        raise bad_request(
            "tool_choice makes the answer a call, and another field asks for a form of its "
            "own: give one of them",
            "tool_choice",
            "invalid_value",
        )
    try:
        form = StructuredOutputsParams(grammar=_grammar_of_calls(common, syntax, wanted))
        sampling = replace(common.sampling, structured_outputs=form)
    except InvalidRequest as error:
        raise bad_request(f"tools: {error}", "tools", "invalid_value") from None
    return replace(common, sampling=sampling)


def _grammar_of_calls(common: Common, syntax: CallSyntax, wanted: ToolsWanted) -> str:
    if wanted.is_certain:
        return certain_calls(syntax, wanted.allowed, may_repeat=wanted.may_repeat)
    return possible_calls(
        syntax,
        wanted.allowed,
        may_repeat=wanted.may_repeat,
        otherwise=_schema_beside_tools(common),
    )


def _schema_beside_tools(common: Common) -> dict[str, Any] | None:
    """Give the JSON schema that answers without a call must fit, if one was asked for."""
    form = common.sampling.structured_outputs
    if form is None:
        return None
    kind, text = form.kind_and_text
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json":
        raise bad_request(
            f"a form given as {kind} does not go with tools: give a JSON schema, or set "
            "tool_choice to none",
            "tools",
            "invalid_value",
        )
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(
            f"the JSON schema cannot be followed: {error}", "structured_outputs", "invalid_value"
        ) from None
    # True and false are schemas, too.
    return schema if isinstance(schema, dict) else {"allOf": [schema]}
