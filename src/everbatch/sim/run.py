"""Runs a scenario: the production engine on the clock of steps.

At each boundary, in this order: what the step before brought (the engine did that when the step
ended), arrivals, aborts, deadlines, then the next step is planned. A tick in which nothing can run
passes all the same. Belongs here: the order of things and when a run ends. Not here: counting
(accounts), writing (step_lines, event_body), token ids (texts).

Several reporting points belong to one run. Those beyond its horizon are reached too, but what is
written and the summary itself end at the horizon.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TextIO

from everbatch.base.clock import VirtualClock
from everbatch.base.events import Event, Preempted
from everbatch.engine.engine import Engine, EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.simulated import SimulatedExecutor
from everbatch.scheduler.plan import StepOutcome, StepPlan, TokenStore
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.accounts import QUEUE_EMPTY, Accounts
from everbatch.sim.event_body import EventBody
from everbatch.sim.progress import no_progress
from everbatch.sim.summary import Summary, figures, summary
from everbatch.sim.texts import TextMaker
from everbatch.workload.requests import RequestSpec
from everbatch.workload.scenario import Scenario


class Observer(Protocol):
    """Looks on while a run goes by. Steps are numbered by their end's boundary."""

    def planned(self, plan: StepPlan, step: int) -> None:
        """Step `step` is planned and about to run."""
        ...

    def happened(self, events: Sequence[Event]) -> None:
        """Something happened, in a step or at a boundary."""
        ...

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """Step `step` has run and its results are in."""
        ...

    def idled(self, step: int) -> None:
        """Nothing runs from step `step` on, until something arrives."""
        ...


def simulate(
    scenario: Scenario, events: TextIO | None = None, observers: Sequence[Observer] = ()
) -> Summary:
    """Run a scenario and give its summary; `events` gets the event log.

    Raises NoProgress if live requests can never run.
    """
    return SimulatedRun(scenario, events, observers).run()


class SimulatedRun:
    """One run of one scenario."""

    def __init__(
        self, scenario: Scenario, events: TextIO | None, observers: Sequence[Observer]
    ) -> None:
        self._scenario = scenario
        self._clock = VirtualClock()
        executor = _WatchedExecutor(SimulatedExecutor(self._clock), self)
        self.engine = Engine(scenario.engine, executor, self._clock, fails_stuck=False)
        self.accounts = Accounts(scenario.requests)
        self._texts = TextMaker(scenario.requests)
        self._arrivals = _by_time((spec.arrival, spec) for spec in scenario.requests)
        self._aborts = _by_time(
            (max(spec.abort_at, spec.arrival), spec)
            for spec in scenario.requests
            if spec.abort_at is not None
        )
        run = scenario.run
        points = {*run.horizons, *([] if run.horizon is None else [run.horizon])}
        self._points = sorted(points, reverse=True)
        self._body = EventBody(scenario, events)
        self._observers = list(observers)
        self._summary: Summary | None = None
        self._horizons: Summary = {}
        self._num_deferred_calls = 0

    def run(self) -> Summary:
        """Run to the end and give the summary."""
        while True:
            self._arrive()
            self._leave()
            # Nobody plans at the horizon, but deadlines pass there too.
            self.engine.scheduler.expire(self._clock.now_ns())
            self._report()
            if self._summary is not None and not self._points:
                self._summary["horizons"] = self._horizons
                return self._summary
            if self.engine.has_work:
                self._step()
            else:
                self._idle()

    def about_to_run(self, plan: StepPlan) -> None:
        """A pass begins: blocks are taken, none is given back yet."""
        counters, pool = self.accounts.counters, self.engine.scheduler.state.pool
        counters.peak_blocks = max(counters.peak_blocks, pool.num_used)
        for observer in self._observers:
            observer.planned(plan, self._clock.now_ns() + 1)

    def _arrive(self) -> None:
        now = self._clock.now_ns()
        while self._arrivals and self._arrivals[-1][0] <= now:
            spec = self._arrivals.pop()[1]
            rejection = self.engine.add(_engine_request(spec, self._texts))
            if rejection is not None:
                self.accounts.note_rejected(spec.id, rejection.message)

    def _leave(self) -> None:
        now = self._clock.now_ns()
        while self._aborts and self._aborts[-1][0] <= now:
            self.engine.abort(self._aborts.pop()[1].id)

    def _report(self) -> None:
        """Write down the figures if this boundary is a reporting point or the end."""
        now = self._clock.now_ns()
        horizon = self._scenario.run.horizon
        has_ended = not self._arrivals and not self.engine.has_work
        is_end = self._summary is None and (has_ended if horizon is None else now == horizon)
        is_point = bool(self._points) and self._points[-1] == now
        if not is_end and not is_point:
            return
        self._take_boundary_events()
        self.accounts.settle(self.engine.scheduler)
        self.accounts.counters.steps = now
        if is_point:
            self._points.pop()
        if now in self._scenario.run.horizons:
            self._horizons[str(now)] = figures(self.accounts, self._scenario)
        if is_end:
            self._summary = summary(self.accounts, self._scenario, self._body.close())
            self._observers.clear()

    def _step(self) -> None:
        """Let the engine decide and run one step, or learn why it cannot."""
        result = self.engine.step()
        self._take(result.events)
        scheduler = self.engine.scheduler
        if result.plan is not None:
            self._num_deferred_calls = 0
            self._count_slots(result.plan)
            for observer in self._observers:
                observer.ran(result.plan, self._clock.now_ns(), scheduler)
            return
        if not scheduler.has_work:
            return
        yielded = [event for event in result.events if isinstance(event, Preempted)]
        # Who waits and loses what it had kept holds no slot: there are as many such as wait.
        self._num_deferred_calls += any(event.slot is not None for event in yielded)
        if not yielded or self._num_deferred_calls > scheduler.config.max_num_seqs:
            raise no_progress(scheduler, self._clock.now_ns(), self._num_deferred_calls)

    def _idle(self) -> None:
        """Let ticks pass until somebody arrives or something is to be reported."""
        times = [*(arrival for arrival, _ in self._arrivals[-1:]), *self._points[-1:]]
        now = self._clock.now_ns()
        ticks = min(times) - now
        assert ticks > 0, "a run waits for nothing"
        for observer in self._observers:
            observer.idled(now + 1)
        self.accounts.note_idle(QUEUE_EMPTY, self._scenario.engine.max_num_seqs * ticks)
        self._clock.advance(ticks)

    def _take_boundary_events(self) -> None:
        """Take what happened since the last step, for the engine's sums too."""
        events = self.engine.scheduler.take_events()
        for event in events:
            self.engine.metrics.fold(event)
        self._take(events)

    def _take(self, events: list[Event]) -> None:
        if events:
            self.accounts.fold(events)
            self._body.write(events)
            for observer in self._observers:
                observer.happened(events)

    def _count_slots(self, plan: StepPlan) -> None:
        """Say why slots were empty in the step that has just run.

        An empty slot is blamed on a request that could have taken it: as many as waited have the
        reason of the first that waits; for the others there was nobody.
        """
        state = self.engine.scheduler.state
        self.accounts.counters.masked_slot_iterations += len(plan.masked)
        # Slots that were given back at the end of the step were held during it.
        given_back = sum(slot not in state.masked for slot in state.released_slots)
        num_empty = len(state.free_slots) - given_back
        num_waiting = min(num_empty, len(state.requests) - state.num_running)
        self.accounts.note_idle(QUEUE_EMPTY, num_empty - num_waiting)
        if num_waiting:
            deferrals = self.engine.scheduler.deferrals.current
            first = state.policy.queue.peek(state.decodes.num_steps)
            if first not in deferrals:
                first = next(request for request in deferrals if request.slot is None)
            self.accounts.note_idle(deferrals[first].reason.value, num_waiting)


class _WatchedExecutor:
    """An executor that says when a pass begins, while the plan is not committed yet."""

    def __init__(self, executor: SimulatedExecutor, run: SimulatedRun) -> None:
        self._executor = executor
        self._run = run

    @property
    def tokens(self) -> TokenStore:
        return self._executor.tokens

    def execute(self, plan: StepPlan) -> StepOutcome:
        self._run.about_to_run(plan)
        return self._executor.execute(plan)

    def reset(self) -> None:
        self._executor.reset()


def _by_time(entries: Iterable[tuple[int, RequestSpec]]) -> list[tuple[int, RequestSpec]]:
    """Sort by (time, position in the file), the next one last: it is popped."""

    def order(entry: tuple[int, RequestSpec]) -> tuple[int, int]:
        return entry[0], entry[1].position

    return sorted(entries, key=order, reverse=True)


def _engine_request(spec: RequestSpec, texts: TextMaker) -> EngineRequest:
    return EngineRequest(
        id=spec.id,
        prompt_token_ids=texts.make(spec),
        num_prompt_tokens=spec.prompt.num_tokens,
        sampling=SamplingParams(max_tokens=spec.max_tokens),
        priority=spec.priority,
        tenant=spec.tenant,
        cache_salt=spec.cache_salt,
        n=spec.num_samples,
        deadline_ns=None if spec.deadline is None else spec.arrival + spec.deadline,
    )
