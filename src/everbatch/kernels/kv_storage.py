"""The keys and values behind slots: one array each, block-major.

Belongs here: the memory, its size, and copying whole blocks. Not here: which block belongs to whom
(kv_cache, in integers). Called by the model executor, which allocates it, and by the backends,
which read and write it.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from everbatch.kernels.weights import NetworkShape

CACHE_LINE = 64
"""In bytes."""


class KVStorage:
    """Keys and values of all layers, paged.

        keys, values  [L, num_blocks, block_size, H_kv, D]

    One token of one layer lies in one piece, so a block is copied in one piece a layer, and a
    matrix product can take one head of it with a stride. Memory is committed when a block is first
    written, not at allocation.
    """

    def __init__(
        self,
        shape: NetworkShape,
        num_blocks: int,
        block_size: int,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Zeros come from the system as untouched pages, so they cost nothing until written; and
        # slots that nobody wrote hold finite numbers.
        size = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.keys = _aligned_zeros(size, dtype)
        self.values = _aligned_zeros(size, dtype)

    @property
    def num_bytes(self) -> int:
        """Memory when every block is in use."""
        return self.keys.nbytes + self.values.nbytes

    def copy_blocks(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy block sources[i] to destinations[i], in all layers; sources are read first."""
        assert len(sources) == len(destinations)
        source_ids = np.asarray(sources, np.intp)
        destination_ids = np.asarray(destinations, np.intp)
        self.keys[:, destination_ids] = self.keys[:, source_ids]
        self.values[:, destination_ids] = self.values[:, source_ids]

    def copy_from(
        self, source: "KVStorage", sources: Sequence[int], destinations: Sequence[int]
    ) -> None:
        """Copy block sources[i] of another storage to destinations[i] of this one, in all layers.
        A destination that is named twice holds the last copy."""
        for source_id, destination_id in zip(sources, destinations, strict=True):
            self.keys[:, destination_id] = source.keys[:, source_id]
            self.values[:, destination_id] = source.values[:, source_id]


def _aligned_zeros(size: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that start at a cache line, so that vectors of a head, mostly of 128 bytes or more, lie
    in as few lines as they can: numpy's own arrays start 16 bytes after one."""
    num_bytes = math.prod(size) * np.dtype(dtype).itemsize
    memory = np.zeros(num_bytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + num_bytes].view(dtype).reshape(size)


def bytes_per_block(shape: NetworkShape, block_size: int, dtype: DTypeLike = np.float32) -> int:
    """Give the bytes of one block: keys and values of block_size tokens in all layers."""
    values_per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return values_per_token * block_size * np.dtype(dtype).itemsize
