"""What the machine reaches at a moment, and how much of it others used: the harness's probe.

Each core is measured alone, one after the other and pinned, with numpy: reading memory (the shape
of decode), and a product of matrices that fit into the core's own cache (the shape of prefill). All
cores at once would be closer to what candidates do, but on a virtual machine that jumps by itself.
On one with two cores, within seconds, both together read 31 or 45 GB/s and made 190 or 168
GFLOP/s in a BLAS product, the one high when the other was low, while products that share nothing
did not change: as if the host moved the two between one chip, which shares a cache and a path to
memory, and two. Most rounds were dropped, with candidates that agreed; one core alone made 107 to
110 GFLOP/s and read 31 to 35 GB/s in the same minutes.

A measurement of the best on one core does not see a process that computes now and then on the
other, so the probe also counts the processor time of others (/proc/stat, stolen time included).

Belongs here: the probe. Not here: which rounds count (harness.py).
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from provenance import PROC_STAT, busy_seconds

READ_S, MATRIX_S = 1.2, 0.3
"""How long each core is measured; the best counts, and reading varies more."""
MAX_CORES = 4
"""So many cores are measured on a large machine, spread evenly."""
PIECE_VALUES, NUM_PIECES = 1 << 23, 8  # 256 MiB, beyond any cache, read 32 MiB at a time
MATRIX_SIZE, NUM_MATRICES, NUM_PRODUCTS = 64, 8, 10  # 128 KiB and BLAS on one thread; 0.4 ms


@dataclass(frozen=True, slots=True)
class Probe:
    """What one core reached at one moment (the mean of the cores), and the time others used."""

    read_gb_per_s: float
    matrix_gflop_per_s: float  # float32
    at_s: float = 0.0
    others_s: float = 0.0
    """Processor seconds that others had used by `at_s`, divided by the number of cores."""


class MachineProbe:
    """Takes probes; holds the memory that they read."""

    def __init__(self, read_s: float = READ_S, matrix_s: float = MATRIX_S) -> None:
        rng = np.random.default_rng(0)
        self._read_s, self._matrix_s = read_s, matrix_s
        self._pieces = rng.random((NUM_PIECES, PIECE_VALUES), dtype=np.float32)
        shape = (NUM_MATRICES, MATRIX_SIZE, MATRIX_SIZE)
        self._left, self._right = (rng.random(shape, dtype=np.float32) for _ in range(2))
        self._product = np.empty(shape, np.float32)
        self._next_piece = 0

    def take(self) -> Probe:
        """Measure now; some three seconds on two cores."""
        reads, matrices = [], []
        for core in measured_cores(sorted(os.sched_getaffinity(0))):
            with pinned_to(core):
                reads.append(self._pieces[0].nbytes / best_seconds(self._read, self._read_s))
                matrices.append(_product_flops() / best_seconds(self._multiply, self._matrix_s))
        return Probe(
            sum(reads) / len(reads) / 1e9,
            sum(matrices) / len(matrices) / 1e9,
            time.monotonic(),
            others_seconds() / len(os.sched_getaffinity(0)),
        )

    def _read(self) -> None:
        np.maximum.reduce(self._pieces[self._next_piece])
        self._next_piece = (self._next_piece + 1) % NUM_PIECES

    def _multiply(self) -> None:
        for _ in range(NUM_PRODUCTS):
            np.matmul(self._left, self._right, out=self._product)


def others_share(first: Probe, last: Probe) -> float:
    """Give the share of all cores that others kept busy between two probes."""
    elapsed_s = last.at_s - first.at_s
    return max(0.0, last.others_s - first.others_s) / elapsed_s if elapsed_s > 0 else 0.0


def others_seconds() -> float:
    """Give the processor seconds of all but this process and its children that have ended."""
    own = os.times()
    own_s = own.user + own.system + own.children_user + own.children_system
    return busy_seconds(PROC_STAT.read_text("ascii")) - own_s


def measured_cores(cores: list[int]) -> list[int]:
    """Give at most MAX_CORES of them, spread evenly."""
    count = min(MAX_CORES, len(cores))
    return [cores[place * len(cores) // count] for place in range(count)]


@contextmanager
def pinned_to(core: int) -> Iterator[None]:
    """Keep the calling thread on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def best_seconds(action: Callable[[], object], duration_s: float) -> float:
    """The shortest run within `duration_s`: a ceiling, so that single hiccups do not count."""
    action()
    best_ns: int | None = None
    start_ns = now_ns = time.perf_counter_ns()
    while best_ns is None or now_ns - start_ns < duration_s * 1e9:
        before_ns = now_ns
        action()
        now_ns = time.perf_counter_ns()
        best_ns = now_ns - before_ns if best_ns is None else min(best_ns, now_ns - before_ns)
    return best_ns / 1e9


def _product_flops() -> int:
    return NUM_PRODUCTS * NUM_MATRICES * 2 * MATRIX_SIZE**3
