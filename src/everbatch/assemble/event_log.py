"""The event log of a running engine, as a file.

Belongs here: opening, flushing, and what happens when the disk is full. Not here: the format
(base.eventlog). Called by Engine after every step, on the engine's thread; closed by whoever built
the engine, who does not always wait for that thread.
"""

import errno
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TextIO

from everbatch.base.clock import Clock
from everbatch.base.errors import EventLogError
from everbatch.base.eventlog import EventLogWriter
from everbatch.base.events import Event
from everbatch.base.units import NS_PER_S

logger = logging.getLogger("everbatch.event_log")

FLUSH_INTERVAL_NS = NS_PER_S
BUFFER_BYTES = 1 << 20
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class EventLogFile:
    """Appends events to a new file; a killed process loses at most the last second.

    A file of that name is kept as FILE.1, FILE.2, …, after the last one that is there. So is the
    log itself once it has `max_bytes`, by the look that each flush takes: it goes on in a new file,
    whose header says how many events came before.

    Raises EventLogError if the path cannot be written. A full disk, now or later, is another
    matter: it ends the log with a message, and serving goes on without it.
    """

    def __init__(self, path: Path, clock: Clock, max_bytes: int | None = None) -> None:
        self.path = path
        self.is_lost = False
        """Whether it ended because it could not be written."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._header: dict[str, object] = {}
        self._num_events = 0
        self._file: TextIO | None = None
        self._writer: EventLogWriter | None = None
        self._lock = Lock()
        self._last_flush_ns = clock.now_ns()
        try:
            self._file = _opened(path)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise EventLogError(
                    f"cannot write the event log {path} ({error.strerror}): check --event-log"
                ) from error
            self._give_up(error)

    def begin(self, header: dict[str, object]) -> None:
        """Write the first line; before that, nothing else is written."""
        if self._file is None:
            return
        self._header = header
        try:
            self._begin_file(self._file)
        except OSError as error:
            self._give_up(error)

    def write(self, events: Sequence[Event], *, is_idle: bool) -> None:
        """Append events. `is_idle`: nothing will follow soon, so nothing may stay in memory."""
        with self._lock:
            if self._writer is None:
                return
            try:
                self._writer.write(events)
                self._num_events += len(events)
                now_ns = self._clock.now_ns()
                if is_idle or now_ns - self._last_flush_ns >= FLUSH_INTERVAL_NS:
                    self._writer.flush()
                    self._last_flush_ns = now_ns
                    self._go_on_in_a_new_file()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Write what is left; what comes afterwards is passed over."""
        with self._lock:
            try:
                if self._writer is not None:
                    self._writer.flush()
                if self._file is not None:
                    self._file.close()
            except OSError as error:
                self._give_up(error)
            self._writer = self._file = None

    def _begin_file(self, file: TextIO) -> None:
        before = {"dropped": self._num_events} if self._num_events else {}
        self._writer = EventLogWriter(file, self._header | before)
        self._writer.flush()

    def _go_on_in_a_new_file(self) -> None:
        """Do so if this one is long enough; all of it has been written."""
        if self._max_bytes is None or self._file is None:
            return
        if os.fstat(self._file.fileno()).st_size < self._max_bytes:
            return
        self._file.close()
        self._file = _opened(self.path)
        self._begin_file(self._file)

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        self.is_lost = True
        logger.error(
            "the event log %s cannot be written any more (%s): it ends here, serving goes on",
            self.path,
            error.strerror,
        )
        file, self._file = self._file, None
        # Closing tries to write what is still in memory, which was reported lost above.
        with suppress(OSError):
            if file is not None:
                file.close()


def _opened(path: Path) -> TextIO:
    """Make a new file; what was there is kept."""
    _keep_older(path)
    # A model's name may hold bytes that are no UTF-8; escaped so, it is still JSON.
    return path.open("w", encoding="utf-8", errors="backslashreplace", buffering=BUFFER_BYTES)


def _keep_older(path: Path) -> None:
    if not path.exists() or not path.is_file() or path.stat().st_size == 0:
        return
    path.rename(path.with_name(f"{path.name}.{_last_number(path) + 1}"))


def _last_number(path: Path) -> int:
    """Give N of the last FILE.N; 0 if there is none. One look at the folder: who keeps a year of
    small files has thousands, and whoever deletes the oldest leaves a gap before the others."""
    numbered = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,8})")
    with os.scandir(path.parent) as entries:
        found = [numbered.fullmatch(entry.name) for entry in entries]
    return max((int(one[1]) for one in found if one is not None), default=0)
