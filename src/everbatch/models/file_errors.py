"""Turns what the operating system says about a model's files into a ModelLoadError.

Called by whoever opens such a file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everbatch.base.errors import ModelLoadError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise an OSError of the block as a ModelLoadError that names the file it was about."""
    try:
        yield
    except OSError as error:
        named = error.filename or path
        raise ModelLoadError(f"{named}: cannot be read: {error.strerror or error}") from error
