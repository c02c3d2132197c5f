"""Sampling: the distribution, what truncates it, ties, and independence of other rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from unit.kernels.sampling_builders import (
    PROBABILITIES,
    Floats,
    assert_drawn_from,
    frequencies,
    logits_of,
    one,
    random_logits,
    sampling_rows,
)

from everbatch.kernels.sampling import RowExtras, sample


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PROBABILITIES),
        ({"top_k": 2}, (4 / 7, 0, 3 / 7, 0, 0)),
        ({"top_k": 5}, PROBABILITIES),
        ({"top_k": 99}, PROBABILITIES),
        ({"top_p": 0.6}, (4 / 7, 0, 3 / 7, 0, 0)),
        ({"top_p": 0.75}, (8 / 17, 0, 6 / 17, 0, 3 / 17)),
        ({"top_p": 0.39}, (1, 0, 0, 0, 0)),
        ({"top_p": 1e-9}, (1, 0, 0, 0, 0)),
        ({"min_p": 0.3}, (8 / 17, 0, 6 / 17, 0, 3 / 17)),
        ({"min_p": 1.0}, (1, 0, 0, 0, 0)),
        # top_p counts what top_k left: 0.3 of 0.7 is beyond 0.57 of it only with both tokens.
        ({"top_k": 2, "top_p": 0.58}, (4 / 7, 0, 3 / 7, 0, 0)),
        ({"top_k": 2, "top_p": 0.56}, (1, 0, 0, 0, 0)),
        # min_p leaves 0.85, of which the largest token is 0.47.
        ({"min_p": 0.3, "top_p": 0.46}, (1, 0, 0, 0, 0)),
        ({"min_p": 0.3, "top_p": 0.48}, (4 / 7, 0, 3 / 7, 0, 0)),
        ({"top_k": 1}, (1, 0, 0, 0, 0)),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(
    changes: dict[str, Any], expected: Sequence[float]
) -> None:
    assert_drawn_from(frequencies(logits_of(*PROBABILITIES), **changes), expected)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_sharpens_and_flattens(temperature: float) -> None:
    weights = np.array(PROBABILITIES) ** (1 / temperature)

    found = frequencies(logits_of(*PROBABILITIES), temperature=temperature)

    assert_drawn_from(found, (weights / weights.sum()).tolist())


def test_temperature_comes_before_min_p_and_top_p() -> None:
    # At temperature 0.5 the weights are 16 : 9 of the two likeliest, 2.25 of the third.
    found = frequencies(logits_of(*PROBABILITIES), temperature=0.5, min_p=0.5)

    assert_drawn_from(found, (16 / 25, 0, 9 / 25, 0, 0))


def test_a_large_vocabulary_is_drawn_from_evenly() -> None:
    found = frequencies(np.zeros((1, 4_000), np.float32), 4_000)

    # Draws of 4,000 out of 4,000 leave a share 1/e of tokens undrawn.
    assert abs((found == 0).mean() - np.exp(-1)) < 0.03
    assert abs(found[:2_000].sum() - 0.5) < 0.04


@pytest.mark.parametrize("changes", [{"top_k": 1}, {"temperature": 0.0}, {"temperature": 9e-6}])
def test_the_likeliest_token_is_what_greedy_takes(changes: dict[str, Any]) -> None:
    logits = random_logits(50, 1_001)

    result = sample(logits, sampling_rows(50, **changes))

    assert result.token_ids.tolist() == logits.argmax(axis=-1).tolist()
    assert result.token_ids.dtype == np.int32


@pytest.mark.parametrize("changes", [{"top_k": 1}, {"temperature": 0.0}, {"top_p": 1e-6}])
def test_ties_go_to_the_lowest_id(changes: dict[str, Any]) -> None:
    assert one([1.0, 3.0, 2.0, 3.0, 3.0], **changes).token_ids.tolist() == [1]


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    found = frequencies(np.zeros((1, 6), np.float32), top_k=3)

    assert_drawn_from(found, (1 / 3, 1 / 3, 1 / 3, 0, 0, 0))


def reference_top(logits: Floats, top_k: int, top_p: float) -> set[int]:
    """The tokens that stay, by sorting everything in float64."""
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    weights = np.exp(logits[order].astype(np.float64) - logits.max())
    before = np.cumsum(weights) - weights
    return set(order[before < top_p * weights.sum()].tolist())


@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0, 40.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 0.3), (0, 0.97), (7, 1.0), (7, 0.8), (250, 1.0), (250, 0.999)]
)
def test_truncation_keeps_what_a_full_sort_keeps(scale: float, top_k: int, top_p: float) -> None:
    logits = random_logits(1, 300, scale)

    found = frequencies(logits, 4_000, top_k=top_k, top_p=top_p)

    kept = reference_top(logits[0], top_k, top_p)
    weights = np.zeros(300)
    weights[list(kept)] = np.exp(logits[0][list(kept)].astype(np.float64) - logits.max())
    assert set(np.flatnonzero(found).tolist()) <= kept
    assert_drawn_from(found, (weights / weights.sum()).tolist(), 4_000)


def test_top_p_reaches_far_down_where_the_mass_is_there() -> None:
    # One token at 0 and 20,000 at -9: of the mass 1 + 20,000 e**-9 = 3.47 half is the first token
    # and the next 5,945 or so.
    logits = np.full((1, 20_001), -9.0, np.float32)
    logits[0, 0] = 0.0

    found = frequencies(logits, 400, top_p=0.5)

    assert 5_000 < np.flatnonzero(found).max() < 5_960
    assert 0.4 < found[0] < 0.75


@pytest.mark.parametrize("changes", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}])
def test_the_largest_random_number_takes_the_last_token_that_is_left(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "everbatch.kernels.sampling.uniform", lambda seed, position: np.full(len(seed), 1 - 2**-53)
    )
    logits = random_logits(200, 50, scale=1.0)
    logits[:, -1] = -200.0  # e ** -200 is 0 in float32.

    tokens = sample(logits, sampling_rows(200, **changes)).token_ids

    assert tokens.max() <= 48
    if not changes:
        assert set(tokens.tolist()) == {48}


def test_a_truncation_that_cuts_nothing_changes_no_token() -> None:
    logits = random_logits(300, 1_000)

    plain = sample(logits, sampling_rows(300))
    truncated = sample(logits, sampling_rows(300, top_k=999, top_p=0.9999999))

    assert plain.token_ids.tolist() == truncated.token_ids.tolist()


def test_a_row_is_bitwise_the_same_in_every_batch() -> None:
    num_rows, vocab_size = 41, 1_003
    logits = random_logits(num_rows, vocab_size)
    draw = np.random.default_rng(5)
    extras = {
        row: RowExtras(
            token_history=draw.integers(0, vocab_size, 30),
            prompt_length=10,
            repetition_penalty=1.3,
            presence_penalty=0.5,
            bias_ids=np.array([row, 7]),
            bias_values=np.array([2.0, 3.0], np.float32),
        )
        for row in range(0, num_rows, 3)
    }
    arrays = {
        "temperature": draw.choice([0.0, 0.7, 1.0, 1.5], num_rows),
        "top_k": draw.choice([0, 5, 50], num_rows),
        "top_p": draw.choice([1.0, 0.9], num_rows),
        "min_p": draw.choice([0.0, 0.05], num_rows),
        "seed": draw.integers(0, 2**63, num_rows),
        "position": draw.integers(0, 5_000, num_rows),
        "wants_logprobs": draw.choice([True, False], num_rows),
        "num_logprobs": draw.integers(0, 6, num_rows),
    }

    together = sample(logits, sampling_rows(num_rows, **arrays, extras=extras))

    for first, last in [(row, row + 1) for row in range(num_rows)] + [(3, 20), (17, 41)]:
        part = sample(
            np.ascontiguousarray(logits[first:last]),
            sampling_rows(
                last - first,
                **{name: values[first:last] for name, values in arrays.items()},
                extras={row - first: extra for row, extra in extras.items() if first <= row < last},
            ),
        )
        assert part.token_ids.tolist() == together.token_ids[first:last].tolist()
        for row, found in part.logprobs.items():
            expected = together.logprobs[first + row]
            assert (found.logprob, found.rank) == (expected.logprob, expected.rank)
            assert found.top_ids.tolist() == expected.top_ids.tolist()
            assert found.top_logprobs.tobytes() == expected.top_logprobs.tobytes()


def test_weights_do_not_depend_on_where_a_row_stands() -> None:
    # Rows of odd length, so that a row begins at every alignment and vector tails move about.
    row = random_logits(1, 997)
    stacked = np.repeat(row, 64, axis=0)

    tokens = sample(stacked, sampling_rows(64, position=3)).token_ids
    logprobs = sample(stacked, sampling_rows(64, position=3, wants_logprobs=True)).logprobs

    assert len(set(tokens.tolist())) == 1
    assert len({found.logprob for found in logprobs.values()}) == 1


def text(seed: int, length: int = 40) -> list[int]:
    logits = random_logits(1, 500, scale=1.0)
    rows = sampling_rows(length, seed=seed)
    tokens: list[int] = sample(np.repeat(logits, length, axis=0), rows).token_ids.tolist()
    return tokens


def test_seed_and_position_choose_the_token() -> None:
    assert text(1) == text(1)
    assert text(1) != text(2)
    assert len(set(text(1))) > 20
    assert text(2**64 - 1) != text(2**63)


def test_seeded_tokens_are_the_same_on_every_machine() -> None:
    logits = np.zeros((8, 1_024), np.float32)

    tokens = sample(logits, sampling_rows(8, seed=1234)).token_ids

    assert tokens.tolist() == [int(number * 1_024) for number in known_numbers(1234, range(8))]


def known_numbers(seed: int, positions: Sequence[int]) -> list[float]:
    """Philox in plain integers."""
    numbers = []
    for position in positions:
        c, k = [position, 0, 0, 0], [seed, 0]
        for _ in range(10):
            left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [
                (right >> 32) ^ c[1] ^ k[0],
                right & 0xFFFFFFFF,
                (left >> 32) ^ c[3] ^ k[1],
                left & 0xFFFFFFFF,
            ]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        numbers.append(((c[0] << 32 | c[1]) >> 11) / 2**53)
    return numbers
