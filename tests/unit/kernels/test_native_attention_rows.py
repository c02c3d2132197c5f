"""Attention of every head dimension that models have, of many rows in one call, and at the edges of
blocks: each row's bits are those that it has alone, as a whole prompt on one thread."""

from dataclasses import replace

import numpy as np
import pytest
from native_kernels import PATHS, runtime
from unit.kernels.test_native_attention import Case, assert_attention, attend, make_case

from everbatch.kernels import _native
from everbatch.kernels.bf16 import NAN_BITS

HEAD_DIMS = [64, 80, 96, 128, 256]
THREADS = [1, 2, 4]
LONG = 300
"""More than a segment of 256 positions."""


def attend_together(
    cases: list[Case], counts: list[int], path: str = PATHS[0], threads: int = 2
) -> list[np.ndarray]:
    """Attention of the last tokens of each case, so many, in one call. Blocks are scattered over
    one storage, in which all that belongs to nobody is NaN, as is what is to be written."""
    block_size, vector = cases[0].block_size, cases[0].keys.shape[1:]
    needed = [-(-case.context_len // block_size) for case in cases]
    blocks = np.random.default_rng(len(cases)).permutation(sum(needed) + 3).astype(np.int32)
    tables = np.zeros((len(cases), max(needed)), np.int32)
    size = (len(blocks) * block_size, *vector)
    keys, values = np.full(size, NAN_BITS, np.uint16), np.full(size, NAN_BITS, np.uint16)
    for row, case in enumerate(cases):
        tables[row, : needed[row]] = blocks[sum(needed[:row]) :][: needed[row]]
        positions = np.arange(case.context_len)
        slots = tables[row, positions // block_size] * block_size + positions % block_size
        keys[slots], values[slots] = case.keys, case.values
    queries = np.concatenate(
        [case.queries[-count:] for case, count in zip(cases, counts, strict=True)]
    )
    out = np.full(queries.shape, NAN_BITS, np.uint16)
    _native.attention(
        runtime(path, threads),
        queries,
        keys.reshape(-1, block_size, *vector),
        values.reshape(-1, block_size, *vector),
        np.cumsum([0, *counts]).astype(np.int32),
        np.array([case.context_len for case in cases], np.int32),
        tables,
        out,
    )
    return np.split(out, np.cumsum(counts)[:-1])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (7, 1)])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_dim_in_decodes_and_chunks(
    head_dim: int, heads: int, kv_heads: int, path: str
) -> None:
    # Six rows at a time have products of their own; seven do not.
    case = make_case(LONG, head_dim=head_dim, heads=heads, kv_heads=kv_heads)
    whole = attend(case, [LONG], path, threads=1)

    assert_attention(case, whole)
    for chunks in ([1, 63, 2, 190, 40] + [1] * 4, [257, 33] + [1] * 10):
        for threads in THREADS:
            np.testing.assert_array_equal(attend(case, chunks, path, threads), whole)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_rows_of_every_kind_in_one_call_have_the_bits_of_each_alone(
    head_dim: int, threads: int, path: str
) -> None:
    lengths = [LONG, 1, 64, 2, 129, 65, 17, 256, 16, 257]
    cases = [make_case(length, head_dim=head_dim, heads=4) for length in lengths]
    alone = [attend(case, [case.context_len], path, threads=1) for case in cases]

    for counts in ([40, 1, 64, 1, 1, 33, 1, 1, 16, 2], [1] * 10, lengths):
        together = attend_together(cases, counts, path, threads)
        for row, count in enumerate(counts):
            np.testing.assert_array_equal(together[row], alone[row][-count:])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_rows", [2, 63, 64])
def test_many_decodes_have_the_bits_of_each_alone(num_rows: int, path: str) -> None:
    cases = [make_case(1 + 5 * row, head_dim=32, heads=3, kv_heads=1) for row in range(num_rows)]
    alone = [attend(case, [case.context_len], path, threads=1)[-1:] for case in cases]

    for threads in THREADS:
        together = attend_together(cases, [1] * num_rows, path, threads)
        np.testing.assert_array_equal(np.concatenate(together), np.concatenate(alone))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 48, 64, 128])
def test_contexts_that_end_at_the_edge_of_a_block(block_size: int, path: str) -> None:
    edges = {1, block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1}
    for length in sorted(edges - {0}):
        case = make_case(length, heads=3, kv_heads=1, block_size=block_size)
        whole = attend(case, [length], path)
        in_one_block = replace(case, block_size=512, num_blocks=2)

        assert_attention(case, whole)
        np.testing.assert_array_equal(attend(in_one_block, [length], path), whole)
        if length > 1:
            np.testing.assert_array_equal(attend(case, [length - 1, 1], path), whole)
