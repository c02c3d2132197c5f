"""Text of the default model on the native kernels: the same bits however the engine runs.

bfloat16 is not float32, so the oracle's text is not demanded: a test says how much of it was met.
What is demanded is that no option of the engine changes a token. They are drawn: a draw moves with
any bit of a row of logits, where the largest would often stay the largest.
"""

from functools import cache

import pytest
from models import golden
from models.real_engine import RealRun, default_model_path, make_request, run_requests
from native_kernels import backend

from everbatch.engine.sampling_params import SamplingParams
from everbatch.models.llama import LlamaForCausalLM
from everbatch.models.weights import load_model
from everbatch.scheduler.config import SchedulerConfig

pytestmark = pytest.mark.model

NUM_OUTPUTS = 16
MIN_AGREEMENT = 0.5
"""Of the tokens before the first that differs; far below what is measured, far above chance."""

# 44 blocks hold the longest prompts but not all requests: some are preempted.
ROOMY, TIGHT = 400, 44
OPTIONS = {
    "one at a time": {"max_num_seqs": 1, "num_blocks": ROOMY},
    "chunks of 16": {"long_prefill_token_threshold": 16, "num_blocks": ROOMY},
    "prefix cache": {"enable_prefix_caching": True, "num_blocks": ROOMY},
    "recompute": {"num_blocks": TIGHT, "admission": "now"},
    "swap": {
        "num_blocks": TIGHT,
        "admission": "now",
        "preemption_mode": "swap",
        "num_host_blocks": ROOMY,
    },
}
QUICK = ("chunks of 16", "recompute")


@cache
def network(num_threads: int) -> LlamaForCausalLM:
    loaded = load_model(default_model_path())
    return LlamaForCausalLM(loaded.config, loaded.tensors, backend(num_threads=num_threads))


def answer(num_threads: int, *, temperature: float = 1.0, **options: object) -> RealRun:
    config = SchedulerConfig(
        **{"max_num_seqs": 32, "max_num_batched_tokens": 512, "num_blocks": ROOMY, **options}
    )
    sampling = SamplingParams(
        temperature=temperature, max_tokens=NUM_OUTPUTS, ignore_eos=True, seed=1
    )
    requests = [
        make_request(prompt.name, prompt.prompt_token_ids, sampling)
        for prompt in golden.load("small")
    ]
    return run_requests(network(num_threads), config, requests)


@cache
def plain(temperature: float) -> dict[str, list[int]]:
    return answer(2, temperature=temperature).texts


def test_greedy_text_mostly_agrees_with_the_oracle_in_float32() -> None:
    prompts = golden.load("small")
    produced = [plain(0.0)[prompt.name] for prompt in prompts]

    comparison = golden.compare(prompts, produced, num_tokens=NUM_OUTPUTS)

    print(comparison.summary())
    assert comparison.num_tokens_compared / comparison.num_tokens_expected > MIN_AGREEMENT


@pytest.mark.parametrize(
    "options",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in OPTIONS],
)
def test_no_option_changes_a_token(options: str) -> None:
    run = answer(2, **OPTIONS[options])

    assert run.texts == plain(1.0)
    assert (run.ways.total() > 0) == (options in ("recompute", "swap"))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_number_of_threads_does_not_change_a_token(num_threads: int) -> None:
    assert answer(num_threads).texts == plain(1.0)
