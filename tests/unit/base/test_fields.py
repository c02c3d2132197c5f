"""Values as they stand in messages."""

import json

import pytest

from everbatch.base.fields import MAX_SHOWN_CHARACTERS, MAX_SHOWN_ITEMS, shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, "a", None, True], '[1, "a", null, true]'),
        ([0] * MAX_SHOWN_ITEMS, f"[{', '.join(['0'] * MAX_SHOWN_ITEMS)}]"[:MAX_SHOWN_CHARACTERS]),
        ([], "[]"),
    ],
)
def test_a_list_is_shown_as_files_write_it(value, expected):
    assert shown(value).rstrip("…") == expected


@pytest.mark.parametrize("depth", [1, 30, 61, 300, 700])
def test_a_value_is_shown_however_deep_it_is(depth):
    value = json.loads("[" * depth + "]" * depth)

    assert shown(value) in (
        "[" * depth + "]" * depth,
        ("[" * depth + "]" * depth)[:MAX_SHOWN_CHARACTERS] + "…",
    )


def test_what_is_too_deep_to_be_shown_is_said_to_be():
    value: dict = {}
    for _ in range(100_000):
        value = {"a": value}

    assert shown(value) == "a value that is nested too deeply"
