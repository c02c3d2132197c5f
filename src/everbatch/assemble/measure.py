"""What preemption_mode auto compares, measured on this machine with this model.

Belongs here: timing block copies and a short forward pass. Not here: the comparison
(scheduler.preemption). Called by real.py, and only for auto.

Short passes cost more a token than long ones, so recomputing is priced a little too high; moving
blocks in memory costs so much less that it does not matter.
"""

import numpy as np

from everbatch.base.clock import Clock
from everbatch.base.units import div_ceil
from everbatch.executors.model.executor import Network
from everbatch.kernels.batch import PackedBatch
from everbatch.scheduler.config import PreemptionCosts

NUM_COPIED_BLOCKS = 8
NUM_PASS_TOKENS = 16
"""A pass of the default model takes 0.1 s with them on one core."""


def measure_costs(network: Network, block_size: int, clock: Clock) -> PreemptionCosts:
    """Time moving a block out and in, and computing a token of a prompt."""
    return PreemptionCosts(
        swap_ns_per_block=_swap_ns(network, block_size, clock),
        recompute_ns_per_token=_recompute_ns(network, block_size, clock),
    )


def _swap_ns(network: Network, block_size: int, clock: Clock) -> int:
    blocks = list(range(NUM_COPIED_BLOCKS))
    device = network.allocate_kv(NUM_COPIED_BLOCKS, block_size)
    host = network.allocate_kv(NUM_COPIED_BLOCKS, block_size)

    def move() -> None:
        host.copy_from(device, blocks, blocks)
        device.copy_from(host, blocks, blocks)

    # The first time the operating system gives the memory, which happens once in a server's life.
    move()
    start_ns = clock.now_ns()
    move()
    return max(1, (clock.now_ns() - start_ns) // NUM_COPIED_BLOCKS)


def _recompute_ns(network: Network, block_size: int, clock: Clock) -> int:
    num_blocks = div_ceil(NUM_PASS_TOKENS, block_size)
    kv = network.allocate_kv(num_blocks, block_size)
    positions = np.arange(NUM_PASS_TOKENS, dtype=np.int32)
    batch = PackedBatch(
        input_ids=np.zeros(NUM_PASS_TOKENS, np.int32),
        positions=positions,
        cu_seqlens_q=np.array([0, NUM_PASS_TOKENS], np.int32),
        context_lens=np.array([NUM_PASS_TOKENS], np.int32),
        block_tables=np.arange(num_blocks, dtype=np.int32)[None],
        slot_mapping=positions,
        # A rebuild samples nothing.
        logit_rows=np.zeros(0, np.int32),
        num_prefills=1,
    )
    start_ns = clock.now_ns()
    network.forward(batch, kv)
    return max(1, (clock.now_ns() - start_ns) // NUM_PASS_TOKENS)
