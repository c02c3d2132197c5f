"""What only the model's sizes and the engine's options can judge of a request.

Belongs here: what SamplingParams cannot know. Not here: whether a request can ever run, which the
engine says when it refuses it. Used by the server, the Python API and the command line.
"""

from collections.abc import Sequence

from everbatch.base.errors import InvalidRequest
from everbatch.engine.sampling_params import SamplingParams


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str = "prompt") -> None:
    """Raise InvalidRequest for ids that the model does not have."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(one for one in token_ids if not 0 <= one < vocab_size)
        raise _unknown_id(param, wrong, vocab_size)


def check_sampling_ids(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequest for sampling options that name ids that the model does not have."""
    for token_id, _ in sampling.logit_bias:
        if token_id >= vocab_size:
            raise _unknown_id("logit_bias", token_id, vocab_size)
    for token_id in sampling.stop_token_ids:
        if token_id >= vocab_size:
            raise _unknown_id("stop_token_ids", token_id, vocab_size)


def check_min_tokens(sampling: SamplingParams, num_left: int) -> None:
    """Raise InvalidRequest if min_tokens cannot be reached in the tokens that the prompt leaves.

    A prompt that leaves none is the engine's to refuse.
    """
    if sampling.max_tokens is None and 1 <= num_left < sampling.min_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens:,}, the prompt leaves room for {num_left:,}: "
            "lower it or shorten the prompt",
            "min_tokens",
        )


def check_priority(priority: int, policy: str, way_out: str) -> None:
    """Raise InvalidRequest for a priority that the policy would not look at."""
    if priority != 0 and policy != "priority":
        raise InvalidRequest(
            f"priority is {priority}, but the policy is {policy}, which knows none: leave it out, "
            f"or {way_out}",
            "priority",
        )


def _unknown_id(param: str, token_id: int, vocab_size: int) -> InvalidRequest:
    return InvalidRequest(
        f"{param} has the token id {token_id}, the model knows [0, {vocab_size:,})",
        param,
    )
