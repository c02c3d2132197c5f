"""Two pieces of a file that share a byte are found, wherever they stand."""

import pytest

from everbatch.base.spans import first_overlap


@pytest.mark.parametrize(
    ("spans", "found"),
    [
        ([], None),
        ([(0, 4, "a")], None),
        ([(4, 4, "b"), (0, 4, "a")], None),
        ([(4, 4, "b"), (0, 5, "a")], ("a", "b")),
        ([(0, 4, "b"), (0, 4, "a")], ("a", "b")),
        ([(8, 2, "c"), (0, 4, "a"), (3, 1, "b")], ("a", "b")),
        ([(0, 0, "empty"), (0, 4, "a")], None),
    ],
)
def test_first_two_that_overlap_are_named(
    spans: list[tuple[int, int, str]], found: tuple[str, str] | None
) -> None:
    assert first_overlap(spans) == found
