"""What a server costs before and between requests: how soon it is ready, memory, CPU while idle.

    python benchmarks/bench_server_costs.py [MODEL] [--starts 5] [--idle 20]

Starts `everbatch serve` some times on the loopback address with 256 MiB of KV cache, and prints one
JSON line. The last server idles, then answers prompts until its cache is full, then idles again.
Memory is what the process holds in RAM, files included. Reads processes as Linux tells them.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from http_streams import wait_until_ready
from positive_numbers import positive
from raw_client import stream_all

KV_CACHE = "256MiB"
NUM_PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 600, 8
"""More tokens than 256 MiB hold of the default model, 11,648."""
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


class Served:
    """A server's process, once it is ready."""

    def __init__(self, model: list[str]) -> None:
        begun_s = time.perf_counter()
        command = [sys.executable, "-m", "everbatch.cli.main", "serve", *model]
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--kv-cache-memory", KV_CACHE],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.host, self.port = wait_until_ready(self._process)
        self.ready_s = time.perf_counter() - begun_s

    def cpu_s(self) -> float:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND

    def memory(self, name: str) -> int:
        """Give VmRSS or VmHWM, its peak, in MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found is not None
        return round(int(found[1]) * 1024 / MIB)

    def idle_cpu_s(self, seconds: float) -> float:
        before_s = self.cpu_s()
        time.sleep(seconds)
        return round(self.cpu_s() - before_s, 2)

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--starts", type=positive, default=5)
    parser.add_argument("--idle", type=positive, default=20, metavar="SECONDS")
    options = parser.parse_args()
    model = [] if options.model is None else [options.model]
    ready_s = []
    for number in range(options.starts):
        served = Served(model)
        ready_s.append(round(served.ready_s, 2))
        if number + 1 < options.starts:
            served.stop()
    try:
        figures = {"ready_s": ready_s, "ready_mib": served.memory("VmRSS")}
        figures["idle_cpu_s"] = [served.idle_cpu_s(options.idle)]
        _fill(served)
        figures["idle_cpu_s"].append(served.idle_cpu_s(options.idle))
        figures |= {"full_mib": served.memory("VmRSS"), "peak_mib": served.memory("VmHWM")}
    finally:
        served.stop()
    print(json.dumps(figures))


def _fill(served: Served) -> None:
    """Ask all prompts at once, which begin differently, so that none shares a block."""
    prompts = [
        [(number * 977 + token * 31) % 10_000 + 100 for token in range(PROMPT_TOKENS)]
        for number in range(NUM_PROMPTS)
    ]
    answers = stream_all(served.host, served.port, prompts, OUTPUT_TOKENS)
    if any(one.num_tokens != OUTPUT_TOKENS for one in answers):
        raise RuntimeError(f"an answer is not whole: {[one.num_tokens for one in answers]}")


if __name__ == "__main__":
    main()
