"""Steps that need no plan: those who can decode do, and nobody else could run.

A leap is a run of such steps. It begins where every prompt is computed and nobody waits, or whoever
waits first waits for an ending. It ends with the first step in which somebody ends, where blocks
are lacking, or where its runner stops it. State, decisions and events are those of as many plans
that are applied, except that no plan is written and steps alike are one event (QuietSteps, as in
the event log). Works outside the pools' transactions, as it takes only what is there. Called by
Scheduler.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from everbatch.base.events import Event, QuietSteps, StepRan
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import BEHIND_HEAD, Draft
from everbatch.scheduler.lifecycle import Lifecycle
from everbatch.scheduler.plan import DeferReason, StepOutcome
from everbatch.scheduler.report import DeferralLog
from everbatch.scheduler.request import Request, by_admission
from everbatch.scheduler.state import SchedulerState


@dataclass(slots=True)
class Stretch:
    """Steps of a leap that differ in nothing: all members decode, nobody takes a block.

    The runner fills in what became of it: 1 to `most` passes ran, one right after the other.
    """

    num_decodes: int
    most: int
    """Passes, at least 1, after which the scheduler has to look again."""
    released: list[int]
    """Slots that are empty since the step before, and the requests that join: of the first stretch
    of a leap alone."""
    joined: list[Request]
    start_ns: int = 0
    durations: list[int] = field(default_factory=list)
    """Of each pass that ran, in nanoseconds."""
    stopped: list[int] = field(default_factory=list)
    """Slots that the last pass ended."""
    goes_on: bool = True
    """Whether there may be another stretch at once."""


Runner = Callable[[Stretch], None]
_Taken = tuple[tuple[str, tuple[int, ...]], ...]


class Leaps:
    """Knows when no plan is needed, and does without."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        lifecycle: Lifecycle,
        deferrals: DeferralLog,
        events: list[Event],
    ) -> None:
        self._config = config
        self._state = state
        self._lifecycle = lifecycle
        self._events = events
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

    def leap(self, run: Runner) -> bool:
        """Let steps run as long as none needs a plan; gives whether any did."""
        if not self._is_settled():
            return False
        state = self._state
        needing = self._needing_blocks()
        if len(needing) > state.pool.num_allocatable:
            return False
        state.num_deferred_calls = 0
        released, joined = self._join_idle()
        while len(needing) <= state.pool.num_allocatable:
            if not self._run_stretch(run, needing, released, joined):
                break
            needing, released, joined = state.due, [], []
        return True

    def _run_stretch(
        self, run: Runner, needing: list[Request], released: list[int], joined: list[Request]
    ) -> bool:
        """Let steps run of which the first alone may differ; gives whether another may follow."""
        decodes, events = self._state.decodes, self._events
        taken = self._append_to_each(needing) if needing else ()
        step, place = decodes.num_steps + 1, len(events)
        stretch = Stretch(len(decodes), decodes.num_alike(), released, joined)
        run(stretch)
        count, now = len(stretch.durations), stretch.start_ns + sum(stretch.durations)
        full, ended = decodes.advance(count)
        has_ended = bool(stretch.stopped or ended)
        if (taken or joined) and count > 1:
            events.append(self._first_event(stretch, step, taken))
            place += 1
        if has_ended:
            self._lifecycle.finish_step(StepOutcome(stretch.stopped), ended, full, now)
        else:
            self._lifecycle.note_full(full)
        # The steps come before those whom the last of them ended.
        events.insert(place, self._last_event(stretch, step, taken, count, now))
        return stretch.goes_on and not has_ended

    def _last_event(
        self, stretch: Stretch, step: int, taken: _Taken, count: int, now: int
    ) -> QuietSteps | StepRan:
        """Describe all steps, or all but a first that has an event of its own."""
        start, num_decodes = stretch.start_ns, stretch.num_decodes
        if not (taken or stretch.joined):
            return QuietSteps(now, step, start, count, num_decodes)
        if count == 1:
            return self._first_event(stretch, step, taken)
        first_end = start + stretch.durations[0]
        return QuietSteps(now, step + 1, first_end, count - 1, num_decodes)

    def _first_event(self, stretch: Stretch, step: int, taken: _Taken) -> StepRan:
        """Describe a step in which somebody took a block or joined; the pool is as it left it."""
        start, num_decodes, pool = stretch.start_ns, stretch.num_decodes, self._state.pool
        joined = tuple([request.id for request in stretch.joined])
        return StepRan(
            start + stretch.durations[0],
            step,
            start,
            tokens=num_decodes,
            emitted=num_decodes,
            decodes=num_decodes,
            chunks=(),
            blocks=taken,
            joined=joined,
            left=(),
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
        )

    def _needing_blocks(self) -> list[Request]:
        """Give those who decode next and whose last blocks are full."""
        state, block_size = self._state, self._config.block_size
        needing = [request for request in state.due if request in state.decodes]
        for request in state.idle_decodes:
            if request.num_computed_tokens == len(request.block_table) * block_size:
                needing.append(request)
        return needing

    def _join_idle(self) -> tuple[list[int], list[Request]]:
        """Let all decode who can; gives the slots released since the last step, and who joined."""
        state = self._state
        joined = sorted(state.idle_decodes, key=by_admission)
        for request in joined:
            self._lifecycle.join(request)
        released, state.released_slots = state.released_slots, []
        return released, joined

    def _append_to_each(self, needing: list[Request]) -> _Taken:
        """Give each one more block, of which there are enough; gives who took which."""
        if len(needing) > 1:
            needing.sort(key=by_admission)
        blocks = self._state.pool.allocate(len(needing))
        assert blocks is not None
        taken = []
        for request, block in zip(needing, blocks, strict=True):
            request.block_table.append(block)
            taken.append((request.id, (block,)))
        if self._state.rights is not None:
            for request in needing:
                self._state.rights.note(request)
        return tuple(taken)

    def _is_settled(self) -> bool:
        """Whether those who can decode are all who could run."""
        state = self._state
        if state.prefilling or state.groups or state.masked or state.protected:
            return False
        if state.trials or state.must_restate:
            return False
        if state.preempted_slots or state.swapped_out or self._deferrals.has_newcomers:
            return False
        num_decodes = len(state.decodes) + len(state.idle_decodes)
        if not 0 < num_decodes <= self._config.max_num_batched_tokens:
            return False
        head = state.policy.queue.peek(state.decodes.num_steps)
        if head is None:
            return True
        # Whoever has left may have made room for it.
        return head is self._blocked_head and not state.released_slots


def _lasting_obstacles(config: SchedulerConfig) -> tuple[DeferReason, ...]:
    """Give the reasons for which the head of the queue waits until somebody ends.

    Decodes only take blocks, so a head for which there are too few stays out, unless it could
    read what they fill (prefix caching) or the way of admission looks ahead. Where the order of the
    queue changes with time, or others may pass the head, nothing lasts.
    """
    changes = config.policy == "vtc" or (config.policy == "priority" and config.aging_steps)
    shares = config.min_prefill_tokens or config.prefill_aging_steps
    if changes or shares or config.backfill != "none" or config.batching == "static":
        return ()
    if config.enable_prefix_caching or config.admission not in ("now", "prompt"):
        return (DeferReason.SEQUENCE_BUDGET,)
    return (DeferReason.SEQUENCE_BUDGET, DeferReason.KV_BUDGET)
