"""Benchmark: how fast `everbatch simulate SCENARIO --json` runs, the whole command on one core.

    python benchmarks/bench_simulator.py --traces FOLDER \\
        [--prototype FILE | --vidur-python PYTHON] [NAME …]

NAMEs are those of SCENARIOS, all unless told. FOLDER has the public traces (benchmarks/README.md).
FILE is a scheduler of a few dozen lines that is fed with the same trace and does nothing else: with
it the Azure scenarios are compared in turns, command against command. Status 1 where one takes more
than MOST_PROTOTYPES times as long. PYTHON is that of Vidur's environment: "azure" is compared with
Vidur (peers/vidur_run.py), without a promise.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import Candidate, Plan, ThisMachine, exit_status
from positive_numbers import positive

HERE = Path(__file__).resolve().parent
MOST_PROTOTYPES = 8
AZURE = "azure2023_AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "mooncake_fast25_conversation_trace.jsonl"


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario: its engine, its requests, how many there are."""

    num_requests: int
    engine: dict[str, object]
    workload: dict[str, object]
    trace: str | None = None
    """A file of the folder of traces."""

    def text(self, traces: Path | None) -> str:
        """Give the scenario as JSON."""
        workload = dict(self.workload)
        if self.trace is not None:
            assert traces is not None
            workload["trace"] = str((traces / self.trace).resolve())
        return json.dumps(
            {
                "engine": self.engine,
                "clock": {"kind": "nominal"},
                "hardware": {"name": "h100-sxm"},
                "model": {"name": "nominal-8b"},
                "workload": workload,
            }
        )


_BIG = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "num_blocks": 28_610}
SCENARIOS = {
    "azure": Case(19_366, _BIG, {}, AZURE),
    "azure-3x": Case(19_366, _BIG, {"speed": 3.0}, AZURE),
    "kv-pressure": Case(
        16_384,
        {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "num_blocks": 1024,
            "enable_prefix_caching": True,
        },
        {
            "arrivals": "burst",
            "num_requests": 16_384,
            "prompt": 256,
            "output": 64,
            "prefix_tokens": 128,
        },
    ),
    "mooncake": Case(
        12_031,
        {
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "num_blocks": 890,
            "block_size": 512,
            "enable_prefix_caching": True,
        },
        {},
        MOONCAKE,
    ),
    "fixed": Case(
        131_072,
        {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "num_blocks": 28_610},
        {
            "arrivals": "closed",
            "users": 64,
            "num_requests": 131_072,
            "prompt": 1024,
            "output": 128,
        },
    ),
}
SPEEDS = {"azure": 1.0, "azure-3x": 3.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*SCENARIOS, []], metavar="NAME")
    parser.add_argument("--traces", type=Path, help="the folder of traces")
    parser.add_argument("--prototype", type=Path, help="what the Azure scenarios are held against")
    parser.add_argument("--vidur-python", metavar="PYTHON", help="of Vidur's environment")
    parser.add_argument(
        "--runs", type=positive, default=3, help="runs of a scenario without a peer"
    )
    options = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    statuses = [_measure(name, options) for name in options.names or SCENARIOS]
    return max(statuses)


def _measure(name: str, options: argparse.Namespace) -> int:
    case = SCENARIOS[name]
    if case.trace is not None and options.traces is None:
        print(f"{name}: skipped, --traces was not given")
        return 0
    with _written(case.text(options.traces)) as path:
        command = (sys.executable, "-m", "everbatch.cli.main", "simulate", path, "--json")
        ours = Candidate("everbatch", (sys.executable, str(HERE / "timed.py"), *command))
        if name in SPEEDS and options.prototype is not None:
            peer = (str(options.prototype), str(options.traces / AZURE), str(SPEEDS[name]))
            return _compare(name, ours, peer)
        if name == "azure" and options.vidur_python is not None:
            return _compare_with_vidur(ours, options.vidur_python, options.traces / AZURE)
        runs = [ThisMachine().run(ours) for _ in range(options.runs)]
    seconds = statistics.median(run["seconds"] for run in runs)
    rss_mb = max(run["rss_mb"] for run in runs)
    rate = case.num_requests / seconds
    print(f"{name}: {seconds:.2f} s, {rate:,.0f} requests/s, {rss_mb:,.0f} MB")
    return 0


def _compare(name: str, ours: Candidate, peer: tuple[str, ...]) -> int:
    prototype = (sys.executable, str(HERE / "timed.py"), sys.executable, *peer)
    return exit_status(
        Plan(
            name=f"simulator-{name}-vs-prototype",
            a=ours,
            b=Candidate("prototype", prototype),
            figures=("runs_per_s",),
            at_least={"runs_per_s": 1 / MOST_PROTOTYPES},
        )
    )


def _compare_with_vidur(ours: Candidate, python: str, trace: Path) -> int:
    vidur = Candidate("vidur", (python, str(HERE / "peers" / "vidur_run.py"), str(trace.resolve())))
    return exit_status(Plan("simulator-azure-vs-vidur", ours, vidur, ("runs_per_s",)))


@contextmanager
def _written(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.json"
        path.write_text(text, encoding="utf-8")
        yield str(path)


if __name__ == "__main__":
    sys.exit(main())
