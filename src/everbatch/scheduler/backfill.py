"""Safe backfill: who may overtake a head of the queue that does not fit, without delaying it.

The head's earliest start is known if every running request runs to max_tokens: the first time at
which enough slots, tokens and blocks have come back. A request may pass if it will have ended by
then, or if what the head needs is there at that time beside the whole life of who passes (EASY
backfilling, Lifka 1995). Only requests whose prompt fits into this step pass: the number of steps
that they take is then certain.

What ends earlier than max_tokens frees its blocks earlier; the head may then find them taken until
the time that was computed, never longer. Pure reckoning over a draft. Called by PrefillPlanner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.scheduler.admission import Future, chunk_size, peak_blocks
from everbatch.scheduler.block_ledger import BlockLedger
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.gate import future_of
from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.preemption import is_protected
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState


@dataclass(slots=True, frozen=True)
class _Running:
    """A running request: what it holds as time goes by, and the steps it has left."""

    future: Future
    """At boundaries."""
    foreseen: Future
    """Within steps, as the gate of admission "peak" sees it."""
    steps_left: int
    life: int
    is_reserved: bool
    """Whether its whole life is kept for it from the start."""
    shared_with: str | None
    """The group whose prompt's full blocks it shares, once its samples have parted."""

    @property
    def num_slots(self) -> int:
        return self.future.num_samples

    def blocks_after(self, steps: int, block_size: int) -> int:
        """Give the blocks that nobody else can have after so many steps, if it still runs."""
        return self.life if self.is_reserved else self.future.blocks_after(steps, block_size)


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
        running = [self._describe(r) for r in self._blocks.running(draft)]
        start = self._earliest_start(running, head, obstacle)
        candidate = self._describe(request)
        if candidate.steps_left <= start:
            return self._fits(start, [*running, candidate])
        if self._config.admission == "peak":
            # Between two ends the peak to come may sink: the head may fit sooner than known.
            return False
        # It may still run at any later time: its whole life must fit beside the head.
        lasting = self._describe(request, is_reserved=True)
        return self._has_room(start, [*running, lasting], head, obstacle)

    def _earliest_start(
        self, running: Sequence[_Running], head: Request, obstacle: Deferral
    ) -> int:
        """Give the steps after which the head fits, at the latest; for "peak", at the earliest."""
        before = -1
        for steps in sorted({0, *(other.steps_left for other in running)}):
            if self._has_room(steps, running, head, obstacle):
                return before + 1 if self._config.admission == "peak" else steps
            before = steps
        return max((other.steps_left for other in running), default=0)

    def _has_room(
        self, steps: int, running: Sequence[_Running], head: Request, obstacle: Deferral
    ) -> bool:
        """Whether the head could be admitted after so many steps."""
        config = self._config
        alive = [other for other in running if other.steps_left > steps]
        num_slots = sum(other.num_slots for other in alive)
        # Without chunks the head needs its prompt's tokens at once.
        may_chunk = config.enable_chunked_prefill or head.is_rebuilding
        num_tokens = 1 if may_chunk else head.prefill_target
        if num_slots + head.num_slots > config.max_num_seqs:
            return False
        if num_slots + num_tokens > config.max_num_batched_tokens:
            return False
        if config.admission == "peak" and not is_protected(head, config):
            most = self._peak(steps, alive, head)
        else:
            most = self._used(steps, alive) + self._head_blocks(head, obstacle, num_slots)
        if alive and (config.admission == "peak" or obstacle.reason is not DeferReason.KV_BUDGET):
            most += config.watermark_blocks
        return most <= config.num_blocks

    def _head_blocks(self, head: Request, obstacle: Deferral, num_decodes: int) -> int:
        """Give the blocks at its gate: those that it lacked, if it lacked blocks."""
        config = self._config
        if obstacle.reason is DeferReason.KV_BUDGET:
            return obstacle.needed
        if config.admission == "reserve" or is_protected(head, config):
            return self._blocks.life(head)
        if config.admission == "now":
            budget = config.max_num_batched_tokens - num_decodes
            return blocks_for(chunk_size(head.prefill_target, budget, config), config.block_size)
        return blocks_for(head.num_context_tokens, config.block_size)

    def _used(self, steps: int, alive: Sequence[_Running]) -> int:
        """Count the blocks of those who still run."""
        block_size = self._config.block_size
        total = sum(other.blocks_after(steps, block_size) for other in alive)
        return total - self._counted_again(alive)

    def _counted_again(self, alive: Sequence[_Running]) -> int:
        """Count the full blocks of prompts that parted samples share, but for once each."""
        total, groups = 0, dict[str, None]()
        for other in alive:
            if other.shared_with is not None:
                if other.shared_with in groups:
                    total += other.future.num_shared_blocks
                groups[other.shared_with] = None
        return total

    def _peak(self, steps: int, alive: Sequence[_Running], head: Request) -> int:
        """Give the most blocks at any time from then on, the head among those who run."""
        futures = [
            replace(
                other.foreseen,
                tokens=other.foreseen.tokens + steps,
                steps_left=other.foreseen.steps_left - steps,
            )
            for other in alive
        ]
        peak = peak_blocks(
            [*futures, future_of(head, self._state.decodes)], self._config.block_size
        )
        return peak - self._counted_again(alive)

    def _fits(self, until: int, running: Sequence[_Running]) -> bool:
        """Whether all of them have their blocks, and their tokens, up to a time."""
        ends = [other.steps_left - 1 for other in running if 0 < other.steps_left <= until]
        most = max(
            self._used(steps, [other for other in running if other.steps_left > steps])
            for steps in sorted({0, *ends})
        )
        tokens_fit = (
            sum(other.num_slots for other in running) <= self._config.max_num_batched_tokens
        )
        return tokens_fit and most <= self._config.num_blocks

    def _describe(self, request: Request, *, is_reserved: bool = False) -> _Running:
        outputs = request.num_output_tokens + self._state.decodes.progress(request)
        # A prefill takes one step more at least, and emits the first output in it.
        in_decode = request in self._state.decodes or request in self._state.idle_decodes
        rebuild = int(outputs > 0 and not in_decode)
        group = request.group
        return _Running(
            future=self._future(request),
            foreseen=future_of(request, self._state.decodes),
            steps_left=request.max_tokens - outputs + rebuild,
            life=self._blocks.life(request),
            is_reserved=is_reserved
            or self._config.admission == "reserve"
            or is_protected(request, self._config),
            shared_with=group.id if group is not None and group.has_forked else None,
        )

    def _future(self, request: Request) -> Future:
        outputs = request.num_output_tokens + self._state.decodes.progress(request)
        return Future(
            tokens=request.num_prompt_tokens + max(0, outputs - 1),
            steps_left=request.max_tokens - max(1, outputs),
            num_samples=request.num_slots,
            num_shared_blocks=request.num_prompt_tokens // self._config.block_size,
        )
