"""The ways in which prompts, and what goes with each, may be given to `LLM.generate`.

Belongs here: telling them apart, errors that name what was given. Not here: token ids of texts, and
what the model can run (llm.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from everbatch.base.errors import InvalidRequest
from everbatch.engine.sampling_params import SamplingParams

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, object]
"""Text, token ids, or vLLM's {"prompt": text} and {"prompt_token_ids": ids}."""

Message: TypeAlias = Mapping[str, object]
"""One turn of a conversation: {"role": …, "content": …}."""


def listed(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """Tell one prompt from a list of prompts."""
    if isinstance(prompts, bytes | bytearray):
        raise InvalidRequest("prompts must be text or token ids, not bytes", "prompts")
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidRequest(
            f"prompts must be a prompt or a list of prompts, not {type(prompts).__name__}",
            "prompts",
        )
    given = list(prompts)
    if given and isinstance(given[0], int | np.integer):
        return [given]  # type: ignore[list-item]
    return given  # type: ignore[return-value]


def one_each(name: str, given: Sequence[Any] | None, default: Any, num_prompts: int) -> list[Any]:
    """Give one value for each prompt: those given, or the default."""
    if given is None:
        return [default] * num_prompts
    if not is_list(given) or len(given) != num_prompts:
        raise InvalidRequest(
            f"{name} must be a list of one for each of {num_prompts} prompts", name
        )
    return list(given)


def paired(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Give one SamplingParams for each prompt."""
    if isinstance(sampling_params, SamplingParams) or sampling_params is None:
        return [sampling_params or SamplingParams()] * num_prompts
    params = list(sampling_params)
    if len(params) != num_prompts:
        raise InvalidRequest(
            f"{num_prompts} prompts came with {len(params)} sampling_params: give one for all "
            "or one each",
            "sampling_params",
        )
    for one in params:
        if not isinstance(one, SamplingParams):
            raise InvalidRequest(
                f"sampling_params must hold SamplingParams, not {one!r}", "sampling_params"
            )
    return params


def token_ids_of(given: object) -> list[int]:
    """Give token ids as plain integers."""
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(
            f"token ids must be a list of integers, not {type(given).__name__}", "prompts"
        )
    token_ids = []
    for token_id in given:
        if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
            raise InvalidRequest(f"token ids must be integers, not {token_id!r}", "prompts")
        token_ids.append(int(token_id))
    return token_ids


def is_list(value: object) -> bool:
    """Whether it is a list of things, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
