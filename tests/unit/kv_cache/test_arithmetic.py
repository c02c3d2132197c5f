"""How many blocks tokens take: at, before and after each edge."""

import pytest

from everbatch.kv_cache.arithmetic import blocks_for, blocks_for_life, new_blocks_needed


@pytest.mark.parametrize(
    ("num_cached", "num_input", "expected"),
    [(14, 1, 0), (15, 1, 0), (16, 1, 1), (0, 10, 1), (0, 16, 1), (0, 17, 2), (5, 0, 0), (28, 5, 1)],
)
def test_new_blocks_are_those_that_the_tokens_reach_into(num_cached, num_input, expected):
    assert new_blocks_needed(num_cached, num_input, 16) == expected


@pytest.mark.parametrize(
    ("num_cached", "num_input", "expected"),
    # A full tail is never written, and without input nothing is.
    [(14, 1, 1), (14, 3, 2), (16, 1, 1), (14, 0, 0)],
)
def test_a_shared_partial_tail_costs_its_copy(num_cached, num_input, expected):
    assert new_blocks_needed(num_cached, num_input, 16, tail_shared=True) == expected


def test_blocks_round_up():
    assert [blocks_for(count, 4) for count in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_the_last_output_needs_no_place():
    assert blocks_for_life(16, 1, 16) == 1
    assert blocks_for_life(16, 2, 16) == 2
    assert blocks_for_life(1, 16, 16) == 1
    assert blocks_for_life(1, 17, 16) == 2
