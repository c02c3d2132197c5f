"""The waiting requests in the order in which they may be admitted, one class an ordering.

Every order is total: the policy's key, the arrival number, the sample; never an id. A preempted
request comes back to the place its key gives it. Used by the scheduler, which is the only one to
add and remove; made by policy.py.

    SortedQueue   a key that does not change while a request waits: fcfs, priority, srpt
    AgingQueue    priority that improves by one level every so many boundaries
    TenantQueue   one line a tenant, the least served tenant first (VTC)
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace, merge
from itertools import chain
from typing import Protocol

from everbatch.scheduler.request import Request
from everbatch.scheduler.tenants import TenantLedger

Key = tuple[int, int, int]
"""(the policy's value, arrival number, sample)."""

Granted = Callable[[Request], int]
"""The prompt tokens that the plan under way gives a request."""


def _nothing(request: Request) -> int:
    return 0


class WaitingQueue(Protocol):
    """What the planner needs of a queue. `step`: the number of completed steps."""

    def __len__(self) -> int: ...
    def __contains__(self, request: object) -> bool: ...

    def push(self, request: Request) -> None:
        """Add a request that is not in it."""
        ...

    def remove(self, request: Request) -> None:
        """Take out a request that is in it."""
        ...

    def in_order(self, step: int, granted: Granted = _nothing) -> Iterator[Request]:
        """Go through the waiting requests, the next one first, changing nothing.

        A request that was yielded may have been granted tokens when the next one is asked for.
        """
        ...

    def peek(self, step: int) -> Request | None:
        """Give the head."""
        ...


_Entry = tuple[Key, Request]

MAX_RUN = 1_024
"""Entries of a run: inserting into one moves 8 KiB at most, and a million fit 2,000 runs."""


class SortedQueue:
    """Adds, removes and finds the head in O(log n); goes through in order.

    Sorted runs of bounded length, one after the other. One sorted list moved 480 kB for each
    arrival near the head of 60,000, under srpt a fifth of a step; a heap does not go through in
    order. Source of the shape: sortedcontainers, SortedList.
    """

    def __init__(self, key: Callable[[Request], int]) -> None:
        self._key = key
        self._runs: list[list[_Entry]] = []
        """None is empty."""
        self._lasts: list[Key] = []
        """The last key of each run."""
        self._keys: dict[Request, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, request: object) -> bool:
        return request in self._keys

    def push(self, request: Request) -> None:
        assert request not in self._keys
        key = (self._key(request), request.arrival_number, request.sample)
        self._keys[request] = key
        if not self._runs or (len(self._runs[-1]) == MAX_RUN and key > self._lasts[-1]):
            self._runs.append([(key, request)])
            self._lasts.append(key)
            return
        # Who comes after all others goes to the end of the last run.
        index = min(bisect_left(self._lasts, key), len(self._runs) - 1)
        run = self._runs[index]
        # Keys are unique, so that requests are never compared.
        insort(run, (key, request))
        self._lasts[index] = run[-1][0]
        if len(run) > MAX_RUN:
            half = len(run) // 2
            self._runs[index : index + 1] = [run[:half], run[half:]]
            self._lasts.insert(index, run[half - 1][0])

    def remove(self, request: Request) -> None:
        key = self._keys.pop(request)
        index = bisect_left(self._lasts, key)
        run = self._runs[index]
        del run[bisect_left(run, (key,))]
        if run:
            self._lasts[index] = run[-1][0]
        else:
            del self._runs[index], self._lasts[index]

    def in_order(self, step: int, granted: Granted = _nothing) -> Iterator[Request]:
        return (request for _, request in self.entries())

    def peek(self, step: int) -> Request | None:
        return self._runs[0][0][1] if self._runs else None

    def entries(self) -> Iterator[_Entry]:
        """Go through (key, request) in order."""
        return chain.from_iterable(self._runs)


class AgingQueue:
    """Priority, better by one level for every `aging_steps` boundaries since arrival.

    The effective priority p − floor((now − arrival) / k) of two requests changes at different
    boundaries, unless their arrivals leave the same remainder mod k: then their order never
    changes. So there is one sorted queue a remainder, and going through merges them: O(k) to find
    the head, whatever the number of waiting requests.
    """

    def __init__(self, aging_steps: int) -> None:
        assert aging_steps > 0
        self._aging_steps = aging_steps
        self._by_remainder: dict[int, SortedQueue] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, request: object) -> bool:
        if not isinstance(request, Request):
            return False
        queue = self._by_remainder.get(request.arrival_step % self._aging_steps)
        return queue is not None and request in queue

    def push(self, request: Request) -> None:
        remainder = request.arrival_step % self._aging_steps
        queue = self._by_remainder.setdefault(remainder, SortedQueue(self._static_key))
        queue.push(request)
        self._count += 1

    def remove(self, request: Request) -> None:
        remainder = request.arrival_step % self._aging_steps
        queue = self._by_remainder[remainder]
        queue.remove(request)
        self._count -= 1
        if not len(queue):
            del self._by_remainder[remainder]

    def in_order(self, step: int, granted: Granted = _nothing) -> Iterator[Request]:
        lines = [
            self._shifted(queue.entries(), self._shift(remainder, step))
            for remainder, queue in self._by_remainder.items()
        ]
        return (request for _, request in merge(*lines, key=_key_of))

    def peek(self, step: int) -> Request | None:
        return next(self.in_order(step), None)

    def _static_key(self, request: Request) -> int:
        return request.priority + request.arrival_step // self._aging_steps

    def _shift(self, remainder: int, step: int) -> int:
        """Give what a remainder's keys are behind those of remainder 0 at a boundary."""
        return int(remainder > step % self._aging_steps)

    @staticmethod
    def _shifted(entries: Iterator[_Entry], shift: int) -> Iterator[_Entry]:
        for (value, arrival, sample), request in entries:
            yield (value + shift, arrival, sample), request


class TenantQueue:
    """One line a tenant, first come, first served within it; the least served tenant goes first.

    What the plan under way grants a tenant counts at once, so one step does not admit a whole line
    (VTC, OSDI 2024, algorithm 2). Finding the head costs O(tenants that wait).
    """

    def __init__(self, ledger: TenantLedger) -> None:
        self._ledger = ledger
        self._lines: dict[str, SortedQueue] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, request: object) -> bool:
        if not isinstance(request, Request):
            return False
        line = self._lines.get(request.tenant)
        return line is not None and request in line

    def push(self, request: Request) -> None:
        self._lines.setdefault(request.tenant, SortedQueue(_first_come)).push(request)
        self._count += 1

    def remove(self, request: Request) -> None:
        line = self._lines[request.tenant]
        line.remove(request)
        self._count -= 1
        if not len(line):
            del self._lines[request.tenant]

    def in_order(self, step: int, granted: Granted = _nothing) -> Iterator[Request]:
        heads: list[tuple[float, int, str, Request, Iterator[_Entry]]] = []
        for tenant, line in self._lines.items():
            entries = line.entries()
            (_, arrival, _), request = next(entries)
            heads.append((self._ledger.service(tenant, step), arrival, tenant, request, entries))
        heapify(heads)
        while heads:
            service, _, tenant, request, entries = heads[0]
            yield request
            following = next(entries, None)
            if following is None:
                heappop(heads)
                continue
            (_, arrival, _), successor = following
            service += granted(request) / self._ledger.weight(tenant)
            heapreplace(heads, (service, arrival, tenant, successor, entries))

    def peek(self, step: int) -> Request | None:
        return next(self.in_order(step), None)


def _key_of(entry: _Entry) -> Key:
    return entry[0]


def _first_come(request: Request) -> int:
    return 0
