"""Brings the rows of a trace in the order of their arrivals, without reading it whole."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator

from everbatch.base.units import NS_PER_S
from everbatch.workload.traces.rows import TraceRow, broken

LOOK_AHEAD = 1024
"""Rows that are read before one is given: a row may stand so many places too late."""


def in_order(rows: Iterable[TraceRow]) -> Iterator[tuple[int, TraceRow]]:
    """Give (number in the file from 0, row) by (arrival, number); each row has an arrival.

    A row that comes too late even for the look-ahead is a ConfigError.
    """
    ahead: deque[tuple[int, int, TraceRow]] = deque()
    given = None
    for number, row in enumerate(rows):
        arrival = row.arrival_ns
        assert arrival is not None
        entry = (arrival, number, row)
        if not ahead or arrival >= ahead[-1][0]:
            ahead.append(entry)
        elif given is not None and arrival < given:
            raise broken(
                row.line,
                f"it arrives {(given - arrival) / NS_PER_S:,.6f} s before a row that stands more "
                f"than {LOOK_AHEAD:,} rows above it: sort the file by arrival",
            )
        else:
            # Among equal arrivals the number decides, and this one is the largest so far.
            ahead.insert(bisect_right(ahead, arrival, key=_arrival), entry)
        if len(ahead) > LOOK_AHEAD:
            given, place, first = ahead.popleft()
            yield place, first
    for _, place, row in ahead:
        yield place, row


def _arrival(entry: tuple[int, int, TraceRow]) -> int:
    return entry[0]
