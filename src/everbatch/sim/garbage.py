"""Fewer searches for garbage while a run goes by.

A run makes millions of records, most of which are gone at once by counting references, and keeps
hundreds of thousands; each search walks through all that are kept. It took a tenth of a long run.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = (200_000, 20, 100)
"""New objects before a search of the youngest, and how many of those before one of older ones."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Search rarely inside; what the process had set holds again afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
