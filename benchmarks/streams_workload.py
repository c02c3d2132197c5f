"""The workload of HTTP against offline: batches that come at once, and when each token came.

Prompts of random token ids, greedy, a fixed number of outputs, so that both candidates get the same
tokens. The ids are those of frequent pieces of words, after which nearly each token has a text of
its own. One that ends within a character has no event in a stream and makes a gap of two, so
streams with such tokens do not count.

Rates and gaps are those of the time in which all decode. Before and after it the batch is another
one, and while prompts are computed gaps are so long that they hide what is to be seen.

Belongs here: prompts, figures. Not here: any engine, any client.
"""

import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_PROMPT_TOKENS = 128
NUM_OUTPUT_TOKENS = 256  # of some 250 steps two are slower than the 99th percentile
NUM_WARM_PROMPT_TOKENS, NUM_WARM_OUTPUT_TOKENS = 16, 8
BATCHES = (1, 32, 64)
MAX_NUM_SEQS = max(BATCHES)
MAX_MODEL_LEN = 2048
MAX_NUM_BATCHED_TOKENS = 2048
TOKEN_ID_RANGE = (300, 2_000)  # of SmolLM2
MIN_WHOLE = 0.8
"""The share of streams in which each token had a text."""
SEED = 0

# Generates exactly so many output tokens, greedily, for each prompt.
Generate = Callable[[list[list[int]], int], None]
StepEnds = Sequence[tuple[int, int]]
"""Nanosecond at which a step had ended, and the number of tokens that it brought, in order."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """What one stream brought: its tokens, and at which nanosecond each event with text came."""

    num_tokens: int
    text_ns: Sequence[int]


def run_batches(generate: Generate, batches: Sequence[int] = BATCHES) -> None:
    """Run each batch, after a short one of its size that warms up."""
    rng = random.Random(SEED)
    for batch in batches:
        generate(_prompts(rng, batch, NUM_WARM_PROMPT_TOKENS), NUM_WARM_OUTPUT_TOKENS)
        generate(_prompts(rng, batch, NUM_PROMPT_TOKENS), NUM_OUTPUT_TOKENS)


def whole_streams(streams: Sequence[Streamed], num_outputs: int) -> list[Streamed]:
    """Give the streams in which each token had a text; RuntimeError if they are few, or a stream
    brought another number of tokens than asked for."""
    counts = {one.num_tokens for one in streams}
    if counts != {num_outputs}:
        raise RuntimeError(f"asked for {num_outputs} tokens a stream, got {counts}")
    whole = [one for one in streams if len(one.text_ns) == num_outputs]
    if len(whole) < MIN_WHOLE * len(streams):
        raise RuntimeError(f"only {len(whole)} of {len(streams)} streams had a text a token")
    return whole


def stream_figures(streams: Sequence[Streamed], batch: int) -> dict[str, float]:
    """Give tokens per second of the batch, and the gaps between two events of a stream, while all
    decode: from the last one's first event to the first one's last. `streams` may be some of it."""
    start_ns = max(one.text_ns[0] for one in streams)
    end_ns = min(one.text_ns[-1] for one in streams)
    decoded = [[at for at in one.text_ns if start_ns <= at <= end_ns] for one in streams]
    if min(map(len, decoded)) < 2:
        raise RuntimeError("the streams hardly decoded together: a longer output is needed")
    gaps_ns = [later - now for times in decoded for now, later in itertools.pairwise(times)]
    spans_ns = sum(times[-1] - times[0] for times in decoded)
    return _figures(batch * len(gaps_ns) / spans_ns * 1e9, gaps_ns)


def step_figures(step_ends: StepEnds, batch: int) -> dict[str, float]:
    """Give the same of an engine's steps: those that brought a token for all."""
    ends = [at for at, num_tokens in step_ends if num_tokens == batch]
    if len(ends) < 2:
        raise RuntimeError("the requests hardly decoded together: a longer output is needed")
    gaps_ns = [later - now for now, later in itertools.pairwise(ends)]
    return _figures(batch * len(gaps_ns) / (ends[-1] - ends[0]) * 1e9, gaps_ns)


def delays_ns(streams: Sequence[Streamed], step_ends: StepEnds) -> list[int]:
    """Give, for each event, how long ago the last step before it had ended."""
    ends = [at for at, _ in step_ends]
    return [at - ends[bisect.bisect_right(ends, at) - 1] for one in streams for at in one.text_ns]


def percentile(values: Sequence[int], percent: int) -> int:
    """Give the smallest of the values that so many percent of them do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def _figures(tokens_per_s: float, gaps_ns: Sequence[int]) -> dict[str, float]:
    return {
        "decode_tokens_per_s": tokens_per_s,
        "itl_ms_p50": percentile(gaps_ns, 50) / 1e6,
        "itl_ms_p99": percentile(gaps_ns, 99) / 1e6,
    }


def _prompts(rng: random.Random, batch: int, num_tokens: int) -> list[list[int]]:
    return [[rng.randrange(*TOKEN_ID_RANGE) for _ in range(num_tokens)] for _ in range(batch)]
