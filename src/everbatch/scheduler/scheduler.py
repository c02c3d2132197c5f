"""The scheduler: one object for real traffic, simulation and replay.

    add(request)  -> None or a Rejection         abort(id, reason): at the next step boundary
    schedule(now) -> StepPlan or NothingToRun    decides; changes nothing that cannot be undone
    apply(plan, outcome, now) -> events          commits consumed KV, retires, frees
    rollback(plan)                               the step did not happen

All control flow of a request's life and all changes of requests are here. Time is handed in; order
is explicit; no token id is read but to hash a block that filled. Sources: Orca (iteration-level
scheduling, section 3.1), PagedAttention (section 4.5, preemption by recomputation), Sarathi-Serve
(chunked prefill, section 4.2), vLLM V1 (decode-first budget).
"""

from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest

from everbatch.base.events import (
    Admitted,
    Decoding,
    Event,
    Finished,
    Preempted,
    StepFailed,
)
from everbatch.base.invariant import check
from everbatch.kv_cache.content import ContentChain, root_digest
from everbatch.scheduler.admission import Rejection, RejectReason, refusal
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import (
    Admission,
    PrefillChunk,
    StepOutcome,
    StepPlan,
    TokenStore,
)
from everbatch.scheduler.planner import Draft, Planner
from everbatch.scheduler.preemption import choose_victim
from everbatch.scheduler.report import DeferralLog, arrived_event, rejected_event, step_event
from everbatch.scheduler.request import FinishReason, Request, RequestStatus
from everbatch.scheduler.state import SchedulerState


@dataclass(slots=True, frozen=True)
class NothingToRun:
    """No forward pass now: nobody can run, or (`preempted`) somebody had to yield first."""

    preempted: str | None


class Scheduler:
    """Iteration-level scheduling of requests over one pool of KV blocks."""

    def __init__(self, config: SchedulerConfig, tokens: TokenStore) -> None:
        self.config = config
        self.state = SchedulerState.empty(config)
        self._planner = Planner(config, self.state, tokens)
        self._plan: StepPlan | None = None
        self._draft: Draft | None = None
        self._aborts: dict[str, FinishReason] = {}
        """Aborts that came while a step runs."""
        self._events: list[Event] = []
        self.deferrals = DeferralLog(self.state.waiting, self._events)

    def add(self, request: Request, now_ns: int) -> Rejection | None:
        """Take a request into the queue, or refuse one that can never run.

        Its counters must be fresh; `arrival_number` is given here.
        """
        rejection = refusal(request.num_prompt_tokens, request.max_tokens, self.config)
        if request.id in self.state.requests:
            message = f"a request with id {request.id!r} is being served: use another id"
            rejection = Rejection(RejectReason.DUPLICATE_ID, message, 1, 0)
        if rejection is not None:
            self._events.append(rejected_event(request, rejection, now_ns))
            return rejection
        request.arrival_number = self.state.next_arrival
        self.state.next_arrival += 1
        if self.config.enable_prefix_caching:
            request.chain = ContentChain(root_digest(request.cache_salt), self.config.block_size)
        self.state.requests[request.id] = request
        self.state.waiting.push(request)
        self.deferrals.note_waiting(request)
        self._events.append(arrived_event(request, now_ns))
        return None

    def abort(self, request_id: str, reason: FinishReason, now_ns: int) -> None:
        """End a request at the next step boundary; unknown and finished ones are left alone.

        While a step runs that boundary is its end, and what the step samples for it is dropped.
        """
        request = self.state.requests.get(request_id)
        if request is None:
            return
        if self._plan is not None:
            self._aborts.setdefault(request_id, reason)
        else:
            self._retire(request, reason, now_ns)

    def schedule(self, now_ns: int) -> StepPlan | NothingToRun:
        """Plan the next step. The plan must be applied or rolled back before the next call."""
        assert self._plan is None, "the plan before was neither applied nor rolled back"
        # Those that came while a plan ran that was rolled back: this is their boundary.
        self._run_aborts(None, now_ns)
        self.state.pool.begin()
        try:
            draft = self._planner.plan()
        except BaseException:
            self.state.pool.rollback()
            raise
        if draft.num_tokens == 0:
            self.state.pool.rollback()
            return self._nothing_to_run(now_ns)
        self._draft = draft
        self._plan = self._write_plan(draft, now_ns)
        return self._plan

    def rollback(self, plan: StepPlan) -> None:
        """Forget the plan: the scheduler's state is, to the byte, what it was before `schedule`.

        Aborts that came meanwhile stay and take effect before the next plan.
        """
        assert plan is self._plan
        self.state.pool.rollback()
        self._plan = None
        self._draft = None

    def fail_step(self, plan: StepPlan, message: str, now_ns: int) -> list[Event]:
        """Roll back a plan whose forward pass failed, and end all that held or got a slot."""
        draft = self._draft
        assert draft is not None
        self.rollback(plan)
        # The pass may have written blocks that the plan took and the rollback gave back.
        for blocks in draft.new_blocks.values():
            self.state.pool.forget_content(blocks)
        self._events.append(StepFailed(now_ns, plan.step, message))
        admitted = list(draft.hits)
        for request in [*filter(None, self.state.slots), *admitted]:
            self._retire(request, FinishReason.ERROR, now_ns)
        self._run_aborts(None, now_ns)
        return self.take_events()

    def apply(self, plan: StepPlan, outcome: StepOutcome, now_ns: int) -> list[Event]:
        """Commit a step that has run; gives all events since the last call."""
        draft = self._draft
        assert draft is not None
        assert plan is self._plan
        self.state.pool.commit()
        self._plan = None
        self._draft = None
        self._commit(draft, plan)
        ended_in_prefill = self._commit_chunks(draft, plan, now_ns)
        place = len(self._events)
        num_dropped = self._finish_step(draft, outcome, ended_in_prefill, now_ns)
        num_emitted = draft.num_decodes + sum(chunk.emits for chunk in plan.chunks) - num_dropped
        # The step comes before those whom it ended, but reports the pool as they left it.
        event = step_event(draft, plan, self.state.pool, num_emitted, now_ns)
        self._events.insert(place, event)
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Give the events since the last call."""
        events = list(self._events)
        self._events.clear()
        return events

    def progress(self, request: Request) -> tuple[int, int]:
        """Give (computed tokens, output tokens) of a live request as of the last boundary."""
        ran = self.state.decodes.progress(request)
        return request.num_computed_tokens + ran, request.num_output_tokens + ran

    @property
    def has_work(self) -> bool:
        """Whether a request is live."""
        return bool(self.state.requests)

    @property
    def has_events(self) -> bool:
        """Whether something happened since the last `take_events`."""
        return bool(self._events)

    # Planning

    def _write_plan(self, draft: Draft, now_ns: int) -> StepPlan:
        """Put a draft into an executor's terms."""
        state = self.state
        plan = StepPlan(state.decodes.num_steps + 1, now_ns)
        plan.num_decodes, plan.num_tokens = draft.num_decodes, draft.num_tokens
        plan.preempted = [*state.preempted_slots, *map(_slot, draft.victims)]
        plan.released = [*state.released_slots, *map(_slot, draft.victims)]
        plan.left = list(map(_slot, draft.left))
        plan.joined = list(map(_slot, draft.joined))
        slot_of = dict(zip(draft.hits, nsmallest(len(draft.hits), state.free_slots), strict=True))
        for request, hits in draft.hits.items():
            plan.admitted.append(
                Admission(
                    slot=slot_of[request],
                    request_id=request.id,
                    payload=request.payload,
                    num_cached_tokens=len(hits) * self.config.block_size,
                    cached_blocks=tuple(hits),
                    num_output_tokens=request.num_output_tokens,
                )
            )
        for request, blocks in draft.new_blocks.items():
            if request not in draft.chunks:
                plan.appended.append((_slot(request), blocks[0]))
        for request, chunk in draft.chunks.items():
            slot = slot_of[request] if request in draft.hits else _slot(request)
            taken = tuple(draft.new_blocks[request])
            plan.chunks.append(PrefillChunk(slot, chunk.start, chunk.count, taken, chunk.emits))
        return plan

    def _nothing_to_run(self, now_ns: int) -> NothingToRun:
        """Let one holder yield if that can help: the next call plans anew."""
        step = self.state.decodes.num_steps + 1
        victim = choose_victim(self._planner.holders())
        if victim is None:
            check(not self.state.requests, "requests live, none can run and nobody can yield")
            return NothingToRun(None)
        table = victim.block_table
        self.state.pool.release(table)
        if victim.chain is not None:
            self.state.pool.forget_entries(victim.chain)
        self._preempt(victim, len(table), step, now_ns)
        return NothingToRun(victim.id)

    # Committing

    def _commit(self, draft: Draft, plan: StepPlan) -> None:
        """Make a draft's decisions part of the state; the step's own results come after."""
        state, now_ns = self.state, plan.start_ns
        for request in draft.left:
            self._settle(request)
        for request, num_blocks in draft.victims.items():
            self._preempt(request, num_blocks, plan.step, now_ns)
        # The plan has told the executor about these.
        state.preempted_slots.clear()
        state.released_slots.clear()
        for request, hits in draft.hits.items():
            self._admit(request, hits, plan.step, now_ns)
        for request, blocks in draft.new_blocks.items():
            request.block_table += blocks
        for request in draft.joined:
            del state.idle_decodes[request]
            state.decodes.join(request)
            self.deferrals.note_served(request)
        self.deferrals.report(draft, plan.step, now_ns)

    def _admit(self, request: Request, hits: list[int], step: int, now_ns: int) -> None:
        state = self.state
        state.waiting.remove(request)
        slot = heappop(state.free_slots)
        state.slots[slot] = request
        request.slot = slot
        request.admission_number = state.next_admission
        state.next_admission += 1
        request.block_table = list(hits)
        num_cached_tokens = len(hits) * self.config.block_size
        request.num_computed_tokens = num_cached_tokens
        resumed = request.num_cached_tokens is not None
        if not resumed:
            request.num_cached_tokens = num_cached_tokens
        request.max_computed_tokens = max(request.max_computed_tokens, num_cached_tokens)
        request.move_to(RequestStatus.PREFILL)
        state.prefilling[request] = None
        self._events.append(Admitted(now_ns, step, request.id, slot, num_cached_tokens, resumed))

    def _preempt(self, request: Request, num_blocks: int, step: int, now_ns: int) -> None:
        """Send a holder, whose blocks the pool has back, into the queue to be recomputed."""
        self._settle(request)
        slot = self._leave_all(request)
        assert slot is not None
        self.state.preempted_slots.append(slot)
        request.move_to(RequestStatus.PREEMPTED)
        computed, request.num_computed_tokens = request.num_computed_tokens, 0
        request.block_table = []
        request.num_preemptions += 1
        self._events.append(Preempted(now_ns, step, request.id, slot, computed, num_blocks))
        request.move_to(RequestStatus.WAITING)
        self.deferrals.note_served(request)
        self.state.waiting.push(request)
        self.deferrals.note_waiting(request)

    def _commit_chunks(self, draft: Draft, plan: StepPlan, now_ns: int) -> list[Request]:
        """Count what prefills consumed and emitted; gives those whose first output was the last."""
        ended: list[Request] = []
        for request, chunk in draft.chunks.items():
            stop = chunk.start + chunk.count
            again = min(stop, request.max_computed_tokens) - chunk.start
            request.num_recomputed_tokens += max(0, again)
            request.max_computed_tokens = max(stop, request.max_computed_tokens)
            request.num_computed_tokens = stop
            self.deferrals.note_served(request)
            if not chunk.completes:
                continue
            request.num_output_tokens += int(chunk.emits)
            request.last_served_step = plan.step
            if chunk.emits and request.num_output_tokens == request.max_tokens:
                ended.append(request)
                continue
            del self.state.prefilling[request]
            request.move_to(RequestStatus.DECODE)
            self.state.idle_decodes[request] = None
            self._events.append(Decoding(now_ns, plan.step, request.id, chunk.emits))
        return ended

    def _finish_step(
        self, draft: Draft, outcome: StepOutcome, ended_in_prefill: list[Request], now_ns: int
    ) -> int:
        """Advance the decode set, retire whoever has ended, note whose blocks are full.

        Gives the number of sampled tokens that do not count.
        """
        state = self.state
        full, ended = state.decodes.advance()
        num_dropped = self._run_aborts(draft, now_ns)
        for slot, _message in outcome.failed:
            request = state.slots[slot]
            if request is not None:
                # Whatever made the row fail may stand in its cache: nobody else may hit it.
                state.pool.forget_content(request.block_table)
            num_dropped += self._drop_and_retire(request, draft, FinishReason.ERROR, now_ns)
        for slot in outcome.stopped:
            self._retire(state.slots[slot], FinishReason.STOP, now_ns)
        for request in (*ended_in_prefill, *ended):
            self._retire(request, FinishReason.LENGTH, now_ns)
        state.due = list(full)
        for request in state.due:
            if request.chain is not None:
                self._register_full(request)
        return num_dropped

    def _run_aborts(self, draft: Draft | None, now_ns: int) -> int:
        """Carry out the aborts that came while the step ran; gives the tokens dropped."""
        aborts, self._aborts = self._aborts, {}
        return sum(
            self._drop_and_retire(self.state.requests.get(request_id), draft, reason, now_ns)
            for request_id, reason in aborts.items()
        )

    def _drop_and_retire(
        self, request: Request | None, draft: Draft | None, reason: FinishReason, now_ns: int
    ) -> int:
        """Retire a request without counting what this step sampled for it; gives that number."""
        if request is None or request.status is RequestStatus.FINISHED:
            return 0
        chunk = draft.chunks.get(request) if draft is not None else None
        emitted_first = chunk is not None and chunk.emits
        num_dropped = 0
        if draft is not None and (request in self.state.decodes or emitted_first):
            self._settle(request)
            num_dropped = 1
            request.num_output_tokens -= num_dropped
        self._retire(request, reason, now_ns)
        return num_dropped

    # Ending

    def _retire(self, request: Request | None, reason: FinishReason, now_ns: int) -> None:
        """End a live request: its blocks lose a reader, its slot is free, nothing comes after."""
        if request is None or request.status is RequestStatus.FINISHED:
            return
        self._settle(request)
        if request.chain is not None and reason is not FinishReason.ERROR:
            self._register_full(request)
        self._leave_all(request)
        self.deferrals.note_served(request)
        self.state.pool.release(request.block_table)
        request.block_table = []
        del self.state.requests[request.id]
        request.finish_reason = reason
        request.move_to(RequestStatus.FINISHED)
        self._events.append(
            Finished(
                t=now_ns,
                step=self.state.decodes.num_steps,
                id=request.id,
                reason=reason.value,
                output_tokens=request.num_output_tokens,
                cached_tokens=request.num_cached_tokens or 0,
                recomputed_tokens=request.num_recomputed_tokens,
                preemptions=request.num_preemptions,
            )
        )

    def _settle(self, request: Request) -> None:
        """Take a member out of the decode set and bring its counters up to date."""
        decodes = self.state.decodes
        if request not in decodes:
            return
        ran = decodes.leave(request)
        request.num_computed_tokens += ran
        request.num_output_tokens += ran
        request.max_computed_tokens = max(request.max_computed_tokens, request.num_computed_tokens)
        request.last_served_step = decodes.num_steps
        # Where it goes from here is the caller's to say; until then it holds its slot.
        self.state.idle_decodes[request] = None

    def _leave_all(self, request: Request) -> int | None:
        """Take a request out of every collection; gives the slot it held."""
        state = self.state
        state.idle_decodes.pop(request, None)
        state.prefilling.pop(request, None)
        if request in state.waiting:
            state.waiting.remove(request)
        slot, request.slot = request.slot, None
        if slot is not None:
            state.slots[slot] = None
            heappush(state.free_slots, slot)
            state.released_slots.append(slot)
        return slot

    def _register_full(self, request: Request) -> None:
        """Index the blocks that decoding has filled since the last call."""
        chain = request.chain
        assert chain is not None
        computed, _ = self.progress(request)
        num_full = computed // self.config.block_size
        self._planner.read_blocks(request, num_full)
        for index in range(len(chain.entries), num_full):
            self.state.pool.register(chain, index, request.block_table[index])


def _slot(request: Request) -> int:
    assert request.slot is not None
    return request.slot
