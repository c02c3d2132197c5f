"""Benchmark: what HTTP costs. Streams through `everbatch serve` against `LLM.generate`.

    python benchmarks/bench_http.py MODEL [--kernels auto|native|reference] [--client raw|openai]

One round runs the server and its client, 1, 32 and 64 streams, then the engine alone with the same
prompts. With the raw client it fails (status 1) where the rate is below AT_LEAST of the engine's,
or the 99th percentile of the gaps above AT_MOST of the engine's in the same run. With the openai
client, which costs more than all else but the network itself, it only tells.
"""

import argparse
import sys
from pathlib import Path

from harness import MAX_ROUNDS, MIN_KEPT_ROUNDS, Candidate, Plan, exit_status
from http_streams import CLIENTS
from positive_numbers import positive
from streams_workload import BATCHES

HERE = Path(__file__).resolve().parent
PROMISED = (32, 64)
AT_LEAST = {f"decode_tokens_per_s_{batch}": 0.9 for batch in PROMISED}
AT_MOST = {f"itl_p99_by_engines_{batch}": 1.2 for batch in PROMISED}
FIGURES = tuple(
    f"{name}_{batch}"
    for batch in BATCHES
    for name in ("decode_tokens_per_s", "itl_ms_p50", "itl_ms_p99")
)
TOLD = tuple(
    f"{name}_{batch}"
    for batch in BATCHES
    for name in (
        "itl_p99_by_engines",
        "engine_itl_ms_p99",
        "delay_ms_p99",
        "client_cpu_us_per_token",
    )
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="what everbatch loads, such as a GGUF file")
    parser.add_argument("--kernels", default="auto", help="what computes, on both sides")
    parser.add_argument("--client", choices=CLIENTS, default="raw")
    parser.add_argument("--rounds", type=positive, default=MIN_KEPT_ROUNDS, help="rounds to keep")
    parser.add_argument("--max-rounds", type=positive, default=MAX_ROUNDS, help="rounds to try")
    return exit_status(plan(parser.parse_args()))


def plan(options: argparse.Namespace) -> Plan:
    """Give what is compared."""
    is_promised = options.client == "raw"
    name = "http-vs-offline" if is_promised else f"http-{options.client}-vs-offline"
    common = (options.model, "--kernels", options.kernels)
    http = (sys.executable, str(HERE / "http_streams.py"), *common, "--client", options.client)
    engine = (sys.executable, str(HERE / "engine_streams.py"), *common)
    return Plan(
        name=name,
        a=Candidate("http", http),
        b=Candidate("offline", engine),
        figures=FIGURES,
        at_least=AT_LEAST if is_promised else {},
        told_of_a=TOLD,
        a_at_most=AT_MOST if is_promised else {},
        min_kept_rounds=options.rounds,
        max_rounds=options.max_rounds,
    )


if __name__ == "__main__":
    sys.exit(main())
