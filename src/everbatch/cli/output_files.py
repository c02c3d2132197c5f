"""Files that a command writes: whole or not at all.

Each is written beside its place under another name and moved there at the end; if the command
fails, what stood there before stays. A path that is no regular file (/dev/stdout, a pipe) is
written directly.
"""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from everbatch.base.errors import ConfigError, EverbatchError
from everbatch.base.paths import exists, is_file

BUFFER_BYTES = 1 << 20

_Entry = tuple[TextIO, Path, Path | None]
"""An open file, its place, and where it is written until it is moved there."""


class OutputFiles:
    """A set of files to which `commit` gives their names, all or none.

    As a context: what was not committed is removed at the end. A disk that is full, or a path that
    cannot be written, is an error of one line.
    """

    def __init__(self) -> None:
        self._open: list[_Entry] = []

    def __enter__(self) -> "OutputFiles":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._discard()
        if isinstance(error, OSError) and error.filename is None and self._open:
            names = ", ".join(str(path) for _, path, _ in self._open)
            raise EverbatchError(f"cannot write {names} ({error.strerror})") from error

    def open(self, path: Path | None, option: str) -> TextIO | None:
        """Open a file to write, or give None for no path; `option` is named in errors."""
        if path is None:
            return None
        is_direct = exists(path) and not is_file(path)
        # What /dev/stdout leads to may be a pipe, which has no name that can be opened.
        place = path.absolute() if is_direct else Path(os.path.realpath(path))
        if any(place == other for _, other, _ in self._open):
            raise ConfigError(f"{option} {path}: another option writes this file already")
        aside = None
        if not is_direct:
            aside = place.with_name(f".{place.name}.{os.getpid()}.partial")
        try:
            file = (aside or place).open("w", encoding="utf-8", buffering=BUFFER_BYTES)
        except OSError as error:
            raise ConfigError(f"{option} {path} cannot be written ({error.strerror})") from error
        self._open.append((file, place, aside))
        return file

    def drop(self, file: TextIO) -> None:
        """Write a file after all not; the path stays as it was."""
        for entry in self._open:
            if entry[0] is file:
                self._open.remove(entry)
                _remove(entry)
                return

    def commit(self) -> None:
        """Put all files in their places."""
        for file, _, _ in self._open:
            file.close()
        for _, place, aside in self._open:
            if aside is not None:
                os.replace(aside, place)
        self._open.clear()

    def _discard(self) -> None:
        for entry in self._open:
            _remove(entry)


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by whatever names; False where one of them is none."""
    return exists(one) and exists(other) and one.samefile(other)


def _remove(entry: _Entry) -> None:
    file, _, aside = entry
    # What is still in memory may not fit the disk; it is thrown away in any case.
    with suppress(OSError):
        file.close()
    if aside is not None:
        aside.unlink(missing_ok=True)
