"""Decides one step: who decodes, whose prompt goes on, who is admitted, who must yield.

Reads the scheduler's state and reserves blocks in the pool, inside the pool's transaction; changes
nothing else. What it decided is a Draft, which `Scheduler` commits once the step has run, or drops.

Order (Sarathi-Serve, section 4.2; vLLM V1, decode-first): decodes in order of admission, then
prompts that have begun, then the queue. Called by Scheduler.schedule.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.admission import chunk_blocks, chunk_size
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import Deferral, DeferReason, TokenStore
from everbatch.scheduler.preemption import choose_victim
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


@dataclass(slots=True)
class DraftChunk:
    """Tokens [start, start + count) of a prefill."""

    start: int
    count: int
    completes: bool
    emits: bool
    """Whether its last row samples: it completes a prompt, not a rebuild."""

    @classmethod
    def of(cls, request: Request, start: int, count: int) -> "DraftChunk":
        completes = start + count == request.prefill_target
        return cls(start, count, completes, emits=completes and not request.is_rebuilding)


@dataclass(slots=True)
class Draft:
    """One step as decided, in terms of requests."""

    chunks: dict[Request, DraftChunk] = field(default_factory=dict)
    hits: dict[Request, list[int]] = field(default_factory=dict)
    """Who is admitted, with the cached blocks it reads."""
    new_blocks: dict[Request, list[int]] = field(default_factory=dict)
    joined: dict[Request, None] = field(default_factory=dict)
    left: dict[Request, None] = field(default_factory=dict)
    victims: dict[Request, int] = field(default_factory=dict)
    """Who is preempted, with the number of blocks it held before this plan."""
    deferred: dict[Request, Deferral] = field(default_factory=dict)
    num_decodes: int = 0
    num_chunk_tokens: int = 0
    num_promised_blocks: int = 0
    """Blocks that admitted prefills will take after this plan."""

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.num_chunk_tokens


class Planner:
    """Plans steps over one state."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState, tokens: TokenStore) -> None:
        self._config = config
        self._state = state
        self._pool = state.pool
        self._tokens = tokens

    def plan(self) -> Draft:
        """Decide the next step; the pool's transaction must be open."""
        draft = Draft()
        self._plan_decodes(draft)
        for request in self._state.prefilling:
            if request not in draft.victims:
                self._plan_chunk(draft, request)
        for request in draft.chunks:
            if request.chain is not None:
                self._register_filled(draft, request)
        self._plan_admissions(draft)
        self._read_filling(draft)
        return draft

    def holders(self, victims: Iterable[Request] = ()) -> list[Request]:
        """Give those who hold a slot and blocks, without `victims`, in order of slots."""
        gone = set(victims)
        return [
            request
            for request in self._state.slots
            if request is not None and request.block_table and request not in gone
        ]

    def _plan_decodes(self, draft: Draft) -> None:
        state = self._state
        joining: Iterable[Request] = sorted(state.idle_decodes, key=_by_admission)
        if len(state.decodes) + len(state.idle_decodes) > self._config.max_num_batched_tokens:
            joining = self._rotate(draft)
        draft.joined = dict.fromkeys(joining)
        draft.num_decodes = len(state.decodes) - len(draft.left) + len(draft.joined)
        # Whoever was aborted or preempted since the last step is still in `due`.
        needing = [r for r in state.due if r in state.decodes and r not in draft.left]
        needing += [request for request in draft.joined if self._is_full(request)]
        if not needing:
            return
        needing.sort(key=_by_admission)
        blocks = self._pool.allocate(len(needing))
        if blocks is not None:
            for request, block in zip(needing, blocks, strict=True):
                draft.new_blocks[request] = [block]
            return
        for request in needing:
            if request not in draft.victims:
                self._place_decode(draft, request)

    def _rotate(self, draft: Draft) -> list[Request]:
        """Let the longest unserved decode when not all fit; gives who joins, notes who leaves."""
        state, budget = self._state, self._config.max_num_batched_tokens
        num_steps = state.decodes.num_steps

        def longest_unserved(request: Request) -> tuple[int, int]:
            member = request in state.decodes
            last_served = num_steps if member else request.last_served_step
            return last_served, request.admission_number

        ranked = sorted([*state.decodes, *state.idle_decodes], key=longest_unserved)
        for request in ranked[budget:]:
            if request in state.decodes:
                draft.left[request] = None
            draft.deferred[request] = Deferral(DeferReason.TOKEN_BUDGET, 1, 0)
        chosen = [request for request in ranked[:budget] if request in state.idle_decodes]
        return sorted(chosen, key=_by_admission)

    def _place_decode(self, draft: Draft, request: Request) -> None:
        """Give a decode its next block, or take it out of this step."""
        blocks = self._take_blocks(draft, request, 1)
        if blocks is not None:
            draft.new_blocks[request] = blocks
        elif request not in draft.victims:
            if request in draft.joined:
                del draft.joined[request]
            else:
                draft.left[request] = None
            draft.num_decodes -= 1
            self._defer_for_blocks(draft, request, 1)

    def _plan_chunk(self, draft: Draft, request: Request) -> None:
        """Let a prefill that has begun go on."""
        start = request.num_computed_tokens
        remaining = request.prefill_target - start
        budget_left = self._config.max_num_batched_tokens - draft.num_tokens
        count = chunk_size(remaining, budget_left, self._config)
        if count <= 0:
            draft.deferred[request] = Deferral(DeferReason.TOKEN_BUDGET, remaining, budget_left)
            return
        num_held = len(request.block_table)
        needed = chunk_blocks(start, count, num_held, self._config.block_size)
        blocks = self._take_blocks(draft, request, needed)
        if blocks is not None:
            draft.chunks[request] = DraftChunk.of(request, start, count)
            draft.new_blocks[request] = blocks
            draft.num_chunk_tokens += count
        elif request not in draft.victims:
            self._defer_for_blocks(draft, request, needed)

    def _plan_admissions(self, draft: Draft) -> None:
        """Admit from the queue until its head does not fit; nobody in a step that preempts."""
        if draft.victims:
            return
        for request in self._state.prefilling:
            if request in draft.deferred:
                # Who has begun is not overtaken, though the head may need fewer blocks.
                head = self._state.waiting.peek()
                if head is not None:
                    draft.deferred[head] = draft.deferred[request]
                return
        draft.num_promised_blocks = sum(
            self._still_needed(draft, request) for request in self._state.prefilling
        )
        for request in self._state.waiting:
            obstacle = self._try_admit(draft, request)
            if obstacle is not None:
                draft.deferred[request] = obstacle
                return

    def _try_admit(self, draft: Draft, request: Request) -> Deferral | None:
        """Admit the head of the queue, or say what it lacks."""
        config = self._config
        if len(draft.hits) >= len(self._state.free_slots):
            return Deferral(DeferReason.SEQUENCE_BUDGET, 1, 0)
        budget_left = config.max_num_batched_tokens - draft.num_tokens
        if budget_left <= 0:
            return Deferral(DeferReason.TOKEN_BUDGET, request.prefill_target, budget_left)
        hits = self._find_prefix(request)
        start = len(hits) * config.block_size
        remaining = request.prefill_target - start
        may_chunk = config.enable_chunked_prefill or request.is_rebuilding
        if not may_chunk and remaining > budget_left:
            return Deferral(DeferReason.TOKEN_BUDGET, remaining, budget_left)
        count = chunk_size(remaining, budget_left, config) if may_chunk else remaining
        needed = chunk_blocks(start, count, len(hits), config.block_size)
        gate = self._gate(draft, request, len(hits), needed)
        available = self._pool.num_allocatable - self._pool.num_unread(hits)
        if gate > available:
            return Deferral(DeferReason.KV_BUDGET, gate, available)
        if request.chain is not None:
            self._pool.acquire(hits, request.chain)
        blocks = self._pool.allocate(needed)
        assert blocks is not None
        draft.hits[request] = hits
        draft.chunks[request] = DraftChunk.of(request, start, count)
        draft.new_blocks[request] = blocks
        draft.num_chunk_tokens += count
        draft.num_promised_blocks += self._still_needed(draft, request)
        if request.chain is not None:
            self._register_filled(draft, request)
        return None

    def _gate(self, draft: Draft, request: Request, num_hits: int, chunk_need: int) -> int:
        """Give the allocatable blocks that admission asks for.

        "now": those of this chunk. "prompt": those of the whole history (and the pending output),
        plus what prefills admitted before still need for theirs, so that admitted prompts never
        fight over blocks. The watermark comes on top while anybody holds a slot.
        """
        config = self._config
        gate = chunk_need
        if config.admission == "prompt":
            gate = blocks_for(request.num_context_tokens, config.block_size) - num_hits
            gate += draft.num_promised_blocks
        if self._state.num_running > 0 or draft.hits:
            gate += config.watermark_blocks
        return gate

    def _still_needed(self, draft: Draft, request: Request) -> int:
        """Give the blocks that an admitted prefill will take after this plan."""
        held = len(request.block_table) + len(draft.hits.get(request, ()))
        held += len(draft.new_blocks.get(request, ()))
        return max(0, blocks_for(request.num_context_tokens, self._config.block_size) - held)

    def _find_prefix(self, request: Request) -> list[int]:
        """Find the cached blocks a waiting request can read; at least one token stays to do."""
        if request.chain is None:
            return []
        self.read_blocks(request, request.prefill_target // self._config.block_size)
        most = (request.prefill_target - 1) // self._config.block_size
        return self._pool.match(request.chain, most)

    def read_blocks(self, request: Request, num_blocks: int) -> None:
        """Let the request's chain know its first `num_blocks` full blocks; reads nothing twice."""
        chain, block_size = request.chain, self._config.block_size
        assert chain is not None
        num_known = len(chain.contents)
        if num_known < num_blocks:
            start, stop = num_known * block_size, num_blocks * block_size
            chain.extend(self._tokens.read(request.id, request.payload, start, stop))

    def _read_filling(self, draft: Draft) -> None:
        """Read the blocks that this step's decodes fill: `Scheduler.apply` then reads no tokens.

        So a token store that fails does so while the step can still be rolled back.
        """
        if not self._config.enable_prefix_caching:
            return
        decodes, block_size = self._state.decodes, self._config.block_size
        for request in (*decodes.filling(), *draft.joined):
            num_after = decodes.computed_tokens(request) + 1
            if num_after % block_size == 0:
                self.read_blocks(request, num_after // block_size)

    def _register_filled(self, draft: Draft, request: Request) -> None:
        """Index the blocks that a planned chunk fills: later requests of the plan can read them.

        The forward pass writes all keys and values of a layer before any row of it attends.
        """
        chunk, chain = draft.chunks[request], request.chain
        assert chain is not None
        table = [*request.block_table, *draft.hits.get(request, ()), *draft.new_blocks[request]]
        num_full = (chunk.start + chunk.count) // self._config.block_size
        for index in range(len(chain.entries), num_full):
            self._pool.register(chain, index, table[index])

    def _take_blocks(self, draft: Draft, request: Request, count: int) -> list[int] | None:
        """Take blocks for somebody who holds a slot, preempting others if that is the trigger.

        None if there are not enough, or if the request itself had to yield. Every turn of the loop
        takes one holder away, so it ends.
        """
        while True:
            blocks = self._pool.allocate(count)
            if blocks is not None or self._config.preemption_trigger == "stall":
                return blocks
            victim = choose_victim(self.holders(draft.victims))
            if victim is None:
                return None
            self._retract(draft, victim)
            if victim is request:
                return None

    def _retract(self, draft: Draft, victim: Request) -> None:
        """Take back everything this plan gave a holder, and all its blocks."""
        draft.victims[victim] = len(victim.block_table)
        chunk = draft.chunks.pop(victim, None)
        if chunk is not None:
            draft.num_chunk_tokens -= chunk.count
        is_member = victim in self._state.decodes and victim not in draft.left
        if is_member or victim in draft.joined:
            draft.num_decodes -= 1
        draft.joined.pop(victim, None)
        draft.left.pop(victim, None)
        draft.deferred.pop(victim, None)
        self._pool.release([*victim.block_table, *draft.new_blocks.pop(victim, ())])
        if victim.chain is not None:
            self._pool.forget_entries(victim.chain)

    def _defer_for_blocks(self, draft: Draft, request: Request, needed: int) -> None:
        available = self._pool.num_allocatable
        draft.deferred[request] = Deferral(DeferReason.KV_BUDGET, needed, available)

    def _is_full(self, request: Request) -> bool:
        """Whether the next token of a request outside the decode set needs a new block."""
        return request.num_computed_tokens == len(request.block_table) * self._config.block_size


def _by_admission(request: Request) -> int:
    return request.admission_number
