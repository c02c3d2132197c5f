"""Native sampling against its specification in numpy: the same tokens, the same bits of logprobs.

Nothing here is approximate: weights are the same float32 operations on every path, and summed as
whole numbers.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_kernels import PATHS, runtime
from unit.kernels.sampling_builders import Floats, random_logits, sampling_rows

from everbatch.kernels import _native
from everbatch.kernels.exponential import exponential
from everbatch.kernels.native import sample_with
from everbatch.kernels.random_numbers import uniform
from everbatch.kernels.sampling import RowExtras, SampledTokens, SamplingRows, sample


def native_sample(
    logits: Floats, rows: SamplingRows, path: str = PATHS[0], num_threads: int = 2
) -> SampledTokens:
    which = np.arange(len(logits), dtype=np.int32)
    return sample_with(
        lambda *handed: _native.sample(runtime(path, num_threads), logits, which, *handed),
        rows,
        logits.shape[1],
    )


def assert_equal(found: SampledTokens, expected: SampledTokens) -> None:
    assert found.failed.tolist() == expected.failed.tolist()
    fine = ~expected.failed
    assert found.token_ids[fine].tolist() == expected.token_ids[fine].tolist()
    assert set(found.logprobs) == set(expected.logprobs)
    for row, logprobs in expected.logprobs.items():
        assert (found.logprobs[row].logprob, found.logprobs[row].rank) == (
            logprobs.logprob,
            logprobs.rank,
        )
        assert found.logprobs[row].top_ids.tolist() == logprobs.top_ids.tolist()
        assert found.logprobs[row].top_logprobs.tobytes() == logprobs.top_logprobs.tobytes()


def mixed_rows(num_rows: int, vocab_size: int, seed: int) -> SamplingRows:
    """Rows of every kind, a third of them with extras."""
    draw = np.random.default_rng(seed)
    extras = {
        row: RowExtras(
            token_history=draw.integers(0, vocab_size, 60),
            prompt_length=int(draw.integers(0, 61)),
            repetition_penalty=float(draw.choice([1.0, 1.3, 0.8])),
            presence_penalty=float(draw.choice([0.0, 0.7, -0.4])),
            frequency_penalty=float(draw.choice([0.0, 0.3])),
            bias_ids=draw.integers(0, vocab_size + 9, 4),
            bias_values=draw.normal(0, 5, 4).astype(np.float32),
            forbidden_ids=draw.integers(0, vocab_size + 9, int(draw.integers(0, 3))),
        )
        for row in range(0, num_rows, 3)
    }
    return sampling_rows(
        num_rows,
        temperature=draw.choice([0.0, 0.3, 1.0, 1.0, 2.5], num_rows),
        top_k=draw.choice([0, 0, 1, 5, 50, vocab_size - 1, vocab_size], num_rows),
        top_p=draw.choice([1.0, 0.9, 0.5, 0.999, 1e-6], num_rows),
        min_p=draw.choice([0.0, 0.0, 0.05, 1.0], num_rows),
        seed=draw.integers(0, 2**63, num_rows, np.uint64) * np.uint64(2) + np.uint64(1),
        position=draw.integers(0, 5_000, num_rows),
        wants_logprobs=draw.choice([True, False], num_rows),
        num_logprobs=draw.integers(0, 12, num_rows),
        extras=extras,
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 1_003, 4_096])
def test_every_kind_of_row_gets_the_token_of_the_specification(path: str, vocab_size: int) -> None:
    for seed, scale in enumerate([0.01, 1.0, 3.0, 40.0]):
        logits = random_logits(60, vocab_size, scale, seed)
        rows = mixed_rows(60, vocab_size, seed)

        assert_equal(native_sample(logits, rows, path), sample(logits, rows))


def test_a_large_vocabulary_is_drawn_from_alike() -> None:
    logits = random_logits(24, 49_152)
    rows = mixed_rows(24, 49_152, seed=9)

    assert_equal(native_sample(logits, rows), sample(logits, rows))


@pytest.mark.parametrize("changes", [{}, {"top_k": 3}, {"top_p": 0.6}, {"temperature": 0.0}])
def test_ties_go_the_same_way(changes: dict[str, Any]) -> None:
    # Whole logits: every value comes many times.
    logits = np.round(random_logits(300, 200, 1.0))
    rows = sampling_rows(300, wants_logprobs=True, num_logprobs=7, **changes)

    assert_equal(native_sample(logits, rows), sample(logits, rows))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 98, 99])
def test_rows_that_are_no_numbers_fail_alike(path: str, value: float, place: int) -> None:
    logits = random_logits(6, 100)
    logits[1, place] = logits[4, place] = value
    extras = {3: RowExtras(forbidden_ids=np.arange(100)), 5: RowExtras(forbidden_ids=np.arange(9))}
    rows = sampling_rows(6, temperature=[1, 1, 1, 1, 0, 0], wants_logprobs=True, extras=extras)
    found = native_sample(logits, rows, path)

    assert_equal(found, sample(logits, rows))
    assert found.failed.tolist() == [False, True, False, True, True, False]


@pytest.mark.parametrize("changes", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_extreme_but_finite_logits_are_sampled_alike(changes: dict[str, Any]) -> None:
    largest = float(np.finfo(np.float32).max)
    logits = np.array([[-largest, largest, 0.0], [1e-45, 0.0, -0.0]], np.float32)
    for temperature in (1e-5, 1.0, 2.0):
        rows = sampling_rows(
            2, temperature=temperature, wants_logprobs=True, num_logprobs=3, **changes
        )

        assert_equal(native_sample(logits, rows), sample(logits, rows))


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_threads_and_other_rows_change_nothing(num_threads: int) -> None:
    logits, rows = random_logits(41, 1_003), mixed_rows(41, 1_003, seed=3)
    expected = native_sample(logits, rows, num_threads=1)

    assert_equal(native_sample(logits, rows, num_threads=num_threads), expected)
    reversed_logits = np.ascontiguousarray(logits[::-1])
    which = np.arange(41, dtype=np.int32)[::-1].copy()
    assert_equal(
        sample_with(
            lambda *handed: _native.sample(runtime(), reversed_logits, which, *handed),
            rows,
            1_003,
        ),
        expected,
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.floats(0.01, 100.0),
    st.integers(0, 45),
    st.floats(1e-3, 1.0),
    st.floats(0.0, 1.0),
    st.floats(1e-4, 50.0),
)
def test_any_options_choose_the_same_token(
    vocab_size: int,
    seed: int,
    scale: float,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
) -> None:
    logits = random_logits(8, vocab_size, scale, seed)
    rows = sampling_rows(
        8, seed=seed, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature
    )

    assert_equal(native_sample(logits, rows), sample(logits, rows))


def test_uniform_numbers_are_the_same() -> None:
    draw = np.random.default_rng(0)
    seeds = draw.integers(0, 2**64, 200, np.uint64)
    positions = draw.integers(0, 2**64, 200, np.uint64)
    found = [
        _native.uniform(*pair) for pair in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]

    assert found == uniform(seeds, positions).tolist()


def test_exponential_is_close_to_the_exact_one_and_exact_at_zero() -> None:
    x = np.linspace(-87, 88, 100_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))

    assert (np.abs(exponential(x) - exact) <= 3 * 2.0**-24 * exact).all()
    assert exponential(np.array([0.0, -0.0], np.float32)).tolist() == [1.0, 1.0]
    assert exponential(np.array([-np.inf, -1e9], np.float32)).max() < 1e-37
    assert exponential(np.array([100.0], np.float32)) == exponential(np.array([88.0], np.float32))


def test_what_does_not_fit_is_refused() -> None:
    logits = random_logits(2, 10)

    def refused(message: str, **changes: Any) -> None:
        extras = changes.pop("extras", {})
        rows = sampling_rows(2, extras=extras)
        for name, values in changes.items():
            setattr(rows, name, values)
        with pytest.raises(ValueError, match=message):
            native_sample(logits, rows)

    refused("differ in size", top_k=np.zeros(3, np.int32))
    refused("num_logprobs is negative", num_logprobs=np.array([0, -1], np.int32))
    refused("extras of a row", extras={2: RowExtras()})
    refused("prompt_length", extras={0: RowExtras(prompt_length=1)})
    refused("differ in size", extras={0: RowExtras(bias_ids=np.array([1]))})
    refused(r"bias_ids holds -1", extras={0: biased(-1)})
    refused(r"forbidden_ids holds -2", extras={0: RowExtras(forbidden_ids=np.array([-2]))})
    refused(r"token_history holds 10, .*\[0, 10\)", extras={0: RowExtras(np.array([3, 10]))})


def biased(token_id: int) -> RowExtras:
    return RowExtras(bias_ids=np.array([token_id]), bias_values=np.ones(1, np.float32))


def test_rows_of_logits_that_are_not_there_are_refused() -> None:
    logits, rows = random_logits(2, 10), sampling_rows(2)
    for which in ([0, 2], [-1, 0], [0], [0, 1, 1]):
        with pytest.raises(ValueError, match="logits_of"):
            sample_with(
                lambda *handed, which=which: _native.sample(
                    runtime(), logits, np.array(which, np.int32), *handed
                ),
                rows,
                10,
            )


def test_arrays_for_results_that_are_too_small_are_refused() -> None:
    logits = random_logits(2, 10)

    def arrays(num_rows: int, num_top: int) -> _native.SampledArrays:
        return _native.SampledArrays(
            np.empty(2, np.int32),
            np.empty(num_rows, np.bool_),
            np.empty(2, np.float32),
            np.empty(2, np.int64),
            np.empty((2, num_top), np.int64),
            np.empty((2, 3), np.float32),
        )

    rows = sampling_rows(2, wants_logprobs=True, num_logprobs=4)

    def call(num_rows: int, num_top: int) -> None:
        sample_with(
            lambda handed, _: _native.sample(
                runtime(), logits, np.arange(2, dtype=np.int32), handed, arrays(num_rows, num_top)
            ),
            rows,
            10,
        )

    for num_rows, num_top, message in ((1, 3, "one entry a row"), (2, 4, "differ"), (2, 3, "room")):
        with pytest.raises(ValueError, match=message):
            call(num_rows, num_top)
