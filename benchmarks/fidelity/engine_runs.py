"""One run: a workload of some seconds through the real engine in this process, or simulated.

An open loop: requests come when their time has come, whatever the engine does, and are handed to it
between two steps, as a server does. Prompts are random token ids, outputs forced to a length. Both
sides give the same figures. Before and after a run of the engine stands a piece of work that is
always the same: it tells how fast the machine was. Belongs here: workloads, driving, figures. Not
here: which runs are run and what is compared (own_engine.py).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
from driven_engine import request_spec, spin

from everbatch.base.events import Arrived, Preempted, QuietSteps, StepRan
from everbatch.base.units import NS_PER_S
from everbatch.calibration.steps import MeasuredLog
from everbatch.calibration.steps import read_log as read_measured_log
from everbatch.costs.work import StepTime
from everbatch.engine.engine import Engine, EngineRequest, StepResult
from everbatch.engine.sampling_params import SamplingParams
from everbatch.llm.llm import LLM
from everbatch.scheduler.config import SchedulerConfig
from everbatch.sim.distribution import distribution
from everbatch.sim.recorded import RecordedStepTimes, read_log, recorded_events
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.random_draws import stream
from everbatch.workload.requests import RequestSpec
from everbatch.workload.run_sections import ClockSpec
from everbatch.workload.scenario import Scenario

FIRST_TOKEN_ID = 100
"""Past the special tokens of SmolLM2."""
WARM_UP_OUTPUTS = 16
PROBE_PROMPT, PROBE_PROMPTS = 192, 3
PROBE_DECODES, PROBE_OUTPUTS = 4, 24
AFTER = "after"
"""The name of the piece of work that ends the part of a log which counts."""
LONGEST_SLEEP_S = 0.05
MEANS = ("ttft_mean", "itl_mean", "e2e_mean")
TAILS = ("ttft_p99", "itl_p99", "e2e_p99")


@dataclass(frozen=True, slots=True)
class Workload:
    """Who comes, and the engine's budgets. Lengths are drawn evenly from ranges, ends included."""

    name: str
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    burst: int
    """So many requests come together; 1: each by itself."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the engine, by name."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How long the piece of work takes that is always the same, in seconds: medians."""

    prompt_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to. Seconds; None: nobody had such a time."""

    num_requests: int
    output_tokens_per_s: float
    num_preemptions: int
    ttft_mean: float | None = None
    ttft_p99: float | None = None
    itl_mean: float | None = None
    itl_p99: float | None = None
    e2e_mean: float | None = None
    e2e_p99: float | None = None


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A run of the real engine."""

    figures: Figures
    config: SchedulerConfig
    header: dict[str, Any]
    """Of its log."""
    before: Speed
    after: Speed


@dataclass(frozen=True, slots=True)
class Timing:
    """A clock, and how to wait on it."""

    now_ns: Callable[[], int]
    sleep: Callable[[float], None]

    @classmethod
    def of(cls, *, cpu_time: bool) -> "Timing":
        """Give the wall's, or that of the CPU time of this process."""
        if cpu_time:
            return cls(time.process_time_ns, spin)
        return cls(time.monotonic_ns, time.sleep)


def draw(workload: Workload, rate: float, seconds: float, seed: int) -> list[RequestSpec]:
    """Draw the requests of a run: Poisson arrivals of bursts, `rate` requests a second in all.

    At least one. The same seed gives the same requests.
    """
    draws = stream(seed, workload.name)
    specs: list[RequestSpec] = []
    now = 0.0
    while now < seconds or not specs:
        for _ in range(workload.burst):
            specs.append(_spec(workload, len(specs), now, draws))
        now += draws.expovariate(rate / workload.burst)
    return specs


def at_once(specs: Sequence[RequestSpec]) -> list[RequestSpec]:
    """Give the same requests, all there from the beginning."""
    return [_at(spec, 0) for spec in specs]


def run_engine(
    workload: Workload,
    specs: Sequence[RequestSpec],
    log: Path,
    model: str | None = None,
    *,
    cpu_time: bool = False,
) -> EngineRun:
    """Send requests through a real engine, which writes its event log.

    With `cpu_time` one thread computes, and all times are its CPU time.
    """
    timing = Timing.of(cpu_time=cpu_time)
    llm = LLM(model, event_log=log, threads=1 if cpu_time else None, **workload.options)
    try:
        if cpu_time:
            # The engine holds this very clock.
            llm.real.clock.now_ns = timing.now_ns  # type: ignore[method-assign]
        engine = llm.real.engine
        side_work = _SideWork(engine, llm.real.vocab_size, timing)
        requests = [side_work.request(spec) for spec in specs]
        side_work.warm_up()
        before = side_work.probe("before")
        figures = _Driver(engine, specs, requests, timing).run()
        after = side_work.probe(AFTER)
        return EngineRun(figures, engine.config, llm.real.options.header(), before, after)
    finally:
        llm.close()


def run_simulator(
    config: SchedulerConfig, specs: Sequence[RequestSpec], step_time: StepTime
) -> Figures:
    """Predict the same."""
    scenario = Scenario("a run", config, tuple(specs), clock=ClockSpec("calibrated"))
    told = simulate(scenario, options=RunOptions(step_time=step_time, keeps_requests=False))
    return Figures(
        num_requests=sum(told["num_finished"].values()),
        output_tokens_per_s=told["throughput"]["output_tokens_per_s"],
        num_preemptions=told["num_preemptions"],
        **{
            f"{measure}_{which}": told[measure][which]
            for measure in ("ttft", "itl", "e2e")
            for which in ("mean", "p99")
        },
    )


def run_as_recorded(config: SchedulerConfig, specs: Sequence[RequestSpec], log: Path) -> Figures:
    """Simulate with the step times of the engine's own log: what is left is not the model's error.

    `log` is of the same requests.
    """
    _, steps = _part_that_counts(log, specs)
    return run_simulator(config, specs, RecordedStepTimes(read_log(log).durations[steps]))


def read_measured(log: Path, specs: Sequence[RequestSpec], name: str) -> MeasuredLog:
    """Give the steps of these requests: what a fit may see."""
    lines, _ = _part_that_counts(log, specs)
    with log.open(encoding="utf-8") as file:
        measured = read_measured_log(file, name)
    assert not measured.left_out, "lines and measurements are not the same"
    measured.steps = measured.steps[lines]
    return measured


def _part_that_counts(log: Path, specs: Sequence[RequestSpec]) -> tuple[slice, slice]:
    """Give the lines of steps of a log, and the steps, that these requests made."""
    first, last = (0, 0), None
    num_lines = num_steps = 0
    for event in recorded_events(log):
        match event:
            case Arrived() if event.id == specs[0].id:
                first = (num_lines, num_steps)
            case Arrived() if event.id.startswith(AFTER) and last is None:
                last = (num_lines, num_steps)
            case StepRan():
                num_lines, num_steps = num_lines + 1, num_steps + 1
            case QuietSteps():
                num_lines, num_steps = num_lines + 1, num_steps + event.count
            case _:
                pass
    last = last or (num_lines, num_steps)
    return slice(first[0], last[0]), slice(first[1], last[1])


class _Driver:
    """Hands requests to an engine in time, steps it, and notes when tokens come."""

    def __init__(
        self,
        engine: Engine,
        specs: Sequence[RequestSpec],
        requests: Sequence[EngineRequest],
        timing: Timing,
    ) -> None:
        self._engine = engine
        self._specs = specs
        self._requests = requests
        self._timing = timing
        self._arrival_ns: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        """When each request got its last token so far."""
        self._ttft: list[int] = []
        self._itl: list[int] = []
        self._e2e: list[int] = []
        self._num_tokens = 0
        self._num_preemptions = 0

    def run(self) -> Figures:
        """Run to the end of the last request."""
        engine, specs, timing, place = self._engine, self._specs, self._timing, 0
        start = now = timing.now_ns()
        while place < len(specs) or engine.has_work:
            while place < len(specs) and start + specs[place].arrival <= now:
                self._arrival_ns[specs[place].id] = start + specs[place].arrival
                engine.add(self._requests[place])
                place += 1
            if engine.has_work:
                result = engine.step()
                now = timing.now_ns()
                self._take(result, now)
            else:
                ahead = (start + specs[place].arrival - now) / NS_PER_S
                timing.sleep(min(LONGEST_SLEEP_S, ahead))
                now = timing.now_ns()
        return self._figures((now - start) / NS_PER_S)

    def _take(self, result: StepResult, now: int) -> None:
        for output in result.outputs:
            before = self._last_ns.get(output.request_id)
            if before is None:
                self._ttft.append(now - self._arrival_ns[output.request_id])
            else:
                self._itl.append(now - before)
            self._last_ns[output.request_id] = now
        self._num_tokens += len(result.outputs)
        for request_id, _ in result.finished:
            self._e2e.append(now - self._arrival_ns[request_id])
        self._num_preemptions += sum(isinstance(event, Preempted) for event in result.events)

    def _figures(self, seconds: float) -> Figures:
        times: dict[str, float | None] = {}
        for name, samples in (("ttft", self._ttft), ("itl", self._itl), ("e2e", self._e2e)):
            told = distribution(sample / NS_PER_S for sample in samples)
            times[f"{name}_mean"], times[f"{name}_p99"] = told["mean"], told["p99"]
        return Figures(len(self._e2e), self._num_tokens / seconds, self._num_preemptions, **times)


class _SideWork:
    """What an engine does before and after the requests that count."""

    def __init__(self, engine: Engine, vocab_size: int, timing: Timing) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._timing = timing
        self._rng = np.random.default_rng(0)

    def request(self, spec: RequestSpec) -> EngineRequest:
        """Make a request of random token ids."""
        num_tokens = spec.prompt.num_tokens
        ids = self._rng.integers(FIRST_TOKEN_ID, self._vocab_size, num_tokens, dtype=np.int32)
        sampling = SamplingParams(temperature=0.0, max_tokens=spec.max_tokens, ignore_eos=True)
        return EngineRequest(spec.id, ids, num_tokens, sampling)

    def warm_up(self) -> None:
        """Fill all slots, and the KV cache with them.

        Memory that nobody has written to yet comes slowly: such a step takes up to three times as
        long as its like.
        """
        config = self._engine.config
        num_tokens = config.num_blocks // config.max_num_seqs * config.block_size
        prompt = max(1, num_tokens - WARM_UP_OUTPUTS)
        self._step_through("warm-up", config.max_num_seqs, prompt, WARM_UP_OUTPUTS)

    def probe(self, name: str) -> Speed:
        """Measure how fast prompts and decodes are now."""
        prompts = [
            sum(self._step_through(f"{name}-prompt-{number}", 1, PROBE_PROMPT, 1))
            for number in range(PROBE_PROMPTS)
        ]
        # Nearly all steps are of decodes.
        decodes = self._step_through(f"{name}-decode", PROBE_DECODES, 32, PROBE_OUTPUTS)
        return Speed(median(prompts), median(decodes))

    def _step_through(self, name: str, count: int, prompt: int, output: int) -> list[float]:
        """Run requests that all come at once; gives the seconds of each step."""
        for number in range(count):
            spec = request_spec(f"{name}-{number}", number, 0, prompt, output)
            self._engine.add(self.request(spec))
        times = []
        while self._engine.has_work:
            start = self._timing.now_ns()
            self._engine.step()
            times.append((self._timing.now_ns() - start) / NS_PER_S)
        return times


def _spec(workload: Workload, number: int, now_s: float, draws: Random) -> RequestSpec:
    prompt, output = draws.randint(*workload.prompt_tokens), draws.randint(*workload.output_tokens)
    return request_spec(str(number), number, round(now_s * NS_PER_S), prompt, output)


def _at(spec: RequestSpec, arrival: int) -> RequestSpec:
    return request_spec(spec.id, spec.position, arrival, spec.prompt.num_tokens, spec.max_tokens)
