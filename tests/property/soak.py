"""Runs crowds under every row of options for a long time. Usage: soak.py [STEPS A ROW [FIRST SEED]]

Stops at the first failure and names seed and row: keep them in tests/property/seeds.
"""

import sys
import time

from crowd import run_steps
from option_rows import covering_rows

STEPS_A_ROW = 1_000_000
CHECK_EVERY = 8
FIRST_SEED = 1_000_000
"""Other seeds than those of the tests."""


def main() -> None:
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS_A_ROW
    first_seed = int(sys.argv[2]) if len(sys.argv) > 2 else FIRST_SEED
    rows = covering_rows()
    for number, row in enumerate(rows, 1):
        start = time.perf_counter()
        num_crowds = run_steps(row, first_seed, num_steps, CHECK_EVERY)
        seconds = time.perf_counter() - start
        print(f"row {number} of {len(rows)}: {num_crowds:,} crowds, {seconds:,.0f} s", flush=True)


if __name__ == "__main__":
    main()
