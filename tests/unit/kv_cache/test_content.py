"""Chains of block contents: what makes two prefixes equal."""

from array import array

import pytest

from everbatch.kv_cache.content import ContentChain, hash_block, in_blocks, root_digest


def token_bytes(*tokens):
    return array("i", tokens).tobytes()


def chain_of(*tokens, salt="", block_size=2):
    chain = ContentChain(root_digest(salt), block_size)
    chain.extend(in_blocks(token_bytes(*tokens), block_size))
    return chain


def digests(chain):
    return [content.digest for content in chain.contents]


def test_reading_at_once_or_piece_by_piece_gives_the_same_chain():
    pieces = chain_of(1, 2)
    pieces.extend(in_blocks(token_bytes(3, 4, 5, 6), 2))

    assert digests(pieces) == digests(chain_of(1, 2, 3, 4, 5, 6))


def test_equal_blocks_after_different_heads_differ():
    assert digests(chain_of(1, 2, 8, 8))[1] != digests(chain_of(3, 4, 8, 8))[1]


def test_equal_prefixes_have_equal_digests():
    assert digests(chain_of(1, 2, 3, 4))[0] == digests(chain_of(1, 2, 9, 9))[0]


def test_salts_never_share():
    plain, salted = chain_of(1, 2, 3, 4), chain_of(1, 2, 3, 4, salt="tenant a")

    assert not set(digests(plain)) & set(digests(salted))


def test_hashes_are_the_same_in_every_process():
    # Stored digests: a change of the hash would part caches that several processes share.
    assert root_digest("a").hex() == "ef5c1365b29f4b56159df3c481d684ca"
    assert (
        hash_block(root_digest("a"), token_bytes(1, 2)).hex() == "57841364d5d5da97c5323e9b8a64d512"
    )


def test_half_a_block_is_not_read():
    with pytest.raises(AssertionError):
        chain_of(1, 2, 3)
