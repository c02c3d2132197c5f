"""Which prompts and histories are computed in a step, and who is admitted to a running batch.

Works on a draft, inside the pools' transactions; changes no request. Called by Planner.
"""

from collections.abc import Collection

from everbatch.scheduler.admission import chunk_blocks, chunk_size
from everbatch.scheduler.backfill import SafeBackfill
from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import BEHIND_HEAD, TRIED_APART, Draft
from everbatch.scheduler.grants import Grants, granted
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


class PrefillPlanner:
    """Prompts that have begun, then the queue."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        blocks: BlockLedger,
        grants: Grants,
    ) -> None:
        self._config = config
        self._state = state
        self._pool = state.pool
        self._blocks = blocks
        self._grants = grants
        self._gate = grants.gate
        self._backfill = SafeBackfill(config, state, blocks)

    def usable_share(self, tokens: int) -> int:
        """Count the tokens, up to `tokens`, that first readings of prompts could use now.

        Those in prefill, and from the queue as many as there are empty slots. Whether there are
        blocks for them comes out later; what they leave goes back to the decodes.
        """
        usable = 0
        for request in self._state.prefilling:
            if not request.is_rebuilding:
                remaining = request.prefill_target - request.num_computed_tokens
                usable += chunk_size(remaining, tokens, self._config)
        slots_left = self._slots_for_queue()
        for request in self._state.policy.queue.in_order(self._step):
            # Nobody passes a rebuild, which may not use the share: behind it there is no use.
            if usable >= tokens or slots_left < request.num_slots or request.is_rebuilding:
                break
            slots_left -= request.num_slots
            remaining = request.prefill_target - request.num_computed_tokens
            usable += chunk_size(remaining, tokens, self._config)
        return min(usable, tokens)

    def aged_share(self) -> int:
        """Count the tokens that prompts can use which got none for prefill_aging_steps steps.

        Of the queue the head alone counts: the others stand behind it.
        """
        aging_steps, budget = self._config.prefill_aging_steps, self._config.max_num_batched_tokens
        candidates = list(self._state.prefilling)
        head = self._state.policy.queue.peek(self._step)
        if head is not None and head.num_slots <= self._slots_for_queue():
            candidates.append(head)
        usable = 0
        for request in candidates:
            since = max(request.arrival_step, request.last_served_step)
            if not request.is_rebuilding and self._step - since >= aging_steps:
                remaining = request.prefill_target - request.num_computed_tokens
                usable += chunk_size(remaining, budget, self._config)
        return min(usable, budget)

    def plan_begun(self, draft: Draft, group: Collection[Request] | None = None) -> None:
        """Let prefills that have begun go on, in order of admission, of `group` if given."""
        for request in self._state.prefilling:
            if group is not None and request not in group:
                draft.deferred[request] = TRIED_APART
            elif request not in draft.victims:
                self._plan_chunk(draft, request)
        for request in draft.chunks:
            self._grants.register_filled(draft, request)

    def plan_admissions(self, draft: Draft) -> None:
        """Admit from the queue, in which somebody is, until its head does not fit."""
        queue = self._state.policy.queue
        prefilling = self._state.prefilling
        for request in prefilling:
            if request in draft.deferred:
                # Who has begun is not overtaken, though the head may need fewer blocks.
                draft.head = queue.peek(self._step)
                assert draft.head is not None
                shared = draft.deferred[request]._replace(behind=request.label)
                draft.deferred[draft.head] = shared
                self._end_scan(draft, request, shared)
                return
        if prefilling:
            needs = [self._blocks.still_needed(draft, request) for request in prefilling]
            draft.num_promised_blocks = sum(needs)
        for request in queue.in_order(self._step, lambda r: granted(draft, r)):
            if draft.head is not None and not self._may_pass(draft, request, draft.head):
                draft.deferred[request] = BEHIND_HEAD
                continue
            obstacle = self._try_admit(draft, request)
            if obstacle is None:
                continue
            self._grants.defer(draft, request, obstacle)
            if self._scan_is_over(draft):
                self._end_scan(draft, request, obstacle)
                return

    def admit_only(self, draft: Draft, group: Collection[Request]) -> None:
        """Admit those of a group who wait, as far as they fit; everybody else goes on waiting."""
        queue = self._state.policy.queue
        draft.num_promised_blocks = sum(
            self._blocks.still_needed(draft, request) for request in self._state.prefilling
        )
        waiting = list(queue.in_order(self._step))
        for request in waiting:
            obstacle = self._try_admit(draft, request) if request in group else None
            if obstacle is not None:
                self._grants.defer(draft, request, obstacle)
        draft.head = next((r for r in waiting if r not in draft.admitted), None)
        if draft.head is not None:
            draft.deferred.setdefault(draft.head, TRIED_APART)

    @property
    def _step(self) -> int:
        return self._state.decodes.num_steps

    def _slots_for_queue(self) -> int:
        """Count the slots that the queue may take before a rebuild or a running batch ends."""
        state = self._state
        if self._config.batching == "static" and (state.num_running or state.masked):
            return 0
        if any(request.is_rebuilding for request in state.prefilling):
            return 0
        return len(state.free_slots)

    def _plan_chunk(self, draft: Draft, request: Request) -> None:
        """Let a prefill that has begun go on."""
        start = request.num_computed_tokens
        remaining = request.prefill_target - start
        budget_left = self._grants.budget_for(draft, request)
        if not self._grants.may_chunk(request) and remaining > budget_left:
            self._grants.defer_begun(draft, request, remaining, budget_left)
            return
        count = chunk_size(remaining, budget_left, self._config)
        if count <= 0:
            self._grants.defer_begun(draft, request, remaining, budget_left)
            return
        num_held = len(request.block_table)
        needed = chunk_blocks(start, count, num_held, self._config.block_size)
        blocks = self._blocks.take(draft, request, needed)
        if blocks is not None:
            self._grants.grant(draft, request, start, count, blocks)
        elif request not in draft.victims:
            self._blocks.defer(draft, request, needed)

    def _try_admit(self, draft: Draft, request: Request) -> Deferral | None:
        """Admit a waiting request, or say what it lacks first: slots, tokens, blocks."""
        slots_left = len(self._state.free_slots) - draft.num_slots_taken
        if request.num_slots > slots_left:
            return Deferral(DeferReason.SEQUENCE_BUDGET, request.num_slots, slots_left)
        hits = self._grants.find_prefix(request)
        num_held, num_back = len(request.block_table) + len(hits), len(request.host_blocks)
        start = num_held * self._config.block_size
        if num_back:
            start = request.num_computed_tokens
        remaining = request.prefill_target - start
        in_decode = remaining == 0
        budget_left = self._grants.budget_for(draft, request)
        if budget_left <= 0 or (not self._grants.may_chunk(request) and remaining > budget_left):
            return Deferral(DeferReason.TOKEN_BUDGET, max(1, remaining), max(0, budget_left))
        count = 1 if in_decode else chunk_size(remaining, budget_left, self._config)
        needed = num_back + chunk_blocks(start, count, num_held + num_back, self._config.block_size)
        gate = self._gate.needed(draft, request, num_held, needed)
        available = self._gate.available(draft, hits)
        if gate > available:
            return Deferral(DeferReason.KV_BUDGET, gate, available)
        self._grants.admit(draft, request, hits)
        blocks = self._pool.allocate(needed)
        assert blocks is not None
        if num_back:
            # It comes back from the host tier as a whole, in the phase it left.
            draft.swapped_in[request] = blocks[:num_back]
        self._resume(draft, request, start, 0 if in_decode else count, blocks[num_back:])
        return None

    def _resume(
        self, draft: Draft, request: Request, start: int, count: int, blocks: list[int]
    ) -> None:
        """Let who was just admitted compute a chunk or, if nothing is left of it, decode."""
        if count == 0:
            if blocks:
                draft.new_blocks[request] = blocks
            draft.joined[request] = None
            draft.num_decodes += 1
            return
        self._grants.grant(draft, request, start, count, blocks)
        draft.num_promised_blocks += self._blocks.still_needed(draft, request)
        self._grants.register_filled(draft, request)

    def _may_pass(self, draft: Draft, request: Request, head: Request) -> bool:
        """Whether a request may overtake the head of the queue, which does not fit."""
        if self._config.backfill == "greedy":
            return True
        return self._backfill.may_pass(draft, request, head, draft.deferred[head])

    def _scan_is_over(self, draft: Draft) -> bool:
        """Whether nobody further down the queue can be admitted."""
        if self._config.backfill == "none":
            return True
        budget_left = self._config.max_num_batched_tokens - draft.num_tokens
        slots_left = len(self._state.free_slots) - draft.num_slots_taken
        return budget_left <= 0 or slots_left <= 0 or self._pool.num_allocatable == 0

    def _end_scan(self, draft: Draft, request: Request, obstacle: Deferral) -> None:
        """Note whose obstacle ended the scan; with greedy backfill that is why the others wait."""
        if self._config.backfill == "greedy":
            draft.rest_of_queue = obstacle._replace(behind=request.label)
