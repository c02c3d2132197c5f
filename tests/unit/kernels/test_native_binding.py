"""Whatever is handed to the extension: an exception that says what is wrong, never a crash.

Each test hands over one thing that is wrong; the same call with everything right is made as well,
so that it is this thing which is refused.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_kernels import backend, runtime

from everbatch.kernels import _native
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.options import MAX_THREADS
from everbatch.kernels.weights import LayerWeights, NetworkShape, NetworkWeights

SHAPE = NetworkShape(
    num_layers=1,
    hidden_size=8,
    intermediate_size=12,
    vocab_size=20,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rms_norm_eps=1e-5,
)


def make_kernels() -> Any:
    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape, np.float32)

    layer = LayerWeights(
        attention_norm=ones(8),
        q_proj=ones(8, 8),
        k_proj=ones(4, 8),
        v_proj=ones(4, 8),
        o_proj=ones(8, 8),
        mlp_norm=ones(8),
        gate_proj=ones(12, 8),
        up_proj=ones(12, 8),
        down_proj=ones(8, 12),
    )
    embedding = ones(20, 8)
    weights = NetworkWeights(embedding, [layer], ones(8), embedding, ones(2), 1.0)
    return backend()(SHAPE, weights)


KERNELS = make_kernels()


def make_batch(**changed: Any) -> PackedBatch:
    """Two tokens of a prompt and one decode, in blocks of 4."""
    arrays: dict[str, Any] = {
        "input_ids": [1, 2, 3],
        "positions": [0, 1, 6],
        "cu_seqlens_q": [0, 2, 3],
        "context_lens": [2, 7],
        "block_tables": [[0, 0], [1, 2]],
        "slot_mapping": [0, 1, 10],
        "logit_rows": [1, 2],
    }
    arrays = {name: np.array(values, np.int32) for name, values in arrays.items()}
    return PackedBatch(**{**arrays, **changed}, num_prefills=1)


def run(batch: PackedBatch, kv: Any = None) -> np.ndarray:
    step = KERNELS.begin_step(batch, kv or KERNELS.allocate_kv(3, 4))
    hidden = step.embed()
    attended = step.paged_attention(0, step.norm_qkv_rope_write(0, hidden))
    return step.norm_logits(step.norm_mlp_add(0, step.project_add(0, attended, hidden)))


def test_what_is_right_is_taken() -> None:
    assert np.isfinite(run(make_batch())).all()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("input_ids", [1, 2, 20]),
        ("input_ids", [-1, 2, 3]),
        ("input_ids", []),
        ("positions", [0, 1, 5]),
        ("positions", [0, 1]),
        ("positions", [0, 1, 2**31 - 1]),
        ("cu_seqlens_q", [0, 2]),
        ("cu_seqlens_q", [0, 3, 3]),
        ("cu_seqlens_q", [0, 4, 3]),
        ("cu_seqlens_q", [-1, 2, 3]),
        ("cu_seqlens_q", [0, -2, 3]),
        ("context_lens", [1, 7]),
        ("context_lens", [2, 9]),
        ("context_lens", [2, -7]),
        ("context_lens", [2, 2**31 - 1]),
        ("context_lens", []),
        ("block_tables", [[0, 0], [1, 3]]),
        ("block_tables", [[0, 0], [-1, 2]]),
        ("block_tables", [[0], [1]]),
        ("block_tables", [[0, 0]]),
        ("slot_mapping", [0, 1, 12]),
        ("slot_mapping", [0, -1, 10]),
        ("slot_mapping", [0, 1]),
        ("logit_rows", [3]),
        ("logit_rows", [-1]),
        ("logit_rows", [0, 1, 2, 2]),
    ],
)
def test_batch_that_leads_outside_is_refused(name: str, values: list[int]) -> None:
    with pytest.raises(ValueError, match=r"batch: |block_tables"):
        run(make_batch(**{name: np.array(values, np.int32)}))


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([1, 2, 3], np.int64),
        np.array([1, 2, 3], np.float32),
        np.array([[1, 2, 3]], np.int32),
        np.array([1, 0, 2, 0, 3], np.int32)[::2],
        np.array([3, 2, 1], np.int32)[::-1],
        [1, 2, 3],
        None,
    ],
)
def test_array_of_another_type_or_layout_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        run(make_batch(input_ids=wrong))


def broken_kv(change: Callable[[Any], None]) -> Any:
    kv = KERNELS.allocate_kv(3, 4)
    change(kv)
    return kv


@pytest.mark.parametrize(
    ("attribute", "array"),
    [
        ("keys", np.zeros((1, 3, 4, 1, 4), np.float32)),
        ("keys", np.zeros((1, 3, 4, 4), np.uint16)),
        ("keys", np.zeros((1, 3, 4, 1, 8), np.uint16)[..., ::2]),
        ("values", np.broadcast_to(np.uint16(0), (1, 3, 4, 1, 4))),
    ],
)
def test_storage_of_another_type_or_layout_is_refused(attribute: str, array: np.ndarray) -> None:
    with pytest.raises(TypeError):
        run(make_batch(), broken_kv(lambda kv: setattr(kv, attribute, array)))


@pytest.mark.parametrize(
    "shape",
    [(2, 3, 4, 1, 4), (1, 3, 4, 2, 4), (1, 3, 4, 1, 6), (1, 0, 4, 1, 4)],
)
def test_storage_of_another_network_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="of this network"):
        run(make_batch(), broken_kv(lambda kv: setattr(kv, "keys", np.zeros(shape, np.uint16))))


def test_keys_and_values_of_different_size_are_refused() -> None:
    other = np.zeros((1, 2, 4, 1, 4), np.uint16)

    with pytest.raises(ValueError, match="keys and values differ"):
        run(make_batch(), broken_kv(lambda kv: setattr(kv, "values", other)))


def test_keys_that_are_the_values_are_refused() -> None:
    with pytest.raises(ValueError, match="keys and values share memory"):
        run(make_batch(), broken_kv(lambda kv: setattr(kv, "values", kv.keys)))


def test_read_only_storage_is_refused() -> None:
    with pytest.raises(TypeError):
        run(make_batch(), broken_kv(lambda kv: kv.keys.setflags(write=False)))


def test_step_ends_when_the_next_one_begins() -> None:
    kv = KERNELS.allocate_kv(3, 4)
    first = KERNELS.begin_step(make_batch(), kv)
    KERNELS.begin_step(make_batch(), kv)

    with pytest.raises(RuntimeError, match="a later step"):
        first.norm_logits(first.embed())


@pytest.mark.parametrize("layer", [1, 2**40])
def test_layer_that_is_not_there_is_refused(layer: int) -> None:
    step = KERNELS.begin_step(make_batch(), KERNELS.allocate_kv(3, 4))

    with pytest.raises(ValueError, match="no layer"):
        step.norm_qkv_rope_write(layer, step.embed())
        step.finish()


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([], {}, "one part at least"),
        ([np.ones((0, 4))], {}, "is empty"),
        ([np.ones((4, 0))], {}, "is empty"),
        ([np.ones((2, 4)), np.ones((2, 5))], {}, "differ in their inputs"),
        ([np.ones((2, 4))], {"interleaved": True}, "two parts of one size"),
        ([np.ones((2, 4)), np.ones((3, 4))], {"interleaved": True}, "two parts of one size"),
        ([np.ones((2, 4))], {"biases": [np.ones(3, np.float32)]}, "does not fit"),
        ([np.ones((2, 4))], {"biases": []}, "one bias for each"),
    ],
)
def test_matrix_of_parts_that_do_not_fit_is_refused(
    parts: list[np.ndarray], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Matrix(runtime(), [part.astype(np.float32) for part in parts], **options)


def test_product_into_its_own_input_is_refused() -> None:
    matrix = _native.Matrix(runtime(), [np.ones((4, 8), np.float32)])
    memory = np.zeros((4, 8), np.uint16)

    with pytest.raises(ValueError, match="share memory"):
        matrix.multiply(runtime(), memory, memory.view(np.float32))


@pytest.mark.parametrize("num_threads", [0, -1, MAX_THREADS + 1])
def test_impossible_number_of_threads_is_refused(num_threads: int) -> None:
    with pytest.raises(ValueError, match="num_threads must lie in"):
        _native.Runtime(num_threads)


ALMOST_NO_MEMORY = """
import resource
from pathlib import Path
from everbatch.kernels import _native
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
try:
    _native.Runtime(1024)
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory as Linux does")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="which needs that memory")
def test_threads_that_the_system_does_not_give_are_refused() -> None:
    command = [sys.executable, "-c", ALMOST_NO_MEMORY]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(r"the system does not give 1024 threads \(.*\): take fewer\n", ended.stdout)


def test_unknown_path_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"it runs .*portable"):
        _native.Runtime(1, "avx1024")


_DTYPES = st.sampled_from([np.uint16, np.int16, np.float32, np.float64, np.int32])


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of few dimensions and odd layouts."""
    shape = draw(st.lists(st.integers(0, 5), max_size=5))
    array = np.zeros(shape, draw(_DTYPES))
    match draw(st.sampled_from(["plain", "transposed", "strided", "reversed", "fortran"])):
        case "transposed":
            return array.T
        case "strided" if array.ndim:
            return np.repeat(array, 2, axis=-1)[..., ::2]
        case "reversed" if array.ndim:
            return array[::-1]
        case "fortran":
            return np.asfortranarray(array)
    return array


@settings(max_examples=300, deadline=None)
@given(st.lists(arrays(), min_size=7, max_size=7))
def test_any_arrays_give_attention_or_an_exception(handed: list[np.ndarray]) -> None:
    try:
        _native.attention(runtime(), *handed)
    except (TypeError, ValueError):
        return


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(-2, 13), max_size=4), min_size=6, max_size=6),
    st.lists(st.integers(-1, 4), min_size=4, max_size=4),
)
def test_any_indices_give_logits_or_an_exception(lists: list[list[int]], table: list[int]) -> None:
    names = ("input_ids", "positions", "cu_seqlens_q", "context_lens", "slot_mapping", "logit_rows")
    changed = {name: np.array(values, np.int32) for name, values in zip(names, lists, strict=True)}
    changed["block_tables"] = np.array(table, np.int32).reshape(2, 2)
    keep = {name: array for name, array in changed.items() if len(array) > 1}
    try:
        run(make_batch(**keep))
    except ValueError:
        return
