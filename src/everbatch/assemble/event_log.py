"""The event log of a running engine, as a file.

Belongs here: opening, flushing, and what happens when the disk is full. Not here: the format
(base.eventlog). Called by Engine after every step, on the engine's thread.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from everbatch.base.clock import Clock
from everbatch.base.errors import EventLogError
from everbatch.base.eventlog import EventLogWriter
from everbatch.base.events import Event
from everbatch.base.units import NS_PER_S

logger = logging.getLogger("everbatch.event_log")

FLUSH_INTERVAL_NS = NS_PER_S
BUFFER_BYTES = 1 << 20


class EventLogFile:
    """Appends events to a new file; a killed process loses at most the last second.

    A file of that name is kept under the first free name of the form FILE.1, FILE.2, … Raises
    EventLogError if the file cannot be opened; later errors (a full disk) end the log with a
    message, and serving goes on without it.
    """

    def __init__(self, path: Path, header: dict[str, object], clock: Clock) -> None:
        self.path = path
        self._clock = clock
        try:
            _keep_older(path)
            self._file = path.open("w", encoding="utf-8", buffering=BUFFER_BYTES)
            self._writer: EventLogWriter | None = EventLogWriter(self._file, header)
            self._writer.flush()
        except OSError as error:
            raise EventLogError(
                f"cannot write the event log {path} ({error.strerror}): check --event-log"
            ) from error
        self._last_flush_ns = clock.now_ns()

    def write(self, events: Sequence[Event], *, is_idle: bool) -> None:
        """Append events. `is_idle`: nothing will follow soon, so nothing may stay in memory."""
        if self._writer is None:
            return
        try:
            self._writer.write(events)
            now_ns = self._clock.now_ns()
            if is_idle or now_ns - self._last_flush_ns >= FLUSH_INTERVAL_NS:
                self._writer.flush()
                self._last_flush_ns = now_ns
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is None:
            return
        try:
            self._writer.flush()
            self._file.close()
        except OSError as error:
            self._give_up(error)
        self._writer = None

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        logger.error(
            "the event log %s cannot be written any more (%s): it ends here, serving goes on",
            self.path,
            error.strerror,
        )
        try:
            self._file.close()
        except OSError:
            # Closing tries to write what is still in memory: it was reported lost above.
            logger.debug("closing the event log failed as well")


def _keep_older(path: Path) -> None:
    if not path.exists() or not path.is_file() or path.stat().st_size == 0:
        return
    number = 1
    while (kept := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    path.rename(kept)
