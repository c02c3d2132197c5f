"""What a fuzz target is: a reader of foreign bytes, and which errors it may raise.

Anything else that comes out of a reader is a finding, and so is one that takes long or much memory.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Target:
    """`read` takes any bytes at all; `seeds` are some that it reads without an error.

    declared: the errors that say what is wrong with the bytes; words: what such inputs are made of.
    """

    name: str
    read: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    words: tuple[bytes, ...] = ()

    def check(self, data: bytes) -> bool:
        """Read `data`; gives whether it was read. An error that is not declared comes out."""
        try:
            self.read(data)
        except self.declared:
            return False
        return True


def scratch_folder() -> Path:
    """Make a folder in memory, where there is such a place: a target writes thousands of files.

    It goes when the process ends.
    """
    shared = "/dev/shm"
    place = shared if os.path.isdir(shared) else None
    folder = Path(tempfile.mkdtemp(prefix="everbatch-fuzz-", dir=place))
    weakref.finalize(scratch_folder, shutil.rmtree, folder, ignore_errors=True)
    return folder


SEPARATOR = b"\n=====\n"
"""Between the files of an input that stands for several."""


def write_parts(folder: Path, names: Iterable[str], data: bytes) -> None:
    """Write the files that an input stands for, in order; those that it lacks are removed."""
    parts = data.split(SEPARATOR)
    for number, name in enumerate(names):
        path = folder / name
        if number < len(parts):
            path.write_bytes(parts[number])
        else:
            path.unlink(missing_ok=True)
