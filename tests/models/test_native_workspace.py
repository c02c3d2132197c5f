"""Memory for intermediate results: bounded by what a step holds, no more with more traffic."""

from dataclasses import replace

import numpy as np
import pytest
from models.network_builders import TINY, Runner, random_prompt, random_tensors
from models.real_engine import make_request, run_requests
from native_kernels import PATHS, backend
from unit.kernels.sampling_builders import sampling_rows

from everbatch.engine.sampling_params import SamplingParams
from everbatch.models.llama import LlamaForCausalLM
from everbatch.scheduler.config import SchedulerConfig

BUDGET, CONTEXT = 128, 2_040
CONFIGS = {
    "two heads a group": TINY,
    "one group": replace(TINY, num_kv_heads=1),
    "heads alone": replace(TINY, num_kv_heads=4),
    "wide heads": replace(TINY, num_heads=2, num_kv_heads=2, head_dim=128),
}


def runner_of(name: str, path: str, num_threads: int) -> Runner:
    config = CONFIGS[name]
    runner = Runner(
        config,
        random_tensors(config),
        backend=backend(path, num_threads),
        block_size=16,
        num_blocks=1_300,
    )
    for number in range(9):
        runner.add(f"r{number}", random_prompt(config, CONTEXT, number))
        # As if it had been computed: what the cache holds does not change how much memory is taken.
        runner.num_computed[f"r{number}"] = CONTEXT - BUDGET
    return runner


def sample_all_of_a_chunk(runner: Runner) -> None:
    """A step of all tokens that it may have, at the end of a context, each with its logits."""
    batch = runner.pack({"r0": BUDGET})
    rows = sampling_rows(BUDGET, temperature=1.0)
    runner.network.sample(batch, runner.kv, np.arange(BUDGET, dtype=np.int32), rows)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CONFIGS)
def test_bound_is_what_the_largest_step_takes_with_one_thread(name: str, path: str) -> None:
    runner = runner_of(name, path, 1)
    sample_all_of_a_chunk(runner)
    kernels = runner.network._kernels

    assert kernels.workspace_bytes == kernels.max_workspace_bytes(BUDGET, CONTEXT)


@pytest.mark.parametrize("num_threads", [2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_no_step_takes_more_than_the_bound(name: str, num_threads: int) -> None:
    runner = runner_of(name, PATHS[0], num_threads)
    bound = runner.network.max_workspace_bytes(BUDGET, CONTEXT)
    names = [f"r{number}" for number in range(9)]
    sample_all_of_a_chunk(runner)
    # Few and many long contexts, whose segments are tasks or are not, and chunks beside them.
    for prefills, decodes in [
        ({}, names[:1]),
        ({}, names[:3]),
        ({}, names),
        ({"r0": 3, "r1": 96}, names[2:]),
        ({"r2": 40, "r3": 30, "r4": 50}, []),
    ]:
        runner.step(prefills, decodes)

    taken = runner.network._kernels.workspace_bytes
    assert taken <= bound
    # Segments aside, it is the same memory as with one thread, and some for each thread.
    assert taken > 0.5 * runner.network.max_workspace_bytes(BUDGET, 1)


def test_a_larger_step_takes_more_than_the_bound_of_a_smaller_one() -> None:
    runner = runner_of("two heads a group", PATHS[0], 1)
    bound = runner.network.max_workspace_bytes(BUDGET - 32, CONTEXT)
    sample_all_of_a_chunk(runner)

    assert runner.network._kernels.workspace_bytes > bound


def test_more_traffic_takes_no_more_memory() -> None:
    network = LlamaForCausalLM(TINY, random_tensors(TINY), backend())
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=80, block_size=4)
    sampling = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=1, logprobs=2)
    sizes = []
    for _ in range(3):
        requests = [
            make_request(f"r{number}", random_prompt(TINY, 1 + number % 90), sampling)
            for number in range(0, 90, 5)
        ]
        run_requests(network, config, requests)
        sizes.append(network._kernels.workspace_bytes)

    assert sizes[0] == sizes[1] == sizes[2] <= network.max_workspace_bytes(64, 90 + 20)
