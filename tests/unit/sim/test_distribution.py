"""Percentiles by linear interpolation, against figures worked out by hand."""

import pytest

from everbatch.sim.distribution import distribution, distribution_of_counts


def test_of_nothing_there_is_nothing():
    assert distribution([]) == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_of_one_sample_all_are_it():
    assert distribution([7]) == {"mean": 7.0, "p50": 7.0, "p90": 7.0, "p99": 7.0}


def test_percentiles_lie_between_their_neighbours_in_proportion():
    # Ranks 0.5, 0.9 and 0.99 of [0, 1].
    assert distribution([20, 10]) == pytest.approx(
        {"mean": 15.0, "p50": 15.0, "p90": 19.0, "p99": 19.9}
    )


def test_a_whole_rank_is_its_sample():
    assert distribution(range(101)) == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p99": 99.0}


def test_counts_stand_for_samples():
    samples = [1] * 95 + [4] * 3 + [9] * 2

    assert distribution_of_counts({9: 2, 1: 95, 4: 3, 5: 0}) == distribution(samples)
    # Rank 98.01 of 0 … 99: both neighbours are 9.
    assert distribution(samples)["p99"] == 9.0
