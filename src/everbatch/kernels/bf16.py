"""bfloat16 as numpy has it: its bits in uint16.

Belongs here: conversion of whole arrays. Not here: computing with it (the native kernels). Used by
tests and benchmarks of the native backend.
"""

import numpy as np
from numpy.typing import NDArray

from everbatch.kernels.arrays import Floats

Bf16s = NDArray[np.uint16]

NAN_BITS = 0x7FC0


def to_bf16(values: Floats) -> Bf16s:
    """Round to the nearest bfloat16, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(NAN_BITS), rounded)


def from_bf16(bits: Bf16s) -> Floats:
    """Give the same numbers as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
