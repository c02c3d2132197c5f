"""How a client wants its tokens chosen: vLLM's and OpenAI's names and ranges.

Belongs here: the values and their limits. Not here: choosing (kernels), finding stop strings
(tokenizer). The core reads `max_tokens` only. Used by the Python API, the server and the model
executor.
"""

import math
from dataclasses import dataclass

from everbatch.base.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 1_000
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1_024
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request; raises InvalidRequest, naming the field, when out of range.

    temperature 0 is greedy. top_k 0 and top_p 1 are off. seed None draws from the engine's seed.
    max_tokens None means what max_model_len and the pool leave. logit_bias adds to logits, by
    token id. The penalties follow OpenAI (presence, frequency: outputs only) and the CTRL paper
    (repetition: prompt and outputs).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _number(self.temperature, "temperature", 0.0, 2.0)
        _number(self.top_p, "top_p", 0.0, 1.0, above_low=True)
        _whole(self.top_k, "top_k", 0, 2**31 - 1)
        _number(self.min_p, "min_p", 0.0, 1.0)
        _number(self.presence_penalty, "presence_penalty", -2.0, 2.0)
        _number(self.frequency_penalty, "frequency_penalty", -2.0, 2.0)
        _number(self.repetition_penalty, "repetition_penalty", 0.0, 2.0, above_low=True)
        if self.seed is not None:
            _whole(self.seed, "seed", -(2**63), MAX_SEED)
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
        _stops(self.stop)
        _stop_ids(self.stop_token_ids)
        _biases(self.logit_bias)


def _number(value: object, name: str, low: float, high: float, *, above_low: bool = False) -> None:
    """Check a finite number in [low, high], or in (low, high] with `above_low`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {value!r}", name)
    inside = math.isfinite(value) and low <= value <= high and not (above_low and value == low)
    if not inside:
        left = "(" if above_low else "["
        raise InvalidRequest(f"{name} must lie in {left}{low:g}, {high:g}], got {value!r}", name)


def _whole(value: object, name: str, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {value!r}", name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must lie in [{low}, {high}], got {value}", name)


def _stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"stop has {len(stops)} strings, at most {MAX_STOP_STRINGS} are allowed", "stop"
        )
    for text in stops:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"stop must hold non-empty strings, not {text!r}", "stop")
        if len(text) > MAX_STOP_STRING_LENGTH:
            raise InvalidRequest(
                f"a stop string has {len(text)} characters, at most {MAX_STOP_STRING_LENGTH} "
                "are allowed",
                "stop",
            )


def _stop_ids(token_ids: tuple[int, ...]) -> None:
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids has {len(token_ids)} entries, at most {MAX_STOP_TOKEN_IDS} "
            "are allowed",
            "stop_token_ids",
        )
    for token_id in token_ids:
        _whole(token_id, "stop_token_ids", 0, 2**31 - 1)


def _biases(biases: tuple[tuple[int, float], ...]) -> None:
    if len(biases) > MAX_LOGIT_BIAS:
        raise InvalidRequest(
            f"logit_bias has {len(biases)} entries, at most {MAX_LOGIT_BIAS} are allowed",
            "logit_bias",
        )
    for token_id, bias in biases:
        _whole(token_id, "logit_bias", 0, 2**31 - 1)
        _number(bias, "logit_bias", -100.0, 100.0)
