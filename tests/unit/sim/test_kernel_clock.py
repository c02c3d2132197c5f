"""[clock] kind "kernels": a user's tables of measured kernels, found from the scenario's folder."""

import json

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.sim.run import simulate
from everbatch.workload.scenario import parse_scenario

TABLES = {
    "dense": "layer,tokens,time_us\nembedding,1,2\nembedding,4,2\nqkv_proj,1,10\nqkv_proj,4,40\n",
    "per_sequence": "layer,sequences,time_us\nsampler,1,5\n",
    "attention": (
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,8,3\n4,0,0,0,7\n4,0,1,8,9\n"
    ),
}


@pytest.fixture
def folder(tmp_path):
    for kind, text in TABLES.items():
        (tmp_path / f"card_{kind}.csv").write_text(text, encoding="utf-8")
    return tmp_path


def seconds(folder, clock, model) -> float:
    """What one prompt of 4 tokens and two decodes take."""
    tables = {**json.loads(scenario_text()), "clock": {"kind": "kernels", **clock}}
    if model is not None:
        tables["model"] = model
    return simulate(parse_scenario(json.dumps(tables), "given", "given", folder))["duration_s"]


def test_a_run_takes_the_tables_and_the_model_s_layers(folder):
    prompt = 2 * (40 + 7) + 2 + 5

    taken = seconds(folder, {"tables": "card"}, {"num_layers": 2})

    # Contexts of 5 and 6 are shorter than the shortest that was measured: what that took.
    decode = 2 * (10 + 3) + 2 + 5
    assert taken == pytest.approx((prompt + 2 * decode) / 1e6)


def test_the_fixed_parts_are_added_even_below_nothing(folder):
    fixed = {"tables": "card", "decode_step_s": 1e-3, "prompt_step_s": -1e-5}
    plain = seconds(folder, {"tables": "card"}, {"num_layers": 2})

    assert seconds(folder, fixed, {"num_layers": 2}) == pytest.approx(plain + 2e-3 - 1e-5)


def test_tables_that_multiply_beyond_all_floats_are_too_long_and_no_traceback(folder):
    rows = "layer,tokens,time_us\nembedding,1,1\nqkv_proj,1,1e300\n"
    (folder / "card_dense.csv").write_text(rows, encoding="utf-8")

    with pytest.raises(ConfigError, match=r"a request takes .* s, at most"):
        seconds(folder, {"tables": "card"}, {"num_layers": 1e24})


@pytest.mark.parametrize(
    ("clock", "model", "told"),
    [
        ({}, {"num_layers": 2}, "[clock] lacks tables: where the names of the three tables"),
        ({"tables": "card"}, None, '[clock] kind "kernels" needs num_layers of [model]'),
        ({"tables": "card"}, {"num_params": 1e9}, "needs num_layers of [model]"),
        ({"tables": "cart"}, {"num_layers": 2}, "cannot read the table"),
        ({"tables": "card", "file": "a"}, {"num_layers": 2}, 'file belongs to the kind "calibrat'),
        (
            {"tables": "card", "prompt_step_s": -2},
            {"num_layers": 2},
            "[clock] prompt_step_s is -2, it must be a number from -1 to 1,000",
        ),
        (
            {"tables": "card", "decode_step_s": 1001},
            {"num_layers": 2},
            "[clock] decode_step_s is 1001, it must be a number from -1 to 1,000",
        ),
    ],
)
def test_what_the_clock_lacks_is_named(folder, clock, model, told):
    with pytest.raises(ConfigError) as error:
        seconds(folder, clock, model)

    assert told in str(error.value)


def test_tables_belong_to_this_kind_alone(folder):
    tables = {**json.loads(scenario_text()), "clock": {"kind": "nominal", "tables": "card"}}

    with pytest.raises(ConfigError, match='tables belongs to the kind "kernels", the kind is "nom'):
        parse_scenario(json.dumps(tables), "given", "given", folder)
