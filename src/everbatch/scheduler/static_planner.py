"""Static batching: who forms a batch, which then runs until its last member has ended.

Works on a draft, inside the pools' transactions; changes no request. Called by Planner in place of
PrefillPlanner.plan_admissions. Its meaning: docs/scheduling.md, Static batching.
"""

from everbatch.scheduler.admission import chunk_blocks, chunk_size
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.grants import Grants, granted
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


class StaticPlanner:
    """One batch at a time, from the queue in the policy's order."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState, grants: Grants) -> None:
        self._config = config
        self._state = state
        self._pool = state.pool
        self._grants = grants

    def plan_admissions(self, draft: Draft) -> None:
        """Let those at the head of the queue form a batch when none runs.

        Every member takes its slot and has its whole life reserved, whether or not this step's
        budget has tokens for it already.
        """
        queue = self._state.policy.queue
        if self._state.num_running or self._state.masked:
            draft.rest_of_queue = Deferral(DeferReason.STATIC_BATCH, 0, 0)
            return
        for request in queue.in_order(self._state.decodes.num_steps, lambda r: granted(draft, r)):
            slots_left = len(self._state.free_slots) - draft.num_slots_taken
            if request.num_slots > slots_left:
                obstacle = Deferral(DeferReason.SEQUENCE_BUDGET, request.num_slots, slots_left)
                self._grants.defer(draft, request, obstacle)
                return
            hits = self._grants.find_prefix(request)
            gate = self._grants.gate.whole_life(draft, request, len(hits))
            available = self._pool.num_allocatable_beside(hits)
            if gate > available:
                self._grants.defer(draft, request, Deferral(DeferReason.KV_BUDGET, gate, available))
                return
            self._grants.admit(draft, request, hits)
            self._grant_first(draft, request, len(hits) * self._config.block_size)

    def _grant_first(self, draft: Draft, request: Request, start: int) -> None:
        """Give a member of a new batch what is left of the budget, perhaps nothing."""
        remaining = request.prefill_target - start
        budget_left = self._config.max_num_batched_tokens - draft.num_tokens
        fits = self._grants.may_chunk(request) or remaining <= budget_left
        count = chunk_size(remaining, budget_left, self._config) if fits else 0
        if count <= 0:
            self._grants.defer_begun(draft, request, remaining, budget_left)
            return
        num_held = start // self._config.block_size
        blocks = self._pool.allocate(chunk_blocks(start, count, num_held, self._config.block_size))
        assert blocks is not None
        self._grants.grant(draft, request, start, count, blocks)
        self._grants.register_filled(draft, request)
