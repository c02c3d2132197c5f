"""The floor of a step, against numbers worked out by hand."""

import pytest
from floor import Ceilings, decode_work, floor_seconds, phases

from everbatch.costs.work import StepWork
from everbatch.kernels.weights import NetworkShape

SMALL = NetworkShape(
    num_layers=2,
    hidden_size=10,
    intermediate_size=30,
    vocab_size=100,
    num_heads=4,
    num_kv_heads=2,
    head_dim=5,
    rms_norm_eps=1e-5,
)
SMOLLM2 = NetworkShape(30, 576, 1536, 49_152, 9, 3, 64, 1e-5)


def test_phases_of_a_decode_step():
    # Two requests with 7 tokens each. q is 20 wide, k and v 10 each.
    found = {part.name: (part.num_bytes, part.flops) for part in phases(SMALL, decode_work(2, 7))}

    assert found == {
        "qkv": (2 * 10 * 40 * 2, 2 * 2 * 10 * 40 * 2),
        "output": (2 * 20 * 10 * 2, 2 * 2 * 20 * 10 * 2),
        "gate and up": (2 * 2 * 10 * 30 * 2, 2 * 2 * 2 * 10 * 30 * 2),
        "down": (2 * 30 * 10 * 2, 2 * 2 * 30 * 10 * 2),
        # 14 tokens, 2 layers, keys and values of 10 values of 2 bytes; 20 wide queries.
        "attention of decodes": (14 * 2 * 2 * 10 * 2, 4 * 14 * 20 * 2),
        "attention of chunks": (0, 0),
        "head": (2 * 10 * 100, 2 * 2 * 10 * 100),
    }


def test_a_chunk_reads_its_context_once_and_multiplies_each_pair():
    work = StepWork()
    work.add_chunk(start=6, count=4)
    found = {part.name: part for part in phases(SMALL, work)}

    # Pairs: 4 * 6 before it, 1 + 2 + 3 + 4 within it.
    assert found["attention of chunks"].flops == 4 * 34 * 20 * 2
    assert found["attention of chunks"].num_bytes == 10 * 2 * 2 * 10 * 2
    assert found["head"].num_bytes == 0
    assert found["head"].flops == 0
    assert found["qkv"].flops == 2 * 4 * 10 * 40 * 2


def test_each_phase_takes_the_larger_of_its_two_times():
    # 800 bytes and 1,600 FLOPs a microsecond: at one row the bytes count, at 64 the FLOPs.
    ceilings = Ceilings(read_gb_per_s=0.8, matrix_gflop_per_s=1.6)
    one = next(part for part in phases(SMALL, decode_work(1, 1)) if part.name == "qkv")
    many = next(part for part in phases(SMALL, decode_work(64, 1)) if part.name == "qkv")

    assert one.seconds(ceilings) == pytest.approx(2e-6)
    assert many.seconds(ceilings) == pytest.approx(64e-6)


def test_one_decode_of_smollm2_reads_its_weights_and_its_context():
    # 134,479,872 weights in products and a context of 160 in 30 layers with 3 heads of 64.
    num_bytes = 2 * 134_479_872 + 160 * 30 * 2 * 3 * 64 * 2
    ceilings = Ceilings(read_gb_per_s=32.0, matrix_gflop_per_s=427.0)

    found = floor_seconds(SMOLLM2, decode_work(1, 160), ceilings)

    assert found == pytest.approx(num_bytes / 32e9)
    assert found == pytest.approx(8.52e-3, rel=1e-3)


def test_64_decodes_of_smollm2_multiply_and_read_their_contexts():
    ceilings = Ceilings(read_gb_per_s=32.0, matrix_gflop_per_s=427.0)

    found = floor_seconds(SMOLLM2, decode_work(64, 160), ceilings)

    assert found == pytest.approx(
        64 * 2 * 134_479_872 / 427e9 + 64 * 160 * 30 * 2 * 3 * 64 * 2 / 32e9
    )
