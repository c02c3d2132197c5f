"""Profile: where the time of a decode step goes, from planning to text, at several batch sizes.

    python benchmarks/profile_step.py [MODEL] [--batches 1 8 32 64] [--context 128] [--sampled]

Runs `LLM.generate` on random prompts of --context tokens and times its parts within each step in
which all requests decode; a part's time is without that of parts inside it. Every operation of a
layer is then a call of its own, which costs a step that is not profiled nothing (some 0.1 ms).
Prints the median milliseconds of each part over the steps, and its share. `--sampled` draws at
temperature 1 with top_p 0.95; otherwise all are greedy. `--cpu-time` counts the CPU time of one
thread in place of the clock: a ratio for a machine on which others compute. Not here: comparisons
(bench_*.py).
"""

import argparse
import functools
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from positive_numbers import positive

from everbatch import LLM, SamplingParams
from everbatch.engine.engine import Engine
from everbatch.executors.model.executor import ModelExecutor
from everbatch.executors.model.input_batch import InputBatch
from everbatch.executors.model.sampling_state import SamplingState
from everbatch.kernels.native import NativeKernels, NativeStep
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler
from everbatch.tokenizer.text_stream import TextStream

TOKEN_ID_RANGE = (100, 49_000)  # past the special tokens, inside the vocabulary of SmolLM2
OPERATIONS = ("embed", "norm_qkv_rope_write", "paged_attention", "project_add", "norm_mlp_add")
PARTS: tuple[tuple[type, str, str], ...] = (
    (Scheduler, "schedule", "plan"),
    (Scheduler, "apply", "commit of the plan"),
    (ModelExecutor, "_apply_changes", "batch arrays"),
    (InputBatch, "pack", "batch arrays"),
    (InputBatch, "commit", "batch arrays"),
    (SamplingState, "rows", "sampling options"),
    (ModelExecutor, "_outcome", "outcome"),
    (NativeKernels, "begin_step", "copy of the batch"),
    (NativeStep, "norm_sample", "logits and sampling"),
    (TextStream, "push", "text"),
    *((NativeStep, name, name) for name in OPERATIONS),
)
WHOLE, REST = "whole step", "the rest"

Times = dict[str, int]  # nanoseconds by part


class Profile:
    """Times of the parts of steps, each without that of the parts inside it."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.steps: list[Times] = []
        self._now: Times = defaultdict(int)
        self._inside: list[int] = []
        self._plan: StepPlan | None = None
        self._start_ns = self._clock()

    def install(self) -> None:
        """Wrap the methods that are parts; for the rest of the process."""
        for owner, name, part in PARTS:
            setattr(owner, name, self._timed(getattr(owner, name), part))
        Engine.step = self._stepping(Engine.step)  # type: ignore[method-assign]

    def _timed(self, method: Any, part: str) -> Any:
        @functools.wraps(method)
        def timed(*args: Any, **options: Any) -> Any:
            self._inside.append(0)
            start_ns = self._clock()
            result = method(*args, **options)
            if part in OPERATIONS:
                args[0].finish()
            elapsed_ns = self._clock() - start_ns
            self._now[part] += elapsed_ns - self._inside.pop()
            if self._inside:
                self._inside[-1] += elapsed_ns
            if isinstance(result, StepPlan):
                self._plan = result
            return result

        return timed

    def _stepping(self, method: Any) -> Any:
        """A step lasts from one call of Engine.step to the next, so text and bookkeeping count."""

        @functools.wraps(method)
        def step(*args: Any, **options: Any) -> Any:
            now_ns = self._clock()
            if self._plan is not None and not self._plan.chunks:
                self._now[REST] = now_ns - self._start_ns - sum(self._now.values())
                self._now[WHOLE] = now_ns - self._start_ns
                self.steps.append(self._now)
            self._now, self._start_ns, self._plan = defaultdict(int), now_ns, None
            return method(*args, **options)

        return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--batches", type=positive, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--context", type=positive, default=128, help="tokens of each prompt")
    parser.add_argument("--steps", type=positive, default=60)
    one_of = parser.add_mutually_exclusive_group()
    one_of.add_argument("--threads", type=positive, help="default: what the kernels choose")
    one_of.add_argument("--cpu-time", action="store_true", help="of one thread, not the clock's")
    parser.add_argument("--sampled", action="store_true")
    options = parser.parse_args()
    llm = LLM(
        options.model,
        kernels="native",
        threads=1 if options.cpu_time else options.threads,
        max_num_seqs=max(options.batches),
        max_num_batched_tokens=2048,
        max_model_len=options.context + options.steps + 1,
        enable_prefix_caching=False,
    )
    profile = Profile(time.thread_time_ns if options.cpu_time else time.perf_counter_ns)
    profile.install()
    columns = {batch: medians(llm, profile, batch, options) for batch in options.batches}
    print_table(columns)


def medians(
    llm: LLM, profile: Profile, batch: int, options: argparse.Namespace
) -> dict[str, float]:
    """Milliseconds by part, of the steps in which the whole batch decodes."""
    rng = random.Random(0)
    prompts = [
        {"prompt_token_ids": [rng.randrange(*TOKEN_ID_RANGE) for _ in range(options.context)]}
        for _ in range(batch)
    ]
    drawn = {"temperature": 1.0, "top_p": 0.95} if options.sampled else {"temperature": 0.0}
    sampling = SamplingParams(max_tokens=options.steps, ignore_eos=True, seed=1, **drawn)
    profile.steps.clear()
    llm.generate(prompts, sampling)
    # The first and the last ones let requests come and go.
    steps = profile.steps[2:-2]
    parts = dict.fromkeys(part for step in steps for part in step)
    return {part: statistics.median(step[part] for step in steps) / 1e6 for part in parts}


def print_table(columns: dict[int, dict[str, float]]) -> None:
    print(f"{'ms, and share of the step':<26}" + "".join(f"{f'batch {b}':>18}" for b in columns))
    parts = dict.fromkeys(part for column in columns.values() for part in column)
    for part in sorted(parts, key=lambda name: (name == WHOLE, name == REST)):
        cells = (
            f"{column.get(part, 0.0):10.3f}{column.get(part, 0.0) / column[WHOLE]:7.1%} "
            for column in columns.values()
        )
        print(f"{part:<26}" + "".join(cells))


if __name__ == "__main__":
    main()
