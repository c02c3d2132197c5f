"""Simulates the requests of a log and notes what was done when, step by step.

Belongs here: the run and its record. Not here: prices (requests), reading logs (request_log).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from everbatch.base.errors import ConfigError
from everbatch.base.events import Arrived, Event
from everbatch.base.units import NS_PER_S
from everbatch.calibration.fit import PRICES, Array
from everbatch.calibration.request_log import RecordedRequest
from everbatch.costs.work import StepTime, StepWork
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.run_sections import ClockSpec, RunSpec
from everbatch.workload.scenario import Scenario


@dataclass(slots=True)
class StepRecord:
    """Looks on and lends its step time: when each step began and ended, and what it did."""

    step_time: StepTime
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    works: list[StepWork] = field(default_factory=list)
    queued: dict[str, int] = field(default_factory=dict)
    """The boundary at which each request came, by its id."""

    def duration_ns(self, work: StepWork) -> int:
        duration = self.step_time.duration_ns(work)
        self.works.append(replace(work))
        self.ends.append(self.starts[-1] + duration)
        return duration

    def planned(self, plan: StepPlan, step: int) -> None:
        self.starts.append(plan.start_ns)

    def happened(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self.queued[event.id] = event.t

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """The pass is in the record since it began."""

    def idled(self, step: int) -> None:
        """What happens while nobody is there costs nothing."""


@dataclass(frozen=True, slots=True)
class SimulatedStamps:
    """A request's stamps in a run, in nanoseconds from the first arrival; None: not reached."""

    queued_ns: int
    first_ns: int | None
    last_ns: int | None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One simulated run of a log's requests."""

    record: StepRecord
    stamps: list[SimulatedStamps]
    """In the order of the requests."""
    num_preemptions: int
    cumulated: Array
    """[step + 1, price]: what had been done after so many steps."""

    def done_until(self, moment: int) -> Array:
        """Give what was done up to a moment: [price]; of a step under way its part."""
        record = self.record
        # Not numpy's: that would copy the list to search it.
        place = bisect_right(record.ends, moment)
        done: Array = self.cumulated[place]
        if place < len(record.ends) and record.starts[place] < moment:
            length = record.ends[place] - record.starts[place]
            share = (moment - record.starts[place]) / length
            done = done + share * (self.cumulated[place + 1] - done)
        return done


def run_requests(
    scenario: Scenario,
    requests: Sequence[RecordedRequest],
    step_time: StepTime,
    horizon_ns: int | None = None,
    *,
    has_queued: bool = True,
) -> RecordedRun:
    """Run requests on a scenario's engine, up to the horizon; all but [engine] is passed over.

    ConfigError where the engine would refuse one.

    has_queued: whether the log tells when its engine learned of a request, at a boundary; if not,
    waiting counts from arrival.
    """
    record = StepRecord(step_time)
    run = replace(
        scenario,
        requests=tuple(request.spec for request in requests),
        workload=None,
        clock=ClockSpec("nominal"),
        run=RunSpec(horizon=horizon_ns),
        goals={},
        faults=(),
    )
    told = simulate(run, observers=[record], options=RunOptions(step_time=record))
    entries = told["requests"]
    stamps = []
    for request in requests:
        entry, arrival = entries[request.spec.id], request.spec.arrival
        if entry["rejected"] is not None:
            raise ConfigError(
                f"request {request.spec.id} of the log, counted from 0 by arrival, is refused by "
                f"the engine of the scenario: {entry['rejected']}"
            )
        queued = record.queued.get(request.spec.id, arrival) if has_queued else arrival
        stamps.append(
            SimulatedStamps(
                queued, _nanoseconds(entry["first_token_s"]), _nanoseconds(entry["finished_s"])
            )
        )
    return RecordedRun(record, stamps, told["num_preemptions"], _cumulated(record.works))


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_S)


def _cumulated(works: Sequence[StepWork]) -> Array:
    rows = np.zeros((len(works) + 1, len(PRICES)))
    for number, work in enumerate(works, 1):
        rows[number] = (
            not work.num_chunks,
            bool(work.num_chunks),
            work.num_decodes,
            work.decode_context,
            work.prefill_tokens,
            work.prefill_pairs,
            work.swapped_blocks,
        )
    return np.cumsum(rows, axis=0)
