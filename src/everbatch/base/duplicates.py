"""Names that must be different: which of them comes twice. Used by the readers of files."""

from collections.abc import Iterable


def first_twice(names: Iterable[str]) -> str | None:
    """Give the first name that was there before; None if all differ. O(n)."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
