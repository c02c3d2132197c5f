"""Benchmark: what HTTP costs. 32 streams through `everbatch serve` against the offline rate.

    python benchmarks/bench_http.py MODEL [--kernels auto|native|reference]

Fails (status 1) below AT_LEAST. One round runs the server with a raw client, then `LLM.generate`.
"""

import argparse
import sys
from pathlib import Path

from harness import MAX_ROUNDS, MIN_KEPT_ROUNDS, Candidate, Plan, exit_status
from positive_numbers import positive

HERE = Path(__file__).resolve().parent
AT_LEAST = {"decode_tokens_per_s_batch_32": 0.9}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="what everbatch loads, such as a GGUF file")
    parser.add_argument("--kernels", default="auto", help="what computes, on both sides")
    parser.add_argument("--rounds", type=positive, default=MIN_KEPT_ROUNDS, help="rounds to keep")
    parser.add_argument("--max-rounds", type=positive, default=MAX_ROUNDS, help="rounds to try")
    options = parser.parse_args()
    http = (
        sys.executable,
        str(HERE / "http_streams.py"),
        options.model,
        "--kernels",
        options.kernels,
    )
    offline = (
        sys.executable,
        str(HERE / "offline.py"),
        options.model,
        "--kernels",
        options.kernels,
    )
    return exit_status(
        Plan(
            name="http-vs-offline",
            a=Candidate("http", http),
            b=Candidate("offline", offline),
            figures=(*AT_LEAST, "decode_tokens_per_s_batch_1"),
            at_least=AT_LEAST,
            min_kept_rounds=options.rounds,
            max_rounds=options.max_rounds,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
