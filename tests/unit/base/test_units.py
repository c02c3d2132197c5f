"""Conversions, clocks and checks that everybody uses."""

import pytest

from everbatch.base.clock import VirtualClock
from everbatch.base.errors import EverbatchError, InvariantViolation
from everbatch.base.invariant import check
from everbatch.base.units import div_ceil, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("value", "divisor", "expected"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (8, 1, 8)]
)
def test_division_rounds_up(value, divisor, expected):
    assert div_ceil(value, divisor) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000000", 1_000_000),
        ("512MiB", 512 << 20),
        ("2 GB", 2_000_000_000),
        ("1.5kib", 1536),
        (" 3 k ", 3_000),
        ("0", 0),
    ],
)
def test_sizes_are_read_in_both_kinds_of_units(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 TiB", "1..5MB", "1e9", "12 parsecs"])
def test_what_is_no_size_is_told_with_what_is(text):
    with pytest.raises(ValueError, match="is not a size: write a number with B, KB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1152921504.7GB", "9" * 400, "9" * 5_000 + "KiB"])
def test_size_that_nothing_has_is_told_with_the_limit(text):
    with pytest.raises(ValueError, match=r"is more than 1,073,741,824.0 GiB: write a smaller"):
        parse_bytes(text)


def test_largest_size_is_read():
    assert parse_bytes("1073741824GiB") == 1 << 60


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (98_356_429, "93.8 MiB"),
        (3 << 40, "3,072.0 GiB"),
    ],
)
def test_sizes_are_written_for_people(count, expected):
    assert format_bytes(count) == expected


def test_a_virtual_clock_moves_when_told_to():
    clock = VirtualClock(5)
    clock.advance(0)
    clock.advance(7)

    assert clock.now_ns() == 12


def test_a_virtual_clock_does_not_run_backwards():
    with pytest.raises(AssertionError):
        VirtualClock().advance(-1)


def test_a_belief_that_fails_carries_the_facts():
    check(True, "fine", blocks=1)
    with pytest.raises(InvariantViolation, match=r"blocks are lost \(free=1, id='a'\)") as caught:
        check(False, "blocks are lost", free=1, id="a")

    assert caught.value.facts == {"free": 1, "id": "a"}
    assert isinstance(caught.value, EverbatchError)
