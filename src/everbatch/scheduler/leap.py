"""Steps that need no plan: those who can decode do, and nobody else could run.

A leap is a run of such steps. It begins where every prompt is computed and nobody waits, or whoever
waits first waits for an ending. It ends with the first step in which somebody ends, before blocks
may be lacking, or where its runner stops it. State and decisions are those of as many plans that
are applied; no plan is written, and what happened is told as a whole (StepsRan).

When blocks fill and who ends when is known beforehand, so the steps run first and the blocks that
they took are taken afterwards, in the same order: until then nobody else can look at the pool.
Works outside the pools' transactions, as it takes only what is there. Called by Scheduler.
"""

from collections.abc import Callable, KeysView
from dataclasses import dataclass, field
from itertools import accumulate

from everbatch.base.events import StepChange, StepsRan
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import BEHIND_HEAD, Draft
from everbatch.scheduler.lifecycle import Lifecycle
from everbatch.scheduler.plan import DeferReason
from everbatch.scheduler.report import DeferralLog
from everbatch.scheduler.request import Request, by_admission
from everbatch.scheduler.state import SchedulerState


@dataclass(slots=True)
class Stretch:
    """Steps in which all members decode, and that differ in nothing but who takes a block.

    The runner fills in what became of it: 1 to `most` passes ran, one right after the other.
    """

    num_decodes: int
    most: int
    """Passes, at least 1, after which the scheduler has to look again."""
    released: list[int]
    """Slots that are empty since the step before."""
    joined: list[Request]
    """Who decodes from the first of these steps on."""
    start_ns: int = 0
    durations: list[int] = field(default_factory=list)
    """Of each pass that ran, in nanoseconds."""
    stopped: list[int] = field(default_factory=list)
    """Slots that the last pass ended."""


Runner = Callable[[Stretch], None]
Fills = list[tuple[int, KeysView[Request]]]
"""Steps, and whose blocks each filled."""


class Leaps:
    """Knows when no plan is needed, and does without."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        lifecycle: Lifecycle,
        deferrals: DeferralLog,
    ) -> None:
        self._config = config
        self._state = state
        self._lifecycle = lifecycle
        self._deferrals = deferrals
        self._blocked_head: Request | None = None
        """Whom the last plan found to wait for something that only an ending can bring."""
        self._lasting = _lasting_obstacles(config)

    def note_plan(self, draft: Draft) -> None:
        """Remember whether whoever waits would be told the same by the next plan.

        Not where others who wait hold blocks: they may lose them while nobody ends.
        """
        head = draft.head
        lasts = (
            head is not None
            and draft.rest_of_queue is BEHIND_HEAD
            and not draft.victims
            and not self._state.tail_holders
            and draft.deferred[head].reason in self._lasting
        )
        self._blocked_head = head if lasts else None

    def leap(self, run: Runner) -> StepsRan | None:
        """Let steps run as long as none needs a plan; None if the next one does."""
        if not self._is_settled():
            return None
        state, needing = self._state, self._needing_blocks()
        if len(needing) > state.pool.num_allocatable:
            return None
        state.num_deferred_calls = 0
        released, joined = self._join_idle()
        most = self._most_steps(len(needing))
        stretch = Stretch(len(state.decodes.members), most, released, joined)
        first, num_used = state.decodes.num_steps + 1, state.pool.num_used
        run(stretch)
        durations, changes = stretch.durations, list[StepChange]()
        if needing or joined:
            changes.append(self._take_blocks(first, needing))
        ends = list(accumulate(durations, initial=stretch.start_ns))
        self._complete(first + len(durations) - 1, stretch, ends[-1], changes)
        names = tuple([request.id for request in joined])
        return StepsRan(first, durations, ends, stretch.num_decodes, names, num_used, changes)

    def _most_steps(self, num_needing: int) -> int:
        """Count the steps after which to look again; the next takes `num_needing` blocks.

        Up to the first ending, and as far as there are blocks for sure: in `block_size` steps each
        member takes one.
        """
        pool, decodes = self._state.pool, self._state.decodes
        until_full = decodes.next_full() - decodes.num_steps
        until_end = decodes.next_end() - decodes.num_steps
        num_rounds = (pool.num_allocatable - num_needing) // len(decodes.members)
        return min(max(until_full, num_rounds * self._config.block_size), until_end)

    def _complete(
        self, last: int, stretch: Stretch, now_ns: int, changes: list[StepChange]
    ) -> None:
        """Let the steps up to `last` take effect, and add what they changed to `changes`."""
        state, decodes = self._state, self._state.decodes
        self._take_in_turn(decodes.fills_before(last), changes)
        full, ended = decodes.advance()
        if not (stretch.stopped or ended):
            self._lifecycle.note_full(full)
            return
        self._lifecycle.finish_step(stretch.stopped, ended, full, now_ns)
        if changes and changes[-1].step == last:
            # A step reports the pool as those whom it ended left it.
            pool = state.pool
            changes[-1] = StepChange(last, changes[-1].blocks, pool.num_free, pool.num_cached)

    def _take_in_turn(self, fills: Fills, changes: list[StepChange]) -> None:
        """Give a block to each whose last one a step filled, and note what that changed."""
        state, pool = self._state, self._state.pool
        if self._config.enable_prefix_caching or state.rights is not None:
            # What is full is indexed before the next block is taken, which may be a cached one.
            for step, full in fills:
                self._lifecycle.note_full(full)
                changes.append(self._take_blocks(step + 1, list(full)))
            return
        num_free = pool.num_free
        blocks = pool.allocate(sum([len(full) for _, full in fills]))
        assert blocks is not None
        upcoming = iter(blocks)
        for step, full in fills:
            taken = []
            for request in full if len(full) == 1 else sorted(full, key=by_admission):
                block = next(upcoming)
                request.block_table.append(block)
                taken.append((request.id, block))
            num_free -= len(taken)
            changes.append(StepChange(step + 1, taken, num_free, 0))

    def _take_blocks(self, step: int, needing: list[Request]) -> StepChange:
        """Give each one more block, of which there are enough; gives who took which."""
        state, pool = self._state, self._state.pool
        if len(needing) > 1:
            needing.sort(key=by_admission)
        blocks = pool.allocate(len(needing))
        assert blocks is not None
        taken = []
        for request, block in zip(needing, blocks, strict=True):
            request.block_table.append(block)
            taken.append((request.id, block))
        if state.rights is not None:
            for request in needing:
                state.rights.note(request)
        return StepChange(step, taken, pool.num_free, pool.num_cached)

    def _needing_blocks(self) -> list[Request]:
        """Give those who decode next and whose last blocks are full."""
        state, block_size = self._state, self._config.block_size
        members = state.decodes.members
        needing = [request for request in state.due if request in members]
        for request in state.idle_decodes:
            if request.num_computed_tokens == len(request.block_table) * block_size:
                needing.append(request)
        return needing

    def _join_idle(self) -> tuple[list[int], list[Request]]:
        """Let all decode who can; gives the slots released since the last step, and who joined."""
        state = self._state
        joined = list(state.idle_decodes)
        if len(joined) > 1:
            joined.sort(key=by_admission)
        for request in joined:
            self._lifecycle.join(request)
        released, state.released_slots = state.released_slots, []
        return released, joined

    def _is_settled(self) -> bool:
        """Whether those who can decode are all who could run."""
        state = self._state
        if state.prefilling or state.groups or state.masked or state.protected:
            return False
        if state.trials or state.must_restate:
            return False
        if state.preempted_slots or state.swapped_out or self._deferrals.has_newcomers:
            return False
        num_decodes = len(state.decodes.members) + len(state.idle_decodes)
        if not 0 < num_decodes <= self._config.max_num_batched_tokens:
            return False
        head = state.policy.queue.peek(state.decodes.num_steps)
        if head is None:
            return True
        # Whoever has left may have made room for it.
        return head is self._blocked_head and not state.released_slots


def _lasting_obstacles(config: SchedulerConfig) -> tuple[DeferReason, ...]:
    """Give the reasons for which the head of the queue waits until somebody ends.

    Decodes only take blocks, so a head for which there are too few stays out. Prefix caching does
    not change that for admission "prompt": a decode that fills a block which the head could read
    takes another one at once, and of cached blocks that go those that the head would have read were
    not free for it anyway. But a prompt that cannot be read in chunks may be told of the tokens
    then, and admission "now" counts the blocks of a chunk, however many are read.

    Where admission looks ahead, the order of the queue changes with time, or others may pass the
    head, nothing or only the want of a slot lasts.
    """
    changes = config.policy == "vtc" or (config.policy == "priority" and config.aging_steps)
    shares = config.min_prefill_tokens or config.prefill_aging_steps
    if changes or shares or config.backfill != "none" or config.batching == "static":
        return ()
    blocks_last = config.admission in ("now", "prompt")
    if config.enable_prefix_caching:
        blocks_last = config.admission == "prompt" and config.enable_chunked_prefill
    if not blocks_last:
        return (DeferReason.SEQUENCE_BUDGET,)
    return (DeferReason.SEQUENCE_BUDGET, DeferReason.KV_BUDGET)
