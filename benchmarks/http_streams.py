"""Candidate: `everbatch serve` with one HTTP stream a prompt, printed as one JSON line.

    python benchmarks/http_streams.py MODEL [--kernels auto|native|reference] [--client raw|openai]

Starts the server on a free port of the loopback address and ends it. `ready_s`: from its start to
its first answer. The client is in this process: its CPU time per token is told, too.
"""

import argparse
import importlib
import re
import subprocess
import sys
import time

from offline_workload import print_figures
from streams_workload import (
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    Streamed,
    measure,
)

READY = re.compile(r"ready at http://([\d.]+):(\d+)")
CLIENTS = {"raw": "raw_client", "openai": "openai_client"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--client", choices=CLIENTS, default="raw")
    options = parser.parse_args()
    client = importlib.import_module(CLIENTS[options.client])
    start_ns = time.perf_counter_ns()
    server = subprocess.Popen(
        _command(options.model, options.kernels), stderr=subprocess.PIPE, text=True
    )
    try:
        host, port = _wait_until_ready(server)
        ready_s = (time.perf_counter_ns() - start_ns) / 1e9

        cpu_us: dict[str, float] = {}

        def generate(prompts: list[list[int]], num_outputs: int) -> list[Streamed]:
            start_s = time.process_time()
            streams: list[Streamed] = client.stream_all(host, port, prompts, num_outputs)
            used_us = (time.process_time() - start_s) * 1e6
            num_tokens = sum(one.num_tokens for one in streams)
            # Of a size it is the last call that is measured, the one before warms up.
            cpu_us[f"client_cpu_us_per_token_{len(prompts)}"] = used_us / num_tokens
            return streams

        figures = measure(generate)
    finally:
        server.terminate()
        server.wait()
    print_figures({**figures, **cpu_us}, ready_s=round(ready_s, 2))


def _command(model: str, kernels: str) -> list[str]:
    return [
        *(sys.executable, "-m", "everbatch.cli.main", "serve", model, "--port", "0"),
        *("--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", str(MAX_MODEL_LEN)),
        *("--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)),
        *("--no-enable-prefix-caching", "--kernels", kernels),
    ]


def _wait_until_ready(server: subprocess.Popen[str]) -> tuple[str, int]:
    assert server.stderr is not None
    printed = ""
    for line in server.stderr:
        printed += line
        match = READY.search(line)
        if match is not None:
            return match[1], int(match[2])
    raise RuntimeError(f"the server ended before it was ready:\n{printed}")


if __name__ == "__main__":
    main()
