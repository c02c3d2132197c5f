"""Which prompts and histories are computed in a step, and who is admitted.

Works on a draft, inside the pools' transactions; changes no request. Called by Planner.
"""

from dataclasses import replace

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.admission import chunk_blocks, chunk_size
from everbatch.scheduler.backfill import SafeBackfill
from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.content_reader import ContentReader
from everbatch.scheduler.draft import BEHIND_HEAD, Draft, DraftChunk, Known, Lack
from everbatch.scheduler.gate import AdmissionGate
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


class PrefillPlanner:
    """Prompts that have begun, then the queue."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        reader: ContentReader,
        blocks: BlockLedger,
        known: Known,
    ) -> None:
        self._config = config
        self._state = state
        self._pool = state.pool
        self._reader = reader
        self._blocks = blocks
        self._known = known
        self._gate = AdmissionGate(config, state, blocks)
        self._needs_sum = self._gate.counts_rights or config.batching == "static"
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

    def plan_begun(self, draft: Draft) -> None:
        """Let prefills that have begun go on, in order of admission."""
        for request in self._state.prefilling:
            if request not in draft.victims:
                self._plan_chunk(draft, request)
        for request in draft.chunks:
            self._register_filled(draft, request)

    def plan_admissions(self, draft: Draft) -> None:
        """Admit from the queue until its head does not fit; nobody in a step that preempts."""
        queue = self._state.policy.queue
        if draft.victims or not len(queue):
            return
        if self._config.batching == "static":
            self._form_batch(draft)
            return
        for request in self._state.prefilling:
            if request in draft.deferred:
                # Who has begun is not overtaken, though the head may need fewer blocks.
                draft.head = queue.peek(self._step)
                assert draft.head is not None
                shared = replace(draft.deferred[request], behind=request.label)
                draft.deferred[draft.head] = shared
                self._end_scan(draft, shared)
                return
        draft.num_promised_blocks = sum(
            self._blocks.still_needed(draft, request) for request in self._state.prefilling
        )
        for request in queue.in_order(self._step, lambda r: _granted(draft, r)):
            if draft.head is not None and not self._may_pass(draft, request, draft.head):
                draft.deferred[request] = BEHIND_HEAD
                continue
            obstacle = self._try_admit(draft, request)
            if obstacle is None:
                continue
            self._defer(draft, request, obstacle)
            if self._scan_is_over(draft, obstacle):
                self._end_scan(draft, replace(obstacle, behind=request.label))
                return

    def read_filling(self, draft: Draft) -> None:
        """Read the blocks that this step's decodes fill: committing then reads no tokens.

        So a token store that fails does so while the step can still be rolled back.
        """
        if not self._config.enable_prefix_caching:
            return
        decodes, block_size = self._state.decodes, self._config.block_size
        for request in decodes.filling():
            num_full = len(request.block_table) + len(draft.new_blocks.get(request, ()))
            self._reader.read_blocks(request, num_full)
        for request in draft.joined:
            num_after = decodes.computed_tokens(request) + 1
            if num_after % block_size == 0:
                self._reader.read_blocks(request, num_after // block_size)

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
        budget_left = self._budget_for(draft, request)
        if not self._may_chunk(request) and remaining > budget_left:
            self._defer_begun(draft, request, remaining, budget_left)
            return
        count = chunk_size(remaining, budget_left, self._config)
        if count <= 0:
            self._defer_begun(draft, request, remaining, budget_left)
            return
        num_held = len(request.block_table)
        needed = chunk_blocks(start, count, num_held, self._config.block_size)
        blocks = self._blocks.take(draft, request, needed)
        if blocks is not None:
            self._grant(draft, request, start, count, blocks)
        elif request not in draft.victims:
            self._blocks.defer(draft, request, needed)

    def _try_admit(self, draft: Draft, request: Request) -> Deferral | None:
        """Admit a waiting request, or say what it lacks first: slots, tokens, blocks."""
        slots_left = len(self._state.free_slots) - draft.num_slots_taken
        if request.num_slots > slots_left:
            return Deferral(DeferReason.SEQUENCE_BUDGET, request.num_slots, slots_left)
        hits = self._find_prefix(request)
        num_held, num_back = len(request.block_table) + len(hits), len(request.host_blocks)
        start = num_held * self._config.block_size
        if num_back:
            start = request.num_computed_tokens
        remaining = request.prefill_target - start
        in_decode = remaining == 0
        budget_left = self._budget_for(draft, request)
        if budget_left <= 0 or (not self._may_chunk(request) and remaining > budget_left):
            return Deferral(DeferReason.TOKEN_BUDGET, max(1, remaining), max(0, budget_left))
        count = 1 if in_decode else chunk_size(remaining, budget_left, self._config)
        needed = num_back + chunk_blocks(start, count, num_held + num_back, self._config.block_size)
        gate = self._gate.needed(draft, request, num_held, needed)
        available = self._gate.available(draft, hits)
        if gate > available:
            return Deferral(DeferReason.KV_BUDGET, gate, available)
        self._admit(draft, request, hits)
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
        self._grant(draft, request, start, count, blocks)
        draft.num_promised_blocks += self._blocks.still_needed(draft, request)
        self._register_filled(draft, request)

    def _form_batch(self, draft: Draft) -> None:
        """Static batching: when no batch runs, those at the head of the queue form one.

        Every member takes its slot and has its whole life reserved, whether or not this step's
        budget has tokens for it already.
        """
        queue = self._state.policy.queue
        if self._state.num_running or self._state.masked:
            draft.rest_of_queue = Deferral(DeferReason.STATIC_BATCH, 0, 0)
            return
        for request in queue.in_order(self._step, lambda r: _granted(draft, r)):
            slots_left = len(self._state.free_slots) - draft.num_slots_taken
            if request.num_slots > slots_left:
                obstacle = Deferral(DeferReason.SEQUENCE_BUDGET, request.num_slots, slots_left)
                self._defer(draft, request, obstacle)
                return
            hits = self._find_prefix(request)
            gate = self._gate.whole_life(draft, request, len(hits))
            available = self._pool.num_allocatable_beside(hits)
            if gate > available:
                self._defer(draft, request, Deferral(DeferReason.KV_BUDGET, gate, available))
                return
            self._admit(draft, request, hits)
            self._grant_first(draft, request, len(hits) * self._config.block_size)

    def _grant_first(self, draft: Draft, request: Request, start: int) -> None:
        """Give a member of a new batch what is left of the budget, perhaps nothing."""
        remaining = request.prefill_target - start
        budget_left = self._config.max_num_batched_tokens - draft.num_tokens
        fits = self._may_chunk(request) or remaining <= budget_left
        count = chunk_size(remaining, budget_left, self._config) if fits else 0
        if count <= 0:
            self._defer_begun(draft, request, remaining, budget_left)
            return
        num_held = start // self._config.block_size
        blocks = self._pool.allocate(chunk_blocks(start, count, num_held, self._config.block_size))
        assert blocks is not None
        self._grant(draft, request, start, count, blocks)
        self._register_filled(draft, request)

    def _admit(self, draft: Draft, request: Request, hits: list[int]) -> None:
        if request.chain is not None and not request.block_table:
            self._pool.acquire(hits, request.chain)
        draft.admitted[request] = hits
        draft.num_slots_taken += request.num_slots

    def _grant(
        self, draft: Draft, request: Request, start: int, count: int, blocks: list[int]
    ) -> None:
        draft.chunks[request] = DraftChunk.of(request, start, count)
        draft.new_blocks[request] = blocks
        draft.num_chunk_tokens += count
        if not request.is_rebuilding:
            draft.prefill_share = max(0, draft.prefill_share - count)

    def _budget_for(self, draft: Draft, request: Request) -> int:
        """Give the tokens left; a rebuild may not use what is kept for first readings."""
        left = self._config.max_num_batched_tokens - draft.num_tokens
        return left - draft.prefill_share if request.is_rebuilding else left

    def _may_chunk(self, request: Request) -> bool:
        """A rebuild may always be chunked, else a history longer than a step never came back."""
        return self._config.enable_chunked_prefill or request.is_rebuilding

    def _find_prefix(self, request: Request) -> list[int]:
        """Find the cached blocks a waiting request can read; at least one token stays to do."""
        if request.chain is None or request.block_table or request.host_blocks:
            return []
        self._reader.read_blocks(request, request.prefill_target // self._config.block_size)
        most = (request.prefill_target - 1) // self._config.block_size
        return self._pool.match(request.chain, most)

    def _register_filled(self, draft: Draft, request: Request) -> None:
        """Index the blocks that a planned chunk fills: later requests of the plan can read them.

        The forward pass writes all keys and values of a layer before any row of it attends.
        """
        chunk, chain = draft.chunks[request], request.chain
        if chain is None:
            return
        num_full = (chunk.start + chunk.count) // self._config.block_size
        self._reader.read_blocks(request, num_full)
        hits, back = draft.admitted.get(request, ()), draft.swapped_in.get(request, ())
        table = [*request.block_table, *hits, *back, *draft.new_blocks[request]]
        for index in range(len(chain.entries), num_full):
            self._pool.register(chain, index, table[index])

    def _may_pass(self, draft: Draft, request: Request, head: Request) -> bool:
        """Whether a request may overtake the head of the queue, which does not fit."""
        if self._config.backfill == "greedy":
            return True
        return self._backfill.may_pass(draft, request, head, draft.deferred[head])

    def _scan_is_over(self, draft: Draft, obstacle: Deferral) -> bool:
        """Whether nobody further down the queue can be admitted."""
        if self._config.backfill == "none":
            return True
        budget_left = self._config.max_num_batched_tokens - draft.num_tokens
        slots_left = len(self._state.free_slots) - draft.num_slots_taken
        return budget_left <= 0 or slots_left <= 0 or self._pool.num_allocatable == 0

    def _end_scan(self, draft: Draft, obstacle: Deferral) -> None:
        """Note why the scan ended; with greedy backfill that is why the others wait."""
        if self._config.backfill == "greedy":
            draft.rest_of_queue = obstacle

    def _defer(self, draft: Draft, request: Request, obstacle: Deferral) -> None:
        """Let a request of the queue wait, and find out all that it lacks where that is news."""
        draft.head = draft.head or request
        draft.deferred[request] = obstacle
        known, reason = self._known.get(request), obstacle.reason
        if known is not None and known.reason is reason:
            return
        # Blocks bind last: but for others' rights, and tokens in a new batch, `obstacle` says all.
        if reason is not DeferReason.KV_BUDGET or self._needs_sum:
            draft.lacks[request] = self._lack(draft, request)

    def _lack(self, draft: Draft, request: Request) -> Lack:
        """Say what a request of the queue would need more, now, to be admitted with a token."""
        hits = self._find_prefix(request)
        start = request.num_computed_tokens
        if not request.host_blocks:
            start = (len(request.block_table) + len(hits)) * self._config.block_size
        remaining = max(1, request.prefill_target - start)
        least = 1 if self._may_chunk(request) else remaining
        budget_left = self._budget_for(draft, request)
        count = chunk_size(remaining, max(least, budget_left), self._config)
        needed = blocks_for(start + count, self._config.block_size)
        num_held = len(request.block_table) + len(hits)
        return Lack(
            slots=max(0, request.num_slots - len(self._state.free_slots) + draft.num_slots_taken),
            tokens=max(0, least - budget_left),
            blocks=self._gate.missing(draft, request, hits, needed - num_held),
        )

    def _defer_begun(self, draft: Draft, request: Request, remaining: int, left: int) -> None:
        """Let a prefill that has begun wait for tokens; says what it lacks where that is news."""
        draft.deferred[request] = Deferral(DeferReason.TOKEN_BUDGET, remaining, left)
        known = self._known.get(request)
        if known is not None and known.reason is DeferReason.TOKEN_BUDGET:
            return
        start, held = request.num_computed_tokens, self._blocks.held(draft, request)
        least = 1 if self._may_chunk(request) else remaining
        needed = chunk_blocks(start, least, held, self._config.block_size)
        draft.lacks[request] = Lack(
            tokens=max(1, least - left), blocks=self._blocks.missing(draft, request, needed)
        )


def _granted(draft: Draft, request: Request) -> int:
    chunk = draft.chunks.get(request)
    return chunk.count if chunk is not None else 0
