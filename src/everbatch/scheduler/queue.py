"""The waiting requests, in the order in which they may be admitted.

A total order: the policy's key, then the arrival number; never an id. First come, first served has
the arrival number alone, so a preempted request stands before all that arrived after it.
Used by the scheduler, which is the only one to add and remove.
"""

from bisect import insort
from collections.abc import Iterator

from everbatch.scheduler.request import Request

_Entry = tuple[int, Request]


class WaitingQueue:
    """Adds, removes and finds the head in O(log n) amortised; goes through in order.

    A sorted list with removed entries left in place until they are the majority: arrivals append,
    heads are skipped, and the memory moved by the rare insertion near the front is contiguous.
    """

    def __init__(self) -> None:
        self._order: list[_Entry] = []
        self._head = 0
        self._entries: dict[Request, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: Request) -> bool:
        return request in self._entries

    def __iter__(self) -> Iterator[Request]:
        """Go through the waiting requests, the next one first."""
        for position in range(self._head, len(self._order)):
            entry = self._order[position]
            if self._is_live(entry):
                yield entry[1]

    def push(self, request: Request) -> None:
        assert request not in self._entries
        entry = (request.arrival_number, request)
        self._entries[request] = entry
        insort(self._order, entry, lo=self._head, key=_key)

    def peek(self) -> Request | None:
        """Give the head."""
        return next(iter(self), None)

    def remove(self, request: Request) -> None:
        del self._entries[request]
        while self._head < len(self._order) and not self._is_live(self._order[self._head]):
            self._head += 1
        num_left = len(self._order) - self._head
        if 2 * len(self._entries) < num_left or 2 * self._head > len(self._order):
            self._order = [entry for entry in self._order if self._is_live(entry)]
            self._head = 0

    def _is_live(self, entry: _Entry) -> bool:
        return self._entries.get(entry[1]) is entry


def _key(entry: _Entry) -> int:
    return entry[0]
