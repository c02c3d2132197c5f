"""The last events of the engine, for whoever asks a running server why a request waited.

Belongs here: keeping so many and no more, and writing them as an event log. Not here: what they
mean; `everbatch explain` reads them. Fed on the event loop, batch by batch.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from io import StringIO

from everbatch.base.eventlog import EventLogWriter, longer_run
from everbatch.base.events import Event, QuietSteps, StepRan
from everbatch.scheduler.config import SchedulerConfig

# About 600 bytes each: 10 MB. A busy server needs one a step and four a request, so these are
# minutes of it; --event-log keeps all.
MAX_EVENTS = 16_384


class RecentEvents:
    """A bounded log in memory; a run of quiet steps counts as one event, as it does on disk."""

    def __init__(self, config: SchedulerConfig, max_events: int = MAX_EVENTS) -> None:
        assert max_events > 0
        self._config = config
        self._events: deque[Event] = deque(maxlen=max_events)
        self._num_added = 0

    def add(self, events: Iterable[Event]) -> None:
        """Keep events, and forget as many of the oldest as there is no room for."""
        kept = self._events
        for event in events:
            if isinstance(event, StepRan) and event.is_quiet:
                last = kept[-1] if kept else None
                if isinstance(last, QuietSteps):
                    kept[-1] = longer_run(last, event)
                    continue
                event = longer_run(None, event)
            kept.append(event)
            self._num_added += 1

    def snapshot(self) -> Callable[[], str]:
        """Give what writes the log as it is now: that takes a while and may run elsewhere."""
        events = list(self._events)
        header = {
            "config": asdict(self._config),
            "clock": "ns",
            "dropped": self._num_added - len(events),
        }

        def write() -> str:
            file = StringIO()
            writer = EventLogWriter(file, header)
            writer.write(events)
            writer.flush()
            return file.getvalue()

        return write
