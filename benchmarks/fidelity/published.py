"""Published figures beside our simulator: figures of papers, read point by point.

A figure can be judged where it is known what ran: the scheduler, the lengths, how long steps took.
That is so of one. Of the others a row says what the paper does not tell; it has the error of a
simulation all the same, where one can be made with what others measured, and promises nothing.

Data: published_figures.json, and DistServe's profiles of OPT-13B under calibration/. Lengths that
papers print are here, with their places. `rows(traces)` is called by the table.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from fidelity.row import Row, skipped

from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.costs.device import find_device
from everbatch.costs.model import find_model
from everbatch.costs.roofline import RooflineStepTime
from everbatch.costs.work import StepTime, StepWork
from everbatch.scheduler.config import SchedulerConfig
from everbatch.sim.run import RunOptions, simulate
from everbatch.sim.summary import Summary
from everbatch.workload.random_draws import stream
from everbatch.workload.requests import Prompt, RequestSpec, Segment
from everbatch.workload.run_sections import ClockSpec
from everbatch.workload.scenario import Scenario

FIGURES = "published_figures.json"
PROFILES = "calibration/distserve_profiler-a100-80g.{}.json"
OPT_13B = "facebook/opt-13b"
OPT_13B_POOL_TOKENS = 66_144
"""On one A100 of 80 GB, as DistServe's distserve_max_num_tokens.csv says."""
NUM_REQUESTS = 1_500
NUM_CAPACITY_REQUESTS = 300
PROMISED = 0.15
SOME_RATE = 4.0
"""Where the search for a capacity begins, in requests a second."""
MAX_DOUBLINGS, NUM_HALVINGS = 6, 7
MAX_QUEUE_WAIT_S = 2.0
"""Sarathi-Serve, section 5.1: the median wait that a load may cause and still be sustained."""

Point = tuple[float, float]
Lengths = tuple[int, int]
Series = dict[tuple[str, str], dict[str, list[Point]]]


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """DistServe's model of a pass, in milliseconds; a step with both phases is two passes.

    prefill: a + b Σ length + c Σ length²; decode: a + b Σ context + c batch, other prices from a
    batch of `threshold` on. Prompts are whole.
    """

    prefill: tuple[float, float, float]
    small_decode: tuple[float, float, float]
    large_decode: tuple[float, float, float]
    threshold: int
    has_prefill: bool = True
    """Off: prompts come computed."""

    @classmethod
    def read(cls, path: Path, model: str, tp: int) -> "PhaseTimes":
        """Read the profile of a model on so many devices."""
        told = json.loads(path.read_text(encoding="utf-8"))[model][str(tp)]
        return cls(
            *(tuple(told[key]) for key in ("prefill", "decoding_smallbs", "decoding_largebs")),
            told["decoding_large_small_bs_threshold"],
        )

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1."""
        duration = 0.0
        if work.num_chunks and self.has_prefill:
            a, b, c = self.prefill
            squares = 2 * work.prefill_pairs - work.prefill_tokens
            duration += a + b * work.prefill_tokens + c * squares
        if work.num_decodes:
            is_small = work.num_decodes < self.threshold
            a, b, c = self.small_decode if is_small else self.large_decode
            duration += a + b * work.decode_context + c * work.num_decodes
        return max(1, round(duration * NS_PER_MS))


def rows(traces: Path) -> list[Row]:
    """Compare every figure that is kept; one row that says so if they are not there."""
    path = traces / FIGURES
    profiles = {name: traces / PROFILES.format(name) for name in ("vllm", "distserve")}
    missing = [str(one) for one in (path, *profiles.values()) if not one.is_file()]
    if missing:
        return [skipped("published figures", f"no {', '.join(missing)}")]
    told = json.loads(path.read_text(encoding="utf-8"))["figures"]
    figures = {(figure["paper"], figure["figure"]): figure["series"] for figure in told}
    of_vllm, of_distserve = (PhaseTimes.read(file, OPT_13B, 1) for file in profiles.values())
    return [
        *_distserve_rows(figures, of_vllm, of_distserve),
        *_vllm_rows(figures["vLLM SOSP23", "Fig. 12a-c"]["vLLM"], of_vllm),
        *_sarathi_rows(figures["Sarathi-Serve OSDI24", "Fig. 12"]),
        *_rows_of_silence(),
    ]


def worst(points: Sequence[Point], predict: Callable[[float], float]) -> tuple[float, str]:
    """Give the largest error over a figure's points, by size, and all errors as a sentence."""
    errors = [(x, predict(x) / y - 1) for x, y in points]
    told = ", ".join(f"{error:+.0%} at {x:g}" for x, error in errors)
    return max((error for _, error in errors), key=abs), told


def capacity(sustains: Callable[[float], bool], start: float) -> float:
    """Give the highest rate that is sustained, by halving, within a hundredth or so.

    At most MAX_DOUBLINGS times `start`, doubled: more is no capacity but a load that is too short.
    """
    low, high = 0.0, start
    for _ in range(MAX_DOUBLINGS):
        if not sustains(high):
            break
        low, high = high, 2 * high
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if sustains(middle) else (low, middle)
    return low


def requests(rate: float, lengths: Iterable[Lengths], seed: int = 0) -> list[RequestSpec]:
    """Give Poisson arrivals of requests of these (prompt, output) lengths."""
    draws, now = stream(seed, "arrivals"), 0.0
    specs = []
    for number, (prompt, output) in enumerate(lengths):
        now += draws.expovariate(rate)
        content = Prompt(prompt, (Segment(None, prompt),))
        arrival = round(now * NS_PER_S)
        # One output more than the limit: the model never ends by itself.
        specs.append(RequestSpec(str(number), number, arrival, content, output + 1, output))
    return specs


def run(specs: Sequence[RequestSpec], step_time: StepTime, **engine: Any) -> Summary:
    """Simulate requests under options of the engine."""
    config = SchedulerConfig(**{"max_num_seqs": 256, **engine})
    scenario = Scenario("figure", config, tuple(specs), clock=ClockSpec("calibrated"))
    return simulate(scenario, options=RunOptions(step_time=step_time))


def _distserve_rows(figures: Series, of_vllm: PhaseTimes, of_distserve: PhaseTimes) -> list[Row]:
    """Compare Fig. 1: prompts of 512 and outputs of 64 tokens, OPT-13B's step times.

    The existing system has vLLM's step times; phases by themselves have DistServe's.
    """

    def simulated(rate: float, outputs: int, times: PhaseTimes, budget: int = 2_560) -> Summary:
        specs = requests(rate, [(512, outputs)] * NUM_REQUESTS)
        blocks = OPT_13B_POOL_TOKENS // 16
        engine = {"num_blocks": blocks, "enable_chunked_prefill": False}
        return run(specs, times, max_num_batched_tokens=budget, **engine)

    def prefill_only(rate: float) -> float:
        return simulated(rate, 1, of_distserve, budget=512)["ttft"]["p90"]

    def decode_only(rate: float) -> float:
        return simulated(rate, 64, replace(of_distserve, has_prefill=False))["tpot"]["p90"]

    top = figures["DistServe OSDI24", "Fig. 1 top"]
    bottom = figures["DistServe OSDI24", "Fig. 1 bottom"]
    both = "colocated (existing)"
    silence = "the paper does not say which 13B model, which step times, how many requests"
    tpot, told = worst(bottom[both], lambda rate: simulated(rate, 64, of_vllm)["tpot"]["p90"])
    return [
        Row(
            "DistServe Fig. 1, colocated: P90 of TPOT, worst point",
            100 * PROMISED,
            100 * tpot,
            "%",
            abs(tpot) <= PROMISED,
            f"{told} requests/s",
        ),
        _told(
            "DistServe Fig. 1, colocated: P90 of TTFT",
            worst(top[both], lambda rate: simulated(rate, 64, of_vllm)["ttft"]["p90"]),
            silence,
        ),
        _told(
            "DistServe Fig. 1, prefill only: P90 of TTFT",
            worst(top["prefill-only"], prefill_only),
            silence,
        ),
        _told(
            "DistServe Fig. 1, decode only: P90 of TPOT",
            worst(bottom["decode-only"], decode_only),
            silence,
        ),
    ]


def _vllm_rows(points: Sequence[Point], times: PhaseTimes) -> list[Row]:
    """Compare Fig. 12a, the points before its knee: OPT-13B, ShareGPT, an A100 of 40 GB.

    The paper tells the mean lengths, 161 and 338 tokens, and that the pool holds 15,700.
    """
    draws = stream(0, "lengths")
    lengths = [
        (max(1, round(draws.expovariate(1 / 161))), max(1, round(draws.expovariate(1 / 338))))
        for _ in range(NUM_REQUESTS)
    ]

    def normalized(rate: float) -> float:
        specs = requests(rate, lengths)
        engine = {"num_blocks": 15_700 // 16, "enable_chunked_prefill": False, "watermark": 0.01}
        found = run(specs, times, max_num_batched_tokens=2_560, **engine)["requests"]
        served = [(found[spec.id], spec.max_tokens) for spec in specs]
        return sum((r["finished_s"] - r["arrival_s"]) / n for r, n in served) / len(served)

    before_the_knee = [point for point in points if point[0] <= 1.5]
    silence = (
        "the paper shows lengths as a histogram, and no step times: these are of an A100 of 80 GB"
    )
    return [_told("vLLM Fig. 12a: normalized latency", worst(before_the_knee, normalized), silence)]


def _sarathi_rows(series: dict[str, list[Point]]) -> list[Row]:
    """Compare Fig. 12 and 10a: capacity of Mistral-7B on an A100 under a limit on P99 of TBT."""
    step_time = RooflineStepTime(find_device("a100-sxm"), find_model("mistral-7b-v0.3"))
    lengths = _sharegpt4_lengths(NUM_CAPACITY_REQUESTS)

    def sustains(rate: float, budget: int, limit_s: float) -> bool:
        told = run(
            requests(rate, lengths), step_time, max_num_batched_tokens=budget, num_blocks=30_000
        )
        waits = sorted(one["queue_wait_s"] for one in told["requests"].values())
        median = waits[len(waits) // 2]
        return bool(told["itl"]["p99"] <= limit_s and median <= MAX_QUEUE_WAIT_S)

    found = []
    for name, budget in (("SS-512", 512), ("SS-2048", 2_048)):
        points = [point for point in series[name] if point[0] in (0.1, 0.5)]

        def reached(limit_s: float, budget: int = budget) -> float:
            return capacity(lambda rate: sustains(rate, budget, limit_s), SOME_RATE)

        silence = "the paper gives no step times: these are of data sheets"
        found.append(
            _told(f"Sarathi-Serve Fig. 12, {name}: capacity", worst(points, reached), silence)
        )
    return found


def _sharegpt4_lengths(count: int) -> list[Lengths]:
    """Draw lengths as Sarathi-Serve's Table 2 tells of openchat_sharegpt4, 8,192 tokens at most.

    Medians 1,730 and 415, P90 5,696 and 834; lognormal is our guess.
    """
    draws, lengths = stream(0, "lengths"), list[Lengths]()
    while len(lengths) < count:
        prompt, output = _lognormal(draws, 1_730, 5_696), _lognormal(draws, 415, 834)
        if prompt + output <= 8_192:
            lengths.append((prompt, output))
    return lengths


def _lognormal(draws: Random, median: float, p90: float) -> int:
    sigma = math.log(p90 / median) / 1.2816
    return max(1, round(median * math.exp(sigma * draws.gauss(0.0, 1.0))))


def _rows_of_silence() -> list[Row]:
    """Name the figures that cannot be simulated, and what is missing."""
    return [
        skipped(
            "Sarathi-Serve Fig. 10a and 11a, other models",
            "pipeline stages and the engine's step times are not told; Orca and vLLM there plan "
            "prompts before decodes, for which there is no option",
        ),
        skipped("vLLM Fig. 12d-f, Alpaca", "lengths are shown as a histogram, no step times"),
        skipped(
            "vLLM Fig. 12, Orca and FasterTransformer",
            "how they reserve memory is told, their step times are not",
        ),
        skipped(
            "Splitwise Fig. 6a",
            "which prompts make up a batch is not told; the released measurements of the same "
            "machine are up to 44 % from the figure themselves",
        ),
    ]


def _told(name: str, error_and_points: tuple[float, str], silence: str) -> Row:
    error, told = error_and_points
    return Row(f"{name}, worst point", None, 100 * error, "%", None, f"{told}; {silence}")
