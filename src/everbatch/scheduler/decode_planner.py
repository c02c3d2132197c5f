"""Which decodes run in a step, and the blocks that their tokens need.

Works on a draft, inside the pools' transactions; changes no request. Called by Planner.
"""

from collections.abc import Collection

from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.content_reader import ContentReader
from everbatch.scheduler.draft import TRIED_APART, Draft, Known, Lack
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.request import Request, by_admission
from everbatch.scheduler.state import SchedulerState


class DecodePlanner:
    """Decodes go on by themselves: only what is due, joins or leaves is looked at."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        blocks: BlockLedger,
        known: Known,
        reader: ContentReader,
    ) -> None:
        self._config = config
        self._known = known
        self._state = state
        self._blocks = blocks
        self._reader = reader

    def plan(self, draft: Draft, limit: int) -> list[Request]:
        """Let at most `limit` requests decode; gives those whom the limit held back, in turn."""
        state = self._state
        held_back: list[Request] = []
        if len(state.decodes.members) + len(state.idle_decodes) > limit:
            held_back = self._rotate(draft, limit)
        elif state.idle_decodes:
            draft.joined = dict.fromkeys(sorted(state.idle_decodes, key=by_admission))
        self._place_needing(draft)
        return held_back

    def plan_only(self, draft: Draft, group: Collection[Request]) -> None:
        """Let those of a group decode, as many as fit the step, and nobody else."""
        state = self._state
        able = [request for request in (*state.decodes, *state.idle_decodes) if request in group]
        chosen = dict.fromkeys(able[: self._config.max_num_batched_tokens])
        for request in (*state.decodes, *state.idle_decodes):
            if request not in chosen:
                draft.deferred[request] = TRIED_APART
                if request in state.decodes:
                    draft.left[request] = None
        idle = [request for request in state.idle_decodes if request in chosen]
        draft.joined = dict.fromkeys(sorted(idle, key=by_admission))
        self._place_needing(draft)

    def _place_needing(self, draft: Draft) -> None:
        """Count who decodes, and give a block to each whose last one is full."""
        state = self._state
        members = state.decodes.members
        draft.num_decodes = len(members) - len(draft.left) + len(draft.joined)
        # Whoever was aborted or preempted since the last step is still in `due`.
        needing = [r for r in state.due if r in members and r not in draft.left]
        needing += [r for r in draft.joined if self._is_full(r) or self._shares_tail(r)]
        if needing:
            needing.sort(key=by_admission)
            self._place_all(draft, needing)

    def give_back(self, draft: Draft, held_back: list[Request]) -> None:
        """Let decodes use what prefill left of its share; nobody is preempted for it."""
        budget_left = self._config.max_num_batched_tokens - draft.num_tokens
        for request in held_back:
            if budget_left <= 0:
                return
            if request in draft.victims or not self._place_spare(draft, request):
                continue
            if request in draft.left:
                del draft.left[request]
            else:
                draft.joined[request] = None
            draft.deferred.pop(request, None)
            draft.num_decodes += 1
            budget_left -= 1
        draft.joined = dict.fromkeys(sorted(draft.joined, key=by_admission))

    def note_lacks(self, draft: Draft, held_back: list[Request]) -> None:
        """Say what each that is still held back lacks: tokens for those before it in turn too."""
        tokens = needed = 0
        for request in held_back:
            deferral = draft.deferred.get(request)
            if deferral is None or deferral.reason is DeferReason.KV_BUDGET:
                continue
            tokens += 1
            needed += self._is_full(request) or self._shares_tail(request)
            known = self._known.get(request)
            if known is None or known.reason is not deferral.reason:
                blocks = self._blocks.missing(draft, request, needed)
                draft.lacks[request] = Lack(tokens=tokens, blocks=blocks)

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

    def _rotate(self, draft: Draft, limit: int) -> list[Request]:
        """Let the longest unserved decode when not all fit; gives the others, in turn."""
        state, budget = self._state, self._config.max_num_batched_tokens
        num_steps = state.decodes.num_steps

        def longest_unserved(request: Request) -> tuple[int, int]:
            member = request in state.decodes
            last_served = num_steps if member else request.last_served_step
            return last_served, request.turn

        ranked = sorted([*state.decodes, *state.idle_decodes], key=longest_unserved)
        draft.turns = ranked
        for place, request in enumerate(ranked[limit:], limit):
            if request in state.decodes:
                draft.left[request] = None
            shared = place < budget
            reason = DeferReason.PREFILL_SHARE if shared else DeferReason.TOKEN_BUDGET
            draft.deferred[request] = Deferral(reason, 1, 0)
        chosen = [request for request in ranked[:limit] if request in state.idle_decodes]
        draft.joined = dict.fromkeys(sorted(chosen, key=by_admission))
        return ranked[limit:]

    def _place_all(self, draft: Draft, needing: list[Request]) -> None:
        """Give each its next block: at once where nothing is scarce, else one by one."""
        if not self._state.protected and not self._any_shared(needing):
            blocks = self._state.pool.allocate(len(needing))
            if blocks is not None:
                for request, block in zip(needing, blocks, strict=True):
                    draft.new_blocks[request] = [block]
                return
        for request in needing:
            if request not in draft.victims:
                self._place(draft, request)

    def _place(self, draft: Draft, request: Request) -> None:
        """Give a decode its next block, or take it out of this step."""
        if not self._is_full(request) and not self._shares_tail(request):
            # Others let go of the shared tail in this plan: the last reader writes in place.
            return
        blocks = self._blocks.take(draft, request, 1)
        if blocks is not None:
            self._use_block(draft, request, blocks[0])
        elif request not in draft.victims:
            if request in draft.joined:
                del draft.joined[request]
            else:
                draft.left[request] = None
            draft.num_decodes -= 1
            self._blocks.defer(draft, request, 1)

    def _place_spare(self, draft: Draft, request: Request) -> bool:
        """Give a decode its next block, if it needs one and there is one to spare."""
        if not self._is_full(request) and not self._shares_tail(request):
            return True
        blocks = self._blocks.take_spare(draft, request, 1)
        if blocks is None:
            self._blocks.defer(draft, request, 1)
            return False
        self._use_block(draft, request, blocks[0])
        return True

    def _use_block(self, draft: Draft, request: Request, block: int) -> None:
        if self._is_full(request):
            draft.new_blocks[request] = [block]
        elif self._shares_tail(request):
            shared = request.block_table[-1]
            self._state.pool.release([shared])
            draft.copies[request] = (shared, block)
        else:
            # A victim let go of the shared tail while a block was sought: it is private now.
            self._state.pool.release([block])

    def _any_shared(self, requests: list[Request]) -> bool:
        return bool(self._state.groups) and any(r.group is not None for r in requests)

    def _is_full(self, request: Request) -> bool:
        """Whether the next token needs a new block."""
        computed = self._state.decodes.computed_tokens(request)
        return computed == len(request.block_table) * self._config.block_size

    def _shares_tail(self, request: Request) -> bool:
        """Whether the next token goes into a block that others read too (copy-on-write)."""
        if request.group is None or self._is_full(request):
            return False
        return self._state.pool.ref_count(request.block_table[-1]) > 1
