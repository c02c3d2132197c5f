"""What share of the floor a decode step reaches."""

import bench_floor
import pytest
from ceilings import CeilingProbe
from floor import Ceilings, decode_work, floor_seconds

from everbatch.kernels.weights import NetworkShape

SMOLLM2 = NetworkShape(30, 576, 1536, 49_152, 9, 3, 64, 1e-5)
CEILINGS = Ceilings(32.0, 427.0)


def test_a_share_is_the_floors_time_by_the_steps():
    # Of 32 prompts of 128 tokens the last is done in the 8th step, so 72 outputs each.
    floor_s = floor_seconds(SMOLLM2, decode_work(32, 128 + 36), CEILINGS)

    row = bench_floor.row(SMOLLM2, 32, 128, 2 * floor_s, CEILINGS)

    assert row["context"] == 164
    assert row["share"] == pytest.approx(0.5)
    assert sum(row["parts_s"].values()) == pytest.approx(floor_s)


def test_a_share_below_the_promise_is_told():
    rows = [{"batch": batch, "share": 0.7} for batch in (1, 8, 16, 32, 64)]

    assert bench_floor.shortfalls({"rows": rows}) == [
        "batch 1: 70.0% of the floor is below 75%",
        "batch 64: 70.0% of the floor is below 75%",
    ]


def test_ceilings_are_medians_and_the_faster_products():
    pytest.importorskip("everbatch.kernels._native", reason="the native kernels were not built")

    probe = CeilingProbe(1)
    probe.reads[:] = [31.0, 45.0, 32.0]
    probe.matrices.update(native=[400.0, 390.0, 420.0], torch=[410.0, 430.0, 90.0])

    assert probe.ceilings() == Ceilings(32.0, 410.0)
