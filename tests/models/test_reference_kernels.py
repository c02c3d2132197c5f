"""The reference kernels against the naive network: whole prompts, chunks, mixed batches, decodes.

Logits here are around 5; float32 against float64 differs by about 1e-5.
"""

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

from everbatch.kernels import reference

TOLERANCE = 5e-5


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def start(runner: Runner, request: str, tokens: list[int], num_computed: int) -> None:
    """Add a request and compute its first tokens, alone."""
    runner.add(request, tokens)
    if num_computed:
        runner.step({request: num_computed})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_whole_prompt_equals_naive(architecture: str) -> None:
    config = ARCHITECTURES[architecture]
    tensors, prompt = random_tensors(config), random_prompt(config, 45)
    runner = Runner(config, tensors)
    runner.add("a", prompt)

    assert_close(runner.step({"a": 45})["a"], naive_logits(config, tensors, prompt))


@pytest.mark.parametrize("scaling", ROPE_SCALINGS)
def test_every_rope_scaling_equals_naive_in_prefill_and_decode(scaling: str) -> None:
    config = with_rope(TINY, ROPE_SCALINGS[scaling])
    tensors, prompt = random_tensors(config), random_prompt(config, 300)
    runner = Runner(config, tensors, block_size=16)
    start(runner, "a", prompt, 299)

    assert_close(runner.step({}, ["a"])["a"], naive_logits(config, tensors, prompt)[-1:])


def test_rope_scalings_differ_from_each_other() -> None:
    prompt = random_prompt(TINY, 30)
    last_logits = [
        naive_logits(with_rope(TINY, scaling), random_tensors(TINY), prompt)[-1]
        for scaling in ROPE_SCALINGS.values()
    ]

    for index, logits in enumerate(last_logits):
        for other in last_logits[:index]:
            assert abs(logits - other).max() > 100 * TOLERANCE


@pytest.mark.parametrize("block_size", [1, 2, 16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_and_decodes_equal_naive(architecture: str, block_size: int) -> None:
    config = ARCHITECTURES[architecture]
    tensors, tokens = random_tensors(config), random_prompt(config, 40)
    runner = Runner(config, tensors, block_size=block_size)
    runner.add("a", tokens)
    rows = [runner.step({"a": count})["a"] for count in (1, 15, 1, 16)]
    rows += [runner.step({}, ["a"])["a"] for _ in range(7)]

    assert_close(np.concatenate(rows), naive_logits(config, tensors, tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_mixed_batch_gives_each_request_what_it_gets_alone(architecture: str) -> None:
    config = ARCHITECTURES[architecture]
    tensors = random_tensors(config)
    runner = Runner(config, tensors, block_size=4)
    prompts = {name: random_prompt(config, length, seed=9) for name, length in LENGTHS.items()}
    for name, prompt in prompts.items():
        start(runner, name, prompt, 0 if name == "new" else len(prompt) - 1)
    runner.add("chunked", random_prompt(config, 30))
    runner.step({"chunked": 11})
    logits = runner.step({"new": LENGTHS["new"], "chunked": 12}, ["long", "one", "mid"])

    for name, prompt in prompts.items():
        expected = naive_logits(config, tensors, prompt)
        assert_close(logits[name], expected[len(expected) - len(logits[name]) :])
    expected = naive_logits(config, tensors, runner.tokens["chunked"])
    assert_close(logits["chunked"], expected[11:23])


LENGTHS = {"new": 23, "long": 150, "one": 2, "mid": 37}


@pytest.mark.parametrize("length", [15, 16, 17])
def test_context_that_ends_next_to_a_block_boundary(length: int) -> None:
    tensors, tokens = random_tensors(TINY), random_prompt(TINY, length + 3)
    runner = Runner(TINY, tensors, block_size=16)
    runner.add("a", tokens)
    rows = [runner.step({"a": length})["a"]] + [runner.step({}, ["a"])["a"] for _ in range(3)]

    assert_close(np.concatenate(rows), naive_logits(TINY, tensors, tokens))


def test_requests_that_share_blocks_read_them_and_write_their_own() -> None:
    tensors, shared = random_tensors(TINY), random_prompt(TINY, 16)
    runner = Runner(TINY, tensors, block_size=4)
    first, second = shared + random_prompt(TINY, 7, seed=3), shared + random_prompt(TINY, 9, seed=4)
    start(runner, "first", first, len(first) - 1)
    runner.add("second", second)
    runner.share("first", "second", num_blocks=4)
    logits = runner.step({"second": 9}, ["first"])

    assert_close(logits["second"], naive_logits(TINY, tensors, second)[16:])
    assert_close(logits["first"], naive_logits(TINY, tensors, first)[-1:])


def test_copied_blocks_serve_as_well_as_the_originals() -> None:
    tensors, tokens = random_tensors(TINY), random_prompt(TINY, 12)
    runner = Runner(TINY, tensors, block_size=4, num_blocks=20)
    start(runner, "a", tokens, 10)
    originals = list(runner.blocks["a"])
    copies = [block for block in range(20) if block not in originals][:3]
    runner.kv.copy_blocks(originals, copies)
    runner.kv.keys[:, originals] = np.nan
    runner.kv.values[:, originals] = np.nan
    runner.blocks["a"] = copies

    assert_close(runner.step({"a": 2})["a"], naive_logits(TINY, tensors, tokens)[10:])


def test_long_prefill_with_decodes_in_one_step_equals_each_request_alone() -> None:
    tensors = random_tensors(TINY)
    cached = {"b": 51, "c": 81, "d": 21}
    prompts = {name: random_prompt(TINY, count + 1) for name, count in cached.items()}
    prompts["a"] = random_prompt(TINY, 512)
    runner = Runner(TINY, tensors, block_size=16)
    for name, count in cached.items():
        start(runner, name, prompts[name], count)
    runner.add("a", prompts["a"])
    batch = runner.pack({"a": 512}, ["b", "c", "d"])
    logits = runner.step({"a": 512}, ["b", "c", "d"])

    assert batch.cu_seqlens_q.tolist() == [0, 512, 513, 514, 515]
    assert batch.context_lens.tolist() == [512, 52, 82, 22]
    assert batch.positions[512:].tolist() == [51, 81, 21]
    assert [len(runner.blocks[name]) for name in "abcd"] == [32, 4, 6, 2]
    for name, prompt in prompts.items():
        alone = Runner(TINY, tensors, block_size=16)
        start(alone, name, prompt, cached.get(name, 0))
        rows = alone.step({}, [name]) if name in cached else alone.step({name: 512})
        np.testing.assert_allclose(logits[name], rows[name], rtol=0, atol=1e-4)


def test_only_wanted_rows_have_logits() -> None:
    tensors, prompt = random_tensors(TINY), random_prompt(TINY, 10)
    runner = Runner(TINY, tensors)
    runner.add("a", prompt)
    batch = runner.pack({"a": 10})
    expected = naive_logits(TINY, tensors, prompt)
    batch.logit_rows = np.array([3, 9], np.int32)
    some = runner.network.forward(batch, runner.kv)
    batch.logit_rows = np.array([], np.int32)
    none = runner.network.forward(batch, runner.kv)

    assert_close(some, expected[[3, 9]])
    assert none.shape == (0, TINY.vocab_size)


def test_logits_are_contiguous_float32() -> None:
    runner = Runner(TINY, random_tensors(TINY))
    runner.add("a", random_prompt(TINY, 3))
    logits = runner.step({"a": 3})["a"]

    assert logits.dtype == np.float32
    assert logits.flags.c_contiguous


@pytest.mark.parametrize(("limit", "value"), [("MAX_SCORES", 1), ("MAX_PIECE_ROWS", 7)])
def test_pieces_of_a_chunk_do_not_show(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(reference, limit, value)
    tensors, prompt = random_tensors(TINY), random_prompt(TINY, 40)
    runner = Runner(TINY, tensors)
    start(runner, "a", prompt, 9)

    assert_close(runner.step({"a": 31})["a"], naive_logits(TINY, tensors, prompt)[9:])


def test_bounded_groups_of_decodes_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = random_tensors(TINY)
    names = [f"r{index}" for index in range(9)]

    def decode() -> list[np.ndarray]:
        runner = Runner(TINY, tensors)
        for index, name in enumerate(names):
            start(runner, name, random_prompt(TINY, 20 + index), 19 + index)
        logits = runner.step({}, names)
        return [logits[name] for name in names]

    together = decode()
    monkeypatch.setattr(reference, "MAX_GATHERED", 1)

    for expected, actual in zip(together, decode(), strict=True):
        assert_close(actual, expected)


def test_what_freed_blocks_hold_never_reaches_another_request() -> None:
    tensors = random_tensors(TINY)
    prompts = {"a": random_prompt(TINY, 21), "b": random_prompt(TINY, 6), "c": [1, 2, 3, 4, 5, 6]}
    runner = Runner(TINY, tensors, block_size=4)
    runner.kv.keys[:] = np.nan
    runner.kv.values[:] = np.nan
    start(runner, "a", prompts["a"], 20)
    start(runner, "b", prompts["b"], 5)
    runner.add("c", prompts["c"])
    logits = runner.step({"c": 6}, ["a", "b"])

    for name, rows in logits.items():
        assert_close(rows, naive_logits(TINY, tensors, prompts[name])[-len(rows) :])


def test_request_with_nan_in_its_cache_leaves_the_others_bitwise_alone() -> None:
    tensors = random_tensors(TINY)

    def decode(*, poisoned: bool) -> dict[str, np.ndarray]:
        runner = Runner(TINY, tensors, block_size=4)
        for name, seed in (("a", 1), ("b", 2), ("c", 3)):
            start(runner, name, random_prompt(TINY, 20, seed), 19)
        if poisoned:
            runner.kv.values[0, runner.blocks["b"][0]] = np.nan
        return runner.step({}, ["a", "b", "c"])

    healthy, sick = decode(poisoned=False), decode(poisoned=True)

    assert np.isnan(sick["b"]).all()
    np.testing.assert_array_equal(sick["a"], healthy["a"])
    np.testing.assert_array_equal(sick["c"], healthy["c"])


def test_very_negative_gates_give_zero_without_a_warning() -> None:
    config, tensors = TINY, random_tensors(TINY)
    for name in tensors:
        if name.endswith("gate_proj.weight"):
            tensors[name] *= 1000
    prompt = random_prompt(config, 8)
    runner = Runner(config, tensors)
    runner.add("a", prompt)
    logits = runner.step({"a": 8})["a"]
    expected = naive_logits(config, tensors, prompt)

    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3)
