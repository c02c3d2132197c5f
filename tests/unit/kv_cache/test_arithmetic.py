"""How many blocks tokens take: at, before and after each edge."""

from everbatch.kv_cache.arithmetic import blocks_for, blocks_for_life, blocks_of_samples


def test_blocks_round_up():
    assert [blocks_for(count, 4) for count in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_the_last_output_needs_no_place():
    assert blocks_for_life(16, 1, 16) == 1
    assert blocks_for_life(16, 2, 16) == 2
    assert blocks_for_life(1, 16, 16) == 1
    assert blocks_for_life(1, 17, 16) == 2


def test_samples_share_the_full_blocks_of_their_prompt():
    assert blocks_of_samples(5, 2, num_samples=1) == 5
    assert blocks_of_samples(5, 2, num_samples=3) == 2 + 3 + 3 + 3
    assert blocks_for_life(16, 2, 16, num_samples=3) == 1 + 3
    assert blocks_for_life(15, 2, 16, num_samples=3) == 3
