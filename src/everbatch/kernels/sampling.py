"""From rows of logits to token ids: the specification of sampling.

Belongs here: what is done to one row of logits, in which order, and the draw. Not here: requests
and their parameters' ranges (the executor fills SamplingRows), random numbers (random_numbers.py).
Called by the backends after a forward pass; csrc/sampling.cpp gives the same tokens and the same
bits of logprobs.

Order, as in vLLM (v1/sample/sampler.py): logit_bias, forbidden ids, penalties (repetition, then
frequency and presence); greedy rows take the largest; the others temperature, min_p, top_k, top_p
and one uniform number of (seed, position), inverted through the cumulative weights in order of id.
Ties go to the lowest id everywhere. Logprobs are of the raw logits, before all of this.

A row's result is bitwise the same whatever other rows are there, and on every machine: a weight is
e ** ((logit - largest) / temperature) out of float32 additions and products (exponential.py), cut
to a whole number of units of 2 ** -40, and whole numbers have the same sum in every order. A token
of less than that, 9e-13 of the likeliest one's weight, is never drawn.

    R rows, V vocabulary
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from everbatch.kernels.arrays import Flags, Floats, Int64s
from everbatch.kernels.exponential import exponential
from everbatch.kernels.random_numbers import uniform

# Below this a division by the temperature could only overflow (vLLM: _SAMPLING_EPS).
GREEDY_BELOW = 1e-5

# Weights are whole numbers of this: the largest is 2 ** 40, so 2 ** 22 of them fit an int64.
_UNIT = 2.0**-40
_UNITS_OF_ONE = np.float32(2.0**40)
# Rows worked on together: bounds the scratch memory to some 20 bytes * V * 16.
_ROWS_AT_ONCE = 16

# How far below the largest scaled logit the first two searches for candidates reach. e ** -8 of
# the largest weight covers nearly every top_p of a trained model's row with a few hundred tokens.
_REACHES = (8.0, 16.0)

_NO_IDS = np.empty(0, np.int64)


@dataclass(slots=True)
class RowExtras:
    """What few requests ask for. Ids beyond the vocabulary name no logit and change nothing.

    token_history: int, prompt and outputs so far; prompt_length: how many of them are the prompt
    bias_ids, bias_values: int and float32, equally long
    forbidden_ids: int, ids that may not be chosen now (the eos and stop ids before min_tokens)
    """

    token_history: Int64s = field(default_factory=lambda: _NO_IDS)
    prompt_length: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_ids: Int64s = field(default_factory=lambda: _NO_IDS)
    bias_values: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    forbidden_ids: Int64s = field(default_factory=lambda: _NO_IDS)


@dataclass(slots=True)
class SamplingRows:
    """How each row of logits is to be sampled: arrays of [R], and extras by row index.

    temperature: float32, below GREEDY_BELOW is greedy; top_k: int32, 0 is off
    top_p: float32, 1 is off; min_p: float32, 0 is off
    seed: uint64; position: int64, the index in the request's token stream of the token to choose
    wants_logprobs: bool; num_logprobs: int32, how many top logprobs besides the chosen token's
    """

    temperature: Floats
    top_k: NDArray[np.int32]
    top_p: Floats
    min_p: Floats
    seed: NDArray[np.uint64]
    position: NDArray[np.int64]
    wants_logprobs: Flags
    num_logprobs: NDArray[np.int32]
    extras: dict[int, RowExtras] = field(default_factory=dict)


@dataclass(slots=True)
class RowLogprobs:
    """logprob of the chosen token and its rank (1: nothing is likelier); top_ids int64 and
    top_logprobs float32 of the likeliest tokens, likeliest first."""

    logprob: float
    rank: int
    top_ids: Int64s
    top_logprobs: Floats


@dataclass(slots=True)
class SampledTokens:
    """token_ids: [R] int32; failed: [R] bool, rows with a logit that is no finite number or with
    every token forbidden, whose token id is meaningless; logprobs: by row index, where wanted."""

    token_ids: NDArray[np.int32]
    failed: Flags
    logprobs: dict[int, RowLogprobs]


def sample(logits: Floats, rows: SamplingRows) -> SampledTokens:
    """Choose one token a row. logits: [R, V] float32, C-contiguous, left as it is."""
    token_ids = logits.argmax(axis=-1)
    failed = ~_are_finite(logits, token_ids)
    adjusted: dict[int, Floats] = {}
    for row, extras in rows.extras.items():
        adjusted[row] = _adjust(logits[row], extras)
        token_ids[row] = adjusted[row].argmax()
        failed[row] |= not np.isfinite(adjusted[row][token_ids[row]])
    random_rows = np.flatnonzero((rows.temperature >= GREEDY_BELOW) & ~failed)
    for start in range(0, random_rows.size, _ROWS_AT_ONCE):
        group = random_rows[start : start + _ROWS_AT_ONCE]
        values = logits[group]
        for index, row in enumerate(group.tolist()):
            if row in adjusted:
                values[index] = adjusted[row]
        token_ids[group] = _draw(values, rows, group)
    logprobs = {
        row: _logprobs(logits[row], int(token_ids[row]), int(rows.num_logprobs[row]))
        for row in np.flatnonzero(rows.wants_logprobs & ~failed).tolist()
    }
    return SampledTokens(token_ids.astype(np.int32), failed, logprobs)


def _are_finite(logits: Floats, largest_ids: Int64s) -> Flags:
    """Which rows [R] hold finite numbers only: argmax and min both run into a NaN."""
    with np.errstate(invalid="ignore"):
        smallest = logits.min(axis=-1)
    largest = np.take_along_axis(logits, largest_ids[:, None], axis=-1)[:, 0]
    finite: Flags = np.isfinite(smallest) & np.isfinite(largest)
    return finite


def _adjust(raw: Floats, extras: RowExtras) -> Floats:
    """One row [V] after logit_bias, forbidden ids and penalties; a copy."""
    values = raw.copy()
    known = extras.bias_ids < values.size
    np.add.at(values, extras.bias_ids[known], extras.bias_values[known])
    values[extras.forbidden_ids[extras.forbidden_ids < values.size]] = -np.inf
    if extras.repetition_penalty != 1.0:
        seen = np.unique(extras.token_history)
        penalty = np.float32(extras.repetition_penalty)
        # Less likely on both sides of 0 (CTRL, arXiv 1909.05858, section 4.1, and transformers).
        with np.errstate(over="ignore"):  # An infinity fails the row.
            values[seen] = np.where(
                values[seen] > 0, values[seen] / penalty, values[seen] * penalty
            )
    if extras.presence_penalty != 0.0 or extras.frequency_penalty != 0.0:
        outputs = extras.token_history[extras.prompt_length :]
        ids, counts = np.unique(outputs, return_counts=True)
        values[ids] -= np.float32(extras.frequency_penalty) * counts.astype(np.float32)
        values[ids] -= np.float32(extras.presence_penalty)
    return values


def _draw(values: Floats, rows: SamplingRows, group: Int64s) -> Int64s:
    """Draw one token for each of `group`, row indices into `rows`. values: [len(group), V]."""
    temperature = rows.temperature[group, None]
    with np.errstate(over="ignore"):  # -inf: too far below the largest to matter.
        scaled = (values - values.max(axis=-1, keepdims=True)) / temperature
    weights = exponential(scaled)
    weights[weights < rows.min_p[group, None]] = 0.0
    units = _in_units(weights)
    for index, row in enumerate(group.tolist()):
        top_k, top_p = int(rows.top_k[row]), float(rows.top_p[row])
        if 0 < top_k < values.shape[1] or top_p < 1.0:
            _truncate(values[index], scaled[index], units[index], top_k, top_p)
    cumulative = np.cumsum(units, axis=-1)
    totals = cumulative[:, -1]
    numbers = uniform(rows.seed[group], rows.position[group].astype(np.uint64))
    # Below the total even when rounded, and what is chosen has a weight: cumulative stops growing
    # at the last that has.
    targets = np.minimum((numbers * totals.astype(np.float64)).astype(np.int64), totals - 1)
    chosen: Int64s = np.count_nonzero(cumulative <= targets[:, None], axis=-1)
    return chosen


def _in_units(weights: Floats) -> Int64s:
    """Weights as whole numbers of _UNIT, what is left over cut off."""
    return (weights * _UNITS_OF_ONE).astype(np.int64)


def _truncate(values: Floats, scaled: Floats, units: Int64s, top_k: int, top_p: float) -> None:
    """Set the weights [V] of all tokens to 0 that top_k and then top_p leave out, in place.
    top_k 0 is off. top_p keeps the likeliest until their mass reaches it, one at least."""
    top_k = top_k if 0 < top_k < values.size else 0
    goal = top_p * float(units.sum())
    for ids in _candidates(scaled):
        if top_k and ids.size >= top_k:
            break
        if not top_k and float(units[ids].sum()) >= goal:
            break
    if top_k:
        least = np.partition(values[ids], ids.size - top_k)[ids.size - top_k]
        ids = ids[values[ids] >= least]
    # Stable over ascending ids, so that ties go to the lowest one.
    ids = ids[np.argsort(-values[ids], kind="stable")]
    if top_k:
        ids = ids[:top_k]
        goal = top_p * float(units[ids].sum())
    kept = units[ids]
    mass_before = np.cumsum(kept) - kept
    if top_p < 1.0:
        kept[mass_before.astype(np.float64) >= goal] = 0
    units[:] = 0
    units[ids] = kept


def _candidates(scaled: Floats) -> Iterator[Int64s]:
    """Ever larger sets of ids, ascending, each holding every token likelier than its least likely
    one; the last is the vocabulary. So a set with enough of what is sought has all of it, and the
    vocabulary is hardly ever sorted."""
    for reach in _REACHES:
        yield np.flatnonzero(scaled >= -reach)
    yield np.arange(scaled.size)


def _logprobs(raw: Floats, token_id: int, num_top: int) -> RowLogprobs:
    """Logprobs of the raw logits [V] in float32."""
    with np.errstate(over="ignore"):  # -inf: too far below the largest to matter.
        below_largest = raw - raw.max()
    log_total = np.float32(math.log(int(_in_units(exponential(below_largest)).sum()) * _UNIT))
    top_ids = _NO_IDS
    num_top = min(num_top, raw.size)
    if num_top > 0:
        least = np.partition(raw, raw.size - num_top)[raw.size - num_top]
        ids = np.flatnonzero(raw >= least)
        top_ids = ids[np.argsort(-raw[ids], kind="stable")][:num_top]
    return RowLogprobs(
        logprob=float(below_largest[token_id] - log_total),
        rank=1 + int(np.count_nonzero(raw > raw[token_id])),
        top_ids=top_ids,
        top_logprobs=below_largest[top_ids] - log_total,
    )
