"""An ordered list of block ids with O(1) removal from anywhere.

Cached blocks that nobody holds wait here, oldest first. A deque would make the revival of a cached
block O(n); two arrays of neighbours make it four writes (vLLM v1, FreeKVCacheBlockQueue). Removing
a block tells who stood before it, so that undoing the most recent change puts it back where it was.
"""

from collections.abc import Iterable, Iterator, Sequence


class LruList:
    """A doubly linked list over the ids 0 … capacity − 1, each in it at most once."""

    def __init__(self, capacity: int) -> None:
        self._end = capacity
        self._previous = list(range(capacity + 1))
        self._next = list(range(capacity + 1))
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        """Go from the oldest to the newest."""
        at = self._next[self._end]
        while at != self._end:
            yield at
            at = self._next[at]

    def append(self, block: int) -> None:
        """Add as the newest."""
        last = self._previous[self._end]
        self._previous[block] = last
        self._next[block] = self._end
        self._next[last] = block
        self._previous[self._end] = block
        self.count += 1

    def extend(self, blocks: Iterable[int]) -> None:
        """Add one after the other as the newest."""
        previous, following, end = self._previous, self._next, self._end
        last = previous[end]
        for block in blocks:
            previous[block] = last
            following[last] = block
            last = block
            self.count += 1
        following[last] = end
        previous[end] = last

    def remove(self, block: int) -> int:
        """Take out a block that is in the list; gives its place, for `restore`."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.count -= 1
        return before

    def restore(self, block: int, place: int) -> None:
        """Undo the `remove` that gave `place`; all changes since must have been undone."""
        after = self._next[place]
        self._previous[block] = place
        self._next[block] = after
        self._next[place] = block
        self._previous[after] = block
        self.count += 1

    def pop_oldest(self, count: int) -> list[int]:
        """Take out the `count` oldest, in order; there must be as many."""
        assert self.count >= count
        following, at = self._next, self._end
        taken = [at := following[at] for _ in range(count)]
        newer = following[at]
        following[self._end] = newer
        self._previous[newer] = self._end
        self.count -= count
        return taken

    def restore_oldest(self, blocks: Sequence[int]) -> None:
        """Undo the `pop_oldest` that gave `blocks`; all changes since must have been undone."""
        for block in reversed(blocks):
            self.restore(block, self._end)
