"""All changes of requests: arrived, admitted, preempted, served, forked, ended.

With endings.py the only file that changes a request's state or counters, and that moves requests
between the collections of SchedulerState. Works through drafts that the planner decided;
decides nothing itself. Called by Scheduler.
"""

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush

from everbatch.base.events import Admitted, Decoding, Event, Preempted
from everbatch.base.sample_ids import sample_id
from everbatch.kv_cache.content import ContentChain, root_digest
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import Draft, Yield, YieldKind
from everbatch.scheduler.endings import Endings
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.scheduler.preemption import is_protected
from everbatch.scheduler.report import DeferralLog, arrived_event
from everbatch.scheduler.request import FinishReason, Request, RequestStatus, SampleGroup
from everbatch.scheduler.state import SchedulerState


class Lifecycle:
    """Carries requests through their states."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        endings: Endings,
        deferrals: DeferralLog,
        events: list[Event],
    ) -> None:
        self._config = config
        self._state = state
        self._endings = endings
        self._deferrals = deferrals
        self._events = events

    # Waiting

    def arrive(self, request: Request, num_samples: int, now_ns: int) -> None:
        """Take an accepted request, or the samples that it becomes, into the queue."""
        state = self._state
        request.arrival_number = state.next_arrival
        request.arrival_step = state.decodes.num_steps
        state.next_arrival += 1
        state.rates.accept(request.tenant, now_ns)
        for sample in self._samples(request, num_samples):
            state.requests[sample.id] = sample
        if state.ledger is not None:
            state.ledger.arrive(request.tenant, num_samples, state.decodes.num_steps)
        if self._config.enable_prefix_caching:
            request.chain = ContentChain(root_digest(request.cache_salt), self._config.block_size)
        if request.deadline_ns is not None:
            self._note_deadline(request, request.deadline_ns)
        self._enqueue(request)
        self._events.append(arrived_event(request, num_samples, now_ns))

    # Committing a step

    def commit(self, draft: Draft, plan: StepPlan) -> None:
        """Make a draft's decisions part of the state; the step's own results come after."""
        state, now_ns = self._state, plan.start_ns
        for request in draft.left:
            self._endings.settle(request)
        for request, way in draft.victims.items():
            self.preempt(request, way, plan.step, now_ns)
        # The plan has told the executor about these.
        state.preempted_slots.clear()
        state.released_slots.clear()
        state.swapped_out.clear()
        state.handed_over.clear()
        state.must_restate = False
        if state.trials:
            # With a normal plan the trials are over: whoever is left could not run alone.
            del state.trials[: draft.num_tried or len(state.trials)]
        for request, hits in draft.admitted.items():
            self._admit(draft, request, hits, plan.step, now_ns)
        self._append_blocks(draft)
        for request in draft.joined:
            self.join(request)
        for request in draft.turns:
            if request in state.decodes.members:
                request.turn = state.take_turn()
        state.num_deferred_calls = 0
        self._deferrals.report(draft, plan.step, now_ns)

    def commit_chunks(self, draft: Draft, plan: StepPlan, now_ns: int) -> list[Request]:
        """Count what prefills consumed and emitted; gives those whose first output was the last."""
        ended: list[Request] = []
        for request, chunk in draft.chunks.items():
            stop, again = chunk.start + chunk.count, 0
            if request.max_computed_tokens > chunk.start:
                again = min(stop, request.max_computed_tokens) - chunk.start
                request.num_recomputed_tokens += again
            request.max_computed_tokens = max(stop, request.max_computed_tokens)
            request.num_computed_tokens = stop
            request.last_served_step = plan.step
            self._deferrals.forget(request)
            if self._state.ledger is not None:
                self._state.ledger.charge_prompt(request.tenant, chunk.count - again)
            if chunk.completes:
                group = request.members
                if chunk.emits and len(group) > 1:
                    self._fork(request)
                for member in group:
                    if self._complete_prefill(member, chunk.emits, plan.step, now_ns):
                        ended.append(member)
        return ended

    def finish_step(
        self,
        stopped: Iterable[int],
        ended: Iterable[Request],
        full: Collection[Request],
        now_ns: int,
    ) -> None:
        """Retire whoever the step ended, and note whose blocks are full.

        `stopped` are slots of those who ended by themselves. `full` is the decode set's own view:
        those who retire are gone from it.
        """
        state = self._state
        for slot in stopped:
            self._endings.retire(state.slots[slot], FinishReason.STOP, now_ns)
        for request in ended:
            self._endings.retire(request, FinishReason.LENGTH, now_ns)
        self.note_full(full)

    def note_full(self, full: Collection[Request]) -> None:
        """Note whose last blocks the step filled: they need another, and can be reused."""
        self._state.due = due = list(full)
        if self._config.enable_prefix_caching:
            for request in due:
                self._endings.register_full(request, len(request.block_table))

    def retire_failed(self, draft: Draft, outcome: StepOutcome, now_ns: int) -> int:
        """Retire those whose rows failed; gives the tokens that do not count."""
        num_dropped = 0
        for slot, message in outcome.failed:
            request = self._state.slots[slot]
            if request is not None:
                # Whatever made the row fail may stand in its cache: nobody else may hit it.
                self._state.pool.forget_content(request.block_table)
            num_dropped += self._endings.drop_and_retire(
                request, draft, FinishReason.ERROR, now_ns, message
            )
        return num_dropped

    def preempt(self, request: Request, way: Yield, step: int, now_ns: int) -> None:
        """Send a holder, whose freed blocks the pool has back, into the queue."""
        if request in self._state.tail_holders:
            self._strip_tail_holder(request, way, step, now_ns)
            return
        self._endings.settle(request)
        slot = _slot(request)
        computed = request.num_computed_tokens
        for member in request.members:
            self._state.preempted_slots.append(_slot(member))
            self._endings.give_back_slot(member, masked=False)
            member.move_to(RequestStatus.PREEMPTED)
        request.block_table = list(way.kept_blocks)
        request.num_preemptions += 1
        self._events.append(
            Preempted(
                t=now_ns,
                step=step,
                id=request.id,
                slot=slot,
                computed_tokens=computed,
                blocks=way.num_freed,
                way=way.kind.value,
                swap_ns=None if way.costs is None else way.costs.swap_ns,
                recompute_ns=None if way.costs is None else way.costs.recompute_ns,
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
                for member in request.members:
                    member.move_to(RequestStatus.WAITING)
        self._deferrals.forget(request)
        self._enqueue(request)

    def lose_written_blocks(self, draft: Draft, step: int, now_ns: int) -> None:
        """Trust no block that a pass which failed has perhaps written.

        Those that the plan took, and the rollback gave back, lose their content; who would have
        yielded, with a slot or with the head that it had kept, computes everything again.
        """
        pool = self._state.pool
        for blocks in (*draft.new_blocks.values(), *draft.swapped_in.values()):
            pool.forget_content(blocks)
        pool.forget_content([copy for _, copy in draft.copies.values()])
        for request, way in draft.victims.items():
            num_freed = len(request.block_table)
            self._endings.release_blocks(request)
            whole = Yield(
                YieldKind.RECOMPUTE,
                num_freed,
                requester=way.requester,
                num_needed=way.num_needed,
            )
            self.preempt(request, whole, step, now_ns)

    def drop_host_copies(self) -> None:
        """Recompute those whose blocks were to be swapped out by a pass that failed."""
        swapped, self._state.swapped_out = self._state.swapped_out, []
        for request, _ in swapped:
            if request.host_blocks:
                self._endings.release_host_blocks(request)
                self._start_over(request)

    # Steps of the above

    def _samples(self, request: Request, num_samples: int) -> list[Request]:
        """Give the requests that the scheduler runs for one: itself, or its samples."""
        if num_samples == 1:
            return [request]
        group = SampleGroup(request.id, [request])
        self._state.groups[group.id] = group
        request.group = group
        for number in range(1, num_samples):
            group.samples.append(request.sibling(sample_id(group.id, number), number))
        request.id = sample_id(group.id, 0)
        return group.samples

    def _enqueue(self, request: Request) -> None:
        """Put a request, new or preempted, into the queue."""
        state = self._state
        if state.ledger is not None:
            state.ledger.enter_queue(request.tenant, state.decodes.num_steps)
        state.policy.queue.push(request)
        if not request.has_started:
            state.num_fresh_waiting += 1
            state.fresh_waiting_tokens += request.num_prompt_tokens
        self._deferrals.note_waiting(request)

    def _note_deadline(self, request: Request, deadline_ns: int) -> None:
        """Let a request expire; deadlines that are void are dropped once they are most of all."""
        state = self._state
        heappush(state.deadlines, (deadline_ns, request.arrival_number, request))
        if len(state.deadlines) > 2 * len(state.requests) + 16:
            state.deadlines = [entry for entry in state.deadlines if entry[2].unserved()]
            heapify(state.deadlines)

    def _append_blocks(self, draft: Draft) -> None:
        for request, blocks in draft.new_blocks.items():
            request.block_table += blocks
        for request, (_, copy) in draft.copies.items():
            request.block_table[-1] = copy
        rights = self._state.rights
        if rights is not None:
            for request in (*draft.admitted, *draft.new_blocks):
                rights.note(request)

    def _admit(
        self, draft: Draft, request: Request, hits: list[int], step: int, now_ns: int
    ) -> None:
        resumed = request.has_started
        self._endings.dequeue(request)
        back = draft.swapped_in.get(request) if draft.swapped_in else None
        if back is not None:
            self._endings.release_host_blocks(request)
            request.block_table = list(back)
        elif not request.block_table:
            request.block_table = list(hits)
            request.num_computed_tokens = len(hits) * self._config.block_size
        num_cached = len(hits) * self._config.block_size
        request.max_computed_tokens = max(request.max_computed_tokens, request.num_computed_tokens)
        in_decode = resumed and request.num_computed_tokens == request.prefill_target
        for member in request.members:
            first_time = not member.has_started
            if first_time:
                member.num_cached_tokens = num_cached
            self._take_slot(member, in_decode)
            cached = num_cached if member is request else 0
            prompt_tokens = request.num_prompt_tokens if member is request and first_time else 0
            self._events.append(
                Admitted(
                    now_ns,
                    step,
                    member.id,
                    _slot(member),
                    prompt_tokens,
                    cached,
                    request.num_computed_tokens,
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

    def join(self, request: Request) -> None:
        """Let a request that can decode do so in every step from the next on."""
        state = self._state
        del state.idle_decodes[request]
        state.decodes.join(request)
        if state.ledger is not None:
            state.ledger.change_decoding(request.tenant, 1, state.decodes.num_steps)
        self._deferrals.forget(request)

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
        if self._state.rights is not None:
            for member in leader.group.samples:
                self._state.rights.note(member)

    def _complete_prefill(self, request: Request, emits: bool, step: int, now_ns: int) -> bool:
        """Move a request whose prefill is done on to DECODE; gives whether it has ended instead."""
        request.num_output_tokens += int(emits)
        if emits and self._state.ledger is not None:
            self._state.ledger.charge_outputs(request.tenant, 1)
        if emits and request.num_output_tokens == request.max_tokens:
            return True
        self._state.prefilling.pop(request, None)
        request.turn = self._state.take_turn()
        request.move_to(RequestStatus.DECODE)
        self._state.idle_decodes[request] = None
        self._events.append(Decoding(now_ns, step, request.id, emits))
        return False

    def _start_over(self, request: Request) -> None:
        """Let a request that waits compute everything again; its place may be another one now."""
        queue = self._state.policy.queue
        queue.remove(request)
        request.num_computed_tokens = 0
        for member in request.members:
            member.move_to(RequestStatus.WAITING)
        queue.push(request)

    def _strip_tail_holder(self, request: Request, way: Yield, step: int, now_ns: int) -> None:
        """Take the rest of its blocks from a request that waits: it starts from nothing again."""
        computed = request.num_computed_tokens
        request.block_table = []
        del self._state.tail_holders[request]
        self._start_over(request)
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


def _requester(way: Yield) -> str | None:
    return None if way.requester is None else way.requester.id


def _slot(request: Request) -> int:
    assert request.slot is not None
    return request.slot
