"""Greedy text of the default model equals transformers' in float32, whatever the engine is doing.

The oracle's answers are files (scripts/make_golden.py makes them). Where its two top logits differ
by less than 1e-4 either token is right; the summary of each test says how many it allowed.
"""

from dataclasses import dataclass
from itertools import product

import pytest
from models import golden
from models.real_engine import greedy, run_requests

from everbatch.models.llama import LlamaForCausalLM
from everbatch.scheduler.config import SchedulerConfig

pytestmark = pytest.mark.model


@dataclass(frozen=True, slots=True)
class Switches:
    """How the engine runs; none of it may be seen in a greedy text.

    `batch`: requests that may run at once; `pool`: KV blocks of 16 tokens; `num_outputs`: of each
    answer so many tokens are compared.
    """

    batch: int
    chunk_budget: int
    prefix_caching: bool
    pool: int
    trigger: str = "shortage"
    num_outputs: int = 48

    def __str__(self) -> str:
        caching = "cache" if self.prefix_caching else "nocache"
        return (
            f"batch{self.batch}-chunk{self.chunk_budget}-{caching}-pool{self.pool}-{self.trigger}"
        )


# Each pair of settings of batch, chunk budget, caching and pool stands in one row at least. One
# request at a time takes a pass for each token: those rows are short.
ROOMY, TIGHT = 400, 44
QUICK = [
    Switches(batch=1, chunk_budget=512, prefix_caching=False, pool=ROOMY, num_outputs=8),
    Switches(batch=1, chunk_budget=64, prefix_caching=True, pool=TIGHT, num_outputs=8),
    Switches(batch=64, chunk_budget=16, prefix_caching=True, pool=ROOMY, num_outputs=16),
    Switches(batch=64, chunk_budget=64, prefix_caching=False, pool=ROOMY, num_outputs=16),
    Switches(batch=64, chunk_budget=512, prefix_caching=True, pool=TIGHT, num_outputs=16),
    Switches(
        batch=64,
        chunk_budget=16,
        prefix_caching=False,
        pool=TIGHT,
        trigger="stall",
        num_outputs=16,
    ),
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
# All combinations: hours, so once for a release and by hand (make test-long).
PRODUCT = [
    Switches(batch, chunk_budget, caching, pool)
    for batch, chunk_budget, caching, pool in product(
        (1, 64), (16, 64, 512), (False, True), (FULL_ROOMY, FULL_TIGHT)
    )
]


def check_against_oracle(network: LlamaForCausalLM, name: str, switches: Switches) -> None:
    prompts = golden.load(name)
    if switches.batch > len(prompts):
        # A batch of 64: the first ones come twice, which also meets the prefix cache.
        prompts = [*prompts, *prompts[: switches.batch - len(prompts)]]
    config = SchedulerConfig(
        max_num_seqs=switches.batch,
        max_num_batched_tokens=max(switches.chunk_budget, switches.batch),
        num_blocks=switches.pool,
        enable_prefix_caching=switches.prefix_caching,
        long_prefill_token_threshold=switches.chunk_budget,
        preemption_trigger=switches.trigger,
        admission="now",
    )
    requests = [
        greedy(str(number), prompt.prompt_token_ids, switches.num_outputs)
        for number, prompt in enumerate(prompts)
    ]

    run = run_requests(network, config, requests)

    produced = [run.texts[request.id] for request in requests]
    comparison = golden.compare(prompts, produced, num_tokens=switches.num_outputs)
    assert comparison.allowed, comparison.summary()
    is_tight = switches.pool in (TIGHT, FULL_TIGHT)
    assert (run.ways.total() > 0) == (is_tight and switches.batch > 1)
    assert (run.num_hit_tokens > 0) == switches.prefix_caching
    print(f"{switches}: {comparison.summary()}; {run.ways.total()} preemptions")


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


@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("switches", PRODUCT, ids=str)
def test_greedy_text_is_the_oracles_under_every_combination(
    default_network: LlamaForCausalLM, switches: Switches
) -> None:
    check_against_oracle(default_network, "full", switches)
