"""Runs a scenario: the production engine on a virtual clock.

At each boundary, in this order: what the step before brought (the engine did that when the step
ended), arrivals, aborts, deadlines, then the next step is planned. On the clock of steps a tick in
which nothing can run passes all the same; the other clocks skip such time. Who comes or leaves
while a pass runs does so at its end, and what the pass sampled for who left is dropped. Belongs
here: the order of things, when a run ends. Not here: counting, writing, token ids (their modules).

Several reporting points belong to one run. Those beyond its horizon are reached too, but what is
written and the summary itself end at the horizon.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO
from weakref import proxy

from everbatch.base.clock import VirtualClock
from everbatch.base.events import Event, Finished, Preempted
from everbatch.costs.work import StepTime
from everbatch.engine.engine import Engine, StepResult
from everbatch.executors.simulated import SimulatedExecutor
from everbatch.scheduler.leap import Stretch
from everbatch.scheduler.plan import StepOutcome, StepPlan, TokenStore
from everbatch.scheduler.request import FinishReason
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.accounts import QUEUE_EMPTY, Accounts
from everbatch.sim.arrivals import World
from everbatch.sim.conservation import check_conservation
from everbatch.sim.event_body import EventBody
from everbatch.sim.faults import Failures
from everbatch.sim.garbage import rare_collections
from everbatch.sim.progress import no_progress
from everbatch.sim.step_times import ClockModel, clock_model
from everbatch.sim.summary import Summary, figures, request_entries, summary
from everbatch.sim.texts import TextMaker, engine_request
from everbatch.workload.scenario import Scenario

SERVED = (FinishReason.STOP, FinishReason.LENGTH)
"""Whoever ends otherwise may try again."""
STEPS_A_REPORT = 4096
"""So many calls of the engine go by between two reports of progress."""
STEPS_A_LEAP = 1 << 14
"""At most so many, then they are counted and written: memory stays bounded."""
NEVER = 1 << 200


class Observer(Protocol):
    """Looks on while a run goes by. Steps are numbered as in `--steps`."""

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
        """Nothing runs from step `step` on, until something arrives; or that step failed."""
        ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is to give besides its summary, and how."""

    step_time: StepTime | None = None
    """How long passes take; None: what the scenario's clock says."""
    keeps_requests: bool = True
    """Whether the summary has a part for each request; if not, memory stays bounded."""
    leaps: bool = True
    """Whether steps that need no plan are taken many at a time where nobody looks at single ones.
    The summary is the same either way."""
    progress: Callable[[int, int], None] | None = None
    """Told the time and how many requests have ended, now and then."""


def simulate(
    scenario: Scenario,
    events: TextIO | None = None,
    observers: Sequence[Observer] = (),
    options: RunOptions | None = None,
) -> Summary:
    """Run a scenario and give its summary; `events` gets the event log.

    Raises NoProgress if live requests can never run.
    """
    with rare_collections():
        return SimulatedRun(scenario, events, observers, options or RunOptions()).run()


class SimulatedRun:
    """One run of one scenario."""

    def __init__(
        self,
        scenario: Scenario,
        events: TextIO | None,
        observers: Sequence[Observer],
        options: RunOptions,
    ) -> None:
        self._scenario = scenario
        self._options = options
        self._clock = VirtualClock()
        given = options.step_time
        self._model = clock_model(scenario, self._clock) if given is None else ClockModel(given)
        self._executor = SimulatedExecutor(self._clock, self._model.step_time)
        failures = Failures(scenario.faults, scenario.run.seed)
        executor = _WatchedExecutor(self._executor, self, failures)
        self.engine = Engine(scenario.engine, executor, self._clock, fails_stuck=False)
        self.accounts = Accounts(scenario.goals, keeps_requests=options.keeps_requests)
        if options.keeps_requests:
            for spec in scenario.requests:
                self.accounts.expect(spec)
        self._texts = TextMaker()
        self._world = World(scenario)
        run = scenario.run
        points = {*run.horizons, *([] if run.horizon is None else [run.horizon])}
        self._points = sorted(points, reverse=True)
        self._body = EventBody(scenario, events)
        self._observers = list(observers)
        self._summary: Summary | None = None
        self._horizons: Summary = {}
        self._num_deferred_calls = 0
        self._counts_ticks = scenario.clock.unit.is_steps
        self._may_leap = self._options.leaps and not observers and not failures
        self._leap_until = 0
        self._used_blocks = 0
        """During the pass that ran last."""

    def run(self) -> Summary:
        """Run to the end and give the summary."""
        clock, world, engine = self._clock, self._world, self.engine
        calls_left = STEPS_A_REPORT
        while self._summary is None or self._points:
            now = clock.now_ns()
            if world.next_arrival is not None and world.next_arrival <= now:
                self._arrive(now)
            if world.leaving:
                self._leave(now)
            if self._points and self._points[-1] <= now:
                # Nobody plans at the horizon, but deadlines pass there too.
                engine.scheduler.expire(now)
                self._report(now)
            elif engine.has_work:
                if not (self._may_leap and self._leap()):
                    self._step()
            elif world.next_arrival is None and self._has_no_end:
                self._report(now)
            else:
                self._idle(now)
            calls_left -= 1
            if not calls_left:
                calls_left = STEPS_A_REPORT
                self._tell_progress()
        self._summary["horizons"] = self._horizons
        return self._summary

    def about_to_run(self, plan: StepPlan) -> None:
        """A pass begins: blocks are taken, none is given back yet."""
        counters = self.accounts.counters
        self._used_blocks = self.engine.scheduler.state.pool.num_used
        counters.peak_blocks = max(counters.peak_blocks, self._used_blocks)
        for observer in self._observers:
            observer.planned(plan, self._step_number(plan, self._clock.now_ns() + 1))

    @property
    def _has_no_end(self) -> bool:
        """Whether the run ends with its requests, and has not yet."""
        return self._scenario.run.horizon is None and self._summary is None

    def _arrive(self, now: int) -> None:
        counters = self.accounts.counters
        for spec in self._world.arrivals(now):
            self.accounts.expect(spec)
            counters.last_arrival = spec.arrival
            counters.waiting_at_last_arrival = self.engine.scheduler.state.num_waiting
            rejection = self.engine.add(engine_request(spec, self._texts))
            if rejection is not None:
                self.accounts.note_rejected(spec.id, rejection.message)
                self._world.ended(spec.id, now, served=False)

    def _leave(self, now: int) -> None:
        for request_id in self._world.aborts(now):
            self.engine.abort(request_id)

    def _left_meanwhile(self) -> Iterator[tuple[str, FinishReason]]:
        """Give who left while a pass ran, before its very end."""
        for request_id in self._world.aborts(self._clock.now_ns() - 1):
            yield request_id, FinishReason.ABORT

    def _report(self, now: int) -> None:
        """Write down the figures at a reporting point, or at the end."""
        horizon = self._scenario.run.horizon
        has_ended = self._world.next_arrival is None and not self.engine.scheduler.has_work
        is_end = self._summary is None and (has_ended if horizon is None else now >= horizon)
        self._take_boundary_events()
        facts = self._figures(now)
        while self._points and self._points[-1] <= now:
            point = self._points.pop()
            if point in self._scenario.run.horizons:
                self._horizons[_point_name(self._scenario.clock.unit.written(point))] = facts
        if is_end:
            scenario = self._scenario
            self._summary = summary(facts, scenario, self._body.close(), self._world.notes())
            self._summary["outside_profile"] = self._model.num_outside
            if self._options.keeps_requests:
                records, unit = self.accounts.records.values(), scenario.clock.unit
                self._summary["requests"] = request_entries(records, now, unit)
            self._observers.clear()

    def _figures(self, now: int) -> Summary:
        scheduler, accounts = self.engine.scheduler, self.accounts
        accounts.settle(scheduler)
        accounts.counters.now = now
        accounts.counters.steps = now if self._counts_ticks else scheduler.state.decodes.num_steps
        live = accounts.live(scheduler)
        check_conservation(accounts, scheduler, self._executor.num_tokens, live)
        return figures(accounts, self._scenario, live)

    def _step(self) -> None:
        """Let the engine decide and run one step, or learn why it cannot."""
        result = self.engine.step(self._left_meanwhile if self._world.leaving else None)
        self._take(result.events)
        self._tell_world(result)
        if result.error is not None:
            self._note_failure()
            return
        scheduler = self.engine.scheduler
        if result.plan is not None:
            self._num_deferred_calls = 0
            self._count_slots(result.plan)
            for observer in self._observers:
                step = self._step_number(result.plan, self._clock.now_ns())
                observer.ran(result.plan, step, scheduler)
            return
        if not scheduler.has_work:
            return
        yielded = [event for event in result.events if isinstance(event, Preempted)]
        # Who waits and loses what it had kept holds no slot: there are as many such as wait.
        self._num_deferred_calls += any(event.slot is not None for event in yielded)
        if not yielded or self._num_deferred_calls > scheduler.config.max_num_seqs:
            raise no_progress(
                scheduler, self._clock.now_ns(), self._scenario.clock.unit, self._num_deferred_calls
            )

    def _note_failure(self) -> None:
        """A pass failed, and is tried again in parts."""
        self.accounts.counters.failed_steps += 1
        num_steps = self.engine.scheduler.state.decodes.num_steps
        for observer in self._observers:
            observer.idled(self._clock.now_ns() if self._counts_ticks else num_steps + 1)

    def _leap(self) -> bool:
        """Let steps go by that need no plan, until somebody comes or leaves; gives if any did."""
        if self.engine.scheduler.has_events or self._world.leaving:
            # Who has just come or gone changes the next plan, as a rule; who leaves in the middle
            # of a pass loses its token: such a pass has to be seen.
            return False
        self._leap_until, start = self._next_event(), self._clock.now_ns()
        if self._leap_until <= start:
            return False
        scheduler = self.engine.scheduler
        num_steps, num_empty = scheduler.state.decodes.num_steps, len(scheduler.state.free_slots)
        result = self.engine.leap(self._run_stretch)
        if result is None or result.leapt is None:
            return False
        num_held, duration = scheduler.config.max_num_seqs - num_empty, self._clock.now_ns() - start
        self.accounts.counters.held_slot_time += num_held * duration
        self._blame_empty_slots(num_empty, scheduler.state.decodes.num_steps - num_steps)
        self._num_deferred_calls = 0
        self.accounts.fold_steps(result.leapt)
        self._body.write_steps(result.leapt)
        self._take(result.events)
        self._tell_world(result)
        return True

    def _run_stretch(self, stretch: Stretch) -> None:
        """Let passes go by until something besides them is due."""
        stretch.most = min(stretch.most, STEPS_A_LEAP)
        self._executor.leap(stretch, self._leap_until)

    def _next_event(self) -> int:
        """Give the time from which on something besides steps may be due."""
        arrival = self._world.next_arrival
        time = NEVER if arrival is None else arrival
        if self._points and self._points[-1] < time:
            time = self._points[-1]
        if deadlines := self.engine.scheduler.state.deadlines:
            time = min(time, deadlines[0][0] + 1)
        return time

    def _tell_world(self, result: StepResult) -> None:
        for request_id, reason in result.finished:
            self._world.ended(request_id, self._clock.now_ns(), served=reason in SERVED)

    def _idle(self, now: int) -> None:
        """Let time pass until somebody arrives or something is to be reported."""
        arrival = self._world.next_arrival
        times = [*([] if arrival is None else [arrival]), *self._points[-1:]]
        duration = min(times) - now
        assert duration > 0, "a run waits for nothing"
        num_steps = self.engine.scheduler.state.decodes.num_steps
        for observer in self._observers:
            observer.idled(now + 1 if self._counts_ticks else num_steps + 1)
        if self._counts_ticks:
            self.accounts.note_idle(QUEUE_EMPTY, self._scenario.engine.max_num_seqs * duration)
        self._clock.advance(duration)

    def _take_boundary_events(self) -> None:
        """Take what happened since the last step, for the engine's sums too."""
        events = self.engine.scheduler.take_events()
        self.engine.metrics.fold(events)
        for event in events:
            if isinstance(event, Finished):
                served = FinishReason(event.reason) in SERVED
                self._world.ended(event.id, event.t, served=served)
        self._take(events)

    def _take(self, events: list[Event]) -> None:
        if events:
            self.accounts.fold(events)
            self._body.write(events)
            for observer in self._observers:
                observer.happened(events)

    def _count_slots(self, plan: StepPlan) -> None:
        """Say why slots were empty in the step that has just run, and how long others were not."""
        state, counters = self.engine.scheduler.state, self.accounts.counters
        counters.masked_slot_iterations += len(plan.masked)
        num_empty = len(state.free_slots)
        if state.released_slots:
            # Slots that were given back at the end of the step were held during it.
            num_empty -= sum([slot not in state.masked for slot in state.released_slots])
        duration = self._clock.now_ns() - plan.start_ns
        counters.held_slot_time += (self._scenario.engine.max_num_seqs - num_empty) * duration
        counters.used_block_time += self._used_blocks * duration
        self._blame_empty_slots(num_empty, 1)

    def _blame_empty_slots(self, num_empty: int, num_steps: int) -> None:
        """Say why slots were empty for so many steps.

        An empty slot is blamed on a request that could have taken it: as many as waited have the
        reason of the first that waits; for the others there was nobody.
        """
        if not num_empty:
            return
        state = self.engine.scheduler.state
        num_waiting = min(num_empty, state.num_waiting)
        self.accounts.note_idle(QUEUE_EMPTY, (num_empty - num_waiting) * num_steps)
        if num_waiting:
            deferrals = self.engine.scheduler.deferrals.current
            first = state.policy.queue.peek(state.decodes.num_steps)
            if first not in deferrals:
                first = next(request for request in deferrals if request.slot is None)
            self.accounts.note_idle(deferrals[first].reason.value, num_waiting * num_steps)

    def _step_number(self, plan: StepPlan, end: int) -> int:
        """Give a step's number: on the clock of steps the tick at whose end it is over."""
        return end if self._counts_ticks else plan.step

    def _tell_progress(self) -> None:
        if self._options.progress is not None:
            counters = self.accounts.counters
            num_ended = sum(counters.num_finished.values()) + counters.num_rejected
            self._options.progress(self._clock.now_ns(), num_ended)


class _WatchedExecutor:
    """An executor that says when a pass begins, while the plan is not committed yet, and that fails
    when it is to."""

    def __init__(self, executor: SimulatedExecutor, run: SimulatedRun, failures: Failures) -> None:
        self._executor = executor
        # The run holds the engine, which holds this: it is to go as soon as it is over.
        self._run = proxy(run)
        self._failures = failures
        self.tokens: TokenStore = executor.tokens

    def execute(self, plan: StepPlan) -> StepOutcome:
        self._run.about_to_run(plan)
        outcome = self._executor.execute(plan)
        if self._failures:
            self._failures.end_pass(plan.start_ns)
        return outcome

    def reset(self) -> None:
        self._executor.reset()


def _point_name(point: float) -> str:
    """Give a reporting point as it was written: "80", "0.5"."""
    return str(int(point)) if point == int(point) else str(point)
