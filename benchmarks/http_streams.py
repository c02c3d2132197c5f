"""Candidate: `everbatch serve` with one HTTP stream a prompt, printed as one JSON line.

    python benchmarks/http_streams.py MODEL [--kernels auto|native|reference] [--client raw|openai]

Starts the server on a free port of the loopback address and ends it. `ready_s`: from its start to
its first answer. The client is in this process: its CPU time per token is told, too. The server
notes when its steps end (timed_steps.py), so gaps over HTTP are told beside the engine's of the
same run.
"""

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from offline_workload import print_figures
from streams_workload import (
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    StepEnds,
    Streamed,
    delays_ns,
    percentile,
    run_batches,
    step_figures,
    stream_figures,
    whole_streams,
)

HERE = Path(__file__).resolve().parent
READY = re.compile(r"ready at http://([\d.]+):(\d+)")
CLIENTS = {"raw": "raw_client", "openai": "openai_client"}


@dataclass(frozen=True, slots=True)
class Run:
    """One batch of streams."""

    streams: list[Streamed]
    """Those that count."""
    batch: int
    num_tokens: int
    start_ns: int
    end_ns: int
    client_cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--client", choices=CLIENTS, default="raw")
    options = parser.parse_args()
    client = importlib.import_module(CLIENTS[options.client])
    runs: dict[int, Run] = {}
    with tempfile.TemporaryDirectory() as folder:
        steps_path = Path(folder) / "steps.json"
        start_ns = time.perf_counter_ns()
        server = subprocess.Popen(
            _command(options.model, options.kernels, steps_path), stderr=subprocess.PIPE, text=True
        )
        try:
            host, port = wait_until_ready(server)
            ready_s = (time.perf_counter_ns() - start_ns) / 1e9

            def generate(prompts: list[list[int]], num_outputs: int) -> None:
                begin_s, begin_ns = time.process_time(), time.perf_counter_ns()
                streams = client.stream_all(host, port, prompts, num_outputs)
                cpu_s, end_ns = time.process_time() - begin_s, time.perf_counter_ns()
                batch, whole = len(prompts), whole_streams(streams, num_outputs)
                # Of a size the last run counts, the one before warms up.
                runs[batch] = Run(whole, batch, batch * num_outputs, begin_ns, end_ns, cpu_s)

            run_batches(generate)
        finally:
            server.terminate()
            server.wait()
        step_ends = [(at, count) for at, count in json.loads(steps_path.read_text("ascii"))]
    figures: dict[str, float] = {}
    for batch, run in runs.items():
        for name, value in run_figures(run, step_ends).items():
            figures[f"{name}_{batch}"] = value
    print_figures(figures, ready_s=round(ready_s, 2))


def run_figures(run: Run, step_ends: StepEnds) -> dict[str, float]:
    """Give what the streams saw, what the engine did meanwhile, and what the client used."""
    ends = [one for one in step_ends if run.start_ns <= one[0] <= run.end_ns]
    seen, done = stream_figures(run.streams, run.batch), step_figures(ends, run.batch)
    return {
        **seen,
        "itl_p99_by_engines": seen["itl_ms_p99"] / done["itl_ms_p99"],
        "engine_itl_ms_p99": done["itl_ms_p99"],
        "delay_ms_p99": percentile(delays_ns(run.streams, ends), 99) / 1e6,
        "client_cpu_us_per_token": run.client_cpu_s / run.num_tokens * 1e6,
    }


def wait_until_ready(server: subprocess.Popen[str]) -> tuple[str, int]:
    """Give where it listens; RuntimeError, with what it printed, if it ends instead."""
    assert server.stderr is not None
    printed = ""
    for line in server.stderr:
        printed += line
        match = READY.search(line)
        if match is not None:
            return match[1], int(match[2])
    raise RuntimeError(f"the server ended before it was ready:\n{printed}")


def _command(model: str, kernels: str, steps_path: Path) -> list[str]:
    return [
        *(sys.executable, str(HERE / "timed_steps.py"), str(steps_path), model, "--port", "0"),
        *("--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", str(MAX_MODEL_LEN)),
        *("--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)),
        *("--no-enable-prefix-caching", "--kernels", kernels),
    ]


if __name__ == "__main__":
    main()
