"""Fits what LightLLM's two passes take to a recorded run, from each request's own times.

While a request decodes, the server runs as many passes as it emits, and in between it computes the
prompts of all whose first token came meanwhile. So for each request

    last token − first token = decode step × outputs after the first
                             + prompt token × prompt tokens of the others
                             + context token × context read in its passes

in which everything but the prices is in the record: a linear system, one equation a request, solved
by least squares. No simulator is needed, and none of the time that requests waited is used.

Belongs here: arithmetic. Called by vtc_runs.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fidelity.lightllm import TwoPasses
from numpy.typing import NDArray

from everbatch.base.units import NS_PER_S

GRID_S = 0.02
"""Context is summed up on a grid of so many seconds, less than a pass."""
SAME_BATCH_S = 0.1
"""First tokens that come together are of one batch; between batches there are ten passes."""
LEAST_S = 0.5
"""Shorter decodes tell more of the network than of passes."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Decode:
    """The decoding part of a request's life. Seconds."""

    first_token_s: float
    last_token_s: float
    num_prompt_tokens: int
    num_output_tokens: int


def fit_prices(decodes: Sequence[Decode], context_token_ns: float) -> tuple[TwoPasses, float]:
    """Fit the two prices; gives them, and the root mean square of what is left, in seconds."""
    passes, others, context, times = _equations(decodes)
    wanted = times - context * context_token_ns / NS_PER_S
    columns = np.stack([others, passes], axis=1)
    prices, _, _, _ = np.linalg.lstsq(columns, wanted, rcond=None)
    left = columns @ prices - wanted
    prompt_token, decode_step = (float(price) * NS_PER_S for price in prices)
    spread = float(np.sqrt(np.mean(left**2)))
    return TwoPasses(prompt_token, decode_step, context_token_ns), spread


def _equations(decodes: Sequence[Decode]) -> tuple[Array, Array, Array, Array]:
    """Give passes, prompt tokens of others, context tokens read, and seconds: [request] each."""
    first = np.array([one.first_token_s for one in decodes])
    last = np.array([one.last_token_s for one in decodes])
    prompts = np.array([one.num_prompt_tokens for one in decodes], dtype=np.float64)
    passes = np.array([one.num_output_tokens - 1 for one in decodes], dtype=np.float64)
    order = np.argsort(first, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(prompts[order])])
    others = (
        before[np.searchsorted(first[order], last)]
        - before[np.searchsorted(first[order], first + SAME_BATCH_S)]
    )
    mean_context = _mean_context(decodes, first, last)
    used = (passes > 0) & (last - first > LEAST_S)
    return passes[used], others[used], (passes * mean_context)[used], (last - first)[used]


def _mean_context(decodes: Sequence[Decode], first: Array, last: Array) -> Array:
    """Give the mean number of tokens in the cache while each request decoded: [request]."""
    num_points = int(last.max() / GRID_S) + 2
    held = np.zeros(num_points)
    for one in decodes:
        start, stop = int(one.first_token_s / GRID_S), int(one.last_token_s / GRID_S) + 1
        length = max(one.last_token_s - one.first_token_s, GRID_S)
        age = np.arange(start, stop) * GRID_S - one.first_token_s
        held[start:stop] += one.num_prompt_tokens
        held[start:stop] += one.num_output_tokens * np.clip(age / length, 0.0, 1.0)
    points = np.arange(num_points + 1) * GRID_S
    summed = np.concatenate([[0.0], np.cumsum(held) * GRID_S])
    area = np.interp(last, points, summed) - np.interp(first, points, summed)
    means: Array = area / np.maximum(last - first, GRID_S)
    return means
