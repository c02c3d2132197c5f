"""Requests through an engine in this process, each at its time, and the events that came of it.

An open loop, as a server's: a request is handed over between two steps, once its time has come.
Prompts are random token ids, outputs forced to a length. Belongs here: driving, the log of what
happened, replaying it, times of tokens. Not here: which requests (lesson_on_engine.py, jitter.py).

The engine's own log merges steps in which nothing changed. Here each step keeps its own times.
"""

import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from harness import BenchmarkError

from everbatch.base.clock import Clock
from everbatch.base.event_lines import event_line
from everbatch.base.eventlog import EventLogWriter
from everbatch.base.events import Decoding, Event, Finished, StepRan
from everbatch.base.units import NS_PER_S
from everbatch.engine.engine import Engine, EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.llm.llm import LLM
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.recorded import RecordedStepTimes, read_log
from everbatch.sim.run import Observer, RunOptions, simulate
from everbatch.sim.summary import Summary
from everbatch.workload.requests import Prompt, RequestSpec, Segment

FIRST_TOKEN_ID = 100
"""Past the special tokens of SmolLM2."""
LONGEST_SLEEP_S = 0.02


@dataclass(frozen=True, slots=True)
class Recording:
    """What one run was: the header that its log has, its events, when each request was to come."""

    header: dict[str, object]
    events: list[Event]
    due_ns: dict[str, int]
    """On the engine's clock, as the events' times."""

    @property
    def steps(self) -> list[StepRan]:
        return steps_of(self.events)

    def log_lines(self) -> list[str]:
        """Give the lines of an event log in which each step has its own."""
        file = io.StringIO()
        EventLogWriter(file, self.header)
        return [file.getvalue(), *map(event_line, self.events)]


@dataclass(slots=True)
class DrivenEngine:
    """An engine, its clock, and how to wait for the next request."""

    engine: Engine
    clock: Clock
    vocab_size: int
    header: dict[str, object] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    _draws: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @classmethod
    def of(cls, llm: LLM, *, cpu_time: bool = False) -> "DrivenEngine":
        """Drive the engine of an LLM on the wall clock, or on the CPU time of this process."""
        real = llm.real
        sleep = time.sleep
        if cpu_time:
            # The engine holds this very clock.
            real.clock.now_ns = time.process_time_ns  # type: ignore[method-assign]
            sleep = spin
        return cls(real.engine, real.clock, real.vocab_size, real.options.header(), sleep)

    def run(self, specs: Sequence[RequestSpec], last: Sequence[str] = ()) -> Recording:
        """Run to the end of all requests, or of those in `last`: there the recording ends, too.

        Arrivals count from now, in nanoseconds. BenchmarkError if a request is refused.
        """
        engine, place, open_ids = self.engine, 0, dict.fromkeys(last)
        requests = [self._request(spec) for spec in specs]
        events: list[Event] = []
        start_ns = now_ns = self.clock.now_ns()
        while place < len(specs) or engine.has_work:
            while place < len(specs) and start_ns + specs[place].arrival <= now_ns:
                self._add(requests[place])
                place += 1
            if not engine.has_work:
                ahead_s = (start_ns + specs[place].arrival - now_ns) / NS_PER_S
                self.sleep(min(LONGEST_SLEEP_S, ahead_s))
                now_ns = self.clock.now_ns()
                continue
            result = engine.step()
            now_ns = self.clock.now_ns()
            if result.error is not None:
                raise BenchmarkError(f"a step failed: {result.error}")
            events += result.events
            for request_id, _ in result.finished:
                open_ids.pop(request_id, None)
            if last and not open_ids:
                break
        self._abort(specs)
        due_ns = {spec.id: start_ns + spec.arrival for spec in specs}
        return Recording(self.header or {"config": asdict(engine.config)}, events, due_ns)

    def _abort(self, specs: Sequence[RequestSpec]) -> None:
        """End whoever still runs."""
        for spec in specs:
            self.engine.abort(spec.id)
        while self.engine.has_work:
            self.engine.step()

    def _request(self, spec: RequestSpec) -> EngineRequest:
        num_tokens = spec.prompt.num_tokens
        ids = self._draws.integers(FIRST_TOKEN_ID, self.vocab_size, num_tokens, dtype=np.int32)
        sampling = SamplingParams(temperature=0.0, max_tokens=spec.max_tokens, ignore_eos=True)
        return EngineRequest(spec.id, ids, num_tokens, sampling)

    def _add(self, request: EngineRequest) -> None:
        rejection = self.engine.add(request)
        if rejection is not None:
            raise BenchmarkError(f"request {request.id} is refused: {rejection.message}")


def request_spec(id: str, position: int, arrival: int, prompt: int, output: int) -> RequestSpec:
    """Give a request of so many tokens; it ends by its limit, in a simulation too."""
    segments = (Segment(None, prompt),)
    return RequestSpec(id, position, arrival, Prompt(prompt, segments), output + 1, output)


def spin(seconds: float) -> None:
    """Wait on the clock of CPU time, which stands still for who sleeps."""
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def steps_of(events: Iterable[Event]) -> list[StepRan]:
    return [event for event in events if isinstance(event, StepRan)]


def first_token_ns(events: Iterable[Event]) -> dict[str, int]:
    """Give when each request's first output was there, in the order of those moments.

    A request that ends with its first output never decodes.
    """
    times: dict[str, int] = {}
    for event in events:
        is_first = isinstance(event, Decoding) and event.emitted
        if is_first or (isinstance(event, Finished) and event.output_tokens == 1):
            times.setdefault(event.id, event.t)
    return times


def token_gaps(steps: Iterable[StepRan], least_decodes: int = 0) -> dict[str, list[int]]:
    """Give the gaps between tokens in nanoseconds, by the kind of the step that ended them.

    "decode": nothing but decodes; "mixed": with tokens of prompts. A request that decodes in a step
    had its token before at the end of the step before, so each decode is a gap from there. That
    holds where nobody pauses or is preempted. `least_decodes`: only between two steps in each
    of which at least so many decode.
    """
    gaps: dict[str, list[int]] = {"decode": [], "mixed": []}
    before: StepRan | None = None
    for step in steps:
        if before is not None and min(step.decodes, before.decodes) >= least_decodes:
            gaps["mixed" if step.chunks else "decode"] += [step.t - before.t] * step.decodes
        before = step
    return gaps


def replay(recording: Recording, folder: Path, observers: Sequence[Observer] = ()) -> Summary:
    """Let a recording go by once more, with its step times, for whoever looks on.

    Time 0 is the start of its first step. BenchmarkError if the steps are not those of the record.
    """
    path = folder / "replayed.jsonl"
    path.write_text("".join(recording.log_lines()), encoding="utf-8")
    recorded = read_log(path)
    seen = SeenEvents()
    options = RunOptions(RecordedStepTimes(recorded.durations))
    told = simulate(recorded.scenario, None, [*observers, seen], options)
    if list(map(_content, steps_of(seen.events))) != list(map(_content, recording.steps)):
        raise BenchmarkError(
            "the replay made other steps than the engine: the picture would be of another run"
        )
    return told


def _content(step: StepRan) -> tuple[object, ...]:
    return step.tokens, step.emitted, step.decodes, step.chunks


@dataclass(slots=True)
class SeenEvents:
    """Keeps the events of a run that goes by; while somebody looks on, each step has its own."""

    events: list[Event] = field(default_factory=list)

    def planned(self, plan: StepPlan, step: int) -> None: ...

    def happened(self, events: Sequence[Event]) -> None:
        self.events += events

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None: ...

    def idled(self, step: int) -> None: ...
