"""The one question that the outside may be asked about time.

The core never asks: it is handed integers of nanoseconds. An Engine holds a Clock and reads it
once before planning and once after the forward pass. The wall clock lives in `assemble`.
"""

from typing import Protocol


class Clock(Protocol):
    """Says what time it is; never runs backwards."""

    def now_ns(self) -> int:
        """Give the time in nanoseconds since an origin of the clock's own choice."""
        ...


class VirtualClock:
    """A clock that moves when told to."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Move forward by `duration_ns` >= 0."""
        assert duration_ns >= 0
        self._now_ns += duration_ns
