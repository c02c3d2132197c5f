"""Builders for tests of sampling: rows, logits, and how often a token is drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everbatch.kernels.sampling import SampledTokens, SamplingRows, sample

PROBABILITIES = (0.4, 0.05, 0.3, 0.1, 0.15)
Floats = NDArray[np.float32]


def sampling_rows(num_rows: int, **changes: Any) -> SamplingRows:
    """Plain random rows; a change is one value for all, or one a row."""
    values: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 1,
        "position": np.arange(num_rows),
        "wants_logprobs": False,
        "num_logprobs": 0,
    }
    extras = changes.pop("extras", {})
    types = {"top_k": np.int32, "seed": np.uint64, "position": np.int64, "wants_logprobs": np.bool_}
    types["num_logprobs"] = np.int32
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(
            np.broadcast_to(changes.get(name, default), num_rows), types.get(name, np.float32)
        )
        for name, default in values.items()
    }
    return SamplingRows(**arrays, extras=extras)


def logits_of(*probabilities: float) -> Floats:
    return np.log(np.array([probabilities], np.float32))


def one(logits: Sequence[float] | Floats, **changes: Any) -> SampledTokens:
    row = np.array([logits], np.float32)
    return sample(row, sampling_rows(1, **changes))


def frequencies(row: Floats, num_draws: int = 20_000, **changes: Any) -> NDArray[np.float64]:
    """How often each token is drawn from one row of logits, over as many positions."""
    result = sample(np.repeat(row, num_draws, axis=0), sampling_rows(num_draws, **changes))
    assert not result.failed.any()
    return np.bincount(result.token_ids, minlength=row.shape[1]) / num_draws


def assert_drawn_from(
    found: NDArray[np.float64], expected: Sequence[float], num_draws: int = 20_000
) -> None:
    """Within five standard deviations, and exactly 0 where 0 is expected. Tokens expected fewer
    than 25 times are counted as one: the normal approximation is not theirs."""
    wanted = np.array(expected)
    assert found[wanted == 0].sum() == 0
    rare = wanted * num_draws < 25
    found = np.append(found[~rare], found[rare].sum())
    wanted = np.append(wanted[~rare], wanted[rare].sum())
    deviation = np.sqrt(wanted * np.maximum(1 - wanted, 0) / num_draws)
    assert np.all(np.abs(found - wanted) <= 5 * deviation + 1e-9)


def random_logits(num_rows: int, vocab_size: int, scale: float = 3.0, seed: int = 0) -> Floats:
    draw = np.random.default_rng(seed)
    return (draw.standard_normal((num_rows, vocab_size)) * scale).astype(np.float32)
