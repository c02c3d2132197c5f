"""What a server costs before and between requests: how soon it is ready, memory, CPU while idle.

    python benchmarks/bench_server_costs.py [MODEL] [--starts 5] [--idle 20]

Starts `everbatch serve` some times on the loopback address with 256 MiB of KV cache, and prints one
JSON line. The last server idles, then answers prompts until its cache is full, then idles again.
Memory is what the process holds in RAM, files included. Reads processes as Linux tells them.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from positive_numbers import positive

KV_CACHE = "256MiB"
READY = re.compile(r"ready at http://([\d.]+):(\d+)")
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
        assert self._process.stderr is not None
        told = ""
        for line in self._process.stderr:
            told += line
            if (ready := READY.search(line)) is not None:
                self.ready_s = time.perf_counter() - begun_s
                self.host, self.port = ready[1], int(ready[2])
                return
        raise RuntimeError(f"the server ended before it was ready:\n{told}")

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
        asyncio.run(_fill(served))
        figures["idle_cpu_s"].append(served.idle_cpu_s(options.idle))
        figures |= {"full_mib": served.memory("VmRSS"), "peak_mib": served.memory("VmHWM")}
    finally:
        served.stop()
    print(json.dumps(figures))


async def _fill(served: Served) -> None:
    """Ask all prompts at once, which begin differently, so that none shares a block."""
    prompts = (
        [(number * 977 + token * 31) % 10_000 + 100 for token in range(PROMPT_TOKENS)]
        for number in range(NUM_PROMPTS)
    )
    await asyncio.gather(*(_ask(served, prompt) for prompt in prompts))


async def _ask(served: Served, prompt: list[int]) -> None:
    fields = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {served.host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(served.host, served.port)
    writer.write(head.encode() + body)
    received = await reader.read()
    writer.close()
    if f'"completion_tokens":{OUTPUT_TOKENS}'.encode() not in received:
        raise RuntimeError(f"an answer is not whole: {received[-300:]!r}")


if __name__ == "__main__":
    main()
