"""The costs of preemption, measured: a block's way out and back, and a token's computation."""

from models.network_builders import TINY, random_tensors

from everbatch.assemble.measure import NUM_COPIED_BLOCKS, NUM_PASS_TOKENS, measure_costs
from everbatch.kernels.reference import ReferenceKernels
from everbatch.models.llama import LlamaForCausalLM
from everbatch.scheduler.config import PreemptionCosts


class CountingClock:
    """Each look takes as long as it says next."""

    def __init__(self, *durations_ns: int) -> None:
        self._durations_ns = list(durations_ns)
        self._now_ns = 0

    def now_ns(self) -> int:
        now_ns = self._now_ns
        if self._durations_ns:
            self._now_ns += self._durations_ns.pop(0)
        return now_ns


def tiny_network() -> LlamaForCausalLM:
    return LlamaForCausalLM(TINY, random_tensors(TINY), ReferenceKernels)


def test_costs_are_those_of_one_block_and_one_token() -> None:
    clock = CountingClock(NUM_COPIED_BLOCKS * 70, 0, NUM_PASS_TOKENS * 900)

    costs = measure_costs(tiny_network(), 16, clock)

    assert costs == PreemptionCosts(swap_ns_per_block=70, recompute_ns_per_token=900)


def test_clock_that_is_too_coarse_gives_no_cost_of_nothing() -> None:
    costs = measure_costs(tiny_network(), 3, CountingClock())

    assert costs == PreemptionCosts(swap_ns_per_block=1, recompute_ns_per_token=1)
