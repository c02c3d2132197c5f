"""Both ceilings of a machine as floor.py needs them: all cores, reading memory and multiplying.

Needs the native kernels. Not here: the harness's probe, which looks at one core at a time
(machine_probe.py).
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from floor import Ceilings
from machine_probe import best_seconds

WINDOW_S = 0.4
READ_BYTES = 256 << 20
MATRIX_INPUTS, MATRIX_OUTPUTS, MATRIX_ROWS = 1024, 2048, 1152


class CeilingProbe:
    """Measures both ceilings, again and again; each figure is the best of a short window.

    The matrix ceiling is that of this project's own bfloat16 product, large and packed, or that of
    torch where torch is installed and faster.
    """

    def __init__(self, num_threads: int) -> None:
        # So that what only computes with ceilings needs no extension.
        from everbatch.kernels import _native

        rng = np.random.default_rng(0)
        self._threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads)
        values = rng.random(READ_BYTES // 4, dtype=np.float32)
        self._parts = np.array_split(values, num_threads)
        self._runtime = _native.Runtime(num_threads)
        weights = rng.random((MATRIX_OUTPUTS, MATRIX_INPUTS), dtype=np.float32)
        self._matrix = _native.Matrix(self._runtime, [weights])
        inputs = rng.random((MATRIX_ROWS, MATRIX_INPUTS), dtype=np.float32)
        self._inputs = np.ascontiguousarray(inputs.view(np.uint16)[:, 1::2])
        self._outputs = np.empty((MATRIX_ROWS, MATRIX_OUTPUTS), np.float32)
        self._torch = _torch_product(num_threads)
        self.reads: list[float] = []
        self.matrices: dict[str, list[float]] = {"native": []}

    def take(self) -> None:
        """Measure once more."""
        self.reads.append(READ_BYTES / best_seconds(self._read, WINDOW_S) / 1e9)
        flops = 2 * MATRIX_ROWS * MATRIX_INPUTS * MATRIX_OUTPUTS / 1e9
        self.matrices["native"].append(flops / best_seconds(self._multiply, WINDOW_S))
        if self._torch is not None:
            rate = flops / best_seconds(self._torch, WINDOW_S)
            self.matrices.setdefault("torch", []).append(rate)

    def ceilings(self) -> Ceilings:
        """Give the medians of what was measured: a virtual machine's bandwidth jumps."""
        return Ceilings(
            statistics.median(self.reads),
            max(statistics.median(rates) for rates in self.matrices.values()),
        )

    def _read(self) -> None:
        list(self._pool.map(np.max, self._parts))

    def _multiply(self) -> None:
        self._matrix.multiply(self._runtime, self._inputs, self._outputs)


def spread(values: Sequence[float]) -> str:
    """Say the range of some measurements."""
    return f"{min(values):.1f} to {max(values):.1f}"


def _torch_product(num_threads: int) -> Callable[[], object] | None:
    """Give a function that makes the same product with torch; None where torch is missing."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(num_threads)
    left = torch.rand(MATRIX_ROWS, MATRIX_INPUTS).to(torch.bfloat16)
    right = torch.rand(MATRIX_INPUTS, MATRIX_OUTPUTS).to(torch.bfloat16)
    return lambda: left @ right
