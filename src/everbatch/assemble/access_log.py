"""The access log as a file, or on standard error.

Belongs here: opening, writing, and what happens when the disk is full. Not here: what a line says
(server.access_log). Called on the event loop, once a request.
"""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from everbatch.base.errors import ConfigError

logger = logging.getLogger("everbatch.access_log")

STANDARD_ERROR = "-"


class AccessLogFile:
    """Appends lines to a file ("-": standard error). Each is handed to the system at once.

    A file that is there goes on, so that a rotation by copying and truncating loses nothing. Raises
    ConfigError if it cannot be opened; a disk that fills up later ends the log with a message, and
    serving goes on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_lost = False
        """Whether it ended because it could not be written."""
        self._file: TextIO | None = None
        if str(path) == STANDARD_ERROR:
            self._file = sys.stderr
            return
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(
                f"cannot write the access log {path} ({error.strerror}): check --access-log"
            ) from error

    def write(self, line: str) -> None:
        """Append a line."""
        if self._file is None:
            return
        try:
            self._file.write(line + "\n")
        except OSError as error:
            file, self._file = self._file, None
            self.is_lost = True
            logger.error(
                "the access log %s cannot be written any more (%s): it ends here, serving goes on",
                self._path,
                error.strerror,
            )
            _close(file)

    def close(self) -> None:
        """End the log; what comes afterwards is passed over."""
        file, self._file = self._file, None
        if file is not None:
            _close(file)


def _close(file: TextIO) -> None:
    # Closing tries once more to write what could not be written.
    with suppress(OSError):
        if file is not sys.stderr:
            file.close()
