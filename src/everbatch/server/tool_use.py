"""What tools change of a chat: its prompt, its sampling, its answer.

Belongs here: putting the parts together. Not here: the parts (tool_fields.py, tool_calls.py,
tool_choices.py). Used by the routes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from everbatch.base.errors import InvalidRequest
from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.server.chat_messages import Message, speaks_of_tools
from everbatch.server.choices import ChatApi
from everbatch.server.errors import bad_request
from everbatch.server.protocol import ChatRequest, Common
from everbatch.server.tool_calls import Tool, ToolStyle, finder_of, grammar_of, style_of
from everbatch.server.tool_choices import ToolChatApi
from everbatch.server.tool_fields import ToolsWanted
from everbatch.tokenizer.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A chat as it is to be run: `tools` are shown to the model."""

    common: Common
    api: ChatApi
    tools: Sequence[Tool] = ()


def tool_use(wanted: ChatRequest, template: ChatTemplate) -> ToolUse:
    """Say what a chat's tools change; raises ApiError 400 where the model knows none."""
    if wanted.tools is None:
        check_tools(wanted.messages, (), template)
        return ToolUse(wanted.common, ChatApi())
    style = _style(template, "tools")
    tools = wanted.tools.tools
    api = ToolChatApi(partial(finder_of, style, tools))
    common = wanted.common
    if wanted.tools.is_certain:
        common = _with_certain_call(common, style, wanted.tools)
    return ToolUse(common, api, tools)


def check_tools(messages: Sequence[Message], tools: Sequence[Tool], template: ChatTemplate) -> None:
    """Raise ApiError 400 where a model is shown tools, or what came of them, that knows none."""
    if tools:
        _style(template, "tools")
    if speaks_of_tools(messages):
        _style(template, "messages")


def _style(template: ChatTemplate, param: str) -> ToolStyle:
    style = style_of(template)
    if style is None and template.exists:
        raise bad_request(
            "the model's chat template knows no tools, or writes calls in a way that this server "
            "does not know (it knows those of Hermes, Qwen, Llama 3 and Mistral): leave them out, "
            "or serve a model that was trained for them",
            param,
            "unsupported_parameter",
        )
    # Without a template the model cannot chat at all; rendering says so.
    return style or ToolStyle.TAGGED


def _with_certain_call(common: Common, style: ToolStyle, wanted: ToolsWanted) -> Common:
    """Let the answer be calls and nothing else."""
    if common.sampling.structured_outputs is not None:
        raise bad_request(
            "tool_choice makes the answer a call, and another field asks for a form of its own: "
            "give one of them",
            "tool_choice",
            "invalid_value",
        )
    grammar = grammar_of(style, wanted.tools, may_repeat=wanted.may_repeat)
    try:
        form = StructuredOutputsParams(grammar=grammar)
        sampling = replace(common.sampling, structured_outputs=form)
    except InvalidRequest as error:
        raise bad_request(f"tools: {error}", "tools", "invalid_value") from None
    return replace(common, sampling=sampling)
