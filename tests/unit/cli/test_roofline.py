"""`everbatch roofline`: the nominal figures, every term, what is known, what is refused."""

import json

import pytest
from command_line import everbatch
from models.weight_builders import config_json

from everbatch.cli.roofline_view import flop, milliseconds, si

NOMINAL = ("roofline", "--nominal", "--model", "nominal-8b", "--hardware", "h100-sxm")
SIZES = (
    *("--num-params", "8e9", "--num-layers", "32", "--num-kv-heads", "8", "--head-dim", "128"),
    *("--bytes-per-value", "2", "--flops", "989T", "--memory-bandwidth", "3.35T"),
)


def answer(*arguments: str) -> str:
    ran = everbatch(*arguments)
    assert (ran.status, ran.err) == (0, "")
    return ran.out


def facts(*arguments: str) -> dict:
    return json.loads(answer(*arguments, "--json"))


def row(text: str, start: str) -> list[str]:
    """The line that begins with `start`, in columns, without it."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{start}  ")]
    return [cell.strip() for cell in line.removeprefix(start).split("  ") if cell.strip()]


def test_the_nominal_figures_of_a_round_model_on_an_h100():
    text = answer(*NOMINAL, "--prefill", "512", "--decode", "3")

    assert row(text, "weights")[0] == "16.0 GB"
    assert row(text, "KV cache")[0] == "131,072 B/token"
    assert row(text, "linear work") == ["16 GFLOP/token"]
    decode = ["3", "48 GFLOP", "0.049 ms", "4.78 ms", "4.78 ms", "memory-limited"]
    assert row(text, "3 decodes") == decode
    mixed = ["515", "8.24 TFLOP", "8.33 ms", "4.78 ms", "8.33 ms", "compute-limited"]
    assert row(text, "512 of prompt + 3 decodes") == mixed


def test_the_nominal_model_says_of_all_other_terms_that_they_are_left_out():
    text = answer(*NOMINAL, "--swapped-blocks", "9")

    assert (
        "Left out: attention, KV reads and writes, copied and swapped blocks, other devices" in text
    )


def test_the_same_figures_come_of_sizes_given_one_by_one():
    by_name = facts(*NOMINAL, "--prefill", "512", "--decode", "3")
    by_size = facts("roofline", "--nominal", *SIZES, "--prefill", "512", "--decode", "3")

    assert by_size["steps"] == by_name["steps"]
    decode, mixed = by_name["steps"]
    assert by_name["model"]["weight_bytes"] == 16.0e9
    assert by_name["model"]["kv_bytes_per_token"] == 131_072
    assert by_name["model"]["flops_per_token"] == 16e9
    assert (decode["tokens"], decode["flops"], decode["bound"]) == (3, 48e9, "memory")
    assert (mixed["tokens"], mixed["flops"], mixed["bound"]) == (515, 8.24e12, "compute")
    assert decode["duration_s"] == pytest.approx(16e9 / 3.35e12, abs=1e-9)
    assert mixed["duration_s"] == pytest.approx(8.24e12 / 989e12, abs=1e-9)


def test_a_size_beside_a_name_replaces_it():
    told = facts(*NOMINAL, "--memory-bandwidth", "1.6e12")

    assert told["steps"][0]["duration_s"] == 0.01


def test_every_term_has_its_line_and_says_what_the_nominal_model_leaves_out():
    arguments = ("--model", "llama-3.1-8b", "--hardware", "h100-sxm", "--prefill", "512")
    text = answer("roofline", *arguments, "--swapped-blocks", "4")

    counted = ("weights", "logits")
    left_out = (
        *("attention, decodes", "attention, prompts", "KV writes", "all-reduce"),
        *("block copies", "swapping", "host"),
    )
    tables = text.partition("nominal model")[2]
    assert {term: row(tables, term)[-1] for term in counted} == dict.fromkeys(counted, "counts it")
    told = {term: row(tables, term)[-1] for term in left_out}
    assert told == dict.fromkeys(left_out, "leaves it out")
    assert row(tables, "swapping")[-2] == "pcie"


def test_the_terms_of_the_full_model_add_up():
    arguments = ("--model", "qwen3-32b", "--hardware", "h200-sxm", "--tensor-parallel-size", "2")
    told = facts("roofline", *arguments, "--decode", "8", "--context", "4096", "--prefill", "100")

    for step in told["steps"]:
        total_s = sum(term["seconds"] for term in step["terms"])
        assert step["duration_s"] == pytest.approx(total_s, abs=1e-9)
    assert told["steps"][0]["work"]["decode_context"] == 8 * 4096


def test_one_decode_is_asked_about_unless_said_otherwise():
    names = [
        [step["name"] for step in facts(*NOMINAL, *arguments)["steps"]]
        for arguments in ((), ("--prefill", "5", "--prefill", "7"), ("--decode", "1000"))
    ]

    assert names == [["1 decode"], ["5 + 7 of prompt"], ["1,000 decodes"]]


def test_prompts_begin_where_their_cache_ends():
    told = facts(*NOMINAL, "--prefill", "4", "--prefill-start", "10")

    assert told["steps"][0]["work"]["prefill_pairs"] == 11 + 12 + 13 + 14


def test_weights_that_do_not_fit_are_told():
    arguments = ("--model", "llama-3.1-70b", "--hardware", "h100-sxm")

    assert "the weights do not fit 85.9 GB" in answer("roofline", *arguments)
    shared = answer("roofline", *arguments, "--tensor-parallel-size", "4")
    # Four devices of 80 GiB, less the weights.
    assert "at most 617,950 tokens beside the weights" in shared


def test_a_config_json_and_a_device_of_one_s_own_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_json()))
    (tmp_path / "mine.toml").write_text("flops = 1e12\nmemory_bandwidth = 1e9")
    paths = ("--model", str(tmp_path), "--hardware", str(tmp_path / "mine.toml"))

    told = facts("roofline", "--nominal", *paths)

    assert told["hardware"]["name"] == "mine"
    assert told["steps"][0]["duration_s"] == told["model"]["weight_bytes"] / 1e9


def test_the_most_extreme_sizes_have_a_finite_time():
    sizes = {"--num-layers": "1e24", "--num-kv-heads": "1e24", "--head-dim": "1e24"}
    sizes |= {"--num-params": "1e24", "--bytes-per-value": "1e24", "--hidden-size": "1e24"}
    sizes |= {"--flops": "1e-3", "--memory-bandwidth": "1e-3", "--link-bandwidth": "1e-3"}
    sizes |= {"--memory-efficiency": "1e-3", "--num-heads": "1e24", "--host-s-per-step": "1e6"}
    most = str(1 << 40)
    flags = [word for flag in sizes.items() for word in flag]

    step = ("--decode", most, "--context", most, "--prefill", most, "--copied-blocks", most)

    told = facts("roofline", *flags, *step, "--tensor-parallel-size", "1024")

    assert all(0 < answer["duration_s"] < float("inf") for answer in told["steps"])


def test_the_list_names_models_and_devices_with_their_sources():
    text, told = answer("roofline", "--list"), facts("roofline", "--list")

    assert row(text, "llama-3.1-8b")[0] == "8,030,261,248"
    assert row(text, "h100-sxm") == ["989", "1,978", "85.9 GB", "3,350", "450", "64"]
    for part in (*told["models"], *told["hardware"]):
        assert part["source"] in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give --model, a name or a file, or its sizes one by one"),
        (("--model", "nominal-8b"), "give --hardware"),
        (("--model", "nominal-8", "--hardware", "l4"), 'did you mean "nominal-8b"?'),
        (("--model", "nominal-8b", "--hardware", "L4"), 'there is no device "L4"'),
        (("--num-params", "1e9", "--hardware", "l4"), "needs [model] bytes_per_value"),
        ((*NOMINAL[1:], "--decode", "0"), "a step has a token at least"),
        ((*NOMINAL[1:], "--flops", "0"), "'0' is no number above 0"),
        ((*NOMINAL[1:], "--flops", "1e300"), "[hardware] flops must lie in [0.001, 1e+24]"),
        ((*NOMINAL[1:], "--num-params", "1e-9"), "[model] num_params must lie in [0.001, 1e+24]"),
        ((*NOMINAL[1:], "--flops", "nan"), "'nan' is no number above 0"),
        ((*NOMINAL[1:], "--flops", "989X"), "'989X' is no number above 0"),
        (
            (*NOMINAL[1:], "--tensor-parallel-size", "8", "--host-s-per-step", "0"),
            "--nominal is without --tensor-parallel-size, --host-s-per-step: drop that",
        ),
        (
            (*NOMINAL[2:], "--memory-efficiency", "2"),
            "memory_efficiency must lie in [0.001, 1], got 2",
        ),
    ],
)
def test_what_cannot_be_estimated_is_refused_by_name(arguments, told):
    ran = everbatch("roofline", *arguments)

    assert (ran.status, ran.out) == (2, "")
    assert told in ran.err


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (si(16e9, "B"), "16.0 GB"),
        (si(999.9e6, "B"), "1.00 GB"),
        (si(12, "B"), "12 B"),
        (si(None, "B"), ""),
        (flop(48e9), "48 GFLOP"),
        (flop(8.24e12), "8.24 TFLOP"),
        (flop(989e12, "FLOP/s"), "989 TFLOP/s"),
        (flop(100e9), "100 GFLOP"),
        (milliseconds(0.00004853), "0.049 ms"),
        (milliseconds(0.004776), "4.78 ms"),
        (milliseconds(0.123456), "123 ms"),
        (milliseconds(0.0000000015), "0.0000015 ms"),
        (milliseconds(0.0), "0 ms"),
    ],
)
def test_quantities_are_written_with_the_digits_that_count(written, expected):
    assert written == expected
