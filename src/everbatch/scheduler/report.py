"""Turns what the scheduler did into events, and remembers why each request waits.

Changes no request. Called by the scheduler.
"""

from everbatch.base.events import Arrived, Deferred, Event, Rejected, StepRan
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler.admission import Rejection
from everbatch.scheduler.plan import Deferral, DeferReason, StepPlan
from everbatch.scheduler.planner import Draft
from everbatch.scheduler.queue import WaitingQueue
from everbatch.scheduler.request import Request


class DeferralLog:
    """Why live requests got no token when that was last reported; an event when the reason changes.

    All but the head of the queue stand behind it. That is noted when they come or when the head
    changes, so a long queue that waits costs nothing.
    """

    def __init__(self, waiting: WaitingQueue, events: list[Event]) -> None:
        self.current: dict[Request, Deferral] = {}
        self._waiting = waiting
        self._events = events
        self._newcomers: list[Request] = []
        self._head: Request | None = None

    def note_waiting(self, request: Request) -> None:
        """A request has come, or come back, into the queue."""
        self.current.pop(request, None)
        self._newcomers.append(request)

    def note_served(self, request: Request) -> None:
        """A request got a token, or ended."""
        self.current.pop(request, None)

    def report(self, draft: Draft, step: int, now_ns: int) -> None:
        """Log whom a plan left without a token, where the reason is not the last one logged."""
        for request, deferral in draft.deferred.items():
            self._defer(request, deferral, step, now_ns)
        head = self._waiting.peek()
        if draft.victims and head is not None:
            # Nobody is admitted in a step that preempted; the head may be a victim itself.
            self._defer(head, Deferral(DeferReason.COOLDOWN, 0, 0), step, now_ns)
        if not self._newcomers and head is self._head:
            return
        behind = Deferral(DeferReason.BEHIND_HEAD, 0, 0)
        if self._head is not None:
            self._newcomers.append(self._head)
        for request in self._newcomers:
            if request is not head and request in self._waiting:
                self._defer(request, behind, step, now_ns)
        self._newcomers.clear()
        self._head = head

    def _defer(self, request: Request, deferral: Deferral, step: int, now_ns: int) -> None:
        known = self.current.get(request)
        self.current[request] = deferral
        if known is None or known.reason is not deferral.reason:
            reason, needed, available = deferral.reason.value, deferral.needed, deferral.available
            self._events.append(Deferred(now_ns, step, request.id, reason, needed, available))


def arrived_event(request: Request, now_ns: int) -> Arrived:
    return Arrived(
        t=now_ns,
        id=request.id,
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        priority=request.priority,
        tenant=request.tenant,
    )


def rejected_event(request: Request, rejection: Rejection, now_ns: int) -> Rejected:
    return Rejected(
        t=now_ns,
        id=request.id,
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        reason=rejection.reason.value,
        needed=rejection.needed,
        limit=rejection.limit,
    )


def step_event(
    draft: Draft, plan: StepPlan, pool: BlockPool, num_emitted: int, now_ns: int
) -> StepRan:
    """Describe a step that has run; the pool is as its retirements left it."""
    return StepRan(
        t=now_ns,
        step=plan.step,
        start=plan.start_ns,
        tokens=draft.num_tokens,
        emitted=num_emitted,
        decodes=draft.num_decodes,
        chunks=tuple((request.id, c.start, c.count) for request, c in draft.chunks.items()),
        blocks=tuple((request.id, tuple(taken)) for request, taken in draft.new_blocks.items()),
        joined=tuple(request.id for request in draft.joined),
        left=tuple(request.id for request in draft.left),
        free_blocks=pool.num_free,
        cached_blocks=pool.num_cached,
    )
