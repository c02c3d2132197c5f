"""Greedy text of the default model equals transformers' in float32, whatever the engine is doing.

The oracle's answers are files (scripts/make_golden.py makes them). Where its two top logits differ
by less than 1e-4 either token is right; the summary of each test says how many it allowed.
"""

import pytest
from models import golden
from models.real_engine import Switches, run_prompts

from everbatch.models.llama import LlamaForCausalLM

pytestmark = pytest.mark.model

# Each pair of settings of batch, chunk budget, caching and pool stands in one row at least.
ROOMY, TIGHT = 400, 44
QUICK = [
    Switches(batch=1, chunk_budget=512, prefix_caching=False, pool=ROOMY),
    Switches(batch=1, chunk_budget=64, prefix_caching=True, pool=TIGHT),
    Switches(batch=64, chunk_budget=16, prefix_caching=True, pool=ROOMY),
    Switches(batch=64, chunk_budget=64, prefix_caching=False, pool=ROOMY),
    Switches(batch=64, chunk_budget=512, prefix_caching=True, pool=TIGHT),
    Switches(batch=64, chunk_budget=16, prefix_caching=False, pool=TIGHT, trigger="stall"),
]
FULL_ROOMY, FULL_TIGHT = 2_000, 150
FULL = [
    Switches(batch=1, chunk_budget=512, prefix_caching=False, pool=FULL_ROOMY),
    Switches(batch=1, chunk_budget=16, prefix_caching=True, pool=FULL_TIGHT),
    Switches(batch=64, chunk_budget=16, prefix_caching=False, pool=FULL_ROOMY),
    Switches(batch=64, chunk_budget=64, prefix_caching=True, pool=FULL_ROOMY),
    Switches(batch=64, chunk_budget=512, prefix_caching=True, pool=FULL_TIGHT),
    Switches(batch=64, chunk_budget=64, prefix_caching=False, pool=FULL_TIGHT, trigger="stall"),
]


def check_against_oracle(network: LlamaForCausalLM, name: str, switches: Switches) -> None:
    prompts = golden.load(name)
    if switches.batch > len(prompts):
        # A batch of 64: the first ones come twice, which also meets the prefix cache.
        prompts = [*prompts, *prompts[: switches.batch - len(prompts)]]
    num_outputs = len(prompts[0].output_token_ids)

    run = run_prompts(network, [p.prompt_token_ids for p in prompts], num_outputs, switches)

    comparison = golden.compare(prompts, run.texts)
    assert comparison.allowed, comparison.summary()
    is_tight = switches.pool in (TIGHT, FULL_TIGHT)
    assert (run.num_preemptions > 0) == (is_tight and switches.batch > 1)
    assert (run.num_hit_tokens > 0) == switches.prefix_caching
    print(f"{switches}: {comparison.summary()}; {run.num_preemptions} preemptions")


@pytest.mark.parametrize("switches", QUICK, ids=str)
def test_greedy_text_is_the_oracles(default_network: LlamaForCausalLM, switches: Switches) -> None:
    check_against_oracle(default_network, "small", switches)


@pytest.mark.full
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("switches", FULL, ids=str)
def test_greedy_text_of_all_prompts_is_the_oracles(
    default_network: LlamaForCausalLM, switches: Switches
) -> None:
    check_against_oracle(default_network, "full", switches)
