"""Calls of tools, and the ways in which models write them.

Belongs here: the ways of writing that we know. Not here: finding calls (tool_finders.py), grammars
(tool_grammars.py), JSON for clients (tool_choices.py, response_items.py), reading bodies
(tool_fields.py). A model's way is told by its chat template.

    tagged   <tool_call> {"name": …, "arguments": {…}} </tool_call>, any number, text around them
             (Hermes; Qwen 2.5 and 3)
    markup   <tool_call> <function=…> <parameter=…> … </parameter> </function> </tool_call>, in the
             same way (Qwen 3 Coder, Qwen 3.5; tool_markup.py)
    bare     the whole answer is {"name": …, "parameters": {…}}, several with ";" or lines between
             (Llama 3.1 and 3.2)
    listed   the whole answer is [{"name": …, "arguments": {…}}, …], after a special token, which is
             no text (Mistral 7B v0.3, Nemo)

What looks like a call and is none, broken JSON or a tool that was not offered, is text.
"""

import uuid
from dataclasses import dataclass
from enum import Enum

from everbatch.server.fields import Json
from everbatch.tokenizer.chat_template import ChatTemplate

OPEN, CLOSE = "<tool_call>", "</tool_call>"
LISTED_TOKEN = "[TOOL_CALLS]"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers.

    parameters: a JSON schema; shown: all of it, as chat has it; is_strict: arguments must fit.
    """

    name: str
    parameters: dict[str, Json]
    shown: dict[str, Json]
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """arguments: a JSON object as text."""

    name: str
    arguments: str


class ToolStyle(Enum):
    TAGGED = "tagged"
    MARKUP = "markup"
    BARE = "bare"
    LISTED = "listed"

    @property
    def has_tags(self) -> bool:
        """Whether a call stands between tags, and text around it."""
        return self in (ToolStyle.TAGGED, ToolStyle.MARKUP)

    @property
    def arguments_key(self) -> str:
        return "parameters" if self is ToolStyle.BARE else "arguments"


def new_call_id() -> str:
    """Give a call an id. Mistral's template takes nothing but nine letters and digits."""
    return uuid.uuid4().hex[:9]


def style_of(template: ChatTemplate) -> ToolStyle | None:
    """Say how a model writes calls; None if its template knows no tools, or another way."""
    if not template.mentions("tools"):
        return None
    if template.mentions(OPEN):
        if template.mentions("<function="):
            return ToolStyle.MARKUP if template.mentions("<parameter=") else None
        # GLM 4.5 writes keys and values between tags of their own.
        is_json = template.mentions("arguments") and not template.mentions("<arg_key>")
        return ToolStyle.TAGGED if is_json else None
    if template.mentions(LISTED_TOKEN):
        # Later ones write a name, [ARGS] and an object.
        return None if template.mentions("[ARGS]") else ToolStyle.LISTED
    return ToolStyle.BARE if template.mentions('"parameters": dictionary') else None
