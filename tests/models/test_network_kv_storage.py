"""KV storage: its size, copying blocks, and memory that is committed only when touched."""

from pathlib import Path

import numpy as np
import pytest
from models.network_builders import TINY

from everbatch.kernels.kv_storage import KVStorage, bytes_per_block
from everbatch.models.llama import network_shape

SHAPE = network_shape(TINY)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_storage_has_the_announced_size(dtype: type) -> None:
    storage = KVStorage(SHAPE, num_blocks=10, block_size=16, dtype=dtype)

    # 2 (keys and values) * 2 layers * 2 heads * 16 values * 16 tokens.
    assert bytes_per_block(SHAPE, 16, dtype) == 2048 * np.dtype(dtype).itemsize
    assert storage.num_bytes == 10 * bytes_per_block(SHAPE, 16, dtype)
    assert storage.keys.shape == storage.values.shape == (2, 10, 16, 2, 16)


def test_copy_blocks_copies_keys_and_values_of_every_layer() -> None:
    storage = KVStorage(SHAPE, num_blocks=6, block_size=2)
    for block in range(6):
        storage.keys[:, block] = block
        storage.values[:, block] = -block
    storage.copy_blocks([1, 2], [4, 5])

    assert storage.keys[:, :, 0, 0, 0].tolist() == [[0, 1, 2, 3, 1, 2]] * 2
    assert storage.values[:, :, 1, 1, 15].tolist() == [[0, -1, -2, -3, -1, -2]] * 2


def test_copy_blocks_reads_all_sources_before_it_writes() -> None:
    storage = KVStorage(SHAPE, num_blocks=3, block_size=2)
    for block in range(3):
        storage.keys[:, block] = block
    storage.copy_blocks([0, 1], [1, 2])

    assert storage.keys[0, :, 0, 0, 0].tolist() == [0, 0, 1]


def test_copy_of_no_blocks_changes_nothing() -> None:
    storage = KVStorage(SHAPE, num_blocks=3, block_size=2)
    storage.keys[:] = 7
    storage.copy_blocks([], [])

    assert (storage.keys == 7).all()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's own figure")
def test_memory_is_committed_when_a_block_is_touched() -> None:
    before = resident_bytes()
    storage = KVStorage(SHAPE, num_blocks=65_536, block_size=16)
    allocated = resident_bytes()
    storage.keys[:, :32_768] = 1
    touched = resident_bytes()

    assert storage.num_bytes == 512 * 2**20
    assert allocated - before < 32 * 2**20
    assert touched - allocated > 96 * 2**20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("num_blocks", [1, 3, 5_000])
def test_storage_starts_at_a_cache_line(num_blocks: int) -> None:
    storage = KVStorage(SHAPE, num_blocks, block_size=16, dtype=np.uint16)

    for array in (storage.keys, storage.values):
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not array.any()
