"""How many blocks must be allocatable for a request to be admitted, and how many are.

Pure reckoning over a draft; takes nothing. Called by Grants and the planners of admissions.
"""

from collections.abc import Sequence

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.admission import Future, peak_blocks
from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.decode_set import DecodeSet
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.preemption import is_protected
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


class AdmissionGate:
    """The option `admission`, in blocks (docs/scheduling.md, Admission)."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState, blocks: BlockLedger) -> None:
        self._config = config
        self._state = state
        self._pool = state.pool
        self._blocks = blocks
        self.counts_rights = state.rights is not None
        """Whether others may have a right to blocks that are free."""
        self._watermark = config.watermark_blocks

    def needed(self, draft: Draft, request: Request, num_held: int, chunk_need: int) -> int:
        """Give the allocatable blocks that admission asks for.

        "now": those of this chunk. "prompt": those of the whole history (and the pending output),
        plus what prefills admitted before still need for theirs, so that admitted prompts never
        fight over blocks. "peak": what all together hold at most if everybody runs to max_tokens.
        "reserve", and for whoever may not be preempted any more: the whole life, and everybody
        else's. The watermark comes on top while anybody holds a slot.
        """
        config = self._config
        if config.admission == "reserve" or is_protected(request, config):
            gate = self.whole_life(draft, request, num_held)
        elif config.admission == "prompt":
            gate = blocks_for(request.num_context_tokens, config.block_size) - num_held
            gate += draft.num_promised_blocks
        elif config.admission == "peak":
            gate = max(chunk_need, self._peak(draft, request, num_held))
        else:
            gate = chunk_need
        if self._watermark and (self._state.num_running > 0 or draft.admitted):
            gate += self._watermark
        return gate

    def whole_life(self, draft: Draft, request: Request, num_held: int) -> int:
        """Give the blocks of a whole life; what others may claim is not available anyhow."""
        gate = self._blocks.life(request) - num_held
        if self._config.batching == "static":
            gate += sum(
                self._blocks.life(other) - self._blocks.held(draft, other)
                for other in draft.admitted
            )
        return gate

    def available(self, draft: Draft, hits: Sequence[int]) -> int:
        """Count the blocks that an admission may use, the hits it reads not among them."""
        if not (hits or self.counts_rights):
            return self._pool.num_allocatable
        return max(0, self._unclaimed(draft, hits))

    def missing(self, draft: Draft, request: Request, hits: Sequence[int], chunk_need: int) -> int:
        """Count the blocks that an admission lacks, those that others have a right to included."""
        num_held = len(request.block_table) + len(hits)
        if self._config.batching == "static":
            available = self._pool.num_allocatable_beside(hits)
            return max(0, self.whole_life(draft, request, num_held) - available)
        needed = self.needed(draft, request, num_held, chunk_need)
        return max(0, needed - self._unclaimed(draft, hits))

    def _unclaimed(self, draft: Draft, hits: Sequence[int]) -> int:
        """Count the allocatable blocks less those others have a right to; below 0: too few."""
        unclaimed = self._pool.num_allocatable_beside(hits)
        return unclaimed - self._blocks.entitled(draft) if self.counts_rights else unclaimed

    def _peak(self, draft: Draft, request: Request, num_held: int) -> int:
        """Give what must be allocatable now so that the largest future sum fits the pool."""
        running = self._blocks.running(draft)
        futures = [future_of(other, self._state.decodes) for other in (*running, request)]
        peak = peak_blocks(futures, self._config.block_size)
        held_now = sum(self._blocks.held(draft, other) for other in running)
        return peak - held_now - num_held


def future_of(request: Request, decodes: DecodeSet) -> Future:
    """Foresee a request whose prompt or history is read, if it is not yet, by the next step.

    A prompt emits the first output in that step; a history nothing, so it takes one step more.
    """
    num_outputs = request.num_output_tokens + decodes.progress(request)
    restores = request.is_rebuilding and request.num_computed_tokens < request.prefill_target
    steps_left = request.max_tokens - num_outputs + int(restores)
    # The last output is never consumed.
    last_tokens = request.num_prompt_tokens + request.max_tokens - 1
    return Future(
        tokens=last_tokens - steps_left,
        steps_left=steps_left,
        num_samples=request.num_slots,
        num_shared_blocks=request.num_prompt_tokens // decodes.block_size,
    )
