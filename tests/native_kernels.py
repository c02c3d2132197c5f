"""What tests of the native kernels share: paths, runtimes, and random bfloat16 arrays.

Importing this module skips a test file where the extension was not built; that it is built where
there is a compiler is a test of its own (unit/kernels/test_backends.py).
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest

pytest.importorskip("everbatch.kernels._native", reason="the native kernels were not built")

from everbatch.kernels import _native
from everbatch.kernels.bf16 import Bf16s, from_bf16, to_bf16
from everbatch.kernels.native import NativeKernels

PATHS = _native.available_paths()


@cache
def runtime(path: str = PATHS[0], num_threads: int = 2) -> _native.Runtime:
    return _native.Runtime(num_threads, path)


def backend(path: str = PATHS[0], num_threads: int = 2) -> Callable[..., NativeKernels]:
    return partial(NativeKernels, runtime=runtime(path, num_threads))


def random_bf16(rng: np.random.Generator, *shape: int) -> Bf16s:
    return to_bf16(rng.standard_normal(shape, dtype=np.float32))


def exactly(bits: Bf16s) -> np.ndarray:
    """The numbers behind bfloat16 bits, in float64."""
    return from_bf16(bits).astype(np.float64)
