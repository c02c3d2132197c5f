"""Turns what the scheduler did into events, and remembers why each request waits.

Changes no request. Called by the scheduler and the lifecycle.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from everbatch.base.events import Arrived, Deferred, Event, Rejected, StepRan
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler.admission import Rejection
from everbatch.scheduler.draft import BEHIND_HEAD, Draft, Lack
from everbatch.scheduler.plan import Deferral, DeferReason, StepPlan
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState

_NOTHING = Lack()


class DeferralLog:
    """Why live requests got no token when that was last reported; an event when the reason changes.

    All but the head of the queue stand behind it. That is noted when they come or when the head
    changes, so a long queue that waits costs nothing. Where the rest of the queue waits for another
    reason (static batching, greedy backfill) it is gone through when that reason changes.
    """

    def __init__(self, state: SchedulerState, events: list[Event]) -> None:
        self.current: dict[Request, Deferral] = {}
        self._state = state
        self._events = events
        self._newcomers: list[Request] = []
        self._head: Request | None = None
        self._rest = BEHIND_HEAD

    def is_news(self, request: Request, reason: DeferReason) -> bool:
        """Whether a reason is another one than the last that was logged for the request."""
        known = self.current.get(request)
        return known is None or known.reason is not reason

    def note_waiting(self, request: Request) -> None:
        """A request has come, or come back, into the queue."""
        self.current.pop(request, None)
        self._newcomers.append(request)

    def note_served(self, request: Request) -> None:
        """A request got a token."""
        self.current.pop(request, None)

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self.current.pop(request, None)

    def report(self, draft: Draft, step: int, now_ns: int) -> None:
        """Log whom a plan left without a token, where the reason is not the last one logged."""
        queue = self._state.policy.queue
        head = draft.head or queue.peek(self._state.decodes.num_steps)
        place = _Place(step, now_ns, None if head is None else head.label, draft.lacks)
        for request, deferral in draft.deferred.items():
            self._defer(request, deferral, place)
        if draft.victims and head is not None:
            # Nobody is admitted in a step that preempted; the head may be a victim itself.
            self._defer(head, Deferral(DeferReason.COOLDOWN, 0, 0), place)
        rest_changed = draft.rest_of_queue.reason is not self._rest.reason
        if not self._newcomers and head is self._head and not rest_changed:
            return
        for request in self._others(head, everybody=rest_changed):
            if request not in draft.deferred and request in queue:
                skip_head = request is head and draft.rest_of_queue is BEHIND_HEAD
                if not skip_head:
                    self._defer(request, draft.rest_of_queue, place)
        self._newcomers.clear()
        self._head = head
        self._rest = draft.rest_of_queue

    def _others(self, head: Request | None, *, everybody: bool) -> Iterator[Request]:
        """Go through those whose reason may be another one than before."""
        if everybody:
            step = self._state.decodes.num_steps
            yield from self._state.policy.queue.in_order(step, lambda _: 0)
            return
        yield from self._newcomers
        if self._head is not None:
            yield self._head

    def _defer(self, request: Request, deferral: Deferral, place: "_Place") -> None:
        is_news = self.is_news(request, deferral.reason)
        self.current[request] = deferral
        if not is_news:
            return
        behind = deferral.behind
        if deferral is BEHIND_HEAD:
            behind = place.head
        lack = place.lacks.get(request, _NOTHING)
        self._events.append(
            Deferred(
                t=place.now_ns,
                step=place.step,
                id=request.label,
                reason=deferral.reason.value,
                needed=deferral.needed,
                available=deferral.available,
                behind=behind,
                lacking_slots=lack.slots,
                lacking_tokens=lack.tokens,
                lacking_blocks=lack.blocks,
            )
        )


@dataclass(slots=True, frozen=True)
class _Place:
    """What the deferrals of one step have in common."""

    step: int
    now_ns: int
    head: str | None
    lacks: Mapping[Request, Lack]


def arrived_event(request: Request, num_samples: int, now_ns: int) -> Arrived:
    return Arrived(
        t=now_ns,
        id=request.label,
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        priority=request.priority,
        tenant=request.tenant,
        samples=num_samples,
    )


def rejected_event(
    request_id: str, num_prompt_tokens: int, max_tokens: int, rejection: Rejection, now_ns: int
) -> Rejected:
    return Rejected(
        t=now_ns,
        id=request_id,
        prompt_tokens=num_prompt_tokens,
        max_tokens=max_tokens,
        reason=rejection.reason.value,
        needed=rejection.needed,
        limit=rejection.limit,
    )


def step_event(
    draft: Draft, plan: StepPlan, pool: BlockPool, num_emitted: int, now_ns: int
) -> StepRan:
    """Describe a step that has run; the pool is as its retirements left it."""
    taken = [(request.id, tuple(blocks)) for request, blocks in draft.new_blocks.items() if blocks]
    taken += [(request.id, tuple(blocks)) for request, blocks in draft.swapped_in.items()]
    taken += [(request.id, (copy,)) for request, (_, copy) in draft.copies.items()]
    return StepRan(
        t=now_ns,
        step=plan.step,
        start=plan.start_ns,
        tokens=draft.num_tokens,
        emitted=num_emitted,
        decodes=draft.num_decodes,
        chunks=tuple((request.id, c.start, c.count) for request, c in draft.chunks.items()),
        blocks=tuple(taken),
        joined=tuple(request.id for request in draft.joined),
        left=tuple(request.id for request in draft.left),
        free_blocks=pool.num_free,
        cached_blocks=pool.num_cached,
    )
