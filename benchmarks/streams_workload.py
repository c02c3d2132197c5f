"""The workload of HTTP against offline: batches that come at once, and when each text of them came.

Prompts of random token ids, greedy, a fixed number of outputs, so that both candidates get the same
tokens. A piece of text is what counts: a token that ends in the middle of a character has none, and
no event of a stream either. Rates and gaps are those of the time in which all decode, from the last
one's first piece to the first one's last: before and after it the batch is another one, and while
prompts are computed gaps are a hundred times those that are to be compared.

Belongs here: prompts, figures. Not here: any engine, any client.
"""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_PROMPT_TOKENS = 128
NUM_OUTPUT_TOKENS = 256  # of some 250 steps two are slower than the 99th percentile
NUM_WARM_PROMPT_TOKENS, NUM_WARM_OUTPUT_TOKENS = 16, 8
BATCHES = (1, 32, 64)
MAX_NUM_SEQS = max(BATCHES)
MAX_MODEL_LEN = 2048
MAX_NUM_BATCHED_TOKENS = 2048
TOKEN_ID_RANGE = (100, 49_000)  # past the special tokens, inside the vocabulary of SmolLM2
SEED = 0


@dataclass(frozen=True, slots=True)
class Streamed:
    """What one stream brought: its tokens, and at which nanosecond each piece of text came."""

    num_tokens: int
    text_ns: Sequence[int]


# Generates exactly so many output tokens, greedily, for each prompt.
Generate = Callable[[list[list[int]], int], list[Streamed]]


def measure(generate: Generate, batches: Sequence[int] = BATCHES) -> dict[str, float]:
    """Run each batch once, after a short one of its size that warms up; give the figures."""
    rng = random.Random(SEED)
    figures = {}
    for batch in batches:
        generate(_prompts(rng, batch, NUM_WARM_PROMPT_TOKENS), NUM_WARM_OUTPUT_TOKENS)
        prompts = _prompts(rng, batch, NUM_PROMPT_TOKENS)
        streams = generate(prompts, NUM_OUTPUT_TOKENS)
        counts = {one.num_tokens for one in streams}
        if len(streams) != batch or counts != {NUM_OUTPUT_TOKENS}:
            raise RuntimeError(
                f"asked for {batch} x {NUM_OUTPUT_TOKENS} tokens, got {len(streams)} x {counts}"
            )
        for name, value in figures_of(streams).items():
            figures[f"{name}_{batch}"] = value
    return figures


def figures_of(streams: Sequence[Streamed]) -> dict[str, float]:
    """Give tokens per second and the gaps between two pieces of a stream, while all decode."""
    start_ns = max(one.text_ns[0] for one in streams)
    end_ns = min(one.text_ns[-1] for one in streams)
    decoded = [[at for at in one.text_ns if start_ns <= at <= end_ns] for one in streams]
    if min(map(len, decoded)) < 2:
        raise RuntimeError("the streams hardly decoded together: a longer output is needed")
    gaps_ns = sorted(later - now for times in decoded for now, later in itertools.pairwise(times))
    mean_span_s = statistics.fmean(times[-1] - times[0] for times in decoded) / 1e9
    tokens_a_text = sum(one.num_tokens for one in streams) / sum(
        len(one.text_ns) for one in streams
    )
    return {
        "decode_tokens_per_s": len(gaps_ns) * tokens_a_text / mean_span_s,
        "itl_ms_p50": percentile(gaps_ns, 50) / 1e6,
        "itl_ms_p99": percentile(gaps_ns, 99) / 1e6,
    }


def percentile(values: Sequence[int], percent: int) -> int:
    """Give the smallest of the sorted values that so many percent of them do not exceed."""
    return values[math.ceil(len(values) * percent / 100) - 1]


def _prompts(rng: random.Random, batch: int, num_tokens: int) -> list[list[int]]:
    return [[rng.randrange(*TOKEN_ID_RANGE) for _ in range(num_tokens)] for _ in range(batch)]
