"""Where the requests of a run come from, one after the other: a list, a trace, synthetic arrivals.

A source is used by one run and then spent. Times are integers: boundaries on the clock of steps,
nanoseconds on the others. Belongs here: the protocol, and the source of requests that are written
out. Not here: traces (traces.requests), synthetic arrivals (arrivals), which of them a scenario
wants (workload_section). Used by sim.
"""

from collections.abc import Iterable
from typing import Protocol

from everbatch.workload.requests import RequestSpec


class RequestSource(Protocol):
    """Requests in the order in which they arrive: by (arrival, position).

    A closed loop knows its next arrivals only when requests end, so every end must be told to it:
    finished, refused, aborted.
    """

    @property
    def num_requests(self) -> int | None:
        """How many there will be in all; None if that is not known in advance."""
        ...

    def peek(self) -> int | None:
        """Give the time of the next arrival that is known now.

        None: nobody will come, or in a closed loop nobody until a request has ended.
        """
        ...

    def pop(self) -> RequestSpec:
        """Take the next request; `peek` has just given its time."""
        ...

    def ended(self, request_id: str, now_ns: int, *, served: bool = True) -> None:
        """Hear that a request has ended; unknown ones are passed over.

        `served` is false for those that were refused, waited too long or whose client left.
        """
        ...

    def notes(self) -> list[str]:
        """Say in sentences what the source read, and what of it was left out or changed."""
        ...


class ListedRequests:
    """The [[requests]] of a scenario."""

    def __init__(self, specs: Iterable[RequestSpec]) -> None:
        def order(spec: RequestSpec) -> tuple[int, int]:
            return spec.arrival, spec.position

        # The next one last: it is popped.
        self._specs = sorted(specs, key=order, reverse=True)
        self._num_requests = len(self._specs)

    @property
    def num_requests(self) -> int | None:
        return self._num_requests

    def peek(self) -> int | None:
        return self._specs[-1].arrival if self._specs else None

    def pop(self) -> RequestSpec:
        return self._specs.pop()

    def ended(self, request_id: str, now_ns: int, *, served: bool = True) -> None:
        """Nobody sends more than is listed."""

    def notes(self) -> list[str]:
        return []


class MergedRequests:
    """The requests of a source, and others that are written out, which come after it at one time.

    Whoever of the others ends is none of the source's clients.
    """

    def __init__(self, source: RequestSource, others: ListedRequests) -> None:
        self._source = source
        self._others = others

    @property
    def num_requests(self) -> int | None:
        of_source, of_others = self._source.num_requests, self._others.num_requests
        return None if of_source is None or of_others is None else of_source + of_others

    def peek(self) -> int | None:
        times = (self._source.peek(), self._others.peek())
        return min((time for time in times if time is not None), default=None)

    def pop(self) -> RequestSpec:
        time, other = self._source.peek(), self._others.peek()
        is_other = time is None or (other is not None and other < time)
        return (self._others if is_other else self._source).pop()

    def ended(self, request_id: str, now_ns: int, *, served: bool = True) -> None:
        self._source.ended(request_id, now_ns, served=served)

    def notes(self) -> list[str]:
        return self._source.notes()
