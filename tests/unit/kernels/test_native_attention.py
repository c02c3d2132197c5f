"""Native attention over block tables: what it gives, and that it depends on the context alone.

Weights, their sum and results are rounded to bfloat16: half a unit in the last place, 2 ** -9 of a
number. So results may be off by 2 ** -7 of the weighted sizes of values.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from native_kernels import PATHS, exactly, random_bf16, runtime

from everbatch.kernels import _native
from everbatch.kernels.bf16 import NAN_BITS, from_bf16, to_bf16


@dataclass(frozen=True, slots=True)
class Case:
    """Queries [context, H, D] of one request, all its keys and values, and blocks for them."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    num_blocks: int
    block_size: int

    @property
    def context_len(self) -> int:
        return len(self.queries)


def make_case(
    context_len: int, *, head_dim: int = 64, heads: int = 6, kv_heads: int = 2, block_size: int = 16
) -> Case:
    rng = np.random.default_rng([context_len, head_dim])
    return Case(
        queries=random_bf16(rng, context_len, heads, head_dim),
        keys=random_bf16(rng, context_len, kv_heads, head_dim),
        values=random_bf16(rng, context_len, kv_heads, head_dim),
        num_blocks=-(-context_len // block_size) + 2,
        block_size=block_size,
    )


def attend(
    case: Case, chunks: list[int], path: str = PATHS[0], threads: int = 2, offset: int = 0
) -> np.ndarray:
    """Attention of the case's tokens, cut into chunks, in scattered blocks, all other slots NaN."""
    table = np.random.default_rng(offset).permutation(case.num_blocks).astype(np.int32)
    size = (case.num_blocks * case.block_size, *case.keys.shape[1:])
    keys, values = np.full(size, NAN_BITS, np.uint16), np.full(size, NAN_BITS, np.uint16)
    positions = np.arange(case.context_len)
    slots = table[positions // case.block_size] * case.block_size + positions % case.block_size
    by_block = (case.num_blocks, case.block_size, *case.keys.shape[1:])
    results, first = [], 0
    for count in chunks:
        # Only what this chunk may know: later positions are not written yet.
        keys[slots[: first + count]] = case.keys[: first + count]
        values[slots[: first + count]] = case.values[: first + count]
        out = np.full((count, *case.queries.shape[1:]), NAN_BITS, np.uint16)
        _native.attention(
            runtime(path, threads),
            case.queries[first : first + count],
            keys.reshape(by_block),
            values.reshape(by_block),
            np.array([0, count], np.int32),
            np.array([first + count], np.int32),
            table[None],
            out,
        )
        results.append(out)
        first += count
    return np.concatenate(results)


def assert_attention(case: Case, out: np.ndarray) -> None:
    heads, kv_heads, head_dim = case.queries.shape[1], *case.keys.shape[1:]
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        values = exactly(case.values[:, kv_head])
        scores = exactly(case.queries[:, head]) @ exactly(case.keys[:, kv_head]).T / head_dim**0.5
        scores += np.triu(np.full(scores.shape, -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        errors = np.abs(exactly(out[:, head]) - weights @ values)
        assert (errors <= 2**-7 * (weights @ np.abs(values))).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("head_dim", [2, 24, 64, 80, 96, 128, 256])
def test_every_head_dim(head_dim, path):
    case = make_case(70, head_dim=head_dim)

    assert_attention(case, attend(case, [70], path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block_size", [1, 3, 16, 24, 128])
def test_every_block_size(block_size, path):
    case = make_case(140, block_size=block_size)

    assert_attention(case, attend(case, [140], path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("context_len", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_contexts_that_end_next_to_a_boundary(context_len, path):
    case = make_case(context_len)

    assert_attention(case, attend(case, [context_len], path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (8, 1), (100, 1)])
def test_every_grouping_of_heads(heads, kv_heads, path):
    case = make_case(66, heads=heads, kv_heads=kv_heads, head_dim=32)

    assert_attention(case, attend(case, [66], path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("chunks", [[1] * 150, [149, 1], [1, 149], [64, 64, 22], [7] * 21 + [3]])
def test_chunks_do_not_change_a_bit(chunks, path):
    case = make_case(150)

    np.testing.assert_array_equal(attend(case, chunks, path, offset=1), attend(case, [150], path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_and_block_sizes_do_not_change_a_bit(threads, path):
    case = make_case(150)
    expected = attend(case, [150], path, threads=1)

    for block_size in (1, 5, 16, 64):
        other = replace(case, block_size=block_size, num_blocks=-(-150 // block_size) + 1)
        np.testing.assert_array_equal(attend(other, [100, 50], path, threads), expected)


@pytest.mark.parametrize("path", PATHS)
def test_large_scores_stay_finite(path):
    case = make_case(90)
    case.queries[:] = to_bf16(100 * from_bf16(case.queries))

    assert_attention(case, attend(case, [90], path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("which", ["keys", "values"])
def test_a_nan_in_the_context_is_seen(which, path):
    case = make_case(70)
    getattr(case, which)[33] = NAN_BITS
    out = exactly(attend(case, [33, 37], path))

    assert np.isnan(out[33:]).all()
    assert np.isfinite(out[:33]).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("context_len", [255, 256, 257, 512, 513, 700])
def test_contexts_of_several_segments(context_len: int, path: str) -> None:
    case = make_case(context_len, heads=3, kv_heads=1)

    assert_attention(case, attend(case, [context_len], path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    "chunks", [[699, 1], [256, 256, 188], [250, 7, 255, 188], [690] + [1] * 10]
)
def test_segments_that_threads_share_do_not_change_a_bit(
    chunks: list[int], threads: int, path: str
) -> None:
    # One row, of which a single thread takes each head whole.
    case = make_case(700, heads=3, kv_heads=1)
    expected = attend(case, [700], path, threads=1)

    np.testing.assert_array_equal(attend(case, chunks, path, threads), expected)


@pytest.mark.parametrize("which", ["keys", "values"])
def test_a_nan_in_a_segment_is_seen_by_those_behind_it(which: str) -> None:
    case = make_case(600, heads=2, kv_heads=1)
    getattr(case, which)[300] = NAN_BITS
    out = exactly(attend(case, [300, 299, 1], threads=4))

    assert np.isnan(out[300:]).all()
    assert np.isfinite(out[:300]).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block_size", [1, 5, 16, 64, 100])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (24, 12), (2, 1)])
def test_heads_that_are_computed_together_give_the_bits_of_each_alone(
    heads: int, kv_heads: int, block_size: int, path: str
) -> None:
    # One thread takes the heads of a decode together, 8 at most; four take them apart.
    case = make_case(135, heads=heads, kv_heads=kv_heads, head_dim=32, block_size=block_size)
    expected = attend(case, [135], path, threads=1)

    for threads in (1, 4):
        np.testing.assert_array_equal(attend(case, [126] + [1] * 9, path, threads), expected)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_segments_of_heads_together_do_not_change_a_bit(threads: int) -> None:
    # 9 segments: with two threads a decode's heads are together, with four apart.
    case = make_case(2_100, heads=6, kv_heads=3, head_dim=16)
    expected = attend(case, [2_100], threads=1)

    np.testing.assert_array_equal(attend(case, [2_097, 1, 1, 1], threads=threads), expected)
