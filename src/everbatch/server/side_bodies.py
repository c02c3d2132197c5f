"""The bodies of /tokenize, /detokenize and /abort, read strictly.

Belongs here: vLLM's fields of the first two, ours of the third. Not here: answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from everbatch.server.chat_messages import Message, read_messages
from everbatch.server.fields import Fields, IsNeutral, Json, decode_object, nothing, only
from everbatch.server.protocol import MAX_MODEL_NAME_LENGTH
from everbatch.server.tool_calls import Tool
from everbatch.server.tool_fields import take_tool_list

MAX_ID_LENGTH = 256
MAX_IDS = 1_024
MAX_TEXT_LENGTH = 1 << 30  # The body's limit is the one that binds.


NOT_SUPPORTED: dict[str, IsNeutral] = {
    "continue_final_message": only(False),
    "chat_template": nothing,
    "mm_processor_kwargs": nothing,
}
NOT_WITH_MESSAGES: dict[str, IsNeutral] = {"add_special_tokens": only(False)}


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A text, or messages (None: a text). add_special_tokens counts for a text only."""

    model: str | None
    prompt: str
    messages: tuple[Message, ...] | None
    tools: tuple[Tool, ...]
    template_variables: Mapping[str, Json]
    add_special_tokens: bool
    add_generation_prompt: bool
    return_token_strs: bool


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    model: str | None
    tokens: tuple[int, ...]


def read_tokenize(body: bytes) -> TokenizeRequest:
    """Read the body of POST /tokenize; raises ApiError, naming the field."""
    fields = Fields(decode_object(body))
    fields.refuse(NOT_SUPPORTED)
    model = fields.text("model", MAX_MODEL_NAME_LENGTH)
    return_token_strs = fields.boolean("return_token_strs")
    prompt = fields.text("prompt", MAX_TEXT_LENGTH)
    if prompt is not None:
        adds = fields.boolean("add_special_tokens", True)
        fields.end()
        return TokenizeRequest(model, prompt, None, (), {}, adds, False, return_token_strs)
    messages = _messages(fields)
    # The template writes the special tokens itself.
    fields.refuse(NOT_WITH_MESSAGES)
    adds_prompt = fields.boolean("add_generation_prompt", True)
    tools = take_tool_list(fields)
    variables = fields.object_value("chat_template_kwargs")
    fields.end()
    return TokenizeRequest(
        model, "", messages, tools, variables or {}, False, adds_prompt, return_token_strs
    )


def read_detokenize(body: bytes) -> DetokenizeRequest:
    """Read the body of POST /detokenize; raises ApiError, naming the field."""
    fields = Fields(decode_object(body))
    model = fields.text("model", MAX_MODEL_NAME_LENGTH)
    tokens = fields.take("tokens")
    if not isinstance(tokens, list) or not all(type(one) is int for one in tokens):
        raise fields.wrong_type("tokens", "an array of token ids", tokens)
    fields.end()
    return DetokenizeRequest(model, tuple(tokens))


def read_abort(body: bytes) -> tuple[str, ...]:
    """Read the body of POST /abort: the ids to end; raises ApiError, naming the field."""
    fields = Fields(decode_object(body))
    one = fields.text("request_id", MAX_ID_LENGTH)
    several = fields.take("request_ids")
    fields.end()
    if (one is None) == (several is None):
        raise fields.bad("request_id", "or request_ids must be given: one id, or a list of ids")
    if one is not None:
        return (one,)
    if not isinstance(several, list) or not all(isinstance(item, str) for item in several):
        raise fields.wrong_type("request_ids", "an array of ids", several)
    if len(several) > MAX_IDS:
        raise fields.bad("request_ids", f"has {len(several):,} ids, at most {MAX_IDS:,} go")
    return tuple(several)


def _messages(fields: Fields) -> tuple[Message, ...]:
    if not fields.has("messages"):
        raise fields.bad("prompt", "is missing: give a text, or messages")
    return read_messages(fields)
