"""The block pool against a model of dictionaries and lists, in any order of calls.

The model knows contents as token prefixes, not hashes, and undoes a transaction by a copy.
"""

from array import array
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from strategies import FULL, QUICK

from everbatch.kv_cache.block_pool import BlockPool
from everbatch.kv_cache.content import ContentChain, hash_block, in_blocks, root_digest
from everbatch.kv_cache.verify import verify_pool

BLOCK_SIZE = 2
HASHERS = {
    "blake2b": hash_block,
    "four bits": lambda parent, tokens: bytes([hash_block(parent, tokens)[0] & 15]),
    "constant": lambda parent, tokens: b"",
    "no parent": lambda parent, tokens: tokens,
}

Prefix = tuple[str, tuple[int, ...]]


@dataclass
class Model:
    """Which block holds what: places as lists, contents as (salt, all tokens to its end)."""

    free: list[int]
    cached: list[int] = field(default_factory=list)
    readers: dict[int, int] = field(default_factory=dict)
    content: dict[int, Prefix] = field(default_factory=dict)

    def allocate(self, count):
        if count > len(self.free) + len(self.cached):
            return None
        taken = []
        for _ in range(count):
            block = self.free.pop() if self.free else self.cached.pop(0)
            self.content.pop(block, None)
            self.readers[block] = 1
            taken.append(block)
        return taken

    def acquire(self, block):
        if block not in self.readers:
            self.cached.remove(block)
            self.readers[block] = 0
        self.readers[block] += 1

    def release(self, blocks):
        for block in reversed(blocks):
            self.readers[block] -= 1
            if self.readers[block] == 0:
                del self.readers[block]
                (self.cached if block in self.content else self.free).append(block)


@dataclass
class Reader:
    """A text that holds blocks; `num_registered` of them went into the index or met a twin."""

    salt: str
    tokens: tuple[int, ...]
    chain: ContentChain
    table: list[int]

    def prefix(self, index):
        return self.salt, self.tokens[: BLOCK_SIZE * (index + 1)]


class PoolMachine(RuleBasedStateMachine):
    """Readers come with texts over two tokens, so that prefixes meet often."""

    @initialize(num_blocks=st.integers(1, 8), hasher=st.sampled_from(sorted(HASHERS)))
    def start(self, num_blocks, hasher):
        self.pool = BlockPool(num_blocks)
        self.model = Model(free=list(range(num_blocks - 1, -1, -1)))
        self.hasher = HASHERS[hasher]
        self.exact = hasher == "blake2b"
        self.readers = []
        self.saved = None

    @precondition(lambda self: self.saved is None)
    @rule()
    def begin(self):
        self.pool.begin()
        tables = [list(reader.table) for reader in self.readers]
        entries = [list(reader.chain.entries) for reader in self.readers]
        state = self.pool.state()
        self.saved = (deepcopy(self.model), list(self.readers), tables, entries, state)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def commit(self):
        self.pool.commit()
        self.saved = None

    @precondition(lambda self: self.saved is not None)
    @rule()
    def rollback(self):
        self.pool.rollback()
        self.model, self.readers, tables, entries, state = self.saved
        self.saved = None
        for reader, table in zip(self.readers, tables, strict=True):
            reader.table = table
        assert [reader.chain.entries for reader in self.readers] == entries
        assert self.pool.state() == state

    @rule(
        salt=st.sampled_from(["", "", "s"]),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple),
    )
    def arrive(self, salt, tokens):
        """A text is looked up, and its blocks are taken if there are enough."""
        chain = ContentChain(root_digest(salt), BLOCK_SIZE, self.hasher)
        num_full = len(tokens) // BLOCK_SIZE
        full = array("i", tokens[: num_full * BLOCK_SIZE])
        chain.extend(in_blocks(full.tobytes(), BLOCK_SIZE))
        reader = Reader(salt, tokens, chain, [])
        hits = self.pool.match(chain, (len(tokens) - 1) // BLOCK_SIZE)
        for index, block in enumerate(hits):
            # Only equal texts are hit, whatever the hashes.
            assert self.model.content[block] == reader.prefix(index)
        new = -(-len(tokens) // BLOCK_SIZE) - len(hits)
        num_unread = sum(block not in self.model.readers for block in hits)
        available = self.pool.num_allocatable_beside(hits)
        assert available == self.pool.num_allocatable - num_unread
        if new > available:
            return
        self.pool.acquire(hits, chain)
        for block in hits:
            self.model.acquire(block)
        taken = self.pool.allocate(new)
        assert taken == self.model.allocate(new)
        reader.table = hits + taken
        self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def fill(self, data):
        """The next full block of a reader is indexed."""
        reader = data.draw(st.sampled_from(self.readers))
        index = len(reader.chain.entries)
        if index >= len(reader.chain.contents):
            return
        block = reader.table[index]
        known = self.pool.match(reader.chain, index + 1)
        self.pool.register(reader.chain, reader.table, index + 1)
        found = self.pool.match(reader.chain, index + 1)
        if len(found) == index + 1 and len(known) == index:
            # It was not known before; now this block is its holder.
            assert found[index] == block
        if block in self.indexed() and block not in self.model.content:
            self.model.content[block] = reader.prefix(index)
        if self.exact and len(found) == index:
            # Only a prefix that lost its head is not found.
            assert block in self.model.content or self.twin(reader, index, block)

    def twin(self, reader, index, block):
        prefix = reader.prefix(index)
        return any(b != block and c == prefix for b, c in self.model.content.items())

    def indexed(self):
        """The blocks in the index, as the pool tells in its state."""
        return {block for block, _ in self.pool.state()[5]}

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data):
        position = data.draw(st.integers(0, len(self.readers) - 1))
        reader = self.readers[position]
        self.readers = [*self.readers[:position], *self.readers[position + 1 :]]
        self.pool.release(reader.table)
        self.pool.forget_entries(reader.chain)
        self.model.release(reader.table)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(1, 3))
    def grow(self, data, count):
        """A reader takes more blocks, which stay without content."""
        reader = data.draw(st.sampled_from(self.readers))
        taken = self.pool.allocate(count)
        assert taken == self.model.allocate(count)
        if taken is not None:
            reader.table = reader.table + taken

    @precondition(lambda self: self.readers and self.saved is None)
    @rule(data=st.data())
    def forget(self, data):
        reader = data.draw(st.sampled_from(self.readers))
        self.pool.forget_content(reader.table)
        for block in reader.table:
            self.model.content.pop(block, None)

    @precondition(lambda self: self.saved is None and self.model.cached)
    @rule(data=st.data())
    def overwrite(self, data):
        """Somebody who failed has written a cached block."""
        block = data.draw(st.sampled_from(self.model.cached))
        self.pool.forget_content([block])
        self.model.cached.remove(block)
        self.model.content.pop(block)
        self.model.free.append(block)

    @invariant()
    def agrees_with_the_model(self):
        pool, model = self.pool, self.model
        num_blocks, ref_counts, free, lru, *_ = pool.state()
        assert list(free) == model.free
        assert list(lru) == model.cached
        assert list(ref_counts) == [model.readers.get(block, 0) for block in range(num_blocks)]
        assert self.indexed() == set(model.content)
        assert pool.num_free == len(model.free)
        assert pool.num_cached == len(model.cached)
        assert pool.num_used == len(model.readers)
        verify_pool(pool, [reader.table for reader in self.readers])


class QuickPoolMachine(PoolMachine):
    pass


TestBlockPool = QuickPoolMachine.TestCase
TestBlockPool.settings = QUICK


class FullPoolMachine(PoolMachine):
    pass


TestBlockPoolFull = pytest.mark.timeout(3_000)(pytest.mark.full(FullPoolMachine.TestCase))
TestBlockPoolFull.settings = FULL
