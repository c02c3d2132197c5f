"""An ordered list of block ids with O(1) removal from anywhere.

Cached blocks that nobody holds wait here, oldest first. A deque would make the revival of a cached
block O(n); two arrays of neighbours make it four writes (vLLM v1, FreeKVCacheBlockQueue). Removing
a block tells who stood before it, so that undoing the most recent change puts it back where it was.
"""

from collections.abc import Iterator


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

    def pop_oldest(self) -> int:
        """Take out the oldest; the list must not be empty."""
        assert self.count > 0
        block = self._next[self._end]
        self.remove(block)
        return block

    def restore_oldest(self, block: int) -> None:
        """Undo `pop_oldest`; all changes since must have been undone."""
        self.restore(block, self._end)
