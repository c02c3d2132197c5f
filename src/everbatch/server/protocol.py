"""The two request bodies, read strictly into values: what the client wants, no more, no less.

Belongs here: /v1/completions and /v1/chat/completions field by field. Not here: tokens, ranges of
sampling values (SamplingParams knows them), answers. Used by the routes.

Every field is one of three kinds. *Supported*: read below. *Labels*, which OpenAI defines as having
no effect on the answer (`user`, `safety_identifier`, `prompt_cache_key`, `metadata`): checked for
type, then dropped. *Not supported*: refused by name, unless the value is null or asks for what
happens anyway (`best_of: 1`, `suffix: ""`, `tools: []`, `service_tier: "auto"`, `store: false`,
`modalities: ["text"]`). Any other field is unknown and
refused by name too. null always means absent. `max_completion_tokens` and `max_tokens` are one
field with two names in chat; completions has `max_tokens` only. `top_k: -1` is vLLM's way to
write 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from everbatch.base.errors import InvalidRequest
from everbatch.engine.sampling_params import MAX_LOGPROBS, SamplingParams
from everbatch.server.chat_messages import Message, read_messages
from everbatch.server.errors import bad_request, from_invalid_request
from everbatch.server.fields import (
    Fields,
    IsNeutral,
    Json,
    decode_object,
    name_type,
    nothing,
    only,
)
from everbatch.server.structured_fields import take_form
from everbatch.server.tool_fields import ToolsWanted, take_tools

MAX_LABEL_LENGTH = 512
MAX_METADATA_ENTRIES = 16
MAX_MODEL_NAME_LENGTH = 512
MAX_CACHE_SALT_LENGTH = 256
MAX_PRIORITY = 2**31 - 1
MAX_TENANT_LENGTH = 128
MAX_WAIT_S = 86_400

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Common:
    """What both kinds of request have. sampling.max_tokens None: as many as there is room for.

    continuous_usage: usage so far in every event of the stream. tenant, priority None: not given.
    max_wait_s: how long it may wait for its first step; max_total_s: how long its answer may take,
    all in all.
    """

    model: str | None
    sampling: SamplingParams
    stream: bool
    prompt_logprobs: int | None
    include_usage: bool
    continuous_usage: bool
    priority: int | None
    cache_salt: str
    tenant: str | None
    max_wait_s: float | None
    max_total_s: float | None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """echo: texts begin with their prompts. is_prompt_only: and there is nothing more in them."""

    common: Common
    prompts: tuple[Prompt, ...]
    add_special_tokens: bool
    echo: bool
    is_prompt_only: bool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    common: Common
    messages: tuple[Message, ...]
    tools: ToolsWanted | None
    template_variables: Mapping[str, Json]


NOT_SUPPORTED_ANYWHERE: dict[str, IsNeutral] = {
    "use_beam_search": only(False),
    "logit_processors": nothing,
    "logits_processors": nothing,
    "guided_decoding_backend": nothing,
    "guided_whitespace_pattern": nothing,
    "service_tier": only("auto", "default"),
    "truncate_prompt_tokens": nothing,
    "length_penalty": only(1, 1.0),
    "bad_words": only([]),
}
NOT_SUPPORTED_IN_COMPLETIONS: dict[str, IsNeutral] = {
    "best_of": only(1),
    "suffix": only(""),
    "prompt_embeds": nothing,
}
NOT_SUPPORTED_IN_CHAT: dict[str, IsNeutral] = {
    "functions": only([]),
    "function_call": only("none"),
    "audio": nothing,
    "modalities": only(["text"]),
    "store": only(False),
    "prediction": nothing,
    "reasoning_effort": nothing,
    "verbosity": only("medium"),
    "web_search_options": nothing,
    "moderation": nothing,
    "prompt_cache_options": nothing,
    "prompt_cache_retention": only("in_memory"),
    "echo": only(False),
    "chat_template": nothing,
    "add_generation_prompt": only(True),
    "continue_final_message": only(False),
    "documents": only([]),
}
STREAM_OPTIONS_NOT_SUPPORTED: dict[str, IsNeutral] = {"include_obfuscation": only(False)}
LABELS = ("user", "safety_identifier", "prompt_cache_key")

# Those of SamplingParams that both bodies name as it does; it knows their ranges.
_SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "n", "prompt_logprobs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("stop", "stop_token_ids", "logit_bias"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)


def read_completion(body: bytes, max_prompts: int) -> CompletionRequest:
    """Read the body of POST /v1/completions; raises ApiError, naming the field."""
    fields = Fields(decode_object(body))
    fields.refuse(NOT_SUPPORTED_ANYWHERE | NOT_SUPPORTED_IN_COMPLETIONS)
    prompts = _prompts(fields, max_prompts)
    add_special_tokens = fields.boolean("add_special_tokens", True)
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    echo = fields.boolean("echo")
    max_tokens = fields.take("max_tokens")
    is_prompt_only = echo and max_tokens == 0 and type(max_tokens) is int
    # One token is computed, as the scheduler knows no less, and told to nobody.
    common = read_common(fields, logprobs, 1 if is_prompt_only else max_tokens)
    if is_prompt_only and common.sampling.min_tokens:
        raise fields.bad("min_tokens", "is above max_tokens 0: leave it out")
    if echo and logprobs is not None:
        most = max(logprobs, common.prompt_logprobs or 0)
        common = replace(common, sampling=replace(common.sampling, prompt_logprobs=most))
    fields.end()
    return CompletionRequest(common, prompts, add_special_tokens, echo, is_prompt_only)


def read_chat(body: bytes) -> ChatRequest:
    """Read the body of POST /v1/chat/completions; raises ApiError, naming the field."""
    fields = Fields(decode_object(body))
    fields.refuse(NOT_SUPPORTED_ANYWHERE | NOT_SUPPORTED_IN_CHAT)
    messages = read_messages(fields)
    tools = take_tools(fields)
    common = read_common(fields, _chat_logprobs(fields), _chat_max_tokens(fields))
    variables = fields.object_value("chat_template_kwargs")
    fields.end()
    return ChatRequest(common, messages, tools, variables or {})


def read_common(
    fields: Fields, logprobs: int | None, max_tokens: Json, form: Json = None
) -> Common:
    """Read what all bodies have in common. form: what the API's own field asks for, if it has one
    of another name than response_format."""
    for label in LABELS:
        fields.text(label, MAX_LABEL_LENGTH)
    _metadata(fields)
    model = fields.text("model", MAX_MODEL_NAME_LENGTH)
    stream = fields.boolean("stream")
    sampling = _sampling(fields, logprobs, max_tokens, form)
    prompt_logprobs = sampling.prompt_logprobs
    if stream and prompt_logprobs is not None:
        raise fields.bad("prompt_logprobs", "does not go with stream: leave one of them out")
    include_usage, continuous_usage = _usage_wanted(fields, stream=stream)
    return Common(
        model=model,
        sampling=sampling,
        stream=stream,
        prompt_logprobs=prompt_logprobs,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        priority=fields.integer("priority", -MAX_PRIORITY, MAX_PRIORITY),
        cache_salt=fields.text("cache_salt", MAX_CACHE_SALT_LENGTH) or "",
        tenant=fields.text("tenant", MAX_TENANT_LENGTH) or None,
        max_wait_s=_seconds(fields, "max_wait_s"),
        max_total_s=_seconds(fields, "max_total_s"),
    )


def _seconds(fields: Fields, field: str) -> float | None:
    value = fields.number(field)
    if value is not None and not 0 <= value <= MAX_WAIT_S:
        raise fields.bad(field, f"must lie in [0, {MAX_WAIT_S}] seconds, got {value}")
    return value


def _sampling(fields: Fields, logprobs: int | None, max_tokens: Json, form: Json) -> SamplingParams:
    """Read the sampling options; SamplingParams says what is wrong with their values."""
    wanted = {name: fields.take(name) for name in _SAMPLING_FIELDS}
    wanted["structured_outputs"] = take_form(fields, form)
    given = {name: value for name, value in wanted.items() if value is not None}
    if not isinstance(given.get("logit_bias", {}), dict):
        raise fields.wrong_type("logit_bias", "an object of token id to bias", given["logit_bias"])
    try:
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **given)
    except InvalidRequest as error:
        raise from_invalid_request(error) from None


def _prompts(fields: Fields, max_prompts: int) -> tuple[Prompt, ...]:
    value = fields.take("prompt")
    if value is None:
        raise fields.bad("prompt", "is missing: give a string, token ids, or a list of either")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise fields.wrong_type("prompt", "a string, token ids, or a list of either", value)
    if not value:
        raise fields.bad("prompt", "is an empty array: give at least one prompt")
    if all(type(one) is int for one in value):
        return (tuple(value),)
    if len(value) > max_prompts:
        raise fields.bad("prompt", f"has {len(value):,} prompts, at most {max_prompts:,} go")
    return tuple(_one_prompt(index, one) for index, one in enumerate(value))


def _one_prompt(index: int, value: Json) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(one) is int for one in value):
        return tuple(value)
    raise bad_request(
        f"prompt[{index}] must be a string or an array of token ids, not {name_type(value)}",
        "prompt",
        "invalid_value",
    )


def _usage_wanted(fields: Fields, *, stream: bool) -> tuple[bool, bool]:
    """Say whether usage comes at the end of a stream, and in each of its events."""
    options = fields.object("stream_options")
    if options is None:
        return False, False
    if not stream:
        raise fields.bad("stream_options", 'goes with "stream": true only')
    at_the_end = options.boolean("include_usage")
    always = options.boolean("continuous_usage_stats")
    options.refuse(STREAM_OPTIONS_NOT_SUPPORTED)
    options.end()
    if always and not at_the_end:
        raise options.bad("continuous_usage_stats", 'goes with "include_usage": true only')
    return at_the_end, always


def _metadata(fields: Fields) -> None:
    value = fields.take("metadata")
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise fields.bad("metadata", "must be an object of strings")
    if len(value) > MAX_METADATA_ENTRIES:
        raise fields.bad("metadata", f"has {len(value):,} keys, at most {MAX_METADATA_ENTRIES} go")


def _chat_logprobs(fields: Fields) -> int | None:
    wants = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if wants:
        return top or 0
    if top:
        raise fields.bad("top_logprobs", 'goes with "logprobs": true only')
    return None


def _chat_max_tokens(fields: Fields) -> Json:
    old, new = fields.take("max_tokens"), fields.take("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise fields.bad(
            "max_completion_tokens", f"is {new!r} and max_tokens is {old!r}: give one of them"
        )
    return old if new is None else new
