"""The pool of physical KV blocks: who reads which block, and what can be reused.

The only file that changes reference counts, the free blocks and the prefix index. It knows
integers, not tensors and not requests. Called by the scheduler.

A block is in one of three places:

    free     nobody reads it and its content is worthless            a stack
    cached   nobody reads it, its content is indexed for reuse       least recently used first
    used     ref_count readers

    free + cached + used = num_blocks, always. Allocatable = free + cached.

Inside a transaction (`begin` … `commit` or `rollback`) every change is written into a journal;
`rollback` undoes them in reverse, and the pool is what it was, to the order of the free blocks.
Sources: PagedAttention (section 4.2 and 4.3); vLLM v1, block_pool (LRU, tails evicted first).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from everbatch.base.invariant import check
from everbatch.kv_cache.content import BlockContent, ContentChain
from everbatch.kv_cache.lru_list import LruList


class CachedContent(NamedTuple):
    """What an indexed block holds, and what comes before it."""

    entry: int
    parent: int | bytes
    """The entry of the prefix before it; for a first block the digest of its salt."""
    content: BlockContent


class BlockPool:
    """Hands out blocks, counts readers, finds cached prefixes."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._lru = LruList(num_blocks)
        self._contents: dict[int, CachedContent] = {}
        self._index: dict[bytes, int] = {}
        self._next_entry = 1
        self._journal: list[tuple[Callable[..., None], Sequence[object]]] | None = None

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that hold reusable content and have no reader."""
        return self._lru.count

    @property
    def num_allocatable(self) -> int:
        return len(self._free) + self._lru.count

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - self._lru.count

    def begin(self) -> None:
        """Open a transaction; there is one at a time."""
        assert self._journal is None
        self._journal = []

    def commit(self) -> None:
        """Keep what was done since `begin`."""
        assert self._journal is not None
        self._journal = None

    def rollback(self) -> None:
        """Undo what was done since `begin`."""
        assert self._journal is not None
        journal, self._journal = self._journal, None
        for undo, arguments in reversed(journal):
            undo(*arguments)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks for one reader, free ones first, then cached ones, oldest first.

        None, and nothing is taken, if fewer are allocatable. O(count). The blocks have one reader
        and no content.
        """
        free = self._free
        if count > len(free) + self._lru.count:
            return None
        place = max(0, len(free) - count)
        blocks = free[place:]
        blocks.reverse()
        del free[place:]
        if self._journal is not None:
            self._journal.append((self._undo_take, tuple(blocks)))
        if len(blocks) < count:
            blocks += self._evict(count - len(blocks))
        ref_counts = self._ref_counts
        for block in blocks:
            if ref_counts[block]:
                check(False, "a block with readers was handed out", block=block)
            ref_counts[block] = 1
        return blocks

    def match(self, chain: ContentChain, max_blocks: int) -> list[int]:
        """Find the blocks of the longest cached prefix of `chain`, at most `max_blocks`.

        Changes nothing. A hash leads to a block; its tokens and the entry before it are compared
        too, so that a collision of hashes can never mix two texts.
        """
        blocks: list[int] = []
        parent: int | bytes = chain.salt_digest
        for content in chain.contents[:max_blocks]:
            block = self._index.get(content.digest)
            if block is None:
                break
            cached = self._contents[block]
            if cached.parent != parent or cached.content.tokens != content.tokens:
                break
            blocks.append(block)
            parent = cached.entry
        return blocks

    def num_allocatable_beside(self, blocks: Sequence[int]) -> int:
        """Count the allocatable blocks that are left if somebody acquires `blocks` as well."""
        if not blocks:
            return self.num_allocatable
        return self.num_allocatable - sum([self._ref_counts[block] == 0 for block in blocks])

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def acquire(self, blocks: Sequence[int], chain: ContentChain) -> None:
        """Read blocks that `match` found for `chain`; one more reader each."""
        self.forget_entries(chain)
        ref_counts, places = self._ref_counts, list[int | None]()
        for block in blocks:
            places.append(None if ref_counts[block] else self._lru.remove(block))
            ref_counts[block] += 1
        chain.entries += [self._contents[block].entry for block in blocks]
        self._note(self._undo_acquire, blocks, places)

    def share(self, blocks: Sequence[int]) -> None:
        """Add one more reader to blocks that somebody reads. Not undone."""
        assert self._journal is None
        for block in blocks:
            check(self._ref_counts[block] > 0, "a block without reader was shared", block=block)
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reader of each block, the last block first.

        So the tail of a text is older than its head among the cached blocks and goes first: a head
        is shared by more texts. Whoever has no reader left becomes cached if its content is
        indexed, else free.
        """
        contents, unread = self._contents, self._lose_readers(blocks)
        if contents.keys().isdisjoint(unread):
            self._free += unread
        else:
            self._lru.extend([block for block in unread if block in contents])
            self._free += [block for block in unread if block not in contents]
        self._note(self._undo_release, blocks)

    def register(self, chain: ContentChain, table: Sequence[int], num_full: int) -> None:
        """Index the first `num_full` blocks of a table, those that are not yet, for reuse.

        They hold the contents of the chain in order. If a content is indexed already, the older
        block stays in the index. If a hash collides, neither that block nor one behind it is.
        """
        entries, first = chain.entries, len(chain.entries)
        if first >= num_full:
            return
        parent = entries[-1] if entries else chain.salt_digest
        indexed: list[int] = []
        contents, blocks = chain.contents[first:num_full], table[first:num_full]
        for content, block in zip(contents, blocks, strict=True):
            holder = self._index.get(content.digest)
            if holder is None:
                if not self._ref_counts[block]:
                    check(False, "content of a block without reader", block=block)
                entry = self._next_entry + len(indexed)
                self._index[content.digest] = block
                self._contents[block] = CachedContent(entry, parent, content)
                indexed.append(block)
            else:
                known = self._contents[holder]
                if known.parent != parent or known.content.tokens != content.tokens:
                    break
                entry = known.entry
            entries.append(entry)
            parent = entry
        self._next_entry += len(indexed)
        self._note(self._undo_register, chain, first, indexed)

    def forget_content(self, blocks: Sequence[int]) -> None:
        """Let nobody find what `blocks` hold any more; their readers keep reading. Not undone."""
        assert self._journal is None
        for block in blocks:
            cached = self._contents.pop(block, None)
            if cached is None:
                continue
            del self._index[cached.content.digest]
            if self._ref_counts[block] == 0:
                self._lru.remove(block)
                self._free.append(block)

    def forget_entries(self, chain: ContentChain, num_kept: int = 0) -> None:
        """Note that the chain's request holds its first `num_kept` blocks only."""
        self._note(self._undo_forget, chain, chain.entries)
        chain.entries = chain.entries[:num_kept]

    def state(self) -> tuple[object, ...]:
        """Give everything that decides later behaviour, in a canonical order, for digests."""
        return (
            self.num_blocks,
            tuple(self._ref_counts),
            tuple(self._free),
            tuple(self._lru),
            tuple(sorted(self._index.items())),
            tuple((block, self._contents[block]) for block in sorted(self._contents)),
            self._next_entry,
        )

    def _evict(self, count: int) -> list[int]:
        """Take the cached blocks that were released longest ago and drop their contents."""
        blocks = self._lru.pop_oldest(count)
        dropped = [self._contents.pop(block) for block in blocks]
        for cached in dropped:
            del self._index[cached.content.digest]
        self._note(self._undo_evict, blocks, dropped)
        return blocks

    def _lose_readers(self, blocks: Sequence[int]) -> list[int]:
        """Take one reader from each block; gives those that have none left, the last first."""
        ref_counts = self._ref_counts
        num_readers = [ref_counts[block] for block in blocks]
        if num_readers.count(1) == len(blocks):
            # Most often nobody else reads any of them: that takes half as long.
            for block in blocks:
                ref_counts[block] = 0
            return list(reversed(blocks))
        unread: list[int] = []
        for block in reversed(blocks):
            ref_counts[block] = num_left = ref_counts[block] - 1
            check(num_left >= 0, "a block without reader was released", block=block)
            if not num_left:
                unread.append(block)
        return unread

    def _note(self, undo: Callable[..., None], *arguments: object) -> None:
        if self._journal is not None:
            self._journal.append((undo, arguments))

    def _undo_take(self, *blocks: int) -> None:
        for block in reversed(blocks):
            self._ref_counts[block] = 0
            self._free.append(block)

    def _undo_evict(self, blocks: Sequence[int], dropped: Sequence[CachedContent]) -> None:
        for block, cached in zip(blocks, dropped, strict=True):
            self._ref_counts[block] = 0
            self._contents[block] = cached
            self._index[cached.content.digest] = block
        self._lru.restore_oldest(blocks)

    def _undo_acquire(self, blocks: Sequence[int], places: Sequence[int | None]) -> None:
        for block, place in zip(reversed(blocks), reversed(places), strict=True):
            self._ref_counts[block] -= 1
            if place is not None:
                self._lru.restore(block, place)

    def _undo_release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self._ref_counts[block] == 0:
                if block in self._contents:
                    self._lru.remove(block)
                else:
                    assert self._free[-1] == block
                    self._free.pop()
            self._ref_counts[block] += 1

    def _undo_register(self, chain: ContentChain, first: int, indexed: Sequence[int]) -> None:
        del chain.entries[first:]
        for block in indexed:
            del self._index[self._contents.pop(block).content.digest]
        self._next_entry -= len(indexed)

    def _undo_forget(self, chain: ContentChain, entries: list[int]) -> None:
        chain.entries = entries
