"""Products with packed matrices: what they give, and that a row's bits depend on that row alone.

The bound on errors is that of any sum of K float32 products: K * 2 ** -24 of the sum of their sizes
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from native_kernels import PATHS, exactly, random_bf16, runtime

from everbatch.kernels import _native
from everbatch.kernels.bf16 import from_bf16, to_bf16

# Rows around the tiles of all paths (2, 4, 12) and beyond a block of rows; outputs and inputs
# around panels and pairs of them, odd ones too.
SHAPES = [
    (1, 1, 1),
    (1, 97, 33),
    (2, 16, 64),
    (3, 31, 7),
    (5, 32, 8),
    (12, 33, 50),
    (13, 192, 64),
    (37, 100, 130),
    (500, 70, 576),
    (4096, 33, 16),
]


def multiplied(
    matrix: _native.Matrix, x: np.ndarray, num_outputs: int, path: str, threads: int = 2
):
    out = np.full((len(x), num_outputs), np.nan, np.float32)
    matrix.multiply(runtime(path, threads), x, out)
    return out


def assert_product(out: np.ndarray, x: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> None:
    w = exactly(to_bf16(weights))
    expected = exactly(x) @ w.T + bias
    sizes = np.abs(exactly(x)) @ np.abs(w).T + np.abs(bias)
    assert (np.abs(out - expected) <= (x.shape[1] + 2) * 2.0**-24 * sizes).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("num_rows", "num_outputs", "num_inputs"), SHAPES)
def test_product_is_exact_within_the_rounding_of_sums(num_rows, num_outputs, num_inputs, path):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((num_outputs, num_inputs), dtype=np.float32)
    x = random_bf16(rng, num_rows, num_inputs)

    out = multiplied(_native.Matrix(runtime(path), [weights]), x, num_outputs, path)

    assert_product(out, x, weights, np.zeros(num_outputs))


@pytest.mark.parametrize("path", PATHS)
def test_parts_stand_side_by_side_with_their_biases(path):
    rng = np.random.default_rng(1)
    parts = [rng.standard_normal((size, 40), dtype=np.float32) for size in (48, 20, 20)]
    biases = [rng.standard_normal(len(part), dtype=np.float32) for part in parts]
    x = random_bf16(rng, 14, 40)

    out = multiplied(_native.Matrix(runtime(path), parts, biases), x, 88, path)

    assert_product(out, x, np.concatenate(parts), np.concatenate(biases))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("size", [1, 16, 40, 96])
def test_silu_times_is_that_of_both_parts(path, size, has_bias):
    rng = np.random.default_rng(2)
    parts = [rng.standard_normal((size, 64), dtype=np.float32) for _ in range(2)]
    biases = [rng.standard_normal(size, dtype=np.float32) for _ in range(2)]
    matrix = _native.Matrix(runtime(path), parts, biases if has_bias else None, interleaved=True)
    x = random_bf16(rng, 13, 64)
    out = np.zeros((13, size), np.uint16)

    matrix.silu_times(runtime(path), x, out)

    gate, up = (
        exactly(x) @ exactly(to_bf16(part)).T + (bias if has_bias else 0)
        for part, bias in zip(parts, biases, strict=True)
    )
    expected = gate / (1 + np.exp(-gate)) * up
    # One rounding to bfloat16, and those of the sums, which matter where the gate is nearly 0.
    np.testing.assert_allclose(exactly(out), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_extreme_gates_give_numbers(path):
    weights = np.array([[1000.0], [-1000.0], [0.0]], np.float32)
    matrix = _native.Matrix(runtime(path), [weights, np.ones((3, 1), np.float32)], interleaved=True)
    out = np.zeros((1, 3), np.uint16)

    matrix.silu_times(runtime(path), to_bf16(np.array([[1.0]], np.float32)), out)

    np.testing.assert_allclose(from_bf16(out)[0], [1000, 0, 0], atol=1e-30)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_none(path, value):
    weights = np.ones((40, 8), np.float32)
    x = np.ones((3, 8), np.float32)
    x[1, 5] = value

    out = multiplied(_native.Matrix(runtime(path), [weights]), to_bf16(x), 40, path)

    np.testing.assert_array_equal(out[1], np.full(40, value, np.float32))
    assert (out[[0, 2]] == 8).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_a_row_has_the_same_bits_alone_and_in_every_batch(path, num_threads):
    rng = np.random.default_rng(3)
    matrix = _native.Matrix(runtime(path), [rng.standard_normal((200, 96), dtype=np.float32)])
    x = random_bf16(rng, 700, 96)
    alone = np.concatenate(
        [multiplied(matrix, x[row : row + 1], 200, path, 1) for row in range(40)]
    )

    for size in (2, 3, 4, 5, 11, 12, 13, 24, 25, 40, 481, 700):
        for first in {0, 1, 40 - min(size, 40)}:
            batch = multiplied(matrix, x[first : first + size], 200, path, num_threads)
            known = min(len(batch), 40 - first)
            np.testing.assert_array_equal(batch[:known], alone[first : first + known])


def test_no_rows_are_no_error():
    matrix = _native.Matrix(runtime(), [np.ones((4, 4), np.float32)])

    assert multiplied(matrix, np.zeros((0, 4), np.uint16), 4, PATHS[0]).shape == (0, 4)


def test_callers_of_one_runtime_wait_for_each_other() -> None:
    rng = np.random.default_rng(4)
    matrix = _native.Matrix(runtime(), [rng.standard_normal((160, 32), dtype=np.float32)])
    x = random_bf16(rng, 3, 32)
    expected = multiplied(matrix, x, 160, PATHS[0])

    def many() -> bool:
        return all(
            np.array_equal(multiplied(matrix, x, 160, PATHS[0], 4), expected) for _ in range(500)
        )

    with ThreadPoolExecutor(3) as callers:
        results = [callers.submit(many) for _ in range(3)]

    assert [result.result() for result in results] == [True] * 3
