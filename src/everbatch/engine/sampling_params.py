"""How a client wants its tokens chosen: vLLM's and OpenAI's names and ranges.

Belongs here: the values and their limits. Not here: choosing (kernels), finding stop strings
(tokenizer). The core reads `max_tokens` only. Used by the Python API, the server and the model
executor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from everbatch.base.errors import InvalidRequest
from everbatch.engine.structured_outputs import StructuredOutputsParams, structured_outputs_of

DEFAULT_MAX_TOKENS = 16
"""vLLM's. Of the Python API: in a request of the HTTP API absent means None."""
MAX_N = 128
MIN_REPETITION_PENALTY = 0.01
"""Logits are divided by it: by much less they would be infinite."""
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 1_000
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1_024
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
_MAX_SHOWN_CHARACTERS = 80
_MAX_SHOWN_BITS = 128


@dataclass(slots=True)
class SamplingParams:
    """Sampling options of one request; raises InvalidRequest, naming the field, when out of range.

    temperature 0 is greedy. top_k 0 (or -1, as in vLLM) and top_p 1 are off. seed None draws from
    the engine's seed. max_tokens None means what max_model_len and the pool leave. logit_bias adds
    to logits, by token id. The penalties follow OpenAI (presence, frequency: outputs only) and the
    CTRL paper (repetition: prompt and outputs). n samples share the prompt's computation; sample 0
    draws what n = 1 draws, the others have seeds derived from the same one.

    Given in the ways that vLLM and OpenAI know, kept in one: `stop` may be one string, lists are
    kept as tuples, a logit_bias mapping as pairs, None as nothing. structured_outputs may be a
    mapping of the names of StructuredOutputsParams.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        if self.top_k == -1 and not isinstance(self.top_k, bool):
            self.top_k = 0
        self.stop = _stops(self.stop)
        self.stop_token_ids = _stop_ids(self.stop_token_ids)
        self.logit_bias = _biases(self.logit_bias)
        self.structured_outputs = structured_outputs_of(self.structured_outputs)
        _number(self.temperature, "temperature", 0.0, 2.0)
        _number(self.top_p, "top_p", 0.0, 1.0, above_low=True)
        _whole(self.top_k, "top_k", 0, 2**31 - 1, " or be -1, which is off as 0 is")
        _number(self.min_p, "min_p", 0.0, 1.0)
        _number(self.presence_penalty, "presence_penalty", -2.0, 2.0)
        _number(self.frequency_penalty, "frequency_penalty", -2.0, 2.0)
        _number(self.repetition_penalty, "repetition_penalty", MIN_REPETITION_PENALTY, 2.0)
        if self.seed is not None:
            _whole(self.seed, "seed", MIN_SEED, MAX_SEED)
        if self.max_tokens is not None:
            _whole(self.max_tokens, "max_tokens", 1, 2**31 - 1)
        _whole(self.min_tokens, "min_tokens", 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}: "
                "lower the one or raise the other",
                "min_tokens",
            )
        if self.logprobs is not None:
            _whole(self.logprobs, "logprobs", 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _whole(self.prompt_logprobs, "prompt_logprobs", 0, MAX_LOGPROBS)
        _whole(self.n, "n", 1, MAX_N)
        _flag(self.ignore_eos, "ignore_eos")
        _flag(self.include_stop_str_in_output, "include_stop_str_in_output")
        _flag(self.skip_special_tokens, "skip_special_tokens")
        if self.structured_outputs is not None:
            _check_ends(self)


def _check_ends(params: SamplingParams) -> None:
    """Refuse what would have an answer go on beyond the end of its form."""
    for name, value in (("ignore_eos", params.ignore_eos), ("min_tokens", params.min_tokens)):
        if value:
            raise InvalidRequest(
                f"{name} does not go with structured_outputs or response_format: the form says "
                "where the answer may end; leave one of them out",
                name,
            )


def _number(value: object, name: str, low: float, high: float, *, above_low: bool = False) -> None:
    """Check a number in [low, high], or in (low, high] with `above_low`; NaN is in neither."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {_shown(value)}", name)
    if not low <= value <= high or (above_low and value == low):
        left = "(" if above_low else "["
        raise InvalidRequest(
            f"{name} must lie in {left}{low:g}, {high:g}], got {_shown(value)}", name
        )


def _whole(value: object, name: str, low: int, high: int, or_else: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {_shown(value)}", name)
    if not low <= value <= high:
        raise InvalidRequest(
            f"{name} must lie in [{low}, {high}]{or_else}, got {_shown(value)}", name
        )


def _flag(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {_shown(value)}", name)


def _stops(given: object) -> tuple[str, ...]:
    stops = _listed((given,) if isinstance(given, str) else given, "stop", "strings")
    _check_count(len(stops), "stop", "strings", MAX_STOP_STRINGS)
    checked = []
    for text in stops:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"stop must hold non-empty strings, not {_shown(text)}", "stop")
        if len(text) > MAX_STOP_STRING_LENGTH:
            raise InvalidRequest(
                f"a stop string has {len(text)} characters, at most {MAX_STOP_STRING_LENGTH} "
                "are allowed",
                "stop",
            )
        checked.append(text)
    return tuple(checked)


def _stop_ids(given: object) -> tuple[int, ...]:
    token_ids = _listed(given, "stop_token_ids", "token ids")
    _check_count(len(token_ids), "stop_token_ids", "entries", MAX_STOP_TOKEN_IDS)
    for token_id in token_ids:
        _whole(token_id, "stop_token_ids", 0, 2**31 - 1)
    return token_ids  # type: ignore[return-value]


def _biases(given: object) -> tuple[tuple[int, float], ...]:
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    listed = _listed(pairs, "logit_bias", "pairs, or a mapping, of token id and bias")
    _check_count(len(listed), "logit_bias", "entries", MAX_LOGIT_BIAS)
    checked: dict[int, float] = {}
    for pair in listed:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidRequest(
                f"logit_bias must hold pairs of token id and bias, not {_shown(pair)}", "logit_bias"
            )
        token_id, bias = _token_id_of(pair[0]), pair[1]
        _whole(token_id, "logit_bias", 0, 2**31 - 1)
        _number(bias, "logit_bias", -100.0, 100.0)
        if token_id in checked:
            raise InvalidRequest(f"logit_bias has the token id {token_id} twice", "logit_bias")
        checked[token_id] = bias
    return tuple(checked.items())


def _token_id_of(key: object) -> int:
    """Read a key; JSON can write token ids as strings only, and each in one way."""
    if not isinstance(key, str):
        return key  # type: ignore[return-value]
    is_plain = key.isascii() and key.isdigit() and len(key) <= len(str(2**31))
    if not is_plain or str(int(key)) != key:
        raise InvalidRequest(
            f"logit_bias has the key {_shown(key)}, which is no token id", "logit_bias"
        )
    return int(key)


def _listed(given: object, name: str, of_what: str) -> tuple[object, ...]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise InvalidRequest(f"{name} must be a list of {of_what}, not {_shown(given)}", name)
    return tuple(given)


def _check_count(count: int, name: str, of_what: str, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"{name} has {count} {of_what}, at most {limit} are allowed", name)


def _shown(value: object) -> str:
    """Give a value as it can stand in a message, whatever its size."""
    if isinstance(value, int) and value.bit_length() > _MAX_SHOWN_BITS:
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, str):
        shown = repr(value[:_MAX_SHOWN_CHARACTERS])
        return shown if len(value) <= _MAX_SHOWN_CHARACTERS else f"{shown}…"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"a {type(value).__name__}"
