"""The workload of candidates that can be stepped: prefill rate, and decode steps timed one by one.

Random prompts, greedy, as many outputs as it takes for all requests to decode together for a
while. An engine is handed in as an object with three methods, so that each candidate measures
exactly the same. Belongs here: prompts, timing, figures. Not here: any engine. Standard library
only, for it runs in the peers' environments too.
"""

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from typing import Protocol

from positive_numbers import positive

MAX_NUM_BATCHED_TOKENS = 512
NUM_DECODES = 64
TOKEN_ID_RANGE = (100, 49_000)  # past the special tokens, inside the vocabularies of all models
SEED = 0


class Stepped(Protocol):
    """An engine that runs a step when it is told to."""

    def add(self, prompt_token_ids: list[int], num_outputs: int) -> None:
        """Queue a request that gets exactly so many tokens, greedily."""
        ...

    def step(self) -> None:
        """Run one step to its end."""
        ...

    def has_work(self) -> bool:
        """Say whether any request still runs."""
        ...


def arguments(description: str, first: str | None = None) -> argparse.ArgumentParser:
    """Give the parser of a candidate: its model, and the sizes that are measured.

    `first` names what comes before the model.
    """
    parser = argparse.ArgumentParser(description=description)
    if first is not None:
        parser.add_argument(first)
    parser.add_argument("model")
    parser.add_argument("--batches", type=positive, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--prompt", type=positive, default=128, help="tokens of each prompt")
    parser.add_argument("--threads", type=positive, default=2)
    return parser


def measure(engine: Stepped, batches: Sequence[int], num_prompt_tokens: int) -> dict[str, float]:
    """Run the workload at each batch size; all figures are tokens per second."""
    rng = random.Random(SEED)
    for batch in batches:  # warms up: engines prepare each shape when they first meet it
        _run(engine, rng, batch, 16, 8)
    figures = {}
    for batch in batches:
        outputs = num_outputs(batch, num_prompt_tokens)
        times = _run(engine, rng, batch, num_prompt_tokens, outputs)
        # The last request to get its first token sets the number of steps.
        first_decode = len(times) - outputs
        if first_decode < 1 or first_decode + NUM_DECODES // 2 >= outputs:
            raise RuntimeError(f"{len(times) - 1} steps for {outputs} outputs: not one a step")
        steps = [later - now for now, later in itertools.pairwise(times)]
        # Prefill is over and none has ended yet.
        decode_s = statistics.median(steps[first_decode : outputs - 1])
        figures[f"decode_tokens_per_s_batch_{batch}"] = batch / decode_s
        prefill_s = times[first_decode] - times[0]
        figures[f"prefill_tokens_per_s_batch_{batch}"] = batch * num_prompt_tokens / prefill_s
    return figures


def num_outputs(batch: int, num_prompt_tokens: int) -> int:
    """Give the outputs a request gets: the first ones have some before the last one's prompt."""
    return NUM_DECODES + -(-batch * num_prompt_tokens // MAX_NUM_BATCHED_TOKENS)


def _run(
    engine: Stepped, rng: random.Random, batch: int, num_prompt_tokens: int, outputs: int
) -> list[float]:
    """Seconds at the start and after each step, of a batch that comes all at once."""
    for _ in range(batch):
        prompt = [rng.randrange(*TOKEN_ID_RANGE) for _ in range(num_prompt_tokens)]
        engine.add(prompt, outputs)
    times = [time.perf_counter()]
    while engine.has_work():
        engine.step()
        times.append(time.perf_counter())
    return times
