"""Sampling: bias, forbidden ids, penalties, logprobs, and rows that fail."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from unit.kernels.sampling_builders import (
    PROBABILITIES,
    assert_drawn_from,
    frequencies,
    logits_of,
    one,
    random_logits,
    sampling_rows,
)

from everbatch.kernels.sampling import RowExtras, sample


def adjusted_choice(logits: Sequence[float], **extras: Any) -> int:
    """What greedy takes after the extras."""
    found = one(logits, temperature=0.0, extras={0: RowExtras(**extras)})
    assert not found.failed[0]
    return int(found.token_ids[0])


IDS = np.array


def test_repetition_penalty_counts_prompt_and_outputs_on_both_sides_of_zero() -> None:
    history = {"token_history": IDS([0, 2]), "prompt_length": 1, "repetition_penalty": 2.0}

    # 4 / 2 = 2 for the prompt's token 0, 3 / 2 for the output's token 2, 2.5 for token 1.
    assert adjusted_choice([4.0, 2.5, 3.0], **history) == 1
    # -1 * 2 = -2 for token 0, so -1.5 is larger.
    assert adjusted_choice([-1.0, -1.5, -9.0], **history) == 1


def test_presence_penalty_counts_outputs_once() -> None:
    history = {"token_history": IDS([0, 1, 1, 1]), "prompt_length": 1, "presence_penalty": 1.0}

    assert adjusted_choice([2.0, 2.9, 0.0], **history) == 0
    assert adjusted_choice([2.0, 3.1, 0.0], **history) == 1


def test_frequency_penalty_counts_every_output() -> None:
    history = {"token_history": IDS([0, 0, 1, 1]), "prompt_length": 1, "frequency_penalty": 0.5}

    # Token 0 once (2.5), token 1 twice (2.4).
    assert adjusted_choice([3.0, 3.4, 0.0], **history) == 0
    assert adjusted_choice([3.0, 3.6, 0.0], **history) == 1


def test_repetition_comes_before_presence_and_frequency() -> None:
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25}

    # 4 / 2 - 0.25 * 2 - 0.5 = 1.0; the other way round it would be (4 - 1) / 2 = 1.5.
    history = {"token_history": IDS([0, 0]), "prompt_length": 0, **penalties}
    assert adjusted_choice([4.0, 1.25], **history) == 1
    assert adjusted_choice([4.0, 0.75], **history) == 0


def test_negative_penalties_reward() -> None:
    history = {"token_history": IDS([1]), "prompt_length": 0, "frequency_penalty": -2.0}

    assert adjusted_choice([1.5, 0.0], **history) == 1


def test_logit_bias_is_added_before_the_penalties() -> None:
    bias = {"bias_ids": IDS([1, 0]), "bias_values": np.array([3.0, -1.0], np.float32)}

    assert adjusted_choice([2.0, 0.0], **bias) == 1
    # (0 + 3) / 4 is below 2 - 1.
    history = {"token_history": IDS([1]), "prompt_length": 1, "repetition_penalty": 4.0}
    assert adjusted_choice([2.0, 0.0], **bias, **history) == 0


def test_forbidden_ids_are_never_chosen() -> None:
    forbidden = RowExtras(forbidden_ids=IDS([0, 2]))
    extras = dict.fromkeys(range(20_000), forbidden)

    found = frequencies(logits_of(*PROBABILITIES), extras=extras)

    assert_drawn_from(found, (0, 1 / 6, 0, 1 / 3, 1 / 2))
    assert adjusted_choice([5.0, 1.0, 4.0], forbidden_ids=IDS([0, 2])) == 1


def test_a_bias_does_not_lift_what_is_forbidden() -> None:
    bias = {"bias_ids": IDS([0]), "bias_values": np.array([100.0], np.float32)}

    assert adjusted_choice([1.0, 0.0], forbidden_ids=IDS([0]), **bias) == 1


def test_ids_beyond_the_vocabulary_change_nothing() -> None:
    bias = {"bias_ids": IDS([2, 99]), "bias_values": np.array([9.0, 9.0], np.float32)}

    assert adjusted_choice([1.0, 0.0], forbidden_ids=IDS([2, 99]), **bias) == 0


def test_extras_of_one_row_leave_the_others_alone() -> None:
    logits = random_logits(40, 100)
    extras = {5: RowExtras(forbidden_ids=np.arange(50))}

    plain = sample(logits, sampling_rows(40)).token_ids
    result = sample(logits, sampling_rows(40, extras=extras)).token_ids

    assert np.delete(result, 5).tolist() == np.delete(plain, 5).tolist()
    assert result[5] >= 50


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 50, 99])
def test_a_row_without_finite_logits_fails_alone(
    place: int, value: float, temperature: float
) -> None:
    logits = random_logits(3, 100)
    expected = sample(logits, sampling_rows(3, temperature=temperature))
    logits[1, place] = value

    rows = sampling_rows(3, temperature=temperature, wants_logprobs=True)
    result = sample(logits, rows)

    assert result.failed.tolist() == [False, True, False]
    assert result.token_ids[[0, 2]].tolist() == expected.token_ids[[0, 2]].tolist()
    assert set(result.logprobs) == {0, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_every_token_forbidden_fails(temperature: float) -> None:
    extras = {0: RowExtras(forbidden_ids=np.arange(3))}

    assert one([1.0, 2.0, 3.0], temperature=temperature, extras=extras).failed.tolist() == [True]


@pytest.mark.parametrize("changes", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_extreme_but_finite_logits_are_sampled(changes: dict[str, Any]) -> None:
    largest = float(np.finfo(np.float32).max)
    for temperature in (1e-5, 1.0, 2.0):
        result = one(
            [-largest, largest, 0.0],
            temperature=temperature,
            wants_logprobs=True,
            num_logprobs=3,
            **changes,
        )

        assert result.token_ids.tolist() == [1]
        assert result.logprobs[0].logprob == 0.0


def test_logprobs_are_of_the_raw_logits() -> None:
    extras = {0: RowExtras(forbidden_ids=IDS([0]))}

    result = one(
        logits_of(*PROBABILITIES)[0],
        temperature=0.0,
        wants_logprobs=True,
        num_logprobs=3,
        extras=extras,
    )

    found = result.logprobs[0]
    assert result.token_ids.tolist() == [2]
    assert found.rank == 2
    assert found.logprob == pytest.approx(np.log(0.3), abs=1e-6)
    assert found.top_ids.tolist() == [0, 2, 4]
    assert found.top_logprobs == pytest.approx(np.log([0.4, 0.3, 0.15]), abs=1e-6)
    assert found.top_logprobs.dtype == np.float32


def test_logprobs_are_given_where_wanted_and_as_many_as_wanted() -> None:
    rows = sampling_rows(3, wants_logprobs=[True, False, True], num_logprobs=[0, 5, 99])

    result = sample(random_logits(3, 10), rows)

    assert set(result.logprobs) == {0, 2}
    assert result.logprobs[0].top_ids.size == 0
    assert result.logprobs[2].top_ids.size == 10
    assert np.exp(result.logprobs[2].top_logprobs).sum() == pytest.approx(1.0, abs=1e-5)


def test_top_logprobs_of_ties_go_to_the_lowest_ids() -> None:
    found = one([1.0, 2.0, 1.0, 1.0], wants_logprobs=True, num_logprobs=2).logprobs[0]

    assert found.top_ids.tolist() == [1, 0]


def test_the_logits_are_left_as_they_are() -> None:
    logits = random_logits(4, 50)
    before = logits.copy()
    extras = {1: RowExtras(forbidden_ids=IDS([1]), token_history=IDS([2]), presence_penalty=1.0)}

    sample(logits, sampling_rows(4, top_p=0.5, min_p=0.1, wants_logprobs=True, extras=extras))

    assert np.array_equal(logits, before)


def test_no_rows_give_no_tokens() -> None:
    result = sample(np.empty((0, 10), np.float32), sampling_rows(0))

    assert result.token_ids.shape == (0,)
    assert result.failed.shape == (0,)
    assert result.logprobs == {}
