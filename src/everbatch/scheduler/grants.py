"""What a plan gives to prompts and histories, and what it says to those who get nothing.

Works on a draft, inside the pools' transactions; changes no request. Called by PrefillPlanner and
StaticPlanner, which decide who gets what.
"""

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.admission import chunk_blocks, chunk_size
from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.content_reader import ContentReader
from everbatch.scheduler.draft import Draft, DraftChunk, Known, Lack
from everbatch.scheduler.gate import AdmissionGate
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


class Grants:
    """Slots, cached prefixes and chunks, written into drafts."""

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
        self.gate = AdmissionGate(config, state, blocks)
        self._needs_sum = self.gate.counts_rights or config.batching == "static"

    def admit(self, draft: Draft, request: Request, hits: list[int]) -> None:
        """Give a request of the queue its slots, and the cached blocks that it reads."""
        if request.chain is not None and not request.block_table:
            self._pool.acquire(hits, request.chain)
        draft.admitted[request] = hits
        draft.num_slots_taken += request.num_slots

    def grant(
        self, draft: Draft, request: Request, start: int, count: int, blocks: list[int]
    ) -> None:
        """Give a request tokens [start, start + count), and the blocks to append for them."""
        draft.chunks[request] = DraftChunk.of(request, start, count)
        draft.new_blocks[request] = blocks
        draft.num_chunk_tokens += count
        if draft.prefill_share and not request.is_rebuilding:
            draft.prefill_share = max(0, draft.prefill_share - count)

    def budget_for(self, draft: Draft, request: Request) -> int:
        """Give the tokens left; a rebuild may not use what is kept for first readings."""
        left = self._config.max_num_batched_tokens - draft.num_tokens
        return left - draft.prefill_share if request.is_rebuilding else left

    def may_chunk(self, request: Request) -> bool:
        """A rebuild may always be chunked, else a history longer than a step never came back."""
        return self._config.enable_chunked_prefill or request.is_rebuilding

    def find_prefix(self, request: Request) -> list[int]:
        """Find the cached blocks a waiting request can read; at least one token stays to do."""
        if request.chain is None or request.block_table or request.host_blocks:
            return []
        self._reader.read_blocks(request, request.prefill_target // self._config.block_size)
        most = (request.prefill_target - 1) // self._config.block_size
        return self._pool.match(request.chain, most)

    def register_filled(self, draft: Draft, request: Request) -> None:
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
        self._pool.register(chain, table, num_full)

    def defer(self, draft: Draft, request: Request, obstacle: Deferral) -> None:
        """Let a request of the queue wait, and find out all that it lacks where that is news."""
        draft.head = draft.head or request
        draft.deferred[request] = obstacle
        known, reason = self._known.get(request), obstacle.reason
        if known is not None and known.reason is reason:
            return
        # Blocks bind last: but for others' rights, and tokens in a new batch, `obstacle` says all.
        if reason is not DeferReason.KV_BUDGET or self._needs_sum:
            draft.lacks[request] = self._lack(draft, request)

    def defer_begun(self, draft: Draft, request: Request, remaining: int, left: int) -> None:
        """Let a prefill that has begun wait for tokens; says what it lacks where that is news."""
        draft.deferred[request] = Deferral(DeferReason.TOKEN_BUDGET, remaining, left)
        known = self._known.get(request)
        if known is not None and known.reason is DeferReason.TOKEN_BUDGET:
            return
        start, held = request.num_computed_tokens, self._blocks.held(draft, request)
        least = 1 if self.may_chunk(request) else remaining
        needed = chunk_blocks(start, least, held, self._config.block_size)
        draft.lacks[request] = Lack(
            tokens=max(1, least - left), blocks=self._blocks.missing(draft, request, needed)
        )

    def _lack(self, draft: Draft, request: Request) -> Lack:
        """Say what a request of the queue would need more, now, to be admitted with a token."""
        hits = self.find_prefix(request)
        start = request.num_computed_tokens
        if not request.host_blocks:
            start = (len(request.block_table) + len(hits)) * self._config.block_size
        remaining = max(1, request.prefill_target - start)
        least = 1 if self.may_chunk(request) else remaining
        budget_left = self.budget_for(draft, request)
        count = chunk_size(remaining, max(least, budget_left), self._config)
        needed = blocks_for(start + count, self._config.block_size)
        num_held = len(request.block_table) + len(hits)
        return Lack(
            slots=max(0, request.num_slots - len(self._state.free_slots) + draft.num_slots_taken),
            tokens=max(0, least - budget_left),
            blocks=self.gate.missing(draft, request, hits, needed - num_held),
        )


def granted(draft: Draft, request: Request) -> int:
    """Give the prompt tokens that a plan gives a request."""
    chunk = draft.chunks.get(request)
    return chunk.count if chunk is not None else 0
