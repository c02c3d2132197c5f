"""The offline workload that candidates share: decode rate at batch 1 and 32, and prefill rate.

Prompts of random token ids, new ones for every run so that no prefix cache can help, greedy, a
fixed number of outputs. An engine is handed in as one function, so that each candidate measures
exactly the same. Belongs here: prompts, timing, figures. Not here: any engine. Standard library
only, for it runs in the peers' environments too.
"""

import json
import random
import statistics
import time
from collections.abc import Callable

NUM_PROMPT_TOKENS = 128
NUM_OUTPUT_TOKENS = 64
BATCHES = {1: 3, 32: 1}  # batch: repeats, of which the median counts; a small batch is soon done
MAX_BATCH = max(BATCHES)
MAX_MODEL_LEN = 2048
MAX_NUM_BATCHED_TOKENS = 2048
TOKEN_ID_RANGE = (100, 49_000)  # past the special tokens, inside the vocabulary of SmolLM2
SEED = 0

# Generates exactly so many output tokens, greedily, for each prompt; gives the outputs' token ids.
Generate = Callable[[list[list[int]], int], list[list[int]]]


def measure(generate: Generate) -> dict[str, float]:
    """Run the workload; all figures are tokens per second.

    Two runs make one sample: one with a single output gives the prefill's time, one with all of
    them the whole; the difference is the decode of the other outputs.
    """
    rng = random.Random(SEED)
    for batch in BATCHES:  # warms up: engines prepare each shape when they first meet it
        _timed(generate, rng, batch, num_outputs=8)
    figures = {}
    for batch, repeats in BATCHES.items():
        prefill_s = statistics.median(_timed(generate, rng, batch, 1) for _ in range(repeats))
        whole_s = statistics.median(
            _timed(generate, rng, batch, NUM_OUTPUT_TOKENS) for _ in range(repeats)
        )
        num_decoded = batch * (NUM_OUTPUT_TOKENS - 1)
        figures[f"decode_tokens_per_s_batch_{batch}"] = num_decoded / (whole_s - prefill_s)
        figures[f"prefill_tokens_per_s_batch_{batch}"] = batch * NUM_PROMPT_TOKENS / prefill_s
    return figures


def print_figures(figures: dict[str, float], **facts: str | float) -> None:
    """Print the one line that the harness reads; facts (load time, versions) stand beside."""
    rounded = {name: round(value, 2) for name, value in figures.items()}
    print(json.dumps({**rounded, **facts}), flush=True)


def _timed(generate: Generate, rng: random.Random, batch: int, num_outputs: int) -> float:
    """Seconds for one call; RuntimeError if the engine gave another number of tokens than asked."""
    prompts = [
        [rng.randrange(*TOKEN_ID_RANGE) for _ in range(NUM_PROMPT_TOKENS)] for _ in range(batch)
    ]
    start_ns = time.perf_counter_ns()
    outputs = generate(prompts, num_outputs)
    elapsed_s = (time.perf_counter_ns() - start_ns) / 1e9
    counts = {len(output) for output in outputs}
    if len(outputs) != batch or counts != {num_outputs}:
        raise RuntimeError(f"asked for {batch} x {num_outputs} tokens, got lengths {counts}")
    return elapsed_s
