"""Clients who try again: whoever was refused, waited too long or lost patience sends once more.

The k-th retry comes backoff × 2**(k − 1) after the end of the try before, times a factor between
0.5 and 1.5 that depends on seed, request and try alone. Belongs here: when retries come. Not here:
what ends a request (sim). Called by workload_section.
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush

from everbatch.workload.random_draws import stream
from everbatch.workload.requests import RequestSpec
from everbatch.workload.sources import RequestSource


@dataclass(frozen=True, slots=True)
class Retries:
    """How often clients try again, and how long they wait before the first time."""

    limit: int
    backoff_ns: int
    seed: int

    def delay(self, request_id: str, attempt: int) -> int:
        """Give the time between the end of a try and retry number `attempt`, from 1."""
        jitter = 0.5 + stream(self.seed, f"retry {attempt} of {request_id}").random()
        return round((self.backoff_ns << (attempt - 1)) * jitter)


class RetryingRequests:
    """The requests of a source, and retries of them, named "ID.1", "ID.2", ….

    A client of a closed loop goes on when its last try has ended.
    """

    num_requests: int | None = None

    def __init__(self, source: RequestSource, retries: Retries) -> None:
        self._source = source
        self._retries = retries
        self._live: dict[str, tuple[RequestSpec, int]] = {}
        """By the id of the try: the first try, and the number of this one from 0."""
        self._waiting: list[tuple[int, int, int, RequestSpec]] = []
        """A heap of (time, place among them, attempt, first try)."""
        self._num_retries = 0

    def peek(self) -> int | None:
        time = self._source.peek()
        if self._waiting and (time is None or self._waiting[0][0] <= time):
            return self._waiting[0][0]
        return time

    def pop(self) -> RequestSpec:
        time = self._source.peek()
        if self._waiting and (time is None or self._waiting[0][0] <= time):
            time, _, attempt, first = heappop(self._waiting)
            spec = _moved(first, time, attempt)
        else:
            attempt, first = 0, self._source.pop()
            spec = first
        self._live[spec.id] = first, attempt
        return spec

    def ended(self, request_id: str, now_ns: int, *, served: bool = True) -> None:
        """Let whoever was not served try again, as long as it may."""
        if request_id not in self._live:
            return
        first, attempt = self._live.pop(request_id)
        if served or attempt == self._retries.limit:
            self._source.ended(first.id, now_ns, served=served)
            return
        time = now_ns + self._retries.delay(first.id, attempt + 1)
        heappush(self._waiting, (time, self._num_retries, attempt + 1, first))
        self._num_retries += 1

    def notes(self) -> list[str]:
        """Say what the source says, and how many retries there were."""
        count = self._num_retries
        told = f"{count:,} {'retry' if count == 1 else 'retries'} of requests that were not served"
        return [*self._source.notes(), *([told] if count else [])]


def _moved(first: RequestSpec, arrival: int, attempt: int) -> RequestSpec:
    """Give the first try again, later: its client has the same patience."""
    leaves = None if first.abort_at is None else arrival + max(first.abort_at - first.arrival, 0)
    return replace(first, id=f"{first.id}.{attempt}", arrival=arrival, abort_at=leaves)
