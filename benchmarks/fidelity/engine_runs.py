"""One run: a workload of some seconds through the real engine in this process, or simulated.

An open loop: requests come when their time has come, whatever the engine does, and are handed to it
between two steps, as a server does. Prompts are random token ids, outputs forced to a length. Both
sides give the same figures. Belongs here: workloads, driving, figures. Not here: which runs are
run and what is compared (own_engine.py).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from everbatch.base.events import Arrived, Preempted, QuietSteps, StepRan
from everbatch.base.units import NS_PER_S
from everbatch.costs.work import StepTime
from everbatch.engine.engine import Engine, EngineRequest, StepResult
from everbatch.engine.sampling_params import SamplingParams
from everbatch.llm.llm import LLM
from everbatch.scheduler.config import SchedulerConfig
from everbatch.sim.distribution import distribution
from everbatch.sim.recorded import RecordedStepTimes, read_log, recorded_events
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.random_draws import stream
from everbatch.workload.requests import Prompt, RequestSpec, Segment
from everbatch.workload.run_sections import ClockSpec
from everbatch.workload.scenario import Scenario

FIRST_TOKEN_ID = 100
"""Past the special tokens of SmolLM2."""
NUM_WARM_UP = 4
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
    workload: Workload, specs: Sequence[RequestSpec], log: Path, model: str | None = None
) -> tuple[Figures, SchedulerConfig]:
    """Send requests through a real engine, which writes its event log; gives its options too."""
    llm = LLM(model, event_log=log, **workload.options)
    try:
        engine, vocab_size = llm.real.engine, llm.real.vocab_size
        rng = np.random.default_rng(0)
        requests = [_real_request(spec, rng, vocab_size) for spec in specs]
        _warm_up(engine, rng, vocab_size)
        return _Driver(engine, specs, requests).run(), engine.config
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
    num_warm_up = 0
    for event in recorded_events(log):
        if isinstance(event, Arrived) and event.id == specs[0].id:
            break
        if isinstance(event, StepRan | QuietSteps):
            num_warm_up += event.count if isinstance(event, QuietSteps) else 1
    durations = read_log(log).durations[num_warm_up:]
    return run_simulator(config, specs, RecordedStepTimes(durations))


class _Driver:
    """Hands requests to an engine in time, steps it, and notes when tokens come."""

    def __init__(
        self, engine: Engine, specs: Sequence[RequestSpec], requests: Sequence[EngineRequest]
    ) -> None:
        self._engine = engine
        self._specs = specs
        self._requests = requests
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
        engine, specs, place = self._engine, self._specs, 0
        start = now = time.monotonic_ns()
        while place < len(specs) or engine.has_work:
            while place < len(specs) and start + specs[place].arrival <= now:
                self._arrival_ns[specs[place].id] = start + specs[place].arrival
                engine.add(self._requests[place])
                place += 1
            if engine.has_work:
                result = engine.step()
                now = time.monotonic_ns()
                self._take(result, now)
            else:
                ahead = (start + specs[place].arrival - now) / NS_PER_S
                time.sleep(min(LONGEST_SLEEP_S, ahead))
                now = time.monotonic_ns()
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


def _warm_up(engine: Engine, rng: np.random.Generator, vocab_size: int) -> None:
    """Let a few requests run that do not count: memory is touched, threads are started."""
    for number in range(NUM_WARM_UP):
        spec = _spec_of(f"warm-up-{number}", number, 0, 64, 16)
        engine.add(_real_request(spec, rng, vocab_size))
    while engine.has_work:
        engine.step()


def _real_request(spec: RequestSpec, rng: np.random.Generator, vocab_size: int) -> EngineRequest:
    num_tokens = spec.prompt.num_tokens
    ids = rng.integers(FIRST_TOKEN_ID, vocab_size, num_tokens, dtype=np.int32)
    sampling = SamplingParams(temperature=0.0, max_tokens=spec.max_tokens, ignore_eos=True)
    return EngineRequest(spec.id, ids, num_tokens, sampling)


def _spec(workload: Workload, number: int, now_s: float, draws: Random) -> RequestSpec:
    prompt, output = draws.randint(*workload.prompt_tokens), draws.randint(*workload.output_tokens)
    return _spec_of(str(number), number, round(now_s * NS_PER_S), prompt, output)


def _spec_of(id: str, position: int, arrival: int, prompt: int, output: int) -> RequestSpec:
    # One output more than the limit: the model never ends by itself.
    return RequestSpec(
        id, position, arrival, Prompt(prompt, (Segment(None, prompt),)), output + 1, output
    )


def _at(spec: RequestSpec, arrival: int) -> RequestSpec:
    return _spec_of(spec.id, spec.position, arrival, spec.prompt.num_tokens, spec.max_tokens)
