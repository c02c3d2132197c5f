"""Who yields its blocks when they run out, and how.

Pure choice among holders. Called by the block ledger and by the scheduler.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.policy import Rank
from everbatch.scheduler.request import Request

ComputedTokens = Callable[[Request], int]


@dataclass(slots=True, frozen=True)
class CostsOfWays:
    """What preempting one request takes, in either way, until it is where it was."""

    swap_ns: int
    recompute_ns: int

    @property
    def is_swap_cheaper(self) -> bool:
        return self.swap_ns < self.recompute_ns


def is_protected(request: Request, config: SchedulerConfig) -> bool:
    """Whether a request was preempted as often as allowed: it never yields again."""
    return 0 < config.max_preemptions <= request.num_preemptions


def choose_victim(
    holders: Sequence[Request],
    config: SchedulerConfig,
    rank: Callable[[Request], Rank],
    computed_tokens: ComputedTokens,
) -> Request | None:
    """Choose among those who hold blocks; None if nobody may be made to yield.

    Never the most senior one: it keeps what it has, and a request that was accepted fits the pool
    alone, so somebody always comes to an end (docs/invariants.md, progress). Never a protected one.
    Ties of every rule: the latest arrival.
    """
    if len(holders) < 2:
        return None
    senior = min(holders, key=rank)
    candidates = [r for r in holders if r is not senior and not is_protected(r, config)]
    if not candidates:
        return None
    match config.preemption_victim:
        case "priority":
            return max(candidates, key=lambda r: (rank(r)[0], r.arrival_number, r.sample))
        case "least_lost":
            return min(candidates, key=lambda r: (computed_tokens(r), -r.arrival_number, -r.sample))
        case "largest":
            return max(candidates, key=lambda r: (len(r.block_table), r.arrival_number, r.sample))
        case "newest":
            return max(candidates, key=lambda r: (r.arrival_number, r.sample))


def compare_ways(num_tokens: int, config: SchedulerConfig) -> CostsOfWays:
    """Reckon what moving computed tokens out and back in takes, and what computing them again.

    Source: PagedAttention, section 7.3 (the better of the two depends on the block size, the link
    and the device).
    """
    costs = config.preemption_costs
    assert costs is not None
    return CostsOfWays(
        swap_ns=blocks_for(num_tokens, config.block_size) * costs.swap_ns_per_block,
        recompute_ns=num_tokens * costs.recompute_ns_per_token,
    )
