"""Step times from measured kernels: points, lines between them, a ragged grid, broken tables."""

import json
from pathlib import Path

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.costs.kernel_tables import KernelTableStepTime
from everbatch.costs.work import StepWork
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.scenario import parse_scenario

DENSE = {
    "embedding": {1: 1, 4: 4, 8: 8},
    "layernorm": {1: 2, 4: 2, 8: 6},
    "qkv_proj": {1: 100, 4: 100, 8: 300},
    "final_layernorm": {1: 1, 4: 1, 8: 1},
}
PER_SEQUENCE = {"lm_head": {1: 50, 2: 60}, "sampler": {1: 5, 2: 6}}
# chunk, cached, decodes, context: a chunk of 8 was not measured with decodes at 200.
ATTENTION = {
    (0, 0, 1, 100): 10,
    (0, 0, 1, 200): 18,
    (0, 0, 3, 100): 20,
    (0, 0, 3, 200): 40,
    (4, 0, 0, 0): 30,
    (4, 16, 0, 0): 50,
    (4, 0, 1, 100): 70,
    (8, 0, 0, 0): 90,
    (8, 0, 1, 100): 110,
}


def layers(table: dict[str, dict[int, int]], by: str) -> str:
    rows = [f"{name},{count},{us}" for name, part in table.items() for count, us in part.items()]
    return "\n".join([f"layer,{by},time_us", *rows])


def attention() -> str:
    rows = [",".join(map(str, (*shape, us))) for shape, us in ATTENTION.items()]
    return "\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows])


@pytest.fixture
def prefix(tmp_path) -> Path:
    (tmp_path / "gpu_v1.0_dense.csv").write_text(layers(DENSE, "tokens"))
    (tmp_path / "gpu_v1.0_per_sequence.csv").write_text(layers(PER_SEQUENCE, "sequences"))
    (tmp_path / "gpu_v1.0_attention.csv").write_text(attention())
    return tmp_path / "gpu_v1.0"


def decodes(count: int, context: int, num_logits: int = 0) -> StepWork:
    return StepWork(count, decode_context=count * context, num_logits=num_logits)


def prompts(*chunks: tuple[int, int]) -> StepWork:
    work = StepWork()
    for start, count in chunks:
        work.add_chunk(start, count)
    return work


def us(prefix: Path, work: StepWork, **fixed: float) -> float:
    return KernelTableStepTime(prefix, 2, **fixed).duration_ns(work) / 1000


def test_a_measured_step_is_the_sum_of_its_kernels(prefix):
    # Two layers of two norms, a projection and attention; embedding and last norm; head, sampler.
    assert us(prefix, decodes(1, 100, 1)) == 2 * (2 * 2 + 100 + 10) + (1 + 1) + (50 + 5)


def test_between_measured_points_lies_a_line(prefix):
    # Attention of 2 decodes at 150 lies amid four points; 2 tokens a third of the way from 1 to 4.
    assert us(prefix, decodes(2, 150)) == 2 * (4 + 100 + (10 + 18 + 20 + 40) / 4) + 2 + 1
    # 6 tokens lie halfway up the jump from 4 to 8.
    assert us(prefix, prompts((0, 6))) == 2 * (2 * 4 + 200 + 60) + 6 + 1


def test_logits_are_paid_only_where_rows_sample(prefix):
    with_logits, without = (us(prefix, decodes(1, 100, count)) for count in (2, 0))

    assert with_logits - without == 66


def test_a_prompt_meets_what_is_cached(prefix):
    # Halfway between nothing and 16 cached tokens.
    assert us(prefix, prompts((8, 4))) == 2 * (4 + 100 + 40) + 4 + 1


def test_prompts_with_decodes_are_measured_together(prefix):
    work = decodes(1, 100)
    work.add_chunk(0, 4)

    attention_us = 70
    tokens = 2 * (2 * 3 + 150) + 5 + 1
    assert us(prefix, work) == tokens + 2 * attention_us


def test_further_prompts_of_a_step_come_on_top(prefix):
    # 8 tokens of two prompts: attention twice that of 4, the other layers once that of 8.
    assert us(prefix, prompts((0, 4), (0, 4))) == 2 * (2 * 6 + 300 + 2 * 30) + 8 + 1


def test_past_its_end_a_ragged_grid_goes_on_in_proportion(prefix):
    work = decodes(1, 200)
    work.add_chunk(0, 8)

    # 110 at a context of 100, the last that was measured there; 9 tokens are 9/8 of 8.
    assert us(prefix, work) == pytest.approx(9 / 8 * (2 * (2 * 6 + 300) + 9) + 2 * 220, abs=1e-3)


def test_the_fixed_parts_are_of_steps_with_and_without_a_prompt(prefix):
    fixed = {"decode_step_s": 3e-6, "prompt_step_s": -7e-6}

    assert us(prefix, decodes(1, 100), **fixed) - us(prefix, decodes(1, 100)) == 3
    assert us(prefix, prompts((0, 4)), **fixed) - us(prefix, prompts((0, 4))) == -7


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("dense", None, "cannot read the table"),
        ("dense", "layer,tokens\na,1", "lacks time_us: it needs layer, tokens, time_us"),
        ("per_sequence", "layer,sequences,time_us\n", "lacks rows"),
        ("per_sequence", "", "lacks layer, sequences, time_us: it needs"),
        ("dense", "layer,tokens,time_us\na,1,3", 'has the layers "a": it needs some of embedding'),
        ("dense", "layer,tokens,time_us\nembedding,1,3", 'has the layers "embedding": it needs'),
        ("dense", "layer,tokens,time_us\na,1,fast", 'line 2: time_us is "fast"'),
        ("dense", "layer,tokens,time_us\na,1,3\na,-2,3", 'line 3: tokens is "-2"'),
        ("dense", "layer,tokens,time_us\na,1", "line 2: it ends before time_us"),
        ("attention", "prefill_chunk\n1", "lacks kv_prefill, n_decode, kv_decode, time_us"),
    ],
)
def test_a_broken_table_is_refused_by_line(prefix, kind, text, told):
    path = prefix.with_name(f"{prefix.name}_{kind}.csv")
    path.unlink()
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError) as error:
        KernelTableStepTime(prefix, 2)

    assert told in str(error.value)
    assert str(path) in str(error.value)


def test_a_run_takes_measured_kernels_in_place_of_its_clock(prefix):
    tables = {**json.loads(scenario_text()), "clock": {"kind": "nominal"}}
    scenario = parse_scenario(json.dumps(tables), "given", "given")

    summary = simulate(scenario, options=RunOptions(KernelTableStepTime(prefix, 2)))

    # A prompt of 4, then two decodes, which read less than was measured; one row each that samples.
    prompt = 2 * (2 * 2 + 100 + 30) + (4 + 1) + (50 + 5)
    decode = 2 * (2 * 2 + 100 + 10) + (1 + 1) + (50 + 5)
    assert summary["duration_s"] == pytest.approx((prompt + 2 * decode) / 1e6)
