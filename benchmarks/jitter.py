"""Jitter: what a prompt that is computed beside decodes does to the gaps between their tokens.

    python benchmarks/jitter.py [MODEL] [--budgets 64,128,256,512,1024,2048] [--json FILE]
                                [--trace FOLDER] [--cpu-time]

Eight requests decode while prompts of 1,500 tokens come, one after the other. For each token budget
of a step: the gaps between two tokens of the eight, by the kind of the step that ended the gap,
nothing but decodes or mixed with a chunk. Beside them stands what the simulator says of the same
requests. Its step times are fitted to runs of their own, in between, of other prompts and outputs;
nothing of what it predicts is seen by the fit.

`--trace` writes a Chrome trace of each run, measured and predicted. Belongs here: workloads, the
fit, the comparison. Not here: driving an engine and reading its events (driven_engine.py).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from driven_engine import (
    DrivenEngine,
    Recording,
    SeenEvents,
    first_token_ns,
    replay,
    request_spec,
    steps_of,
    token_gaps,
)
from harness import LOCK_PATH, BenchmarkError, machine_lock
from positive_numbers import positive
from provenance import Watch, clock_facts

from everbatch import __version__
from everbatch.base.errors import EverbatchError
from everbatch.base.events import Event, Finished
from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.calibration.calibrate import Calibration, calibrate
from everbatch.calibration.steps import MeasuredLog, read_log
from everbatch.costs.work import StepTime
from everbatch.llm.llm import LLM
from everbatch.scheduler.config import SchedulerConfig
from everbatch.sim.distribution import distribution
from everbatch.sim.perfetto import PerfettoTrace
from everbatch.sim.run import Observer, RunOptions, simulate
from everbatch.workload.requests import RequestSpec
from everbatch.workload.run_sections import ClockSpec, RunSpec
from everbatch.workload.scenario import Scenario
from everbatch.workload.times import SECONDS

BUDGETS = (64, 128, 256, 512, 1024, 2048)
NUM_DECODES, SHORT_PROMPT, NUM_OUTPUTS = 8, 32, 1500
LONG_PROMPT = 1500
NUM_PROMPTS = 6
ROOM = 1.5
"""The next long prompt comes after so many times what the smallest budget needs for one."""
CALIBRATION_REQUESTS = 12
KINDS = ("decode", "mixed")
PROMPT = "prompt-"
"""What the ids of the long prompts begin with."""
OPTIONS: dict[str, Any] = {
    "max_num_seqs": NUM_DECODES + NUM_PROMPTS,
    "max_model_len": 2048,
    "num_blocks": 2048,
    "enable_prefix_caching": False,
}

MakeEngine = Callable[[int], DrivenEngine]
"""Gives an engine with this many tokens a step."""


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """A run for the fit. Lengths are drawn evenly from ranges, ends included."""

    budget: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]


# Chunks of all sizes; and decodes with little context, else requests and their context move
# together and their prices cannot be told apart.
CALIBRATION = (
    CalibrationRun(96, (16, 1900), (16, 64)),
    CalibrationRun(512, (16, 64), (16, 200)),
    CalibrationRun(768, (16, 1900), (16, 64)),
    CalibrationRun(2048, (16, 1900), (16, 64)),
)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between tokens of one kind, in seconds; None where there were none."""

    count: int
    p50: float | None
    p99: float | None
    longest: float | None


@dataclass(frozen=True, slots=True)
class Times:
    """One run: the gaps of the eight by kind of step, the mean time to first token of prompts."""

    gaps: dict[str, Gaps]
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One token budget, as measured and as predicted."""

    budget: int
    measured: Times
    predicted: Times


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that was found."""

    rows: list[Row]
    calibration: Calibration
    num_prompts: int
    interval_ns: int
    """From one long prompt to the next."""
    header: dict[str, object]
    """Of the last engine's log."""


def study(make: MakeEngine, budgets: Sequence[int], num_prompts: int, traces: "Traces") -> Study:
    """Run each budget, before each a run for the fit; then fit and predict.

    In turns, for a machine that becomes slower or faster does so for both.
    """
    interval_ns = _interval_ns(make(min(budgets)))
    specs = workload(interval_ns, num_prompts)
    logs: list[MeasuredLog] = []
    runs: dict[int, tuple[Recording, SchedulerConfig]] = {}
    for place in range(max(len(budgets), len(CALIBRATION))):
        logs.append(_calibrating_run(make, CALIBRATION[place % len(CALIBRATION)], seed=place))
        if place < len(budgets):
            budget = budgets[place]
            runs[budget] = _measure(make(budget), specs)
            steps = len(runs[budget][0].steps)
            print(f"budget {budget}: {steps:,} steps", file=sys.stderr, flush=True)
    fitted = calibrate(logs, __version__)
    rows = []
    # It goes on for a while behind the last prompt, which may be slower there.
    run, clock = RunSpec(specs[-1].arrival + 2 * interval_ns), ClockSpec("calibrated")
    for budget, (recording, config) in runs.items():
        traces.write_measured(budget, recording, config)
        scenario = Scenario("jitter", config, specs, run, clock)
        predicted = _predict(scenario, fitted.profile.step_time(), traces)
        rows.append(Row(budget, times_of(recording.events, recording.due_ns), predicted))
    header = next(iter(runs.values()))[0].header
    return Study(rows, fitted, num_prompts, interval_ns, header)


def workload(interval_ns: int, num_prompts: int) -> tuple[RequestSpec, ...]:
    """Give the requests: those that decode, and from half an interval on the long prompts."""
    decodes = [
        request_spec(f"decode-{k}", k, 0, SHORT_PROMPT, NUM_OUTPUTS) for k in range(NUM_DECODES)
    ]
    prompts = [
        request_spec(
            f"{PROMPT}{k}", NUM_DECODES + k, interval_ns // 2 + k * interval_ns, LONG_PROMPT, 1
        )
        for k in range(num_prompts)
    ]
    return (*decodes, *prompts)


def times_of(events: Sequence[Event], due_ns: Mapping[str, int]) -> Times:
    """Give the times of a run up to the end of the last prompt.

    BenchmarkError if one that was to decode all the time ended before, or a prompt did not end.
    """
    first = first_token_ns(events)
    waits = [first[id] - due for id, due in due_ns.items() if id.startswith(PROMPT) and id in first]
    ends = {event.id: event.t for event in events if isinstance(event, Finished)}
    end_ns = max((t for id, t in ends.items() if id.startswith(PROMPT)), default=0)
    num_missing = sum(id.startswith(PROMPT) for id in due_ns) - len(waits)
    if num_missing or any(t < end_ns for id, t in ends.items() if not id.startswith(PROMPT)):
        raise BenchmarkError(
            f"the {NUM_DECODES} that decode ended before the last prompt, after {NUM_OUTPUTS:,} "
            "outputs, or a prompt was not done in time: give fewer --prompts"
        )
    steps = [step for step in steps_of(events) if step.t <= end_ns]
    gaps = token_gaps(steps, NUM_DECODES)
    return Times({kind: _gaps(gaps[kind]) for kind in KINDS}, sum(waits) / len(waits) / NS_PER_S)


class Traces:
    """Writes a Chrome trace of each run into a folder, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def write_measured(self, budget: int, recording: Recording, config: SchedulerConfig) -> None:
        """Trace what an engine did, by letting it go by once more."""
        if self._folder is None:
            return
        with (
            tempfile.TemporaryDirectory() as aside,
            self.open(f"measured-{budget}", config) as eyes,
        ):
            replay(recording, Path(aside), eyes)

    @contextmanager
    def open(self, name: str, config: SchedulerConfig) -> Iterator[list[Observer]]:
        """Give whoever traces the run within; nobody without a folder."""
        if self._folder is None:
            yield []
            return
        with (self._folder / f"{name}.json").open("w", encoding="utf-8") as file:
            trace = PerfettoTrace(file, config.max_num_seqs, SECONDS, name)
            yield [trace]
            trace.close()


def facts(found: Study) -> dict[str, Any]:
    """Give what was found, for programs."""
    model = found.header.get("model")
    return {
        "model": model,
        "num_decodes": NUM_DECODES,
        "num_prompts": found.num_prompts,
        "prompt_tokens": LONG_PROMPT,
        "interval_s": found.interval_ns / NS_PER_S,
        "rows": [asdict(row) for row in found.rows],
        "calibration": found.calibration.facts(),
    }


def table(told: dict[str, Any]) -> str:
    """Write measured and predicted gaps as a table in Markdown, in milliseconds."""
    lines = [
        "| budget | step | gaps | p50 | predicted | p99 | predicted | longest | predicted |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in told["rows"]:
        for kind in KINDS:
            ours, theirs = (row[side]["gaps"][kind] for side in ("measured", "predicted"))
            cells = [
                cell
                for name in ("p50", "p99", "longest")
                for cell in (_ms(ours[name]), _ms(theirs[name]))
            ]
            lines.append(
                f"| {row['budget']:,} | {kind} | {ours['count']:,} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def ttft_table(told: dict[str, Any]) -> str:
    """Write what the long prompts wait, mean, as a table in Markdown, in milliseconds."""
    lines = ["| budget | time to first token | predicted |", "|--:|--:|--:|"]
    for row in told["rows"]:
        ours, theirs = row["measured"]["ttft_s"], row["predicted"]["ttft_s"]
        lines.append(f"| {row['budget']:,} | {_ms(ours)} | {_ms(theirs)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write what was asked for; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument(
        "--budgets", type=_budgets, default=BUDGETS, help="tokens a step, by commas"
    )
    parser.add_argument(
        "--prompts", type=positive, default=NUM_PROMPTS, help="long prompts a budget"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="with one thread, in its CPU time: for a machine on which others compute",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="write a trace of each run")
    options = parser.parse_args(arguments)
    try:
        with machine_lock(LOCK_PATH):
            watch = Watch()
            found = study(
                lambda budget: _engine(options.model, budget, cpu_time=options.cpu_time),
                options.budgets,
                options.prompts,
                Traces(options.trace),
            )
            told = {**watch.facts(), **clock_facts(cpu_time=options.cpu_time), **facts(found)}
    except (BenchmarkError, EverbatchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"others used {told['other_cores']:.2f} cores meanwhile")
    print(f"times in ms; a prompt every {told['interval_s']:.2f} s\n\n{table(told)}\n")
    print(ttft_table(told))
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


def _interval_ns(driven: DrivenEngine) -> int:
    """Give the time from one long prompt to the next, by what the smallest budget needs for one."""
    specs = workload(NS_PER_S, 1)
    recording, _ = _measure(driven, specs)
    prompt = specs[-1].id
    return round(ROOM * (first_token_ns(recording.events)[prompt] - recording.due_ns[prompt]))


def _measure(
    driven: DrivenEngine, specs: Sequence[RequestSpec]
) -> tuple[Recording, SchedulerConfig]:
    driven.run(_warm_up())
    prompts = [spec.id for spec in specs if spec.id.startswith(PROMPT)]
    return driven.run(specs, prompts), driven.engine.config


def _calibrating_run(make: MakeEngine, run: CalibrationRun, seed: int) -> MeasuredLog:
    """Let requests come all at once, whose log the fit sees."""
    driven, draws = make(run.budget), Random(seed)
    driven.run(_warm_up())
    lengths = [
        (draws.randint(*run.prompt_tokens), draws.randint(*run.output_tokens))
        for _ in range(CALIBRATION_REQUESTS)
    ]
    specs = [request_spec(f"r{k}", k, 0, *both) for k, both in enumerate(lengths)]
    return read_log(driven.run(specs).log_lines(), f"run {seed}, a budget of {run.budget}")


def _predict(scenario: Scenario, step_time: StepTime, traces: Traces) -> Times:
    """Simulate the same requests."""
    seen, config = SeenEvents(), scenario.engine
    with traces.open(f"predicted-{config.max_num_batched_tokens}", config) as eyes:
        simulate(scenario, None, [seen, *eyes], RunOptions(step_time))
    return times_of(seen.events, {spec.id: spec.arrival for spec in scenario.requests})


def _engine(model: str | None, budget: int, *, cpu_time: bool) -> DrivenEngine:
    threads = 1 if cpu_time else None
    llm = LLM(model, threads=threads, max_num_batched_tokens=budget, **OPTIONS)
    return DrivenEngine.of(llm, cpu_time=cpu_time)


def _warm_up() -> list[RequestSpec]:
    """Requests that do not count: memory is touched, threads are started."""
    return [request_spec(f"warm-up-{k}", k, 0, 256, 8) for k in range(NUM_DECODES)]


def _budgets(text: str) -> tuple[int, ...]:
    budgets = tuple(map(positive, text.split(",")))
    if min(budgets) <= OPTIONS["max_num_seqs"]:
        raise argparse.ArgumentTypeError(
            f"a budget of {min(budgets)} leaves no tokens for prompts beside "
            f"{NUM_DECODES} decodes: give more than {OPTIONS['max_num_seqs']}"
        )
    return budgets


def _gaps(samples_ns: Sequence[int]) -> Gaps:
    told = distribution(gap / NS_PER_S for gap in samples_ns)
    longest = max(samples_ns) / NS_PER_S if samples_ns else None
    return Gaps(len(samples_ns), told["p50"], told["p99"], longest)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * NS_PER_S / NS_PER_MS:,.1f}"


if __name__ == "__main__":
    sys.exit(main())
