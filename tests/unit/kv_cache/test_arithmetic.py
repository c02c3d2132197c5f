"""How many blocks tokens take: at, before and after each edge."""

from everbatch.kv_cache.arithmetic import blocks_for, blocks_for_life


def test_blocks_round_up():
    assert [blocks_for(count, 4) for count in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_the_last_output_needs_no_place():
    assert blocks_for_life(16, 1, 16) == 1
    assert blocks_for_life(16, 2, 16) == 2
    assert blocks_for_life(1, 16, 16) == 1
    assert blocks_for_life(1, 17, 16) == 2
