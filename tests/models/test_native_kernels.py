"""The native backend as a whole: close to the reference, and bitwise the same in every batch.

Keys, values and the inputs of products are rounded to bfloat16, 2 ** -9 of each number. Over two or
three layers that makes some 1 % of the logits; MAX_ERROR is the root mean square of
differences over that of the exact logits. The weights are bfloat16 already: what is compared
is the arithmetic.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from models.naive_network import naive_logits
from models.network_builders import (
    ARCHITECTURES,
    ROPE_SCALINGS,
    TINY,
    Runner,
    random_prompt,
    random_tensors,
    with_rope,
)
from native_kernels import PATHS, backend

from everbatch.kernels.bf16 import NAN_BITS, from_bf16, to_bf16
from everbatch.models.config import ModelConfig

MAX_ERROR = 0.02

# In the shape of SmolLM2, with heads of 64 and three query heads for each key-value head.
WIDE = replace(
    TINY,
    hidden_size=96,
    intermediate_size=160,
    num_heads=6,
    num_kv_heads=2,
    head_dim=64,
    tie_word_embeddings=True,
)
REQUESTS = {"a": 5, "b": 150, "c": 16, "d": 33, "e": 70, "f": 1}


def rounded_tensors(config: ModelConfig) -> dict[str, np.ndarray]:
    return {name: from_bf16(to_bf16(t)) for name, t in random_tensors(config).items()}


def native_runner(
    config: ModelConfig, path: str = PATHS[0], num_threads: int = 2, block_size: int = 4
) -> Runner:
    tensors = rounded_tensors(config)
    return Runner(config, tensors, block_size=block_size, backend=backend(path, num_threads))


def logits_of(runner: Runner, name: str, chunks: Sequence[int], seed: int = 1) -> np.ndarray:
    """All logits of a request that is computed alone, in these chunks."""
    runner.add(name, random_prompt(runner.network.config, sum(chunks), seed))
    rows = [runner.step({name: count})[name] for count in chunks]
    runner.release(name)
    return np.concatenate(rows)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_close_to_the_naive_network(architecture: str, path: str) -> None:
    config = ARCHITECTURES[architecture]
    logits = logits_of(native_runner(config, path), "a", [20, 1, 24])
    expected = naive_logits(config, rounded_tensors(config), random_prompt(config, 45))

    assert_close(logits, expected)


def assert_close(logits: np.ndarray, expected: np.ndarray) -> None:
    error = np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2))
    assert error < MAX_ERROR


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_dim_is_close_to_the_naive_network(head_dim: int, path: str) -> None:
    config = replace(WIDE, head_dim=head_dim)
    logits = logits_of(native_runner(config, path), "a", [60, 1, 24])
    expected = naive_logits(config, rounded_tensors(config), random_prompt(config, 85))

    assert_close(logits, expected)


@pytest.mark.parametrize("scaling", ROPE_SCALINGS)
def test_every_rope_scaling_is_close_to_the_naive_network(scaling: str) -> None:
    config = with_rope(TINY, ROPE_SCALINGS[scaling])
    logits = logits_of(native_runner(config, block_size=16), "a", [299, 1])
    expected = naive_logits(config, rounded_tensors(config), random_prompt(config, 300))

    assert_close(logits, expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_request_has_the_same_bits_in_every_batch(path: str, num_threads: int) -> None:
    alone = native_runner(WIDE, path, 1)
    expected = {name: logits_of(alone, name, [count]) for name, count in REQUESTS.items()}
    runner = native_runner(WIDE, path, num_threads)
    for name, count in REQUESTS.items():
        runner.add(name, random_prompt(WIDE, count))
    seen: dict[str, list[np.ndarray]] = {name: [] for name in REQUESTS}
    steps: list[tuple[dict[str, int], list[str]]] = [
        ({"a": 5, "b": 37}, []),
        ({"b": 1, "c": 15, "d": 32}, []),
        ({"b": 100, "e": 69}, ["c", "d"]),
        ({"f": 1}, ["b", "e"]),
        ({"b": 11}, []),
    ]
    for prefills, decodes in steps:
        for name, rows in runner.step(prefills, decodes).items():
            seen[name].append(rows)

    for name, rows in seen.items():
        np.testing.assert_array_equal(np.concatenate(rows), expected[name])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_do_not_change_a_bit(architecture: str) -> None:
    runner = native_runner(ARCHITECTURES[architecture])
    expected = logits_of(runner, "whole", [100])

    for chunks in ([1] * 100, [64, 36], [99, 1], [3, 17, 80]):
        np.testing.assert_array_equal(logits_of(runner, "chunked", chunks), expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("num_threads", "block_size"), [(1, 16), (2, 7), (3, 64), (4, 16)])
def test_sixty_four_decodes_have_the_bits_of_each_alone(
    num_threads: int, block_size: int, path: str
) -> None:
    """So many ask for keys and values ahead, and each thread has requests that it begins with."""
    runner = native_runner(WIDE, path, num_threads, block_size)
    alone = native_runner(WIDE, path, num_threads=1)
    names = [f"r{number}" for number in range(64)]
    for number, name in enumerate(names):
        runner.add(name, random_prompt(WIDE, 2 + number, seed=number))
        runner.step({name: 1 + number})
    together = runner.step({}, names)

    for number, name in enumerate(names):
        expected = logits_of(alone, name, [2 + number], seed=number)[-1:]
        np.testing.assert_array_equal(together[name], expected)


@pytest.mark.parametrize("head_dim", [80, 96, 128, 256])
def test_every_head_dim_keeps_its_bits_in_chunks_and_batches(head_dim: int) -> None:
    config = replace(WIDE, head_dim=head_dim)
    one, four = native_runner(config, num_threads=1), native_runner(config, num_threads=4)
    expected = {name: logits_of(one, name, [count]) for name, count in REQUESTS.items()}
    for name, count in REQUESTS.items():
        four.add(name, random_prompt(config, count))
        if count > 1:
            rows = four.step({name: count - 1})[name]
            np.testing.assert_array_equal(rows, expected[name][:-1])
    together = four.step({}, list(REQUESTS))

    for name, rows in together.items():
        np.testing.assert_array_equal(rows, expected[name][-1:])


@pytest.mark.parametrize("block_size", [1, 3, 64])
def test_block_size_does_not_change_a_bit(block_size: int) -> None:
    expected = logits_of(native_runner(WIDE), "a", [80])
    logits = logits_of(native_runner(WIDE, block_size=block_size), "a", [50, 30])

    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("path", PATHS)
def test_what_freed_blocks_hold_never_reaches_a_request(path: str) -> None:
    clean, dirty = native_runner(WIDE, path), native_runner(WIDE, path)
    dirty.kv.keys[:] = NAN_BITS
    dirty.kv.values[:] = NAN_BITS

    for count in (1, 6, 67):
        expected = logits_of(clean, "a", [count])
        np.testing.assert_array_equal(logits_of(dirty, "a", [count]), expected)


@pytest.mark.parametrize("path", PATHS)
def test_request_with_nan_in_its_cache_leaves_the_others_bitwise_alone(path: str) -> None:
    def decode(*, poisoned: bool) -> dict[str, np.ndarray]:
        runner = native_runner(WIDE, path)
        for name, seed in (("a", 1), ("b", 2), ("c", 3)):
            runner.add(name, random_prompt(WIDE, 20, seed))
            runner.step({name: 19})
        if poisoned:
            runner.kv.values[0, runner.blocks["b"][0]] = NAN_BITS
        return runner.step({}, ["a", "b", "c"])

    healthy, sick = decode(poisoned=False), decode(poisoned=True)

    assert np.isnan(sick["b"]).all()
    np.testing.assert_array_equal(sick["a"], healthy["a"])
    np.testing.assert_array_equal(sick["c"], healthy["c"])


def test_shared_and_copied_blocks_serve_as_well_as_own_ones() -> None:
    runner, shared = native_runner(WIDE), random_prompt(WIDE, 16)
    tokens = {name: shared + random_prompt(WIDE, 9, seed) for name, seed in (("a", 3), ("b", 4))}
    runner.add("a", tokens["a"])
    first = runner.step({"a": 24})["a"]
    runner.add("b", tokens["b"])
    runner.share("a", "b", num_blocks=4)
    copy = next(block for block in range(400) if block not in runner.blocks["a"])
    runner.kv.copy_blocks([runner.blocks["b"][0]], [copy])
    runner.blocks["b"][0] = copy
    runner._free_blocks.remove(copy)
    logits = runner.step({"b": 9}, ["a"])

    for name, rows in {"a": np.concatenate([first, logits["a"]]), "b": logits["b"]}.items():
        alone = native_runner(WIDE)
        alone.add(name, tokens[name])
        expected = alone.step({name: 25})[name]
        np.testing.assert_array_equal(rows, expected[25 - len(rows) :])


def test_only_wanted_rows_have_logits() -> None:
    runner = native_runner(WIDE)
    runner.add("a", random_prompt(WIDE, 10))
    batch = runner.pack({"a": 10})
    every = runner.network.forward(batch, runner.kv)
    batch.logit_rows = np.array([3, 9], np.int32)
    some = runner.network.forward(batch, runner.kv)
    batch.logit_rows = np.array([], np.int32)
    none = runner.network.forward(batch, runner.kv)

    np.testing.assert_array_equal(some, every[[3, 9]])
    assert none.shape == (0, WIDE.vocab_size)
    assert every.dtype == np.float32
    assert every.flags.c_contiguous


def test_weights_are_held_once_and_in_bfloat16() -> None:
    config = replace(WIDE, vocab_size=9_600)
    runner = native_runner(config)
    num_values = sum(t.size for t in rounded_tensors(config).values() if t.ndim == 2)

    assert runner.network._kernels.num_bytes == pytest.approx(2 * num_values, rel=0.02)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_threads", [2, 4])
def test_threads_that_share_one_long_context_do_not_change_a_bit(
    num_threads: int, path: str
) -> None:
    one = native_runner(WIDE, path, 1)
    expected = logits_of(one, "long", [600, 1, 1])
    logits = logits_of(native_runner(WIDE, path, num_threads), "long", [600, 1, 1])

    np.testing.assert_array_equal(logits, expected)
