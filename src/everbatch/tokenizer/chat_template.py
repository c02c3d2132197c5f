"""Chat messages to the text that a model was trained to continue.

Belongs here: checking messages, rendering a model's template with them, and turning everything that
goes wrong in a template into an error for the client. Not here: what a template may do
(template_sandbox.py), the ids of the text (tokenizer.py). Used by the server and the Python API.

Content goes into the text as it is, so special tokens that a user writes out are read as such when
the text is encoded; vLLM and transformers do the same.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from everbatch.base.errors import InvalidRequest
from everbatch.tokenizer.template_meter import MAX_STEPS, Meter, OutOfSteps
from everbatch.tokenizer.template_sandbox import MeteredContext, TemplateEnvironment

MAX_SOURCE_CHARS = 200_000  # The largest published ones have some 30,000.
MAX_DATE_FORMAT_CHARS = 100

# What Python raises for a template's own mistakes: adding None to text, a missing key, a division
# by zero, a variable that a branch did not set, recursion without end.
_MISTAKES = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    NameError,
    RuntimeError,
)
# What compiling one raises: jinja2's errors, numbers with thousands of digits, and what Python has
# to say of the program that jinja2 made of it. Its parser calls a full stack a MemoryError.
_BROKEN = (TemplateError, ValueError, SyntaxError, RecursionError, MemoryError)


class TakesLong(Exception):
    """A render took more steps than whoever asked for it wants to wait for here."""


class ChatTemplate:
    """A model's chat template; without one, every render is refused with a way out.

    Compiled at the first use, since jinja2 takes 10 to 50 ms for the larger ones. Thread-safe.
    """

    def __init__(
        self, source: str | None, *, bos_token: str | None = None, eos_token: str | None = None
    ) -> None:
        self._source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._template: Template | None = None
        self._problem: str | None = None
        """Why the source cannot be compiled, once that is known: it may take a second."""
        self._lock = threading.Lock()

    @property
    def exists(self) -> bool:
        return self._source is not None

    @property
    def is_compiled(self) -> bool:
        """Whether that was tried. The largest source that is taken needs some seconds."""
        return self._template is not None or self._problem is not None

    def mentions(self, text: str) -> bool:
        """Whether its source has this text: templates tell in words how a model writes."""
        return self._source is not None and text in self._source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        now: datetime,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> str:
        """Give the prompt for `messages`; encode it without adding special tokens.

        A message has `role` and `content`: a string, or a list of parts {"type": "text", "text":
        …}, which are joined by newlines as in vLLM. `now` is what strftime_now tells. `variables`
        are handed to the template too (Qwen 3: enable_thinking), `tools` as OpenAI's API has them.
        Raises InvalidRequest for broken messages, a missing template, and whatever the template
        itself raises; TakesLong where fewer steps were given than a template may take.
        """
        template = self._compiled()
        values = {
            **(variables or {}),
            **self._tokens,
            "messages": [_plain(message, index) for index, message in enumerate(messages)],
            "tools": [dict(tool) for tool in tools] if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime(now),
        }
        try:
            return _render(template, values, max_steps)
        except OutOfSteps as error:
            if max_steps < MAX_STEPS:
                raise TakesLong from error
            raise InvalidRequest(_explain(error), "messages") from error
        except _MISTAKES as error:
            raise InvalidRequest(_explain(error), "messages") from error

    def _compiled(self) -> Template:
        if self._source is None:
            raise InvalidRequest(
                "the model has no chat template, so it does not say how to write messages; use "
                "/v1/completions with a prompt",
                "messages",
            )
        with self._lock:
            if self._template is None and self._problem is None:
                try:
                    self._template = _compile(self._source)
                except InvalidRequest as error:
                    self._problem = str(error)
                    raise
            if self._template is None:
                raise InvalidRequest(str(self._problem), "messages")
            return self._template


def _compile(source: str) -> Template:
    if len(source) > MAX_SOURCE_CHARS:
        raise InvalidRequest(
            f"the model's chat template has {len(source):,} characters, the limit is "
            f"{MAX_SOURCE_CHARS:,}; use /v1/completions",
            "messages",
        )
    try:
        return TemplateEnvironment().from_string(source)
    except _BROKEN as error:
        raise InvalidRequest(_explain_source(error), "messages") from error


def _render(template: Template, values: dict[str, Any], max_steps: int) -> str:
    """Run the template with a meter of so many steps. Source: jinja2, Template.render, without its
    rewriting of tracebacks."""
    context = template.new_context(values)
    assert isinstance(context, MeteredContext)
    meter = context.meter = Meter(max_steps)
    pieces: list[str] = []
    num_chars = 0
    for piece in template.root_render_func(context):
        num_chars += len(piece)
        meter.check_text(num_chars)
        pieces.append(piece)
    return "".join(pieces)


def _raise_exception(message: object) -> None:
    raise _RaisedByTemplate(
        str(message) if isinstance(message, str | int) else "it gives no reason"
    )


class _RaisedByTemplate(TemplateError):
    """What a template says about messages that it cannot write."""


def _strftime(now: datetime) -> Any:
    def strftime_now(date_format: str) -> str:
        if len(date_format) > MAX_DATE_FORMAT_CHARS or any(char.isdigit() for char in date_format):
            # Digits are widths to some C libraries: "%999999999d" is a gigabyte.
            raise SecurityError(f"strftime_now({date_format[:40]!r}): unusual date format")
        return now.strftime(date_format)

    return strftime_now


def _explain_source(error: Exception) -> str:
    match error:
        case TemplateError():
            return _explain(error)
        case RecursionError() | MemoryError():
            return (
                "the model's chat template is nested too deeply to be read; use /v1/completions "
                "with a prompt"
            )
        case _:
            return f"the model's chat template is broken: {error}; use /v1/completions"


def _explain(error: Exception) -> str:
    match error:
        case _RaisedByTemplate():
            return f"the model's chat template refuses these messages: {error}"
        case TemplateSyntaxError():
            return (
                f"the model's chat template is broken: line {error.lineno}: {error.message}; use "
                "/v1/completions with a prompt"
            )
        case SecurityError():
            return f"the model's chat template does what everbatch does not allow: {error}"
        case RecursionError():
            return "the model's chat template does not end: it calls itself without a limit"
        case UndefinedError():
            return f"the model's chat template needs what the messages do not have: {error}"
        case TemplateError():
            return f"the model's chat template fails: {error}"
        case _:
            return f"the model's chat template fails: {type(error).__name__}: {error}"


def joined(parts: Iterable[str]) -> str:
    """Make one content of text parts: a newline between two, as in vLLM."""
    return "\n".join(parts)


def _plain(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The message with its content as one string."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {message!r:.80}", where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role must be a non-empty string", f"{where}.role")
    return {**message, "content": _text(message.get("content"), role, f"{where}.content")}


def _text(content: object, role: str, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{where} must be a string or a list of text parts, not {content!r:.80}", where
        )
    return joined(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidRequest(
            f"{where} is of type {kind!r}; only parts of type 'text' are supported", where
        )
    text = part["text"] if isinstance(part, Mapping) and "text" in part else None
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text must be a string", f"{where}.text")
    return text
