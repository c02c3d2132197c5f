"""Blocks for those who hold a slot: takes them from the pool, from others if need be.

Works on a draft, inside the pools' transactions; changes no request. Called by the planners.
"""

from dataclasses import replace

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import Draft, Lack, Yield, YieldKind
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.policy import Policy
from everbatch.scheduler.preemption import CostsOfWays, choose_victim, compare_ways
from everbatch.scheduler.request import Request
from everbatch.scheduler.rights import blocks_of_life, held_blocks
from everbatch.scheduler.state import SchedulerState


class BlockLedger:
    """What a plan takes from the pool and from whom."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState, policy: Policy) -> None:
        self._config = config
        self._state = state
        self._policy = policy

    def held(self, draft: Draft, request: Request) -> int:
        """Count the blocks of a request with what this plan gives it."""
        return held_blocks(draft, request)

    def life(self, request: Request) -> int:
        """Count the blocks of a request's whole life; of all samples while they are one."""
        return blocks_of_life(request, self._config.block_size)

    def still_needed(self, draft: Draft, request: Request) -> int:
        """Give the blocks that a prefill will take for its history after this plan."""
        history = blocks_for(request.num_context_tokens, self._config.block_size)
        return max(0, history - self.held(draft, request))

    def entitled(self, draft: Draft, but: Request | None = None) -> int:
        """Count the blocks that holders have a right to take later: nobody else may have them."""
        rights = self._state.rights
        return 0 if rights is None else rights.entitled(draft, but)

    def shortage(self, draft: Draft) -> int:
        """Give the blocks that should be allocatable for the first who lacks some, at least 1."""
        for request, deferral in draft.deferred.items():
            if deferral.reason is DeferReason.KV_BUDGET:
                return max(1, deferral.needed + self.entitled(Draft(), request))
        return 1

    def take(self, draft: Draft, request: Request, count: int) -> list[int] | None:
        """Take blocks for somebody who holds a slot, preempting others if that is the trigger.

        None if there are not enough, or if the request itself had to yield. Every turn of the loop
        takes one holder's blocks away, so it ends.
        """
        while True:
            blocks = self.take_spare(draft, request, count)
            if blocks is not None or self._config.preemption_trigger == "stall":
                return blocks
            victim = choose_victim(
                self.holders(draft),
                self._config,
                self._policy.rank,
                self._state.decodes.computed_tokens,
            )
            if victim is None:
                # Only those who kept their heads are left to give way.
                victim = self.newest_tail_holder(draft)
            if victim is None:
                return None
            shortage = count + self.entitled(draft, request)
            self.retract(draft, victim, shortage, requester=request, num_needed=count)
            if victim is request:
                return None

    def take_spare(self, draft: Draft, request: Request, count: int) -> list[int] | None:
        """Take blocks if there are enough without preempting."""
        pool = self._state.pool
        has_protected = self._state.protected or (draft.admitted and self._config.max_preemptions)
        is_limited = bool(has_protected) and count > 0
        if is_limited and count > pool.num_allocatable - self.entitled(draft, request):
            return None
        return pool.allocate(count)

    def running(self, draft: Draft) -> list[Request]:
        """Give those who run under the plan; samples that wait for their leader count with it."""
        slots, victims = self._state.slots, draft.victims
        staying = [r for r in slots if r is not None and not r.is_follower and r not in victims]
        return [*staying, *draft.admitted]

    def holders(self, draft: Draft | None = None) -> list[Request]:
        """Give those who hold a slot and blocks and were not made to yield, in order of slots."""
        victims = draft.victims if draft is not None else {}
        return [
            request
            for request in self._state.slots
            if request is not None and request.block_table and request not in victims
        ]

    def newest_tail_holder(self, draft: Draft | None = None) -> Request | None:
        """Give the latest arrival of those that wait and kept blocks of their heads."""
        victims = draft.victims if draft is not None else {}
        admitted = draft.admitted if draft is not None else {}
        holders = [r for r in self._state.tail_holders if r not in victims and r not in admitted]
        return max(holders, key=lambda r: (r.arrival_number, r.sample), default=None)

    def retract(
        self,
        draft: Draft,
        victim: Request,
        shortage: int,
        requester: Request | None = None,
        num_needed: int = 0,
    ) -> None:
        """Take back everything this plan gave a holder, and the blocks that its way to yield costs.

        `shortage` is what is to become allocatable, for those who give up only their tails;
        `requester` needs `num_needed` of it.
        """
        state = self._state
        chunk = draft.chunks.pop(victim, None)
        if chunk is not None:
            draft.num_chunk_tokens -= chunk.count
        is_member = victim in state.decodes and victim not in draft.left
        if is_member or victim in draft.joined:
            draft.num_decodes -= 1
        draft.joined.pop(victim, None)
        draft.left.pop(victim, None)
        draft.deferred.pop(victim, None)
        way = self._yield_blocks(draft, victim, shortage)
        draft.victims[victim] = replace(way, requester=requester, num_needed=num_needed)
        if victim.chain is not None:
            state.pool.forget_entries(victim.chain, len(draft.victims[victim].kept_blocks))

    def defer(self, draft: Draft, request: Request, needed: int) -> None:
        available = max(0, self._state.pool.num_allocatable - self.entitled(draft, request))
        draft.deferred[request] = Deferral(DeferReason.KV_BUDGET, needed, available)
        if self._state.protected or self._config.admission == "reserve":
            # Rights of others make what is lacking another number than needed - available.
            draft.lacks[request] = Lack(blocks=self.missing(draft, request, needed))

    def missing(self, draft: Draft, request: Request, needed: int) -> int:
        """Count the blocks that are lacking for a holder to get so many without preempting."""
        spare = self._state.pool.num_allocatable
        if self._state.protected:
            spare -= self.entitled(draft, request)
        return max(0, needed - spare)

    def _yield_blocks(self, draft: Draft, victim: Request, shortage: int) -> Yield:
        pool = self._state.pool
        given = draft.new_blocks.pop(victim, [])
        table = list(victim.block_table)
        copied = draft.copies.pop(victim, None)
        if copied is not None:
            # It had let go of the shared tail for a private copy that will not be made.
            given, table = [copied[1]], table[:-1]
        pool.release(given)
        if victim in self._state.tail_holders:
            pool.release(table)
            return Yield(YieldKind.RECOMPUTE, len(table))
        costs = self._compare_ways(victim)
        swap = self._try_swap(victim, len(table), costs)
        if swap is not None:
            pool.release(table)
            return swap
        if self._config.preemption_extent == "tail":
            return self._give_up_tail(victim, table, shortage, costs)
        pool.release(table)
        return Yield(YieldKind.RECOMPUTE, len(table), costs=costs)

    def _give_up_tail(
        self, victim: Request, table: list[int], shortage: int, costs: CostsOfWays | None
    ) -> Yield:
        """Free the fewest last blocks that cover the shortage, and keep the others."""
        pool, kept = self._state.pool, list(table)
        while kept and pool.num_allocatable < shortage:
            pool.release([kept.pop()])
        # A tail that is not full cannot be kept on its own: its tokens come after the ones lost.
        num_full = self._state.decodes.computed_tokens(victim) // self._config.block_size
        while len(kept) > num_full:
            pool.release([kept.pop()])
        num_freed = len(table) - len(kept)
        if not kept:
            return Yield(YieldKind.RECOMPUTE, num_freed, costs=costs)
        return Yield(YieldKind.TAIL, num_freed, tuple(kept), costs=costs)

    def _try_swap(self, victim: Request, num_freed: int, costs: CostsOfWays | None) -> Yield | None:
        """Move all blocks to the host tier, if the mode says so and there is room.

        Only blocks with computed tokens are worth moving.
        """
        config = self._config
        if config.preemption_mode == "recompute":
            return None
        if costs is not None and not costs.is_swap_cheaper:
            return None
        num_worth = blocks_for(self._state.decodes.computed_tokens(victim), config.block_size)
        if num_worth == 0 or self._state.host_pool is None:
            return None
        host_blocks = self._state.host_pool.allocate(num_worth)
        if host_blocks is None:
            return None
        # Swapping out comes first in a step: a shared tail still holds what is to be moved.
        pairs = tuple(zip(victim.block_table[:num_worth], host_blocks, strict=True))
        return Yield(YieldKind.SWAP, num_freed, swap_out=pairs, costs=costs)

    def _compare_ways(self, victim: Request) -> CostsOfWays | None:
        if self._config.preemption_mode != "auto":
            return None
        return compare_ways(self._state.decodes.computed_tokens(victim), self._config)
