"""Pieces of a file: whether two of them overlap. Used by the readers of weight files."""

from collections.abc import Iterable
from itertools import pairwise


def first_overlap(spans: Iterable[tuple[int, int, str]]) -> tuple[str, str] | None:
    """Give the names of two spans (offset, size, name) that share a byte, in the file's order.

    None if no two do. O(n log n).
    """
    for (offset, size, name), (next_offset, _, next_name) in pairwise(sorted(spans)):
        if offset + size > next_offset:
            return name, next_name
    return None
