"""Candidate: what http_streams.py asks for, by `LLM.generate`, printed as one JSON line.

python benchmarks/engine_streams.py MODEL [--kernels auto|native|reference]
"""

import argparse
import platform
from importlib import metadata

from offline_workload import print_figures
from streams_workload import (
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    run_batches,
    step_figures,
)
from timed_steps import time_steps

from everbatch import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kernels", default="auto")
    options = parser.parse_args()
    step_ends = time_steps()
    llm = LLM(
        options.model,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_prefix_caching=False,
        kernels=options.kernels,
    )
    figures: dict[str, float] = {}

    def generate(prompts: list[list[int]], num_outputs: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        step_ends.clear()
        llm.generate([{"prompt_token_ids": one} for one in prompts], sampling)
        batch = len(prompts)
        # Of a size the last run counts, the one before warms up.
        for name, value in step_figures(step_ends, batch).items():
            figures[f"{name}_{batch}"] = value

    run_batches(generate)
    print_figures(
        figures,
        kernels=options.kernels,
        everbatch=metadata.version("everbatch"),
        python=platform.python_version(),
    )


if __name__ == "__main__":
    main()
