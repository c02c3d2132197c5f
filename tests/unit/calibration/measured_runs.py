"""Simulated runs with known step times, for the tests of this folder: what ran, and its log."""

import json
from copy import copy
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from everbatch.calibration.steps import MeasuredLog, read_log
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.costs.noise import NoisyStepTime
from everbatch.costs.work import StepTime, StepWork
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.scenario import parse_scenario

PRICES = Prices(
    decode_step=8e6,
    prompt_step=11e6,
    decode=40_000.0,
    decode_context=120.0,
    prompt_token=60_000.0,
    prompt_pair=40.0,
)
SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_blocks": 64, "block_size": 4}


@dataclass
class Recorder:
    """A model of step time that keeps what it was asked, and what it answered."""

    step_time: StepTime
    works: list[StepWork] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)

    def duration_ns(self, work: StepWork) -> int:
        self.works.append(copy(work))
        self.durations.append(self.step_time.duration_ns(work))
        return self.durations[-1]


def priced(prices: Prices = PRICES) -> FittedStepTime:
    return FittedStepTime(prices, Region())


def recorded(step_time: StepTime, tables: dict[str, Any], **engine: Any) -> tuple[Recorder, str]:
    """Run a scenario of these tables; gives what ran and the event log."""
    text = json.dumps({"engine": {**SIZES, **engine}, "clock": {"kind": "nominal"}, **tables})
    recorder, file = Recorder(step_time), StringIO()
    scenario = parse_scenario(text, "given", "given")
    simulate(scenario, file, options=RunOptions(recorder))
    return recorder, file.getvalue()


def poisson_log(
    num_requests: int, noise: float = 0.0, seed: int = 1, prices: Prices = PRICES
) -> str:
    """The log of requests of all lengths that come one after the other."""
    workload = {
        "arrivals": "poisson",
        "rate": 5.0,
        "num_requests": num_requests,
        "prompt": {"lengths": "lognormal", "mean": 300, "cv": 1.0, "max": 2000},
        "output": {"lengths": "lognormal", "mean": 60, "cv": 0.8, "max": 400},
    }
    step_time = NoisyStepTime(priced(prices), noise, seed) if noise else priced(prices)
    tables = {"workload": workload, "run": {"seed": seed}}
    sizes = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "num_blocks": 4000}
    return recorded(step_time, tables, **sizes, block_size=16)[1]


def read(text: str, name: str = "log", date: str = "") -> MeasuredLog:
    return read_log(text.splitlines(keepends=True), name, date)
