"""Who comes next, and which clients leave when: the outside world of a run.

Belongs here: the order of arrivals and aborts. Not here: what the engine does with them (run).
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from everbatch.sim.faults import Departures
from everbatch.workload.requests import RequestSpec
from everbatch.workload.scenario import Scenario


class World:
    """Arrivals of a scenario, and the aborts that come of them and of [[faults]]."""

    def __init__(self, scenario: Scenario) -> None:
        self._source = scenario.source()
        self._departures = Departures(scenario.faults, scenario.run.seed)
        self.next_arrival = self._source.peek()
        """The time of the next arrival that is known; None: nobody, or nobody until one ends."""
        self.leaving: list[tuple[int, int, str]] = []
        """A heap of (time, rank, id) of those who have come and will leave."""

    def arrivals(self, now: int) -> Iterator[RequestSpec]:
        """Give who has come by now, in order."""
        while self.next_arrival is not None and self.next_arrival <= now:
            spec = self._source.pop()
            self.next_arrival = self._source.peek()
            rank = spec.position if spec.abort_rank is None else spec.abort_rank
            if spec.abort_at is not None:
                heappush(self.leaving, (max(spec.abort_at, spec.arrival), rank, spec.id))
            for moment in self._departures.of(spec):
                heappush(self.leaving, (moment, rank, spec.id))
            yield spec

    def aborts(self, now: int) -> Iterator[str]:
        """Give who has left by now, among those who have come."""
        while self.leaving and self.leaving[0][0] <= now:
            yield heappop(self.leaving)[2]

    def ended(self, request_id: str, now: int, *, served: bool) -> None:
        """A request has ended, or was refused: that may bring its client's next, or a retry."""
        self._source.ended(request_id, now, served=served)
        self.next_arrival = self._source.peek()

    def notes(self) -> list[str]:
        """Say in sentences what of the source was left out or changed."""
        return self._source.notes()
