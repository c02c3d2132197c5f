"""The pool of blocks: handing out, sharing, reuse, eviction, undoing."""

from array import array

import pytest

from everbatch.base.errors import InvariantViolation
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.kv_cache.content import ContentChain, hash_block, in_blocks, root_digest
from everbatch.kv_cache.verify import verify_pool

SIZE = 2
"""Tokens of a block in these tests, but for those taken from peers."""


def chain_of(tokens, *, salt="", hasher=hash_block, block_size=SIZE):
    chain = ContentChain(root_digest(salt), block_size, hasher)
    num_whole = len(tokens) // block_size * block_size
    chain.extend(in_blocks(array("i", tokens[:num_whole]).tobytes(), block_size))
    return chain


def store(pool, tokens, **options):
    """Compute a whole text: hit what is cached, take blocks for the rest, index what is full."""
    chain = chain_of(tokens, **options)
    block_size = options.get("block_size", SIZE)
    hits = pool.match(chain, (len(tokens) - 1) // block_size)
    pool.acquire(hits, chain)
    new = pool.allocate(-(-len(tokens) // block_size) - len(hits))
    assert new is not None
    table = hits + new
    pool.register(chain, table, len(chain.contents))
    return table, len(hits)


def counts(pool):
    return pool.num_free, pool.num_cached, pool.num_used


def constant_hash(parent, tokens):
    return b"\x00"


def one_bit_hash(parent, tokens):
    return bytes([(sum(parent) + sum(tokens)) % 2])


def hash_without_parent(parent, tokens):
    return tokens


def test_blocks_are_handed_out_once_each():
    pool = BlockPool(4)
    blocks = pool.allocate(3)

    assert blocks == [0, 1, 2]
    assert pool.allocate(2) is None
    assert counts(pool) == (1, 0, 3)
    assert pool.allocate(1) == [3]
    assert pool.allocate(0) == []
    assert pool.allocate(1) is None


def test_blocks_without_content_become_free():
    pool = BlockPool(4)
    pool.release(pool.allocate(3))

    assert counts(pool) == (4, 0, 0)


def test_blocks_with_content_become_cached_and_are_found():
    pool = BlockPool(4)
    table, _ = store(pool, [1, 2, 3, 4, 5])
    pool.release(table)

    assert counts(pool) == (2, 2, 0)
    assert pool.match(chain_of([1, 2, 3, 4, 9, 9]), 3) == table[:2]
    assert pool.match(chain_of([1, 2, 9, 9]), 2) == table[:1]
    assert pool.match(chain_of([9, 9, 3, 4]), 2) == []
    assert pool.match(chain_of([1, 2, 3, 4]), 1) == table[:1]
    assert pool.match(chain_of([1, 2, 3, 4]), 0) == []


def test_looking_up_changes_nothing():
    pool = BlockPool(4)
    pool.release(store(pool, [1, 2, 3, 4])[0])
    before = pool.state()
    pool.match(chain_of([1, 2, 3, 4]), 2)

    assert pool.state() == before


def test_a_shared_block_stays_until_its_last_reader_leaves():
    pool = BlockPool(4)
    first, _ = store(pool, [1, 2, 3, 4])
    second, num_hits = store(pool, [1, 2, 3, 4, 5])

    assert num_hits == 2
    assert second[:2] == first

    pool.release(first)

    assert [pool.ref_count(block) for block in second] == [1, 1, 1]
    assert counts(pool) == (1, 0, 3)

    pool.release(second)

    assert counts(pool) == (2, 2, 0)


def test_cached_blocks_are_revived_by_a_reader():
    pool = BlockPool(2)
    table, _ = store(pool, [1, 2, 3, 4])
    pool.release(table)
    chain = chain_of([1, 2, 3, 4])
    hits = pool.match(chain, 2)

    assert pool.num_allocatable == 2
    assert pool.num_allocatable_beside(hits[:1]) == 1
    assert pool.num_allocatable_beside(hits) == 0

    pool.acquire(hits, chain)

    assert pool.num_allocatable_beside(hits) == 0
    assert counts(pool) == (0, 0, 2)
    assert pool.allocate(1) is None


def test_free_blocks_go_before_cached_ones_and_those_oldest_first_tails_before_heads():
    pool = BlockPool(6)
    old, _ = store(pool, [1, 2, 3, 4])
    new, _ = store(pool, [5, 6, 7, 8])
    pool.release(old)
    pool.release(new)

    assert sorted(pool.allocate(2)) == [4, 5]
    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]


def test_an_evicted_head_hides_its_tail_and_an_evicted_tail_leaves_its_head():
    pool = BlockPool(2)
    table, _ = store(pool, [1, 2, 3, 4])
    pool.release(table)
    pool.allocate(1)

    assert pool.match(chain_of([1, 2, 3, 4]), 2) == table[:1]


def test_salts_never_share():
    for hasher in (hash_block, constant_hash, one_bit_hash):
        pool = BlockPool(4)
        pool.release(store(pool, [1, 2], salt="a", hasher=hasher)[0])

        assert pool.match(chain_of([1, 2], salt="b", hasher=hasher), 1) == []
        assert len(pool.match(chain_of([1, 2], salt="a", hasher=hasher), 1)) == 1


@pytest.mark.parametrize("hasher", [constant_hash, one_bit_hash, hash_without_parent])
def test_texts_whose_hashes_collide_never_mix(hasher):
    texts = [[a, b, c, d] for a in (1, 2) for b in (1, 2) for c in (1, 2) for d in (1, 2)]
    pool = BlockPool(64)
    held = {}
    for text in texts:
        table, _ = store(pool, [*text, 0], hasher=hasher)
        for other, other_table in held.items():
            common = sum(x == y for x, y in zip(table, other_table, strict=True))
            assert text[: SIZE * common] == list(other[: SIZE * common])
        held[tuple(text)] = table

    assert len(held) == 16
    verify_pool(pool, list(held.values()))


def test_a_repeated_block_is_not_taken_for_the_first_one():
    # Under this hash both blocks of 1 2 1 2 are one; what follows them follows not 1 2.
    pool = BlockPool(8)
    store(pool, [1, 2, 1, 2, 3, 4], hasher=hash_without_parent)

    assert len(pool.match(chain_of([1, 2, 3, 4], hasher=hash_without_parent), 2)) == 1


def test_one_block_is_kept_for_each_content():
    # vLLM keeps two blocks of one hash and finds the other when one is evicted (C11). Here the
    # second holder of a content is not indexed: it becomes free, not cached.
    pool = BlockPool(4)
    chain, twin = chain_of([1, 2]), chain_of([1, 2])
    (block,), (copy,) = pool.allocate(1), pool.allocate(1)
    pool.register(chain, [block], 1)
    pool.register(twin, [copy], 1)

    assert pool.match(chain_of([1, 2]), 1) == [block]

    pool.release([copy])

    assert counts(pool) == (3, 0, 1)

    pool.release([block])

    assert counts(pool) == (3, 1, 0)


def test_a_text_goes_on_under_the_entry_of_the_older_twin():
    pool = BlockPool(6)
    first, second = chain_of([1, 2, 3, 4]), chain_of([1, 2, 3, 4])
    table, twin = pool.allocate(1), pool.allocate(2)
    pool.register(first, table, 1)
    pool.register(second, twin, 2)

    assert pool.match(chain_of([1, 2, 3, 4]), 2) == [table[0], twin[1]]


def test_a_level_after_one_whose_hash_collides_is_not_indexed():
    pool = BlockPool(6)
    first, second = (
        chain_of(tokens, hasher=lambda _, tokens: tokens[:1]) for tokens in ([1, 2], [1, 3, 4, 4])
    )
    table, other = pool.allocate(1), pool.allocate(2)
    pool.register(first, table, 1)
    pool.register(second, other, 2)
    pool.release(other)

    assert counts(pool) == (5, 0, 1)
    assert pool.match(second, 2) == []


def test_content_of_a_block_without_reader_is_not_indexed():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(InvariantViolation, match="content of a block without reader"):
        pool.register(chain_of([1, 2]), blocks, 1)


def test_forgotten_content_is_found_no_more_but_stays_readable():
    pool = BlockPool(4)
    table, _ = store(pool, [1, 2, 3, 4])
    reader, num_hits = store(pool, [1, 2, 3, 4, 5])
    pool.forget_content(table)

    assert num_hits == 2
    assert pool.match(chain_of([1, 2, 3, 4]), 2) == []
    assert pool.ref_count(reader[0]) == 2

    pool.release(table)
    pool.release(reader)

    assert counts(pool) == (4, 0, 0)


def test_a_cached_block_whose_content_is_forgotten_becomes_free():
    pool = BlockPool(4)
    table, _ = store(pool, [1, 2, 3, 4])
    pool.release(table)
    pool.forget_content(table[:1])

    assert counts(pool) == (3, 1, 0)
    assert pool.match(chain_of([1, 2, 3, 4]), 2) == []
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]


def test_a_block_without_reader_cannot_be_released():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(InvariantViolation, match="without reader"):
        pool.release(blocks)


def test_rollback_restores_every_place_and_order():
    pool = BlockPool(8)
    old, _ = store(pool, [1, 2, 3, 4])
    kept, _ = store(pool, [5, 6, 7, 8])
    pool.release(old)
    chain = chain_of([1, 2, 3, 4, 9, 9])
    before, entries_before = pool.state(), list(chain.entries)
    pool.begin()
    pool.acquire(pool.match(chain, 2), chain)
    new = pool.allocate(4)
    pool.register(chain, [*old, *new], 3)
    pool.release(kept)
    pool.allocate(1)
    pool.release(new)
    pool.forget_entries(chain)
    pool.rollback()

    assert pool.state() == before
    assert chain.entries == entries_before
    assert pool.match(chain_of([1, 2, 3, 4]), 2) == old


def test_rollback_puts_a_block_read_and_given_back_where_it_was():
    pool = BlockPool(4)
    tables = [store(pool, [text, text])[0] for text in (1, 2, 3)]
    for table in tables:
        pool.release(table)
    before = pool.state()
    chain = chain_of([1, 1])
    pool.begin()
    pool.acquire(tables[0], chain)
    pool.release(tables[0])
    pool.rollback()

    assert pool.state() == before


def test_commit_keeps_what_was_done():
    pool = BlockPool(4)
    pool.begin()
    blocks = pool.allocate(2)
    pool.commit()

    assert counts(pool) == (2, 0, 2)

    pool.begin()
    pool.release(blocks)
    pool.rollback()

    assert counts(pool) == (2, 0, 2)


def test_transactions_do_not_nest():
    pool = BlockPool(1)
    pool.begin()

    with pytest.raises(AssertionError):
        pool.begin()


def test_allocation_that_does_not_fit_takes_nothing():
    pool = BlockPool(3)
    pool.release(store(pool, [1, 2])[0])
    pool.allocate(1)
    before = pool.state()

    assert pool.allocate(3) is None
    assert pool.state() == before


# What vLLM's test_prefix_caching.py expects, with blocks of 16 and ten of them.


def vllm_pool():
    pool = BlockPool(10)
    shared = list(range(48))
    first, _ = store(pool, [*shared, *range(100, 107)], block_size=16)
    second, num_hits = store(pool, [*shared, *range(200, 205)], block_size=16)
    return pool, shared, first, second, num_hits


def test_c1_a_second_prompt_shares_three_full_blocks_and_takes_one():
    pool, _, first, second, num_hits = vllm_pool()

    assert len(first) == 4
    assert num_hits == 3
    assert second[:3] == first[:3]
    assert [pool.ref_count(block) for block in first] == [2, 2, 2, 1]
    assert pool.num_allocatable == 5


def test_c3_a_third_prompt_shares_them_too_and_takes_the_block_just_freed():
    pool, shared, first, second, _ = vllm_pool()
    pool.release(second)
    third, num_hits = store(pool, [*shared, *range(300, 310)], block_size=16)

    assert num_hits == 3
    assert third == second
    assert pool.ref_count(first[0]) == 2


def test_c7_a_cached_block_taken_for_other_tokens_is_found_no_more():
    pool = BlockPool(1)
    pool.release(store(pool, [1, 2])[0])
    pool.allocate(1)

    assert pool.match(chain_of([1, 2]), 1) == []
    assert counts(pool) == (0, 0, 1)


def test_two_transactions_see_what_the_first_committed():
    pool = BlockPool(2)
    pool.begin()
    table, _ = store(pool, [1, 2])
    pool.commit()
    pool.begin()
    chain = chain_of([1, 2, 3])
    pool.acquire(pool.match(chain, 1), chain)
    pool.rollback()

    assert pool.ref_count(table[0]) == 1
