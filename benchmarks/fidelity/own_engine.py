"""The simulator against our own engine, on this machine: what one workload teaches of another.

    PYTHONPATH=benchmarks python -m fidelity.own_engine [--seconds 30] [--json FILE]

Two workloads go through the real engine in turns. The one calibrates: its event logs are
all that the fit sees. The other has other lengths, arrivals and budgets; it comes at 50 %, 85 % and
110 % of what the simulator says it can take at most, each load twice, with the same requests, so
that it is known how much the engine differs from itself. Before and after each run the machine's
ceilings are probed; a run in which they moved by more than 5 % is made again.

About 10 minutes with arrivals of 30 s a run. Status 1: a promised error was exceeded; 2: nothing is
proved.

Belongs here: which runs, the fit, the comparison. Not here: a run (engine_runs.py).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fidelity.engine_runs import (
    MEANS,
    TAILS,
    Figures,
    Workload,
    at_once,
    draw,
    run_as_recorded,
    run_engine,
    run_simulator,
)
from fidelity.row import Row, within
from fidelity.table import status, table
from harness import (
    LOCK_PATH,
    MAX_PROBE_CHANGE,
    BenchmarkError,
    Probe,
    ThisMachine,
    machine_lock,
)
from provenance import commit, machine_facts

from everbatch import __version__
from everbatch.calibration.calibrate import Calibration, calibrate
from everbatch.calibration.steps import MeasuredLog, read_log
from everbatch.scheduler.config import SchedulerConfig
from everbatch.workload.requests import RequestSpec

SECONDS = 30.0
LOADS = (0.50, 0.85, 1.10)
RUNS_A_LOAD = 2
MAX_TRIES = 4
PILOT_REQUESTS, PILOT_SECONDS = 64, 0.1
"""All at once, nearly: how fast the machine is, roughly."""
CALIBRATION_LOAD = 0.7
"""Of what the pilot reached, in bursts: the batch fills and empties, so all its sizes are seen."""
CAPACITY_REQUESTS = 400
MAX_RATE_ERROR, MAX_MEAN_ERROR, MAX_TAIL_ERROR, MAX_PREEMPTIONS_ERROR = 0.05, 0.08, 0.15, 0.15
MIN_PREEMPTIONS = 20
"""Fewer in a run are chance: told, not judged."""

CALIBRATION = Workload(
    "calibration",
    prompt_tokens=(8, 384),
    output_tokens=(8, 128),
    burst=8,
    options={
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "num_blocks": 1024,
        "enable_prefix_caching": False,
    },
)
# The pool is too small for 24 of them at their full length: above capacity some are preempted.
OTHER = Workload(
    "other",
    prompt_tokens=(32, 224),
    output_tokens=(16, 160),
    burst=1,
    options={
        "max_num_seqs": 24,
        "max_num_batched_tokens": 256,
        "num_blocks": 150,
        "enable_prefix_caching": False,
    },
)


@dataclass(slots=True)
class Run:
    """One run of the engine, and whether the machine was steady meanwhile."""

    workload: str
    load: float | None
    figures: Figures
    probe_change: float

    @property
    def is_kept(self) -> bool:
        return self.probe_change <= MAX_PROBE_CHANGE


@dataclass(slots=True)
class Record:
    """Everything that was run and found."""

    runs: list[Run] = field(default_factory=list)
    logs: list[MeasuredLog] = field(default_factory=list)
    """Of the kept runs that calibrate."""
    by_load: dict[float, list[Figures]] = field(default_factory=dict)
    """Of the other workload, by load."""
    as_recorded: dict[float, list[Figures]] = field(default_factory=dict)
    """Simulated with the step times of each of those."""
    predictions: dict[float, Figures] = field(default_factory=dict)
    capacity: float = 0.0
    """Requests a second."""


class Runner:
    """Makes runs between probes, again if the machine was disturbed."""

    def __init__(self, folder: Path, probe: Callable[[], Probe], model: str | None) -> None:
        self._folder = folder
        self._probe = probe
        self._model = model
        self._before = probe()
        self._num_runs = 0

    def run(
        self,
        record: Record,
        workload: Workload,
        specs: Sequence[RequestSpec],
        load: float | None = None,
    ) -> tuple[Figures, SchedulerConfig, Path]:
        """Make a run until the machine was steady; BenchmarkError if it never was."""
        for _ in range(MAX_TRIES):
            log = self._folder / f"run-{self._num_runs}.jsonl"
            self._num_runs += 1
            figures, config = run_engine(workload, specs, log, self._model)
            after = self._probe()
            found = Run(workload.name, load, figures, change(self._before, after))
            self._before = after
            record.runs.append(found)
            _tell(found)
            if found.is_kept:
                return figures, config, log
        raise BenchmarkError(
            f"the machine's ceilings moved by more than {MAX_PROBE_CHANGE:.0%} in each of "
            f"{MAX_TRIES} tries of a run: end what else runs here and try again"
        )


def change(before: Probe, after: Probe) -> float:
    """Give the larger change of the two ceilings, as a share of the higher value."""
    pairs = (
        (before.read_gb_per_s, after.read_gb_per_s),
        (before.matrix_gflop_per_s, after.matrix_gflop_per_s),
    )
    return max(1 - min(pair) / max(pair) for pair in pairs)


def measure(runner: Runner, seconds: float) -> tuple[Record, Calibration]:
    """Make all runs, those of both workloads in turns, then the fit and the predictions."""
    record = Record()
    pilot = draw(CALIBRATION, PILOT_REQUESTS / PILOT_SECONDS, PILOT_SECONDS, seed=0)
    figures = _calibrating_run(runner, record, pilot)
    rate = CALIBRATION_LOAD * figures.output_tokens_per_s / _mean_outputs(pilot)
    config = _config_of_other(runner, record)
    record.capacity = _capacity(config, calibrate(record.logs, __version__))
    for _ in range(RUNS_A_LOAD):
        for load in LOADS:
            _calibrating_run(runner, record, draw(CALIBRATION, rate, seconds, len(record.logs)))
            specs = _requests(record, load, seconds)
            figures, _, log = runner.run(record, OTHER, specs, load)
            record.by_load.setdefault(load, []).append(figures)
            again = run_as_recorded(config, specs, log)
            record.as_recorded.setdefault(load, []).append(again)
    fitted = calibrate(record.logs, __version__)
    step_time = fitted.profile.step_time()
    for load in LOADS:
        specs = _requests(record, load, seconds)
        record.predictions[load] = run_simulator(config, specs, step_time)
    return record, fitted


def rows(record: Record) -> list[Row]:
    """Compare predictions with the means of the engine's runs."""
    found = []
    for load, predicted in record.predictions.items():
        runs = record.by_load[load]
        found += _rows_of_load(load, runs, predicted)
        found += _rows_as_recorded(load, runs, record.as_recorded[load])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of arrivals a run")
    parser.add_argument("--model", help="a directory or file; without it the default model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs and rows")
    options = parser.parse_args(arguments)
    try:
        with machine_lock(LOCK_PATH), tempfile.TemporaryDirectory() as folder:
            runner = Runner(Path(folder), ThisMachine().probe, options.model)
            record, fitted = measure(runner, options.seconds)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = rows(record)
    print(f"capacity of the other workload: {record.capacity:.2f} requests/s")
    print(table(found))
    if options.json is not None:
        options.json.write_text(_as_json(record, fitted, found), encoding="utf-8")
    return status(found)


def _calibrating_run(runner: Runner, record: Record, specs: Sequence[RequestSpec]) -> Figures:
    figures, _, log = runner.run(record, CALIBRATION, specs)
    with log.open(encoding="utf-8") as lines:
        record.logs.append(read_log(lines, f"calibration {len(record.logs)}"))
    return figures


def _config_of_other(runner: Runner, record: Record) -> SchedulerConfig:
    """Give the other engine's resolved options, from a run of one request."""
    _, config, _ = runner.run(record, OTHER, draw(OTHER, 1.0, 0.0, seed=0))
    return config


def _capacity(config: SchedulerConfig, calibration: Calibration) -> float:
    """Give the requests a second that the simulator says the other engine can take at most."""
    many = at_once(draw(OTHER, CAPACITY_REQUESTS, 1.0, seed=0))
    most = run_simulator(config, many, calibration.profile.step_time())
    return most.output_tokens_per_s / _mean_outputs(many)


def _requests(record: Record, load: float, seconds: float) -> list[RequestSpec]:
    """Give the requests of the other workload at a load, each time the same."""
    return draw(OTHER, load * record.capacity, seconds, seed=round(100 * load))


def _mean_outputs(specs: Sequence[RequestSpec]) -> float:
    return sum(spec.max_tokens for spec in specs) / len(specs)


def _rows_of_load(load: float, runs: Sequence[Figures], predicted: Figures) -> list[Row]:
    title = f"own engine at {load:.0%}"
    found = [
        _row(f"{title}: output tokens/s", "output_tokens_per_s", MAX_RATE_ERROR, runs, predicted)
    ]
    for names, promised in ((MEANS, MAX_MEAN_ERROR), (TAILS, MAX_TAIL_ERROR)):
        found += [
            _row(f"{title}: {_written(name)}", name, promised, runs, predicted) for name in names
        ]
    few = min(figures.num_preemptions for figures in runs) < MIN_PREEMPTIONS
    promised = None if few else MAX_PREEMPTIONS_ERROR
    found.append(_row(f"{title}: preemptions", "num_preemptions", promised, runs, predicted))
    return found


def _rows_as_recorded(load: float, runs: Sequence[Figures], again: Sequence[Figures]) -> list[Row]:
    """Tell what the engine's own step times give: the scheduler's part of the error."""
    rows = []
    for figure in MEANS:
        pairs = zip(runs, again, strict=True)
        errors = [getattr(ours, figure) / getattr(real, figure) - 1 for real, ours in pairs]
        name = f"own engine at {load:.0%}, its own step times: {_written(figure)}"
        told = " and ".join(f"{error:+.2%}" for error in errors)
        rows.append(Row(name, None, 100 * max(errors, key=abs), "%", None, told))
    return rows


def _row(
    name: str, figure: str, promised: float | None, runs: Sequence[Figures], predicted: Figures
) -> Row:
    measured = [getattr(figures, figure) for figures in runs]
    mean, ours = sum(measured) / len(measured), getattr(predicted, figure)
    note = f"{ours:.4g}, engine {' and '.join(f'{value:.4g}' for value in measured)}"
    if not mean:
        return Row(name, None, None, "%", None, note)
    note += f"; the engine differs from itself by {(max(measured) - min(measured)) / mean:.1%}"
    error = ours / mean - 1
    if promised is None:
        return Row(name, None, 100 * error, "%", None, note)
    return within(name, error, promised, note)


def _written(name: str) -> str:
    measure, which = name.split("_")
    return f"{'mean' if which == 'mean' else which + ' of'} {measure.upper()}"


def _tell(run: Run) -> None:
    at = "" if run.load is None else f" at {run.load:.0%}"
    verdict = "kept" if run.is_kept else "again"
    print(
        f"{run.workload}{at}: {run.figures.num_requests} requests, "
        f"{run.figures.output_tokens_per_s:.1f} tokens/s, {run.figures.num_preemptions} "
        f"preemptions; probe moved {run.probe_change:.1%}, {verdict}",
        flush=True,
    )


def _as_json(record: Record, fitted: Calibration, found: Sequence[Row]) -> str:
    told = {
        "machine": machine_facts(),
        "commit": commit(),
        "capacity_requests_per_s": record.capacity,
        "workloads": [asdict(CALIBRATION), asdict(OTHER)],
        "runs": [asdict(run) for run in record.runs],
        "calibration": fitted.facts(),
        "rows": [asdict(row) for row in found],
    }
    return json.dumps(told, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
