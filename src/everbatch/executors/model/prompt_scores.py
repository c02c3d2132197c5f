"""Log probabilities of prompts, gathered as their chunks are computed.

Belongs here: which positions of a step are scored, and where their scores go. Not here: computing
them: a position is a row of the step like any other, whose token is chosen by force, since it is
known. Used by executor.py.

    prompt [0, n): position p scores token p + 1, for p in [0, n - 1); token 0 has nothing before it

Whoever has a prompt scored shares no cached blocks (Engine.add), so every position is computed; one
that is computed again, after a preemption, has its score already.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from everbatch.engine.engine import EngineRequest
from everbatch.engine.executor import TokenLogprobs
from everbatch.executors.model.input_batch import PackedStep
from everbatch.kernels.arrays import Int32s
from everbatch.kernels.sampling import RowExtras, RowLogprobs, SampledTokens, SamplingRows
from everbatch.scheduler.plan import PrefillChunk, StepPlan

# Above every logit, and far below where float32 ends: the token with this bias is the likeliest.
_FORCE = np.float32(1e30)


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """Positions [start, start + k) of one prompt. rows: [k] int32, their tokens in the packed step;
    token_ids: [k] int32, what came after each."""

    request: EngineRequest
    start: int
    rows: Int32s
    token_ids: Int32s


def scored_parts(
    plan: StepPlan, step: PackedStep, request_of: Callable[[int], EngineRequest], token_ids: Int32s
) -> list[ScoredPart]:
    """Give what a step has to score, nothing for most. token_ids: [S, C] int32, by slot."""
    parts = []
    for index, chunk in enumerate(plan.chunks):
        request = request_of(chunk.slot)
        if request.sampling.prompt_logprobs is not None:
            first_row = int(step.batch.cu_seqlens_q[index])
            part = _part(request, chunk, first_row, token_ids[chunk.slot])
            if part is not None:
                parts.append(part)
    return parts


def with_scored_rows(step: PackedStep, parts: list[ScoredPart]) -> PackedStep:
    """Add the rows of logits that the parts need; those of the rows that sample come first in
    logits_of, as before."""
    batch = step.batch
    scored = np.concatenate([part.rows for part in parts])
    logit_rows = np.union1d(batch.logit_rows, scored).astype(np.int32)
    sampling = np.searchsorted(logit_rows, batch.logit_rows[step.logits_of])
    logits_of = np.concatenate([sampling, np.searchsorted(logit_rows, scored)]).astype(np.int32)
    return PackedStep(replace(batch, logit_rows=logit_rows), step.sampling_slots, logits_of)


def with_forced_rows(rows: SamplingRows, parts: list[ScoredPart]) -> SamplingRows:
    """Add greedy rows whose tokens are those of the prompts."""
    num_sampling = len(rows.temperature)
    forced = np.concatenate([part.token_ids for part in parts])
    num_top = np.concatenate([_num_top(part) for part in parts])
    zeros = np.zeros(len(forced))
    added = {
        "temperature": zeros,
        "top_k": zeros,
        "top_p": zeros + 1,
        "min_p": zeros,
        "seed": zeros,
        "position": zeros,
        "wants_logprobs": zeros == 0,
        "num_logprobs": num_top,
    }
    arrays = {
        item.name: np.concatenate(
            [getattr(rows, item.name), added[item.name].astype(getattr(rows, item.name).dtype)]
        )
        for item in fields(rows)
        if item.name in added
    }
    extras = dict(rows.extras)
    for row, token_id in enumerate(forced.tolist(), num_sampling):
        extras[row] = RowExtras(
            bias_ids=np.array([token_id], np.int64), bias_values=np.array([_FORCE], np.float32)
        )
    return replace(rows, extras=extras, **arrays)


def note_scores(
    sampled: SampledTokens, num_sampling: int, parts: list[ScoredPart]
) -> SampledTokens:
    """Leave the scores with their requests; gives what the rows that sample say."""
    row = num_sampling
    for part in parts:
        scores = part.request.prompt_logprobs
        assert scores is not None
        for position in range(part.start, part.start + len(part.rows)):
            scores[position] = token_logprobs(sampled.logprobs.get(row))
            row += 1
    return SampledTokens(
        sampled.token_ids[:num_sampling],
        sampled.failed[:num_sampling],
        {row: one for row, one in sampled.logprobs.items() if row < num_sampling},
    )


def token_logprobs(row: RowLogprobs | None) -> TokenLogprobs | None:
    """Give a row's log probabilities as the engine tells them."""
    if row is None:
        return None
    top = zip(row.top_ids.tolist(), row.top_logprobs.tolist(), strict=True)
    return TokenLogprobs(row.logprob, row.rank, tuple(top))


def _part(
    request: EngineRequest, chunk: PrefillChunk, first_row: int, token_ids: Int32s
) -> ScoredPart | None:
    num_scores = request.num_prompt_tokens - 1
    if request.prompt_logprobs is None:
        request.prompt_logprobs = [None] * num_scores
    end = min(chunk.start + chunk.count, num_scores)
    known = request.prompt_logprobs[chunk.start : end]
    if all(score is not None for score in known):
        return None
    rows = np.arange(first_row, first_row + len(known), dtype=np.int32)
    return ScoredPart(request, chunk.start, rows, token_ids[chunk.start + 1 : end + 1])


def _num_top(part: ScoredPart) -> Int32s:
    return np.full(len(part.rows), part.request.sampling.prompt_logprobs, np.int32)
