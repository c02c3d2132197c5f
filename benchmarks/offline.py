"""Candidate: everbatch's offline rates, printed as one JSON line.

    python benchmarks/offline.py MODEL [--kernels auto|native|reference]

MODEL is what `everbatch.LLM` takes: a GGUF file, a local directory, or a hub name.
"""

import argparse
import platform
import time
from importlib import metadata

from offline_workload import (
    MAX_BATCH,
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    measure,
    print_figures,
)

from everbatch import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kernels", default="auto")
    options = parser.parse_args()
    start_ns = time.perf_counter_ns()
    llm = LLM(
        options.model,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_BATCH,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_prefix_caching=False,
        kernels=options.kernels,
    )
    load_s = (time.perf_counter_ns() - start_ns) / 1e9

    def generate(prompts: list[list[int]], num_outputs: int) -> list[list[int]]:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        inputs = [{"prompt_token_ids": token_ids} for token_ids in prompts]
        return [list(output.outputs[0].token_ids) for output in llm.generate(inputs, sampling)]

    print_figures(
        measure(generate),
        load_s=round(load_s, 2),
        kernels=options.kernels,
        everbatch=metadata.version("everbatch"),
        numpy=metadata.version("numpy"),
        python=platform.python_version(),
    )


if __name__ == "__main__":
    main()
