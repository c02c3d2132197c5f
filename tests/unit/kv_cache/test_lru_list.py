"""The list of cached blocks: order, removal from anywhere, undoing."""

from everbatch.kv_cache.lru_list import LruList


def filled(*blocks, capacity=6):
    lru = LruList(capacity)
    lru.extend(blocks)
    return lru


def test_oldest_comes_first_and_leaves_first():
    lru = filled(3, 0, 5)

    assert list(lru) == [3, 0, 5]
    assert lru.pop_oldest(1) == [3]
    assert list(lru) == [0, 5]
    assert lru.count == 2


def test_the_oldest_leave_together_and_come_back_together():
    for count in range(4):
        lru = filled(3, 0, 5)
        taken = lru.pop_oldest(count)

        assert taken == [3, 0, 5][:count]
        assert list(lru) == [3, 0, 5][count:]

        lru.append(1)
        lru.remove(1)
        lru.restore_oldest(taken)

        assert list(lru) == [3, 0, 5]
        assert lru.count == 3


def test_blocks_added_together_are_those_added_one_by_one():
    for blocks in ([], [4], [4, 1, 2]):
        together, one_by_one = filled(3, 0), filled(3, 0)
        together.extend(blocks)
        for block in blocks:
            one_by_one.append(block)
        lists = together, one_by_one
        for lru in lists:
            lru.remove(0)

        assert list(together) == list(one_by_one) == [3, *blocks]
        assert together.count == one_by_one.count


def test_blocks_leave_from_anywhere():
    for gone, rest in ((3, [0, 5]), (0, [3, 5]), (5, [3, 0])):
        lru = filled(3, 0, 5)
        lru.remove(gone)

        assert list(lru) == rest


def test_the_last_one_leaves_an_empty_list_that_fills_again():
    lru = filled(2)
    lru.remove(2)

    assert list(lru) == []

    lru.append(2)
    lru.append(1)

    assert list(lru) == [2, 1]


def test_removals_are_undone_in_reverse():
    lru = filled(0, 1, 2, 3)
    places = [(block, lru.remove(block)) for block in (1, 2, 0)]
    for block, place in reversed(places):
        lru.restore(block, place)

    assert list(lru) == [0, 1, 2, 3]


def test_a_block_that_was_added_again_meanwhile_returns_to_its_old_place():
    lru = filled(0, 1, 2)
    place = lru.remove(0)
    lru.append(0)
    lru.remove(0)
    lru.restore(0, place)

    assert list(lru) == [0, 1, 2]
    assert lru.count == 3

    lru.remove(0)

    assert list(lru) == [1, 2]
    assert lru.pop_oldest(2) == [1, 2]
    assert lru.count == 0
