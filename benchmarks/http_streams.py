"""Candidate: the same workload through `everbatch serve`, one HTTP stream a prompt.

    python benchmarks/http_streams.py MODEL [--kernels auto|native|reference]

Starts the server on a free port of the loopback address and ends it. The client is raw: sockets of
asyncio, lines looked at as bytes, so that what it costs is small; its CPU time is printed too.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time

from offline_workload import (
    MAX_BATCH,
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    measure,
    print_figures,
)

READY = re.compile(r"ready at http://([\d.]+):(\d+)")
USAGE = re.compile(rb'"completion_tokens":(\d+)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kernels", default="auto")
    options = parser.parse_args()
    start_ns = time.perf_counter_ns()
    server = subprocess.Popen(
        _command(options.model, options.kernels), stderr=subprocess.PIPE, text=True
    )
    try:
        host, port = _wait_until_ready(server)
        ready_s = (time.perf_counter_ns() - start_ns) / 1e9

        def generate(prompts: list[list[int]], num_outputs: int) -> list[list[int]]:
            counts = asyncio.run(_stream_all(host, port, prompts, num_outputs))
            # The workload counts tokens; which ones they are the stream does not say.
            return [[0] * count for count in counts]

        figures = measure(generate)
        cpu_s = time.process_time()
    finally:
        server.terminate()
        server.wait()
    print_figures(figures, ready_s=round(ready_s, 2), client_cpu_s=round(cpu_s, 2))


def _command(model: str, kernels: str) -> list[str]:
    return [
        *(sys.executable, "-m", "everbatch.cli.main", "serve", model, "--port", "0"),
        *("--max-num-seqs", str(MAX_BATCH), "--max-model-len", str(MAX_MODEL_LEN)),
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


async def _stream_all(
    host: str, port: int, prompts: list[list[int]], num_outputs: int
) -> list[int]:
    """Stream all prompts at once; gives the number of tokens of each answer."""
    streams = (_stream(host, port, prompt, num_outputs) for prompt in prompts)
    return list(await asyncio.gather(*streams))


async def _stream(host: str, port: int, prompt: list[int], num_outputs: int) -> int:
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": num_outputs,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + body)
    received = await reader.read()
    writer.close()
    counts = USAGE.findall(received)
    if not counts:
        raise RuntimeError(f"a stream ended without usage: {received[-500:]!r}")
    return int(counts[-1])


if __name__ == "__main__":
    main()
