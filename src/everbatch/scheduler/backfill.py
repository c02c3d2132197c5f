"""Safe backfill: who may overtake a head of the queue that does not fit, without delaying it.

The head's earliest start is known if every running request runs to max_tokens: the first time at
which enough slots and blocks have come back. A request may pass if it will have ended by then, or
if what the head needs is there at that time all the same (EASY backfilling, Lifka 1995). Only
requests whose prompt fits into this step pass: the number of steps that they take is then certain.

What ends earlier than max_tokens frees its blocks earlier; the head may then find them taken until
the time that was computed, never longer. Pure reckoning over a draft. Called by PrefillPlanner.
"""

from dataclasses import dataclass

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


@dataclass(slots=True, frozen=True)
class _Future:
    """A running request: its cached tokens once its prompt is done, and the steps it has left."""

    context: int
    steps_left: int
    num_slots: int

    def blocks_after(self, steps: int, block_size: int) -> int:
        """Give the blocks held after so many steps more; none once it has ended."""
        if steps >= self.steps_left:
            return 0
        return self.num_slots * blocks_for(self.context + steps, block_size)

    def slots_after(self, steps: int) -> int:
        return 0 if steps >= self.steps_left else self.num_slots


class SafeBackfill:
    """Answers for one draft at a time."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState, blocks: BlockLedger) -> None:
        self._config = config
        self._state = state
        self._blocks = blocks

    def may_pass(self, draft: Draft, request: Request, head: Request, obstacle: Deferral) -> bool:
        """Whether admitting `request` now leaves the earliest start of `head` as it is."""
        budget_left = self._config.max_num_batched_tokens - draft.num_tokens
        if self._config.backfill == "none" or request.prefill_target > budget_left:
            return False
        running = [self._future(r) for r in self._running(draft)]
        candidate = self._future(request)
        head_blocks = self._blocks.life(head)
        if obstacle.reason is DeferReason.KV_BUDGET:
            head_blocks = obstacle.needed
        start = self._earliest_start(running, head, head_blocks)
        if candidate.steps_left <= start:
            return self._fits(start, [*running, candidate])
        with_candidate = [*running, candidate]
        return self._has_room(start, with_candidate, head, head_blocks)

    def _earliest_start(self, running: list[_Future], head: Request, head_blocks: int) -> int:
        """Give the steps after which the head fits, at the latest."""
        for steps in sorted({0, *(future.steps_left for future in running)}):
            if self._has_room(steps, running, head, head_blocks):
                return steps
        return max((future.steps_left for future in running), default=0)

    def _has_room(
        self, steps: int, running: list[_Future], head: Request, head_blocks: int
    ) -> bool:
        block_size = self._config.block_size
        used_slots = sum(future.slots_after(steps) for future in running)
        used_blocks = sum(future.blocks_after(steps, block_size) for future in running)
        slots_fit = used_slots + head.num_slots <= self._config.max_num_seqs
        return slots_fit and used_blocks + head_blocks <= self._config.num_blocks

    def _fits(self, until: int, running: list[_Future]) -> bool:
        """Whether all of them have their blocks, and their tokens, up to a time."""
        block_size = self._config.block_size
        times = sorted({0, *(f.steps_left - 1 for f in running if 0 < f.steps_left <= until)})
        most = max(sum(f.blocks_after(steps, block_size) for f in running) for steps in times)
        num_slots = sum(future.num_slots for future in running)
        tokens_fit = num_slots <= self._config.max_num_batched_tokens
        return tokens_fit and most <= self._config.num_blocks

    def _running(self, draft: Draft) -> list[Request]:
        holders = [r for r in self._state.slots if r is not None and not r.is_follower]
        return [*(r for r in holders if r not in draft.victims), *draft.admitted]

    def _future(self, request: Request) -> _Future:
        ran = self._state.decodes.progress(request)
        outputs = request.num_output_tokens + ran
        # A prefill takes one step more at least, and emits the first output in it.
        in_decode = request in self._state.decodes or request in self._state.idle_decodes
        rebuild = int(outputs > 0 and not in_decode)
        context = request.num_prompt_tokens + max(0, outputs - 1)
        return _Future(context, request.max_tokens - outputs + rebuild, request.num_slots)
