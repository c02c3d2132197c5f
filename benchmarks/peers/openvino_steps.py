"""Candidate: openvino-genai's decode steps and prefill rate, printed as one JSON line.

    OPENVINO_VENV/bin/python benchmarks/peers/openvino_steps.py MODEL.gguf [--batches …] …

Runs in an environment that has openvino-genai and nothing of everbatch; the GGUF file holds F16
(bf16 it does not read), which it computes as bf16 where the CPU has such instructions.
"""

import platform
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from offline_workload import print_figures
from steps_workload import MAX_NUM_BATCHED_TOKENS, arguments, measure

CACHE_GB = 4


class SteppedPipeline:
    """Its continuous batching, with chunked prefill under the same budget as ours."""

    def __init__(self, model: str, num_threads: int, most: int) -> None:
        config = openvino_genai.SchedulerConfig()
        config.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        config.max_num_seqs, config.cache_size = most, CACHE_GB
        config.dynamic_split_fuse, config.enable_prefix_caching = True, False
        settings = {"INFERENCE_NUM_THREADS": num_threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, config, "CPU", settings)
        self._handles = []  # a request whose handle is dropped is cancelled

    def add(self, prompt_token_ids: list[int], num_outputs: int) -> None:
        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens, generation.ignore_eos = num_outputs, True
        generation.do_sample = False
        ids = openvino.Tensor(np.array([prompt_token_ids], dtype=np.int64))
        self._handles.append(self._pipeline.add_request(len(self._handles), ids, generation))

    def step(self) -> None:
        self._pipeline.step()

    def has_work(self) -> bool:
        return self._pipeline.has_non_finished_requests()


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    pipeline = SteppedPipeline(options.model, options.threads, max(options.batches))
    print_figures(
        measure(pipeline, options.batches, options.prompt),
        openvino_genai=metadata.version("openvino-genai"),
        python=platform.python_version(),
    )


if __name__ == "__main__":
    main()
