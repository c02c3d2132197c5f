"""The counter-based generator: known answers, and independence of everything but its key."""

from typing import Any

import numpy as np
import pytest

from everbatch.kernels.random_numbers import philox, seed_for, uniform


def words(*values: int) -> Any:
    return tuple(np.array([value], np.uint64) for value in values)


# Random123, tests/kat_vectors, philox4x32 with 10 rounds: counter, key, expected.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_its_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    result = philox(words(*counter), words(*key))

    assert tuple(int(word[0]) for word in result) == expected


def test_uniform_is_the_first_two_words_of_philox() -> None:
    number = uniform(*words(0xA4093822 | 0x299F31D0 << 32, 7 | 9 << 32))[0]

    high, low, _, _ = philox(words(7, 9, 0, 0), words(0xA4093822, 0x299F31D0))
    assert number == ((int(high[0]) << 32 | int(low[0])) >> 11) / 2**53


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    position = np.arange(100_000, dtype=np.uint64)

    numbers = uniform(np.full(100_000, 42, np.uint64), position)

    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    # 19 degrees of freedom: above 43.8 once in 1,000 seeds.
    assert ((counts - 5_000) ** 2 / 5_000).sum() < 43.8
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


def test_uniform_numbers_of_neighbouring_seeds_have_nothing_in_common() -> None:
    position = np.arange(10_000, dtype=np.uint64)

    first = uniform(np.full(10_000, 0, np.uint64), position)
    second = uniform(np.full(10_000, 1, np.uint64), position)

    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert not np.intersect1d(first, second).size


def test_seeds_of_arrivals_are_distinct_and_stable() -> None:
    seeds = [seed_for(engine, arrival) for engine in (0, 1, -1) for arrival in range(1_000)]

    assert len(set(seeds)) == 3_000
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seed_for(0, 0) == 0xE220A8397B1DCDAF  # SplitMix64's first output from state 0.
    assert seed_for(2**64, 5) == seed_for(0, 5)
