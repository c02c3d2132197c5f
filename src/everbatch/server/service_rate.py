"""How fast the queue empties, measured while somebody waits in it.

Belongs here: the measurement, and what a client that finds the queue full is told. Not here: what
the queue holds (scheduler). Lives on the event loop.
"""

from math import ceil

from everbatch.base.units import NS_PER_S

MIN_RETRY_S, MAX_RETRY_S = 1, 60
WINDOW = 64
"""Departures after which half of what was measured is forgotten, so that a change is seen."""


class ServiceRate:
    """Requests and prompt tokens that left the queue, over the time in which there was one.

    Who was told to come back is counted until then: the next one gets a later place. Otherwise all
    who were refused together would come back together.
    """

    def __init__(self) -> None:
        self._busy_ns = 0.0
        self._num_left = 0.0
        self._tokens_left = 0.0
        self._last_ns = 0
        self._is_busy = False
        self._promised_ns = 0
        """Until then every place is promised to somebody."""

    def fold(self, now_ns: int, *, num_left: int, num_tokens: int, is_waiting: bool) -> None:
        """Take in one turn: who took a slot in it, and whether somebody waits after it.

        Where nobody waited before, a request took its slot at once: that says nothing of a queue.
        """
        if self._is_busy:
            self._busy_ns += now_ns - self._last_ns
            self._num_left += num_left
            self._tokens_left += num_tokens
            if self._num_left > WINDOW:
                self._busy_ns /= 2
                self._num_left /= 2
                self._tokens_left /= 2
        self._last_ns, self._is_busy = now_ns, is_waiting

    def retry_s(self, now_ns: int, *, num_requests: int = 0, num_tokens: int = 0) -> int:
        """Give the seconds until so many requests, or prompt tokens, more will have left.

        From MIN_RETRY_S to MAX_RETRY_S; if nobody has left yet, as long as they wait already.
        """
        busy_ns = self._busy_ns + (now_ns - self._last_ns if self._is_busy else 0)
        share = 1.0
        if self._num_left:
            share = num_requests / self._num_left + num_tokens / max(1.0, self._tokens_left)
        latest_ns = now_ns + MAX_RETRY_S * NS_PER_S
        place_ns = max(now_ns, self._promised_ns) + ceil(busy_ns * share)
        self._promised_ns = min(place_ns, latest_ns)
        return min(max(MIN_RETRY_S, ceil((place_ns - now_ns) / NS_PER_S)), MAX_RETRY_S)
