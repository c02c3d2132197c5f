"""The same as `python -m load.growth`, for some rounds."""

import ctypes
from itertools import islice
from pathlib import Path

import pytest
from load.growth import GROWTH, NUM_WARM, Course, made_llm, rounds

pytest.importorskip("everbatch.kernels._native", reason="the native kernels were not built")
pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="counts the heap as glibc does"
)


@pytest.mark.full
def test_an_engine_holds_no_more_after_more_traffic(tmp_path: Path) -> None:
    llm, course = made_llm(tmp_path), Course()
    for num_tokens in islice(rounds(llm), NUM_WARM + 9):
        assert num_tokens > 10_000
        course.look()

    assert llm.real.engine.stats().num_preemptions > 100
    # After so few rounds some caches are still filling.
    assert all(share < 2 * GROWTH for share in course.growth().values()), course.growth()


@pytest.mark.parametrize(("kept", "is_flat"), [(0, True), (5_000, False)])
def test_what_a_round_leaves_behind_is_seen(kept: int, is_flat: bool) -> None:
    course, left = Course(), []
    for _ in range(NUM_WARM + 9):
        left.append([object() for _ in range(kept)])
        course.look()

    assert (course.growth()["blocks of Python"] < GROWTH) == is_flat
