"""A run's event log: written where it is wanted, digested always.

Called by the run loop. The header says that the clock is a virtual one; the digest leaves it out.
"""

from collections.abc import Iterable
from dataclasses import asdict
from io import TextIOBase
from typing import TextIO

from everbatch.base.eventlog import EventLogWriter
from everbatch.base.events import Event, StepsRan
from everbatch.workload.scenario import Scenario


class _Nowhere(TextIOBase):
    """Takes what is written and keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


class EventBody:
    """Appends events until `close`, which gives the digest of all of them."""

    def __init__(self, scenario: Scenario, file: TextIO | None) -> None:
        header = {
            "config": asdict(scenario.engine),
            "clock": scenario.clock.kind,
            "scenario": scenario.name,
            "seed": scenario.run.seed,
        }
        self._writer = EventLogWriter(file if file is not None else _Nowhere(), header)  # type: ignore[arg-type]
        self._is_open = True

    def write(self, events: Iterable[Event]) -> None:
        """Append events; after `close` nothing is written."""
        if self._is_open:
            self._writer.write(events)

    def write_steps(self, steps: StepsRan) -> None:
        """Append steps that are told together."""
        if self._is_open:
            self._writer.write_steps(steps)

    def close(self) -> str:
        """End the log; gives the sha256 of its body."""
        self._writer.flush()
        self._is_open = False
        return self._writer.digest()
