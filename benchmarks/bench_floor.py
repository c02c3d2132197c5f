"""Benchmark: what share of the floor a decode step reaches, with ceilings probed in the same run.

    python benchmarks/bench_floor.py MODEL [--batches 1 8 32 64] [--rounds 3] [--json FILE]

Fails (status 1) below AT_LEAST. The floor is the sum over the phases of a step of the larger of
bytes and FLOPs, keys and values included (floor.py). Both ceilings are measured before and after
each batch size, in the same process; they and the step times are medians over all rounds. A share
is the floor's time by the step's.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from alone import exit_status
from ceilings import CeilingProbe, spread
from floor import Ceilings, decode_work, floor_seconds, phases, shape_of
from positive_numbers import positive
from steps import make_engine
from steps_workload import arguments, measure, num_outputs

from everbatch.kernels.weights import NetworkShape

AT_LEAST = {1: 0.75, 8: 0.70, 32: 0.70, 64: 0.75}
ROUNDS = 3


def study(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all rounds; gives the facts of the record."""
    shape = shape_of(options.model)
    engine, probe = make_engine(options), CeilingProbe(options.threads)
    steps_s: dict[int, list[float]] = {batch: [] for batch in options.batches}
    for _ in range(options.rounds):
        for batch in options.batches:
            probe.take()
            figures = measure(engine, [batch], options.prompt)
            steps_s[batch].append(batch / figures[f"decode_tokens_per_s_batch_{batch}"])
        probe.take()
    ceilings = probe.ceilings()
    return {
        "prompt_tokens": options.prompt,
        "threads": options.threads,
        "read_gb_per_s": probe.reads,
        "matrix_gflop_per_s": probe.matrices,
        "steps_s": steps_s,
        "rows": [
            row(shape, batch, options.prompt, statistics.median(times), ceilings)
            for batch, times in steps_s.items()
        ],
    }


def row(
    shape: NetworkShape, batch: int, prompt: int, step_s: float, ceilings: Ceilings
) -> dict[str, Any]:
    """Give one batch size: its step, its floor and the parts of that."""
    # The step measured is the median one, so half of the outputs are there.
    context = prompt + num_outputs(batch, prompt) / 2
    work = decode_work(batch, context)
    floor_s = floor_seconds(shape, work, ceilings)
    parts = {part.name: part.seconds(ceilings) for part in phases(shape, work)}
    return {
        "batch": batch,
        "context": context,
        "step_s": step_s,
        "floor_s": floor_s,
        "share": floor_s / step_s,
        "parts_s": parts,
    }


def shortfalls(told: Mapping[str, Any]) -> list[str]:
    """Say which shares are below what is promised."""
    return [
        f"batch {one['batch']}: {one['share']:.1%} of the floor is below {least:.0%}"
        for one in told["rows"]
        if one["share"] < (least := AT_LEAST.get(one["batch"], 0.0))
    ]


def print_study(told: Mapping[str, Any]) -> None:
    print(f"memory read {spread(told['read_gb_per_s'])} GB/s, in all windows")
    for name, rates in told["matrix_gflop_per_s"].items():
        print(f"bfloat16 product, {name}: {spread(rates)} GFLOP/s")
    print("medians over rounds:")
    for one in told["rows"]:
        print(
            f"batch {one['batch']:2}: step {one['step_s'] * 1e3:.2f} ms, floor "
            f"{one['floor_s'] * 1e3:.2f} ms, {one['share']:.1%} of the floor"
        )


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=ROUNDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    return exit_status(partial(study, options), print_study, shortfalls, options.json)


if __name__ == "__main__":
    sys.exit(main())
