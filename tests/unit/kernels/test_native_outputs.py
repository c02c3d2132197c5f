"""What the extension writes: all of its outputs, whatever was in them, and nothing beside them."""

from collections.abc import Callable

import numpy as np
import pytest
from models.network_builders import TINY, Runner, random_prompt, random_tensors
from native_kernels import PATHS, backend, random_bf16, runtime
from unit.kernels.sampling_builders import random_logits, sampling_rows

from everbatch.kernels import _native
from everbatch.kernels.bf16 import NAN_BITS
from everbatch.kernels.native import sample_with

MARGIN = 64
POISONS = {
    np.dtype(np.float32): (np.float32(np.nan), np.float32(7.5)),
    np.dtype(np.uint16): (np.uint16(NAN_BITS), np.uint16(0x1234)),
    np.dtype(np.int32): (np.int32(-7), np.int32(1 << 20)),
    np.dtype(np.int64): (np.int64(-7), np.int64(1 << 40)),
    np.dtype(np.bool_): (np.False_, np.True_),
}

Write = Callable[[np.ndarray], None]


def written(write: Write, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """What `write` leaves in an array: the same over both poisons, which stay where they are in
    the memory around it."""
    found = []
    for poison in POISONS[np.dtype(dtype)]:
        memory = np.full(int(np.prod(shape)) + 2 * MARGIN, poison)
        write(memory[MARGIN:-MARGIN].reshape(shape))
        for margin in (memory[:MARGIN], memory[-MARGIN:]):
            assert margin.tobytes() == np.full(MARGIN, poison).tobytes()
        found.append(memory[MARGIN:-MARGIN].reshape(shape).copy())
    assert found[0].tobytes() == found[1].tobytes()
    return found[0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("num_rows", "num_outputs"), [(1, 1), (2, 31), (3, 33), (13, 64), (500, 5)]
)
def test_products(num_rows: int, num_outputs: int, path: str) -> None:
    rng = np.random.default_rng(0)
    threads, x = runtime(path), random_bf16(rng, num_rows, 20)
    part = rng.standard_normal((num_outputs, 20), dtype=np.float32)
    plain = _native.Matrix(threads, [part])
    gated = _native.Matrix(threads, [part, part], None, True)

    written(lambda out: plain.multiply(threads, x, out), (num_rows, num_outputs), np.float32)
    written(lambda out: gated.silu_times(threads, x, out), (num_rows, num_outputs), np.uint16)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("head_dim", [2, 80, 128])
@pytest.mark.parametrize("num_tokens", [1, 33])
def test_attention(num_tokens: int, head_dim: int, path: str) -> None:
    rng = np.random.default_rng(0)
    queries, keys = random_bf16(rng, num_tokens, 3, head_dim), random_bf16(rng, 20, 4, 1, head_dim)

    def attend(out: np.ndarray) -> None:
        _native.attention(
            *(runtime(path), queries, keys, keys, np.array([0, num_tokens], np.int32)),
            *(np.array([70], np.int32), np.arange(20, dtype=np.int32)[None], out),
        )

    written(attend, queries.shape, np.uint16)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("poison", POISONS[np.dtype(np.uint16)])
def test_a_step_writes_its_logits_and_its_own_slots(poison: np.uint16, path: str) -> None:
    runner = Runner(TINY, random_tensors(TINY), backend=backend(path))
    runner.add("a", random_prompt(TINY, 33))
    batch = runner.pack({"a": 33})
    runner.kv.keys[:] = runner.kv.values[:] = poison

    def compute(logits: np.ndarray) -> None:
        step = runner.network._kernels.begin_step(batch, runner.kv)
        hidden = step.embed()
        for layer in range(TINY.num_layers):
            attended = step.paged_attention(layer, step.norm_qkv_rope_write(layer, hidden))
            hidden = step.norm_mlp_add(layer, step.project_add(layer, attended, hidden))
        step.finish()
        step._step.norm_logits(logits)

    written(compute, (33, TINY.vocab_size), np.float32)
    for storage in (runner.kv.keys, runner.kv.values):
        by_slot = storage.reshape(TINY.num_layers, -1, TINY.num_kv_heads * TINY.head_dim)
        is_poison = (by_slot == poison).all(axis=(0, 2))
        assert set(np.flatnonzero(~is_poison)) == set(batch.slot_mapping)


@pytest.mark.parametrize("path", PATHS)
def test_sampling(path: str) -> None:
    """Top entries of rows that want none, and past a row's number of them, mean nothing."""
    logits = random_logits(40, 100)
    rows = sampling_rows(
        40,
        temperature=np.arange(40) % 2,
        wants_logprobs=np.arange(40) % 3 == 0,
        num_logprobs=np.arange(40) % 4,
    )
    handed: list[_native.SamplingRows] = []
    sample_with(lambda given, _: handed.append(given), rows, 100)
    which = np.arange(40, dtype=np.int32)

    def sample_into(name: str, out: np.ndarray) -> None:
        arrays = {
            "token_ids": np.empty(40, np.int32),
            "failed": np.empty(40, np.bool_),
            "logprobs": np.empty(40, np.float32),
            "ranks": np.empty(40, np.int64),
            "top_ids": np.empty((40, 3), np.int64),
            "top_logprobs": np.empty((40, 3), np.float32),
        }
        arrays[name] = out
        _native.sample(runtime(path), logits, which, handed[0], _native.SampledArrays(**arrays))
        if name.startswith("top"):
            for row in range(40):
                out[row, row % 4 if row % 3 == 0 else 0 :] = 0

    shapes = {"token_ids": np.int32, "failed": np.bool_, "logprobs": np.float32, "ranks": np.int64}
    for name, dtype in shapes.items():
        written(lambda out, name=name: sample_into(name, out), (40,), dtype)
    for name, dtype in {"top_ids": np.int64, "top_logprobs": np.float32}.items():
        written(lambda out, name=name: sample_into(name, out), (40, 3), dtype)
