"""How requests end: with a reason and one final event; their blocks, slots and accounts go back.

The other half of lifecycle.py: these two alone change requests. Called by Scheduler and Lifecycle.
"""

from heapq import heappush

from everbatch.base.events import Decoding, Event, Finished, SampleFinished
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.content_reader import ContentReader
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.report import DeferralLog, shortened
from everbatch.scheduler.request import FinishReason, Request, RequestStatus, SampleGroup
from everbatch.scheduler.state import SchedulerState


class Endings:
    """Takes requests out of what runs or waits."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        reader: ContentReader,
        deferrals: DeferralLog,
        events: list[Event],
    ) -> None:
        self._config = config
        self._state = state
        self._reader = reader
        self._deferrals = deferrals
        self._events = events

    def drop_and_retire(
        self,
        request: Request | None,
        draft: Draft | None,
        reason: FinishReason,
        now_ns: int,
        message: str | None = None,
    ) -> int:
        """Retire a request without counting what this step sampled for it; gives that number."""
        if request is None or request.status is RequestStatus.FINISHED:
            return 0
        num_dropped = 0
        if draft is not None and self._has_emitted(request, draft):
            self._unsay_first_output(request)
            self.settle(request)
            num_dropped = 1
            request.num_output_tokens -= num_dropped
            if self._state.ledger is not None:
                self._state.ledger.charge_outputs(request.tenant, -num_dropped)
        self.retire(request, reason, now_ns, message)
        return num_dropped

    def retire(
        self,
        request: Request | None,
        reason: FinishReason,
        now_ns: int,
        message: str | None = None,
    ) -> None:
        """End a live request: its blocks lose a reader, its slot is free, nothing comes after.

        If other samples wait for the prompt that it reads, the next of them goes on with it.
        `message` says why, where it failed.
        """
        if request is None or request.status is RequestStatus.FINISHED:
            return
        if request.followers:
            self._hand_over(request, request.followers[0])
        request.message = None if message is None else shortened(message)
        self._retire_one(request, reason, now_ns)

    def retire_together(
        self, request: Request, reason: FinishReason, now_ns: int, message: str | None = None
    ) -> None:
        """End a live request and the samples that wait for the prompt that it reads."""
        if request.status is RequestStatus.FINISHED:
            return
        for member in (*request.followers, request):
            self.retire(member, reason, now_ns, message)

    def dequeue(self, request: Request) -> None:
        state = self._state
        state.policy.queue.remove(request)
        if state.ledger is not None:
            state.ledger.leave_queue(request.tenant)
        state.tail_holders.pop(request, None)
        if not request.has_started:
            state.num_fresh_waiting -= 1
            state.fresh_waiting_tokens -= request.num_prompt_tokens

    def settle(self, request: Request) -> None:
        """Take a member out of the decode set and bring its counters up to date."""
        state = self._state
        if request not in state.decodes.members:
            return
        ran = state.decodes.leave(request)
        request.num_computed_tokens += ran
        request.num_output_tokens += ran
        request.max_computed_tokens = max(request.max_computed_tokens, request.num_computed_tokens)
        request.last_served_step = state.decodes.num_steps
        if state.ledger is not None:
            state.ledger.change_decoding(request.tenant, -1, state.decodes.num_steps)
        # Where it goes from here is the caller's to say; until then it holds its slot.
        state.idle_decodes[request] = None

    def give_back_slot(self, request: Request, *, masked: bool) -> None:
        """Take a request out of what runs, and its slot from it; a masked slot stays taken."""
        state = self._state
        state.idle_decodes.pop(request, None)
        state.prefilling.pop(request, None)
        state.following.pop(request, None)
        state.protected.pop(request, None)
        state.handed_over.pop(request, None)
        if state.rights is not None:
            state.rights.forget(request)
        slot, request.slot = request.slot, None
        if slot is None:
            return
        state.slots[slot] = None
        state.released_slots.append(slot)
        if masked:
            state.masked[slot] = request.id
        else:
            heappush(state.free_slots, slot)

    def release_blocks(self, request: Request) -> None:
        """Take all its blocks from a request."""
        if request.block_table:
            self._state.pool.release(request.block_table)
        if request.chain is not None:
            self._state.pool.forget_entries(request.chain)
        request.block_table = []

    def release_host_blocks(self, request: Request) -> None:
        if request.host_blocks:
            assert self._state.host_pool is not None
            self._state.host_pool.release(request.host_blocks)
            request.host_blocks = []
            pending = self._state.swapped_out
            self._state.swapped_out = [entry for entry in pending if entry[0] is not request]

    def register_full(self, request: Request, num_full: int) -> None:
        """Index those of its first `num_full` blocks that were filled since the last call."""
        chain = request.chain
        assert chain is not None
        if len(chain.contents) < num_full:
            self._reader.read_blocks(request, num_full)
        self._state.pool.register(chain, request.block_table, num_full)

    def _has_emitted(self, request: Request, draft: Draft) -> bool:
        """Whether the step under way sampled a token for a request."""
        if request in self._state.decodes:
            return True
        chunk = draft.chunks.get(request)
        if chunk is None and request.group is not None and request.group.has_forked:
            # A follower's first token came from its leader's chunk.
            return any(c.emits for r, c in draft.chunks.items() if r.group is request.group)
        return chunk is not None and chunk.emits

    def _unsay_first_output(self, request: Request) -> None:
        """Correct the event of a request whose prompt this step completed: no output came of it."""
        for event in self._events:
            if type(event) is Decoding and event.id == request.id:
                event.emitted = False

    def _hand_over(self, request: Request, heir: Request) -> None:
        """Let another sample go on from where `request` stands: it leads its group from now on.

        Both have the same prompt, status and place; only slots are their own.
        """
        state, queue = self._state, self._state.policy.queue
        waits, keeps_head = request in queue, request in state.tail_holders
        heir.chain, request.chain = request.chain, None
        heir.block_table, request.block_table = request.block_table, []
        heir.host_blocks, request.host_blocks = request.host_blocks, []
        heir.num_computed_tokens = request.num_computed_tokens
        heir.max_computed_tokens = request.max_computed_tokens
        heir.last_served_step = request.last_served_step
        if waits:
            # Queue limits and shares count the request that the samples are, so neither changes.
            queue.remove(request)
            queue.push(heir)
        if keeps_head:
            del state.tail_holders[request]
            state.tail_holders[heir] = None
        state.swapped_out = [(heir if r is request else r, p) for r, p in state.swapped_out]
        if request in state.prefilling:
            begun = [heir if r is request else r for r in state.prefilling]
            state.prefilling = dict.fromkeys(begun)
            del state.following[heir]
            state.handed_over[heir] = None
        self._deferrals.hand_over(request, heir, waits=waits)

    def _retire_one(self, request: Request, reason: FinishReason, now_ns: int) -> None:
        state = self._state
        self.settle(request)
        if request.chain is not None and reason is not FinishReason.ERROR and request.block_table:
            self.register_full(request, request.num_computed_tokens // self._config.block_size)
        if request.slot is None and request in state.policy.queue:
            self.dequeue(request)
        self.give_back_slot(request, masked=self._config.batching == "static")
        if state.masked:
            self._unmask()
        self._deferrals.forget(request)
        self.release_blocks(request)
        self.release_host_blocks(request)
        del state.requests[request.id]
        if state.ledger is not None:
            state.ledger.depart(request.tenant)
        request.finish_reason = reason
        request.move_to(RequestStatus.FINISHED)
        self._report_end(request, reason, now_ns)

    def _report_end(self, request: Request, reason: FinishReason, now_ns: int) -> None:
        state, group = self._state, request.group
        kind = Finished if group is None else SampleFinished
        self._events.append(
            kind(
                now_ns,
                state.decodes.num_steps,
                request.id,
                reason.value,
                request.num_output_tokens,
                request.num_cached_tokens or 0,
                request.num_recomputed_tokens,
                request.num_preemptions,
                request.message,
            )
        )
        if group is None:
            return
        group.samples.remove(request)
        group.ended.append(request)
        if state.rights is not None and group.samples:
            # Who reads the prompt for all reads it for one less, or has just begun to.
            state.rights.note(group.leader)
        if not group.samples:
            del state.groups[group.id]
            self._events.append(_group_finished(group, now_ns, state.decodes.num_steps))

    def _unmask(self) -> None:
        """Empty the masked slots once the last member of a static batch has ended."""
        state = self._state
        if state.num_running == 0:
            for slot in state.masked:
                heappush(state.free_slots, slot)
                if slot not in state.released_slots:
                    state.released_slots.append(slot)
            state.masked.clear()


def _group_finished(group: SampleGroup, now_ns: int, step: int) -> Finished:
    """Sum up a request whose samples have all ended: its reason is the least regular of theirs."""
    reasons = {sample.finish_reason for sample in group.ended}
    order = (
        FinishReason.ERROR,
        FinishReason.ABORT,
        FinishReason.DEADLINE,
        FinishReason.LENGTH,
        FinishReason.STOP,
    )
    first = min(group.ended, key=lambda sample: sample.sample)
    return Finished(
        t=now_ns,
        step=step,
        id=group.id,
        reason=next(reason for reason in order if reason in reasons).value,
        output_tokens=sum(sample.num_output_tokens for sample in group.ended),
        cached_tokens=first.num_cached_tokens or 0,
        recomputed_tokens=sum(sample.num_recomputed_tokens for sample in group.ended),
        preemptions=sum(sample.num_preemptions for sample in group.ended),
        message=next((sample.message for sample in group.ended if sample.message), None),
    )
