"""All changes of requests: admitted, preempted, served, forked, ended.

The only file that changes a request's state, counters or table, and the only one that moves
requests between the collections of SchedulerState. Works through drafts that the planner decided;
decides nothing itself. Called by Scheduler.
"""

from collections.abc import Collection, Iterable
from heapq import heappop, heappush

from everbatch.base.events import Admitted, Decoding, Event, Finished, Preempted, SampleFinished
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import Draft, Yield, YieldKind
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.scheduler.planner import Planner
from everbatch.scheduler.preemption import is_protected
from everbatch.scheduler.report import DeferralLog
from everbatch.scheduler.request import FinishReason, Request, RequestStatus, SampleGroup
from everbatch.scheduler.state import SchedulerState


class Lifecycle:
    """Carries requests through their states."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        planner: Planner,
        deferrals: DeferralLog,
        events: list[Event],
    ) -> None:
        self._config = config
        self._state = state
        self._planner = planner
        self._deferrals = deferrals
        self._events = events

    # Waiting

    def enqueue(self, request: Request) -> None:
        """Put a request, new or preempted, into the queue."""
        state = self._state
        state.policy.queue.push(request)
        if not request.has_started:
            state.num_fresh_waiting += 1
            state.fresh_waiting_tokens += request.num_prompt_tokens
        self._deferrals.note_waiting(request)

    def dequeue(self, request: Request) -> None:
        state = self._state
        state.policy.queue.remove(request)
        state.tail_holders.pop(request, None)
        if not request.has_started:
            state.num_fresh_waiting -= 1
            state.fresh_waiting_tokens -= request.num_prompt_tokens

    # Committing a step

    def commit(self, draft: Draft, plan: StepPlan) -> None:
        """Make a draft's decisions part of the state; the step's own results come after."""
        state, now_ns = self._state, plan.start_ns
        for request in draft.left:
            self.settle(request)
        for request, way in draft.victims.items():
            self.preempt(request, way, plan.step, now_ns)
        # The plan has told the executor about these.
        state.preempted_slots.clear()
        state.released_slots.clear()
        state.swapped_out.clear()
        for request, hits in draft.admitted.items():
            self._admit(draft, request, hits, plan.step, now_ns)
        for request, blocks in draft.new_blocks.items():
            request.block_table += blocks
        for request, (_, copy) in draft.copies.items():
            request.block_table[-1] = copy
        for request in draft.joined:
            self._join(request)
        state.num_deferred_calls = 0
        self._deferrals.report(draft, plan.step, now_ns)

    def commit_chunks(self, draft: Draft, plan: StepPlan, now_ns: int) -> list[Request]:
        """Count what prefills consumed and emitted; gives those whose first output was the last."""
        ended: list[Request] = []
        for request, chunk in draft.chunks.items():
            stop = chunk.start + chunk.count
            again = max(0, min(stop, request.max_computed_tokens) - chunk.start)
            request.num_recomputed_tokens += again
            request.max_computed_tokens = max(stop, request.max_computed_tokens)
            request.num_computed_tokens = stop
            request.last_served_step = plan.step
            self._deferrals.note_served(request)
            if self._state.ledger is not None:
                self._state.ledger.charge_prompt(request.tenant, chunk.count - again)
            if chunk.completes:
                group = [request, *request.followers]
                if chunk.emits and len(group) > 1:
                    self._fork(request)
                for member in group:
                    if self._complete_prefill(member, chunk.emits, plan.step, now_ns):
                        ended.append(member)
        return ended

    def finish_step(
        self,
        outcome: StepOutcome,
        ended: Iterable[Request],
        full: Collection[Request],
        now_ns: int,
    ) -> None:
        """Retire whoever the step ended, and note whose blocks are full.

        `full` is the decode set's own view: those who retire are gone from it.
        """
        state = self._state
        for slot in outcome.stopped:
            self.retire(state.slots[slot], FinishReason.STOP, now_ns)
        for request in ended:
            self.retire(request, FinishReason.LENGTH, now_ns)
        state.due = list(full)
        for request in state.due:
            if request.chain is not None:
                self._register_full(request)

    def retire_failed(self, draft: Draft, outcome: StepOutcome, now_ns: int) -> int:
        """Retire those whose rows failed; gives the tokens that do not count."""
        num_dropped = 0
        for slot, _message in outcome.failed:
            request = self._state.slots[slot]
            if request is not None:
                # Whatever made the row fail may stand in its cache: nobody else may hit it.
                self._state.pool.forget_content(request.block_table)
            num_dropped += self.drop_and_retire(request, draft, FinishReason.ERROR, now_ns)
        return num_dropped

    def preempt(self, request: Request, way: Yield, step: int, now_ns: int) -> None:
        """Send a holder, whose freed blocks the pool has back, into the queue."""
        if request in self._state.tail_holders:
            self._strip_tail_holder(request, way, step, now_ns)
            return
        self.settle(request)
        members = [request, *request.followers]
        slot = request.slot
        assert slot is not None
        computed = request.num_computed_tokens
        for member in members:
            self._state.preempted_slots.append(_slot(member))
            self._give_back_slot(member, masked=False)
            member.move_to(RequestStatus.PREEMPTED)
        request.block_table = list(way.kept_blocks)
        request.num_preemptions += 1
        swap_ns, recompute_ns = way.costs_ns or (None, None)
        self._events.append(
            Preempted(
                t=now_ns,
                step=step,
                id=request.id,
                slot=slot,
                computed_tokens=computed,
                blocks=way.num_freed,
                way=way.kind.value,
                swap_ns=swap_ns,
                recompute_ns=recompute_ns,
                requester=_requester(way),
                needed=way.num_needed,
            )
        )
        match way.kind:
            case YieldKind.SWAP:
                request.host_blocks = [host for _, host in way.swap_out]
                self._state.swapped_out.append((request, way.swap_out))
            case YieldKind.TAIL:
                request.num_computed_tokens = len(way.kept_blocks) * self._config.block_size
                self._state.tail_holders[request] = None
            case YieldKind.RECOMPUTE:
                request.num_computed_tokens = 0
                for member in members:
                    member.move_to(RequestStatus.WAITING)
        self._deferrals.note_served(request)
        self.enqueue(request)

    def drop_host_copies(self, now_ns: int) -> None:
        """Recompute those whose blocks were to be swapped out by a pass that failed."""
        swapped, self._state.swapped_out = self._state.swapped_out, []
        for request, _ in swapped:
            if request.host_blocks:
                self._release_host_blocks(request)
                request.num_computed_tokens = 0
                request.move_to(RequestStatus.WAITING)

    # Ending

    def drop_and_retire(
        self, request: Request | None, draft: Draft | None, reason: FinishReason, now_ns: int
    ) -> int:
        """Retire a request without counting what this step sampled for it; gives that number."""
        if request is None or request.status is RequestStatus.FINISHED:
            return 0
        num_dropped = 0
        if draft is not None and self._has_emitted(request, draft):
            self.settle(request)
            num_dropped = 1
            request.num_output_tokens -= num_dropped
            if self._state.ledger is not None:
                self._state.ledger.charge_outputs(request.tenant, -num_dropped)
        self.retire(request, reason, now_ns)
        return num_dropped

    def retire(self, request: Request | None, reason: FinishReason, now_ns: int) -> None:
        """End a live request: its blocks lose a reader, its slot is free, nothing comes after."""
        if request is None or request.status is RequestStatus.FINISHED:
            return
        if request.followers:
            # The prompt that its samples wait for goes with it.
            for follower in request.followers:
                self._retire_one(follower, reason, now_ns)
        self._retire_one(request, reason, now_ns)

    def settle(self, request: Request) -> None:
        """Take a member out of the decode set and bring its counters up to date."""
        state = self._state
        if request not in state.decodes:
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

    # Steps of the above

    def _admit(
        self, draft: Draft, request: Request, hits: list[int], step: int, now_ns: int
    ) -> None:
        resumed = request.has_started
        self.dequeue(request)
        back = draft.swapped_in.get(request)
        if back is not None:
            self._release_host_blocks(request)
            request.block_table = list(back)
        elif not request.block_table:
            request.block_table = list(hits)
            request.num_computed_tokens = len(hits) * self._config.block_size
        num_cached = len(hits) * self._config.block_size
        request.max_computed_tokens = max(request.max_computed_tokens, request.num_computed_tokens)
        in_decode = resumed and request.num_computed_tokens == request.prefill_target
        for member in [request, *request.followers]:
            first_time = not member.has_started
            if first_time:
                member.num_cached_tokens = num_cached
            self._take_slot(member, in_decode)
            cached = num_cached if member is request else 0
            prompt_tokens = request.num_prompt_tokens if member is request and first_time else 0
            self._events.append(
                Admitted(
                    t=now_ns,
                    step=step,
                    id=member.id,
                    slot=_slot(member),
                    prompt_tokens=prompt_tokens,
                    cached_tokens=cached,
                    computed_tokens=request.num_computed_tokens,
                    resumed=not first_time,
                )
            )

    def _take_slot(self, request: Request, in_decode: bool) -> None:
        state = self._state
        slot = heappop(state.free_slots)
        state.slots[slot] = request
        request.slot = slot
        request.admission_number = state.next_admission
        state.next_admission += 1
        if is_protected(request, self._config):
            state.protected[request] = None
        if request.is_follower:
            request.move_to(RequestStatus.PREFILL)
            state.following[request] = None
        elif in_decode:
            request.move_to(RequestStatus.DECODE)
            state.idle_decodes[request] = None
        else:
            request.move_to(RequestStatus.PREFILL)
            state.prefilling[request] = None

    def _join(self, request: Request) -> None:
        state = self._state
        del state.idle_decodes[request]
        state.decodes.join(request)
        if state.ledger is not None:
            state.ledger.change_decoding(request.tenant, 1, state.decodes.num_steps)
        self._deferrals.note_served(request)

    def _fork(self, leader: Request) -> None:
        """Let the samples of a request go their own ways: they read the same blocks from now on."""
        for follower in leader.followers:
            follower.block_table = list(leader.block_table)
            self._state.pool.share(leader.block_table)
            follower.num_computed_tokens = leader.num_computed_tokens
            follower.max_computed_tokens = leader.num_computed_tokens
            follower.last_served_step = leader.last_served_step
            if leader.chain is not None:
                follower.chain = leader.chain.copy()
            del self._state.following[follower]
        assert leader.group is not None
        leader.group.has_forked = True

    def _complete_prefill(self, request: Request, emits: bool, step: int, now_ns: int) -> bool:
        """Move a request whose prefill is done on to DECODE; gives whether it has ended instead."""
        request.num_output_tokens += int(emits)
        if emits and self._state.ledger is not None:
            self._state.ledger.charge_outputs(request.tenant, 1)
        if emits and request.num_output_tokens == request.max_tokens:
            return True
        self._state.prefilling.pop(request, None)
        request.move_to(RequestStatus.DECODE)
        self._state.idle_decodes[request] = None
        self._events.append(Decoding(now_ns, step, request.id, emits))
        return False

    def _has_emitted(self, request: Request, draft: Draft) -> bool:
        """Whether the step under way sampled a token for a request."""
        if request in self._state.decodes:
            return True
        chunk = draft.chunks.get(request)
        if chunk is None and request.group is not None and request.group.has_forked:
            # A follower's first token came from its leader's chunk.
            leaders = [r for r in draft.chunks if r.group is request.group and r.sample == 0]
            chunk = draft.chunks[leaders[0]] if leaders and request.num_output_tokens == 1 else None
        return chunk is not None and chunk.emits

    def _strip_tail_holder(self, request: Request, way: Yield, step: int, now_ns: int) -> None:
        """Take the rest of its blocks from a request that waits: it starts from nothing again."""
        computed, request.num_computed_tokens = request.num_computed_tokens, 0
        request.block_table = []
        del self._state.tail_holders[request]
        request.move_to(RequestStatus.WAITING)
        self._events.append(
            Preempted(
                t=now_ns,
                step=step,
                id=request.id,
                slot=None,
                computed_tokens=computed,
                blocks=way.num_freed,
                way=way.kind.value,
                requester=_requester(way),
                needed=way.num_needed,
            )
        )

    def _retire_one(self, request: Request, reason: FinishReason, now_ns: int) -> None:
        state = self._state
        self.settle(request)
        if request.chain is not None and reason is not FinishReason.ERROR and request.block_table:
            self._register_full(request)
        if request in state.policy.queue:
            self.dequeue(request)
        self._give_back_slot(request, masked=self._config.batching == "static")
        self._unmask()
        self._deferrals.forget(request)
        state.pool.release(request.block_table)
        request.block_table = []
        self._release_host_blocks(request)
        del state.requests[request.id]
        if state.ledger is not None:
            state.ledger.depart(request.tenant)
        request.finish_reason = reason
        request.move_to(RequestStatus.FINISHED)
        self._report_end(request, reason, now_ns)

    def _report_end(self, request: Request, reason: FinishReason, now_ns: int) -> None:
        facts = {
            "t": now_ns,
            "step": self._state.decodes.num_steps,
            "id": request.id,
            "reason": reason.value,
            "output_tokens": request.num_output_tokens,
            "cached_tokens": request.num_cached_tokens or 0,
            "recomputed_tokens": request.num_recomputed_tokens,
            "preemptions": request.num_preemptions,
        }
        group = request.group
        if group is None:
            self._events.append(Finished(**facts))  # type: ignore[arg-type]
            return
        self._events.append(SampleFinished(**facts))  # type: ignore[arg-type]
        group.samples.remove(request)
        group.ended.append(request)
        if not group.samples:
            del self._state.groups[group.id]
            self._events.append(_group_finished(group, now_ns, self._state.decodes.num_steps))

    def _give_back_slot(self, request: Request, *, masked: bool) -> None:
        """Take a request out of what runs, and its slot from it; a masked slot stays taken."""
        state = self._state
        state.idle_decodes.pop(request, None)
        state.prefilling.pop(request, None)
        state.following.pop(request, None)
        state.protected.pop(request, None)
        slot, request.slot = request.slot, None
        if slot is None:
            return
        state.slots[slot] = None
        state.released_slots.append(slot)
        if masked:
            state.masked[slot] = request.id
        else:
            heappush(state.free_slots, slot)

    def _unmask(self) -> None:
        """Empty the masked slots once the last member of a static batch has ended."""
        state = self._state
        if state.masked and state.num_running == 0:
            for slot in state.masked:
                heappush(state.free_slots, slot)
                if slot not in state.released_slots:
                    state.released_slots.append(slot)
            state.masked.clear()

    def _release_host_blocks(self, request: Request) -> None:
        if request.host_blocks:
            assert self._state.host_pool is not None
            self._state.host_pool.release(request.host_blocks)
            request.host_blocks = []

    def _register_full(self, request: Request) -> None:
        """Index the blocks that decoding has filled since the last call."""
        chain = request.chain
        assert chain is not None
        computed = self._state.decodes.computed_tokens(request)
        num_full = computed // self._config.block_size
        self._planner.read_blocks(request, num_full)
        for index in range(len(chain.entries), num_full):
            self._state.pool.register(chain, index, request.block_table[index])


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
    )


def _requester(way: Yield) -> str | None:
    return None if way.requester is None else way.requester.id


def _slot(request: Request) -> int:
    assert request.slot is not None
    return request.slot
