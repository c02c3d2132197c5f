"""Candidate: everbatch's decode steps and prefill rate, printed as one JSON line.

    python benchmarks/steps.py MODEL [--batches 1 8 32 64] [--prompt 128] [--threads 2]

MODEL is what `everbatch.LLM` takes: a GGUF file, a local directory, or a hub name.
"""

import argparse
import platform
from importlib import metadata

import numpy as np
from offline_workload import print_figures
from steps_workload import MAX_NUM_BATCHED_TOKENS, arguments, measure, num_outputs

from everbatch import LLM, SamplingParams
from everbatch.engine.engine import Engine, EngineRequest


class SteppedEngine:
    """Everbatch's engine without what turns tokens into text, as the peers are measured."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_added = 0

    def add(self, prompt_token_ids: list[int], num_outputs: int) -> None:
        ids = np.array(prompt_token_ids, dtype=np.int32)
        sampling = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        self._engine.add(EngineRequest(str(self._num_added), ids, len(ids), sampling))
        self._num_added += 1

    def step(self) -> None:
        self._engine.step()

    def has_work(self) -> bool:
        return self._engine.has_work


def make_engine(options: argparse.Namespace) -> SteppedEngine:
    """Give an engine with room for the largest batch of `arguments`."""
    most = max(options.batches)
    longest = options.prompt + num_outputs(most, options.prompt) + 1
    llm = LLM(
        options.model,
        kernels="native",
        threads=options.threads,
        max_model_len=longest,
        max_num_seqs=most,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        num_blocks=most * -(-longest // 16),
        enable_prefix_caching=False,
    )
    return SteppedEngine(llm.real.engine)


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    print_figures(
        measure(make_engine(options), options.batches, options.prompt),
        everbatch=metadata.version("everbatch"),
        python=platform.python_version(),
    )


if __name__ == "__main__":
    main()
