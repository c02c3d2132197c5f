"""The scheduler: one object for real traffic, simulation and replay.

    add(request)  -> None or a Rejection         abort(id, reason): at the next step boundary
    schedule(now) -> StepPlan or NothingToRun    decides; changes nothing that cannot be undone
    apply(plan, outcome, now) -> events          commits consumed KV, retires, frees
    rollback(plan)                               the step did not happen
    leap(run) -> StepsRan | None                 many steps at once, where none needs a plan

Belongs here: the order in which things happen. What is decided is in planner.py, what becomes of
requests in lifecycle.py. Time is handed in; order is explicit; no token id is read but to hash a
block that filled. Sources: Orca (iteration-level scheduling, section 3.1), PagedAttention (section
4.5, preemption by recomputation and swapping), Sarathi-Serve (chunked prefill, section 4.2), VTC
(fair shares), vLLM V1 (decode-first budget).
"""

from dataclasses import dataclass
from heapq import heappop

from everbatch.base.events import Event, StepFailed, StepsRan
from everbatch.base.sample_ids import sample_ids
from everbatch.scheduler.admission import (
    Rejection,
    RejectReason,
    queue_refusal,
    rate_refusal,
    refusal,
)
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.content_reader import ContentReader
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.endings import Endings
from everbatch.scheduler.leap import Leaps, Runner
from everbatch.scheduler.lifecycle import Lifecycle
from everbatch.scheduler.plan import StepOutcome, StepPlan, TokenStore
from everbatch.scheduler.plan_writer import PlanWriter
from everbatch.scheduler.planner import Planner
from everbatch.scheduler.report import (
    DeferralLog,
    rejected_event,
    shortened,
    step_event,
)
from everbatch.scheduler.request import FinishReason, Request
from everbatch.scheduler.state import SchedulerState
from everbatch.scheduler.trials import groups_after, rows_of


@dataclass(slots=True, frozen=True)
class NothingToRun:
    """No forward pass now: nobody can run, or (`preempted`) somebody had to yield first."""

    preempted: str | None


class Scheduler:
    """Iteration-level scheduling of requests over one pool of KV blocks."""

    def __init__(self, config: SchedulerConfig, tokens: TokenStore) -> None:
        self.config = config
        self.state = SchedulerState.empty(config)
        self._events: list[Event] = []
        self.deferrals = DeferralLog(self.state, self._events)
        reader = ContentReader(tokens, config.block_size)
        self._planner = Planner(config, self.state, reader, self.deferrals.current)
        shared = (config, self.state)
        self._writer = PlanWriter(config, self.state)
        self._endings = Endings(*shared, reader, self.deferrals, self._events)
        self._lifecycle = Lifecycle(*shared, self._endings, self.deferrals, self._events)
        self._leaps = Leaps(*shared, self._lifecycle, self.deferrals)
        self._plan: StepPlan | None = None
        self._draft: Draft | None = None
        self._aborts: dict[str, FinishReason] = {}
        """Aborts that came while a step runs."""

    def add(self, request: Request, now_ns: int, num_samples: int = 1) -> Rejection | None:
        """Take a request into the queue, or refuse one that can never run or has no room to wait.

        Its counters must be fresh; arrival number and step are given here. With num_samples > 1
        the request becomes samples "ID/0", "ID/1", … that share the prompt.
        """
        rejection = self._refusal(request, num_samples, now_ns)
        if rejection is not None:
            num_prompt, max_tokens = request.num_prompt_tokens, request.max_tokens
            self._events.append(
                rejected_event(request.id, num_prompt, max_tokens, rejection, now_ns)
            )
            return rejection
        self._lifecycle.arrive(request, num_samples, now_ns)
        return None

    def abort(self, request_id: str, reason: FinishReason, now_ns: int) -> None:
        """End a request, or one sample of it, at the next step boundary.

        Unknown and finished ones are left alone. While a step runs that boundary is its end, and
        what the step samples for it is dropped.
        """
        if self._plan is not None:
            if request_id in self.state.requests or request_id in self.state.groups:
                self._aborts.setdefault(request_id, reason)
            return
        for request in self._named(request_id):
            self._endings.retire(request, reason, now_ns)

    def expire(self, now_ns: int) -> None:
        """End those whose deadline to be planned has passed; `schedule` does it first of all.

        To be called at a boundary without planning, where somebody wants to know how things are.
        """
        deadlines = self.state.deadlines
        while deadlines and deadlines[0][0] < now_ns:
            _, _, request = heappop(deadlines)
            unserved = request.unserved()
            if unserved is not None:
                self._endings.retire_together(unserved, FinishReason.DEADLINE, now_ns)

    def schedule(self, now_ns: int) -> StepPlan | NothingToRun:
        """Plan the next step. The plan must be applied or rolled back before the next call."""
        assert self._plan is None, "the plan before was neither applied nor rolled back"
        if self._aborts:
            # Those that came while a plan ran that was rolled back: this is their boundary.
            self._run_aborts(None, now_ns)
        if self.state.deadlines:
            self.expire(now_ns)
        self._begin()
        try:
            draft = self._plan_trial() or self._planner.plan()
            if draft.num_tokens == 0 and draft.had_share:
                # What was kept for first readings could not be used by any of them.
                self._undo()
                self._begin()
                draft = self._planner.plan(keep_share=False)
        except BaseException:
            self._undo()
            raise
        if draft.num_tokens == 0:
            self._undo()
            return self._nothing_to_run(draft, now_ns)
        self._draft = draft
        self._plan = self._writer.write(draft, now_ns)
        return self._plan

    def rollback(self, plan: StepPlan) -> None:
        """Forget the plan: the scheduler's state is, to the byte, what it was before `schedule`.

        Aborts that came meanwhile stay and take effect before the next plan.
        """
        assert plan is self._plan
        self._undo()
        self._plan = None
        self._draft = None

    def fail_step(self, plan: StepPlan, message: str, now_ns: int) -> list[Event]:
        """Roll back a plan whose forward pass failed; the executor has forgotten all slots.

        It is found out by steps to come whose row fails (trials.py); who had a pass of those for
        itself ends with an error. Members of a static batch, which is one, end together.
        """
        draft = self._draft
        assert draft is not None
        rows = rows_of(draft, list(self.state.decodes))
        self.rollback(plan)
        self._events.append(StepFailed(now_ns, plan.step, shortened(message)))
        self._lifecycle.lose_written_blocks(draft, plan.step, now_ns)
        if self.config.batching == "static":
            failed = [*filter(None, self.state.slots), *draft.admitted]
        else:
            failed = list(rows) if len(rows) == 1 and draft.num_tried else []
            tried = self.state.trials[draft.num_tried :]
            self.state.trials = tried if failed else [*groups_after(draft, rows), *tried]
            self.state.must_restate = True
            for request in draft.admitted:
                if request not in self.deferrals.current:
                    # It was to be admitted, so nobody was told why it waits.
                    self.deferrals.note_waiting(request)
        for request in failed:
            self._endings.retire_together(request, FinishReason.ERROR, now_ns, message)
        self._lifecycle.drop_host_copies()
        self._run_aborts(None, now_ns)
        return self.take_events()

    def fail_stuck(self, now_ns: int) -> str:
        """End the first who waits after `schedule` found nobody who can run or yield; say why.

        The scheduler is built so that this does not happen (docs/invariants.md, progress); if it
        does all the same, one request pays and nobody spins.
        """
        queue, steps = self.state.policy.queue, self.state.decodes.num_steps
        head = queue.peek(steps) or next(iter(self.state.requests.values()))
        lack = self.deferrals.current.get(head)
        told = "not considered"
        if lack is not None:
            told = f"{lack.reason.value}: needs {lack.needed:,}, {lack.available:,} available"
        message = f"request {head.id!r} can never run ({told})"
        self._endings.retire_together(head, FinishReason.ERROR, now_ns, message)
        return message

    def apply(self, plan: StepPlan, outcome: StepOutcome, now_ns: int) -> list[Event]:
        """Commit a step that has run; gives all events since the last call."""
        draft = self._draft
        assert draft is not None
        assert plan is self._plan
        self._keep()
        self._plan = None
        self._draft = None
        lifecycle = self._lifecycle
        lifecycle.commit(draft, plan)
        ended_in_prefill = lifecycle.commit_chunks(draft, plan, now_ns)
        place = len(self._events)
        num_dropped = self._finish_step(draft, outcome, ended_in_prefill, now_ns)
        num_first = sum([1 + len(chunk.followers) for chunk in plan.chunks if chunk.emits])
        # The step comes before those whom it ended, but reports the pool as they left it.
        num_emitted = draft.num_decodes + num_first - num_dropped
        event = step_event(draft, plan, self.state.pool, num_emitted, now_ns)
        self._events.insert(place, event)
        self._leaps.note_plan(draft)
        return self.take_events()

    def leap(self, run: Runner) -> StepsRan | None:
        """Let `run` carry out the next steps as far as none needs a plan; None: the next one does.

        As `schedule` and `apply` would, one by one, but that no plan is shown and the steps are
        told together; who ended in the last is an event. Whoever calls knows that nobody came, left
        or expired meanwhile.
        """
        assert self._plan is None
        if self._aborts or self._events:
            return None
        return self._leaps.leap(run)

    def take_events(self) -> list[Event]:
        """Give the events since the last call."""
        events = self._events[:]
        self._events.clear()
        return events

    def progress(self, request: Request) -> tuple[int, int]:
        """Give (computed tokens, output tokens) of a live request as of the last boundary."""
        ran = self.state.decodes.progress(request)
        return request.num_computed_tokens + ran, request.num_output_tokens + ran

    def sample_ids(self, request_id: str) -> list[str]:
        """Give the ids under which a live request's tokens come: its own, or its samples'."""
        return [request.id for request in self._named(request_id)]

    @property
    def has_work(self) -> bool:
        """Whether a request is live."""
        return bool(self.state.requests)

    @property
    def has_events(self) -> bool:
        """Whether something happened since the last `take_events`."""
        return bool(self._events)

    # Arriving and leaving

    def _refusal(self, request: Request, num_samples: int, now_ns: int) -> Rejection | None:
        state, config = self.state, self.config
        ids = [request.id]
        if num_samples > 1:
            ids += sample_ids(request.id, num_samples)
        taken = [id for id in ids if id in state.requests or id in state.groups]
        if taken:
            message = f"a request with id {taken[0]!r} is being served: use another id"
            return Rejection(RejectReason.DUPLICATE_ID, message, 1, 0)
        num_prompt, tenant, rates = request.num_prompt_tokens, request.tenant, state.rates
        found = refusal(num_prompt, request.max_tokens, config, num_samples) or queue_refusal(
            num_prompt, state.num_fresh_waiting, state.fresh_waiting_tokens, config
        )
        if found is None and rates.limit(tenant):
            found = rate_refusal(tenant, rates.recent(tenant, now_ns), rates.limit(tenant))
        return found

    def _named(self, request_id: str) -> list[Request]:
        """Give the live requests of that name: one, or the samples of a group."""
        group = self.state.groups.get(request_id)
        if group is not None:
            # Who reads the prompt for all comes last: nobody goes on with it who is named as well.
            leader = group.leader
            return [*leader.followers, leader] if not group.has_forked else list(group.samples)
        request = self.state.requests.get(request_id)
        return [request] if request is not None else []

    def _run_aborts(self, draft: Draft | None, now_ns: int) -> int:
        """Carry out the aborts that came while the step ran; gives the tokens dropped."""
        aborts, self._aborts = self._aborts, {}
        return sum(
            self._endings.drop_and_retire(request, draft, reason, now_ns)
            for request_id, reason in aborts.items()
            for request in self._named(request_id)
        )

    # Planning

    def _plan_trial(self) -> Draft | None:
        """Plan the first group of the trials under way that can run; None: no group can."""
        for number in range(len(self.state.trials)):
            draft = self._planner.plan_trial(number)
            if draft.num_tokens:
                return draft
            self._undo()
            self._begin()
        return None

    def _begin(self) -> None:
        self.state.pool.begin()
        if self.state.host_pool is not None:
            self.state.host_pool.begin()

    def _keep(self) -> None:
        self.state.pool.commit()
        if self.state.host_pool is not None:
            self.state.host_pool.commit()

    def _undo(self) -> None:
        self.state.pool.rollback()
        if self.state.host_pool is not None:
            self.state.host_pool.rollback()

    def _nothing_to_run(self, stuck: Draft, now_ns: int) -> NothingToRun:
        """Let one holder yield if that can help: the next call plans anew.

        If it cannot, or nothing ran after so many calls, nobody is named.
        """
        state = self.state
        if not state.requests:
            return NothingToRun(None)
        step = state.decodes.num_steps + 1
        state.num_deferred_calls += 1
        draft = Draft()
        if state.num_deferred_calls <= self.config.max_num_seqs:
            self._begin()
            draft = self._planner.plan_yield(stuck)
            self._keep()
        for request, way in draft.victims.items():
            self._lifecycle.preempt(request, way, step, now_ns)
        if not draft.victims:
            self.deferrals.report(stuck, step, now_ns)
            return NothingToRun(None)
        return NothingToRun(next(iter(draft.victims)).id)

    # Committing

    def _finish_step(
        self, draft: Draft, outcome: StepOutcome, ended_in_prefill: list[Request], now_ns: int
    ) -> int:
        """Let the step's results take effect; gives the number of sampled tokens that were dropped.

        Aborts that came meanwhile go first: what the step sampled for them does not count.
        """
        full, ended = self.state.decodes.advance()
        num_dropped = self._run_aborts(draft, now_ns) if self._aborts else 0
        if outcome.failed:
            num_dropped += self._lifecycle.retire_failed(draft, outcome, now_ns)
        ended_now = (*ended_in_prefill, *ended)
        self._lifecycle.finish_step(outcome.stopped, ended_now, full, now_ns)
        return num_dropped
