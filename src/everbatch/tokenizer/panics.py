"""What the tokenizer library does where it believes that something cannot be: it panics.

A panic comes out of Rust as an exception that is no Exception, so that nobody catches it by
chance. Broken vocabularies reach such places, and they are the world's fault. Used by
tokenizer.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PANIC = "PanicException"
"""Of pyo3, in a module that cannot be imported."""


@contextmanager
def panics_are(make_error: Callable[[str], Exception]) -> Iterator[None]:
    """Raise a panic of the block as the error that `make_error` makes of its message."""
    try:
        yield
    except BaseException as error:  # The library's border: all else passes as it is.
        if type(error).__name__ != _PANIC:
            raise
        raise make_error(str(error)) from error
