"""Turns what the scheduler did into events, and remembers why each request waits.

Changes no request. Called by the scheduler and the lifecycle.
"""

from collections.abc import Iterator, Mapping

from everbatch.base.events import Arrived, Deferred, Event, Rejected, StepRan
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler.admission import Rejection
from everbatch.scheduler.draft import BEHIND_HEAD, Draft, Lack
from everbatch.scheduler.plan import Deferral, DeferReason, StepPlan
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState

MAX_MESSAGE_CHARACTERS = 200
"""Of what an event says why something failed."""

_NOTHING = Lack()
_News = tuple[Request, Deferral]


class DeferralLog:
    """Why live requests got no token when that was last reported; an event when the reason changes.

    All but the head of the queue stand behind it. That is noted when they come or when the head
    changes, so a long queue that waits costs nothing. Where the rest of the queue waits for another
    reason (static batching, greedy backfill) it is gone through when that reason changes.
    """

    def __init__(self, state: SchedulerState, events: list[Event]) -> None:
        self.current: dict[Request, Deferral] = {}
        """As of the last plan; an event is written where a plan gives another reason."""
        self._state = state
        self._events = events
        self._newcomers: list[Request] = []
        self._head: Request | None = None
        self._rest = BEHIND_HEAD

    @property
    def has_newcomers(self) -> bool:
        """Whether somebody came into the queue since the last plan that was carried out."""
        return bool(self._newcomers)

    def note_waiting(self, request: Request) -> None:
        """A request has come, or come back, into the queue."""
        self.current.pop(request, None)
        self._newcomers.append(request)

    def forget(self, request: Request) -> None:
        """A request got a token, yielded, or has ended."""
        self.current.pop(request, None)

    def hand_over(self, request: Request, heir: Request, *, waits: bool) -> None:
        """Another sample goes on in place of one that ends.

        Until they start people know them by one name, and have been told why it waits.
        """
        known = self.current.pop(request, None)
        if waits:
            self.note_waiting(heir)
        if known is not None and request.label == heir.label:
            self.current[heir] = known

    def report(self, draft: Draft, step: int, now_ns: int) -> None:
        """Log whom a plan left without a token, where the reason is not the last one logged."""
        queue = self._state.policy.queue
        head = draft.head or queue.peek(self._state.decodes.num_steps)
        news: list[_News] = []
        for request, deferral in draft.deferred.items():
            self._defer(request, deferral, news)
        if draft.victims and head is not None:
            # Nobody is admitted in a step that preempted; the head may be a victim itself.
            self._defer(head, Deferral(DeferReason.COOLDOWN, 0, 0), news)
        rest_changed = draft.rest_of_queue.reason is not self._rest.reason
        if self._newcomers or head is not self._head or rest_changed:
            for request in self._others(everybody=rest_changed):
                waits = request.slot is None and request not in draft.deferred
                if waits and request in queue:
                    skip_head = request is head and draft.rest_of_queue is BEHIND_HEAD
                    if not skip_head:
                        self._defer(request, draft.rest_of_queue, news)
            self._newcomers.clear()
            self._head = head
            self._rest = draft.rest_of_queue
        if news:
            behind = None if head is None else head.label
            self._write(news, draft.lacks, behind, step, now_ns)

    def _others(self, *, everybody: bool) -> Iterator[Request]:
        """Go through those whose reason may be another one than before."""
        if everybody:
            step = self._state.decodes.num_steps
            yield from self._state.policy.queue.in_order(step)
            return
        yield from self._newcomers
        if self._head is not None:
            yield self._head

    def _defer(self, request: Request, deferral: Deferral, news: list[_News]) -> None:
        known = self.current.get(request)
        self.current[request] = deferral
        if known is None or known.reason is not deferral.reason:
            news.append((request, deferral))

    def _write(
        self,
        news: list[_News],
        lacks: Mapping[Request, Lack],
        head: str | None,
        step: int,
        now_ns: int,
    ) -> None:
        for request, deferral in news:
            lack = lacks.get(request) or _lack_of(deferral)
            self._events.append(
                Deferred(
                    now_ns,
                    step,
                    request.label,
                    deferral.reason.value,
                    deferral.needed,
                    deferral.available,
                    head if deferral is BEHIND_HEAD else deferral.behind,
                    lack.slots,
                    lack.tokens,
                    lack.blocks,
                )
            )


def _lack_of(deferral: Deferral) -> Lack:
    """Give what a request lacks of which a plan tells the reason alone: blocks, or nothing."""
    if deferral.reason is DeferReason.KV_BUDGET and deferral.behind is None:
        return Lack(blocks=deferral.needed - deferral.available)
    return _NOTHING


def shortened(message: str) -> str:
    """Give a message that fits an event."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[: MAX_MESSAGE_CHARACTERS - 1] + "…"


def arrived_event(request: Request, num_samples: int, now_ns: int) -> Arrived:
    return Arrived(
        now_ns,
        request.label,
        request.num_prompt_tokens,
        request.max_tokens,
        request.priority,
        request.tenant,
        num_samples,
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
    if draft.swapped_in:
        taken += [(request.id, tuple(blocks)) for request, blocks in draft.swapped_in.items()]
    if draft.copies:
        taken += [(request.id, (copy,)) for request, (_, copy) in draft.copies.items()]
    return StepRan(
        now_ns,
        plan.step,
        plan.start_ns,
        tokens=plan.num_tokens,
        emitted=num_emitted,
        decodes=plan.num_decodes,
        chunks=tuple([(request.id, c.start, c.count) for request, c in draft.chunks.items()]),
        blocks=tuple(taken),
        joined=tuple([request.id for request in draft.joined]),
        left=tuple([request.id for request in draft.left]),
        free_blocks=pool.num_free,
        cached_blocks=pool.num_cached,
    )
